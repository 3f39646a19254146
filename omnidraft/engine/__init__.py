"""How a model runs: the loader, the NumPy engine, its backward pass, transformers behind it."""
