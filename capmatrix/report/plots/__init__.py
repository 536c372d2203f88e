"""Plots of runs and published results as SVG, made by Python's own library alone."""

from .figure import Figure, standalone
from .figures import figures

__all__ = ["Figure", "figures", "standalone"]
