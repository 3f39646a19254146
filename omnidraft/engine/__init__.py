"""How a model runs: the loader, the NumPy engine, transformers behind it."""
