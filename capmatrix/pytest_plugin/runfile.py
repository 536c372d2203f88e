"""Which run file a pytest session writes, and what it already holds when a run is resumed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from .. import __version__
from ..cell import RECORD_VERSION, Environment, Record
from ..errors import InputError
from ..pair import PAIR_VERSION
from ..store import read
from .jobs import JobRecord

#: Where run files go unless asked, under the directory pytest was called in.
DIRECTORY = "runs"

#: Bytes of a run file's first line that are looked at.
_PEEK = 1 << 20


class State(msgspec.Struct, frozen=True):
    """What a run file holds: the last record of each cell and pair, how often each was begun, environments by id."""

    done: dict[str, JobRecord]
    attempts: dict[str, int]
    environments: dict[str, Environment] = {}


def stem(files: Sequence[Path]) -> str:
    """What a run is called after: its matrix file, or their directory where there are several."""
    return files[0].stem if len(files) == 1 else files[0].parent.name or "matrices"


def header(
    files: Sequence[Path],
    directory: Path,
    preset: str | None,
    targets: Sequence[str],
    force: str | None,
    cells: int,
    times: str = "",
) -> dict[str, Any]:
    """The first line of a run. ``directory``: where pytest was called; ``cells``: how many it selected; UTC.

    ``times``: the profiles that cells are timed under, as asked for; not stated where there are none.
    """
    timed = {"timed": times} if times else {}
    return {
        "matrix": stem(files),
        "files": names(files, directory),
        "preset": preset or "",
        "targets": list(targets),
        "force": force or "",
        "cells": cells,
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "capmatrix": __version__,
        **timed,
    }


def names(files: Sequence[Path], directory: Path) -> list[str]:
    """Matrix files as a run names them: relative to ``directory`` where they lie below, else without their place."""
    return [f.relative_to(directory).as_posix() if f.is_relative_to(directory) else f.name for f in files]


def new_path(directory: Path, files: Sequence[Path]) -> Path:
    """``runs/<UTC time>-<matrix>.jsonl`` that does not exist yet."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    path = directory / DIRECTORY / f"{stamp}-{stem(files)}.jsonl"
    for n in range(2, 1000):
        if not path.exists():
            return path
        path = directory / DIRECTORY / f"{stamp}-{stem(files)}-{n}.jsonl"
    raise InputError("too many run files of the same second", file=path)


def newest(directory: Path, files: Sequence[Path], preset: str | None) -> Path:
    """The newest run of these matrix files (and of ``preset``, if one is asked for). InputError where there is none."""
    wanted = names(files, directory)
    for path in sorted((directory / DIRECTORY).glob("*.jsonl"), reverse=True):
        found = peek(path)
        if found.get("files") == wanted and (preset is None or found.get("preset") == preset):
            return path
    of = f"{stem(files)}, preset {preset}" if preset else stem(files)
    raise InputError(f"nothing to resume: no run of {of} in {directory / DIRECTORY}; name one with --run-file")


def peek(path: Path) -> dict[str, Any]:
    """The header of a run file, by its first line; empty where that is none."""
    try:
        with path.open("rb") as stream:
            line = json.loads(stream.readline(_PEEK))
    except (OSError, ValueError, RecursionError):
        return {}
    found = line.get("header") if isinstance(line, dict) and line.get("kind") == "run" else None
    return found if isinstance(found, dict) else {}


def header_of(path: Path) -> dict[str, Any]:
    """The header of a run file wherever it stands in it; empty for a new file. InputError for what is no run file."""
    return read(path).header if path.stat().st_size else {}


def state(path: Path) -> State:
    """What a run file holds already; empty where there is no such file yet."""
    if not path.exists():
        return State({}, {})
    run = read(path)
    pairs: dict[str, JobRecord] = {r.pair_id: r for r in run.pairs if r.version >= PAIR_VERSION}
    return State(_current(run.records) | pairs, run.attempts, run.environments)


def _current(records: Iterable[Record]) -> dict[str, JobRecord]:
    """Records by cell; those of an older version are done again, as ``store.resume_plan`` has it."""
    return {r.cell_id: r for r in records if r.version >= RECORD_VERSION}
