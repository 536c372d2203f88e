"""Where the project's data files are: matrices, drafter families and their schema.

A checkout keeps them in ``matrices/`` beside the package; a wheel carries a copy inside the package.
"""

from __future__ import annotations

from pathlib import Path

from .errors import InputError

_PACKAGE = Path(__file__).resolve().parent

#: The shipped matrix that is run where none is named.
DEFAULT_MATRIX = "eagle3-llama"


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


def matrix_path(name: str | None) -> Path:
    """A matrix file: the path given, or a shipped one by its name. InputError where there is neither."""
    given = name or DEFAULT_MATRIX
    path = Path(given)
    if path.is_file():
        return path
    directory = matrices_dir()
    shipped = sorted(directory.glob("*.toml"))
    for file in shipped:
        if given in (file.name, file.stem):
            here = Path.cwd()
            return file.relative_to(here) if file.is_relative_to(here) else file
    raise InputError(
        "no such matrix file, and none of that name is shipped",
        key="FILE",
        value=given,
        allowed=[f.stem for f in shipped],
    )
