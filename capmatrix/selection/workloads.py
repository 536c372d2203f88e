"""Workload profiles by name: those of the matrix files that ship, and of a file that is named."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .. import matrix, paths
from ..errors import InputError
from ..grid import Workload


def shipped() -> dict[str, Workload]:
    """The profiles of every shipped matrix file. A name that two files give differently is an InputError."""
    found: dict[str, Workload] = {}
    for path in sorted(paths.matrices_dir().glob("*.toml")):
        if "[workload." not in path.read_text(encoding="utf-8"):
            continue
        for name, workload in matrix.load(path).workloads.items():
            if found.setdefault(name, workload) != workload:
                raise InputError("two shipped files have different workloads of this name", file=path, value=name)
    return found


def choose(name: str) -> tuple[str, Mapping[str, Workload]]:
    """The profile asked for (``NAME``, ``FILE.toml:NAME``, or nothing) and all that are known.

    Raises InputError where there is none of that name.
    """
    known = shipped()
    file, _, wanted = name.rpartition(":")
    if file:
        known |= matrix.load(Path(file)).workloads
    if wanted and wanted not in known:
        raise InputError("no such workload profile", key="--workload", value=wanted, allowed=known)
    return wanted, known
