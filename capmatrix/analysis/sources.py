"""Runs beside each other: their names, their dates, and their records with where each came from. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from ..cell import Environment, Record
from ..store import Run, created


class Source(msgspec.Struct, frozen=True):
    """One run: a name that no other has, when it was made (UTC, ISO 8601; "" where nothing says), and what it holds."""

    name: str
    date: str
    run: Run


class Sourced(NamedTuple):
    """A record, the run it is of, and the environment it was made in (None: not recorded)."""

    source: Source
    record: Record
    environment: Environment | None


def gather(runs: Iterable[tuple[str, Run]]) -> tuple[Source, ...]:
    """Sources of runs and the paths they were read from, in the order given.

    A name is the file's, with as much of its path as tells it from the others; a file given twice is numbered.
    """
    given = list(runs)
    names = _names([path for path, _ in given])
    return tuple(Source(name, date(run), run) for name, (_, run) in zip(names, given, strict=True))


def by_date(sources: Iterable[Source]) -> tuple[Source, ...]:
    """Oldest first; runs of one date, and those without one (which come first), stay in the order given."""
    return tuple(sorted(sources, key=lambda source: source.date))


def records(sources: Iterable[Source]) -> Iterator[Sourced]:
    """Every record, source by source."""
    for source in sources:
        for record in source.run.records:
            yield Sourced(source, record, source.run.environments.get(record.environment))


def date(run: Run) -> str:
    """When a run was made: as its header says, else when its first cell was launched; seconds, ``Z`` for UTC."""
    started = [r.started_at for r in run.records if r.started_at] + [p.started_at for p in run.pairs if p.started_at]
    found = created(run.header) or min(started, default="")
    return f"{found[:19]}Z" if len(found) >= 19 else found


def _names(paths: Sequence[str]) -> list[str]:
    short = [Path(path).name or path for path in paths]
    names = [path if short.count(name) > 1 else name for path, name in zip(paths, short, strict=True)]
    seen: dict[str, int] = {}
    out = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        out.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return out
