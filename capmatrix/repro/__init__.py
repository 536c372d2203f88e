"""Reproductions and bug reports: text made from a record, for people who have vLLM and PyTorch and not capmatrix."""
