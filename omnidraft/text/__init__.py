"""What the method stands on: tokenizers, special tokens, files, and the one error for bad input."""
