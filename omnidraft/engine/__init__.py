"""How a model runs: loading, configuration, the NumPy engine and its backward pass, transformers' models."""
