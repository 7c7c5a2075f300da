"""Claims of the paper."""
