"""Where the project's data files are: matrices, drafter families and their schema.

A checkout keeps them in ``matrices/`` beside the package; a wheel carries a copy inside the package.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def matrices_dir() -> Path:
    """The directory of the shipped matrix files.

    In a checkout (an editable install is one) that is the repository's own ``matrices/``, so that an edit counts at
    once; the package's parent then holds ``pyproject.toml``, which no site-packages does. Else it is the wheel's copy.
    """
    checkout = _PACKAGE.parent
    if (checkout / "pyproject.toml").is_file() and (checkout / "matrices").is_dir():
        return checkout / "matrices"
    return _PACKAGE / "_matrices"


def drafters_dir() -> Path:
    """The directory of the shipped drafter families, one TOML file a family."""
    return matrices_dir() / "drafters"
