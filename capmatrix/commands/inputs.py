"""Run files that a command is given: read, with what is wrong with one told on standard error."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import printable

if TYPE_CHECKING:
    from ..store import Run


def read(path: str) -> Run:
    """The run of a file; its problems go to standard error."""
    from .. import store

    run = store.read(path)
    for problem in run.problems:
        print(f"capmatrix: {printable(path)}: {problem}", file=sys.stderr)
    return run


def stem(path: str) -> str:
    """A run file's name without the suffixes that run files have."""
    return Path(path).name.removesuffix(".gz").removesuffix(".jsonl")
