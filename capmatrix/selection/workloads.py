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


def choose(
    name: str, key: str = "--workload", known: Mapping[str, Workload] | None = None
) -> tuple[str, Mapping[str, Workload]]:
    """The profile asked for (``NAME``, ``FILE.toml:NAME``, or nothing) and all that are known.

    ``key`` is the option it was asked with; ``known`` the shipped profiles, where they are read already. Raises
    InputError where there is none of that name, in the file where one is named.
    """
    known = shipped() if known is None else known
    file, colon, wanted = name.rpartition(":")
    if colon and not (file and wanted):
        raise InputError("not a workload profile", key=key, value=name, allowed=["NAME", "FILE.toml:NAME"])
    own = matrix.load(Path(file)).workloads if file else known
    if wanted and wanted not in own:
        raise InputError("no such workload profile", file=file or None, key=key, value=wanted, allowed=own)
    return wanted, {**known, **own}
