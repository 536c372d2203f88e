"""Seeded faults: real kernels broken on purpose, each with a float64 model of what the fault does."""
