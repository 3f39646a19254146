"""The experiments of arXiv 2507.02659: alignment, adaptive drafting, shifts, and the paper's model shapes."""
