"""Run files: JSON lines, appended as outcomes come, read back leniently.

A line is one object with a ``kind``: ``run`` (header, first line of a run and of each resumption),
``environment``, ``started`` (on disk before a cell or pair is launched), ``record``, ``pair`` and ``end``. Each line is
written with one ``write`` under a lock, so that killing any process at any moment loses at most the
cells in flight. Files from elsewhere are data: decoded by type, bounded in line and file size.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, cast

import msgspec

from . import codec
from .cell import RECORD_VERSION, Cell, Environment, Record
from .errors import InputError, printable
from .pair import PairRecord
from .runlines import MAX_LINE, EnvironmentLine, Line, PairLine, RecordLine, RunLine, StartedLine, decode
from .runwriter import RunWriter, StoreError

__all__ = ["Run", "RunWriter", "StoreError", "merge", "read", "resume_plan"]

#: Most bytes of one run file, after decompression, that are read.
MAX_FILE = 2 << 30
#: Most problems that are listed one by one.
MAX_PROBLEMS = 100


class Run(msgspec.Struct):
    """What a run file says.

    ``header``: of the first ``run`` line (empty when it is missing). ``environments`` by id.
    ``records``: one per cell, the highest attempt, later lines winning ties, in order of first
    appearance. ``pairs``: the same of pairs.
    ``started``: those begun whose attempt has no record, in order. ``attempts``: highest
    attempt begun or recorded, by cell id. ``summary``: of the last ``end`` line, None while a run is
    unfinished. ``problems``: one line each with its line number.
    """

    header: dict[str, Any] = {}
    environments: dict[str, Environment] = {}
    records: list[Record] = []
    pairs: list[PairRecord] = []
    started: list[str] = []
    attempts: dict[str, int] = {}
    summary: dict[str, Any] | None = None
    problems: list[str] = []


class _Builder:
    """Folds lines into a ``Run``."""

    def __init__(self) -> None:
        self.run = Run()
        self.headers = self.lines = 0
        self.records: dict[str, Record] = {}
        self.pairs: dict[str, PairRecord] = {}
        self.begun: dict[str, int] = {}

    def add(self, line: Line) -> None:
        run = self.run
        self.lines += 1
        if isinstance(line, RecordLine):
            self.add_record(line.record)
        elif isinstance(line, PairLine):
            self.add_pair(line.record)
        elif isinstance(line, StartedLine):
            self.begun[line.cell_id] = max(line.attempt, self.begun.get(line.cell_id, 0))
        elif isinstance(line, EnvironmentLine):
            run.environments[line.environment.id] = line.environment
        elif isinstance(line, RunLine):
            self.headers += 1
            if self.headers == 1:
                run.header = line.header
            run.summary = None
        else:
            run.summary = line.summary

    def add_record(self, record: Record) -> None:
        before = self.records.get(record.cell_id)
        if before is None or record.attempt >= before.attempt:
            self.records[record.cell_id] = record

    def add_pair(self, record: PairRecord) -> None:
        before = self.pairs.get(record.pair_id)
        if before is None or record.attempt >= before.attempt:
            self.pairs[record.pair_id] = record

    def recorded(self) -> dict[str, int]:
        """The attempt that is recorded of each cell and pair."""
        jobs: dict[str, Record | PairRecord] = {**self.records, **self.pairs}
        return {name: record.attempt for name, record in jobs.items()}

    def result(self) -> Run:
        run = self.run
        run.records = list(self.records.values())
        run.pairs = list(self.pairs.values())
        attempts, recorded = dict(self.begun), self.recorded()
        for name, attempt in recorded.items():
            attempts[name] = max(attempt, attempts.get(name, 0))
        run.attempts = attempts
        run.started = [name for name, n in self.begun.items() if recorded.get(name, 0) < n]
        return run


def read(path: str | os.PathLike[str], lenient: bool = True) -> Run:
    """Reads a run file (``.jsonl``, or ``.gz`` of one).

    Lines that do not decode (a truncated last one, garbage anywhere, an over-long one) are listed in
    ``problems`` and skipped; with ``lenient=False`` the first raises InputError. A file that cannot be
    opened, one without a single line of a run, one larger than ``MAX_FILE``, and a line of a newer version
    always raise InputError.
    """
    builder = _Builder()
    problems: list[str] = []
    count = 0

    def problem(number: int, text: str) -> None:
        nonlocal count
        if not lenient:
            raise InputError(text, file=path, line=number)
        count += 1
        if count <= MAX_PROBLEMS:
            problems.append(printable(f"line {number}: {text}"))

    try:
        with _open(path) as stream:
            for number, line in _lines(stream, path):
                if line is None:
                    problem(number, f"longer than {MAX_LINE} bytes; skipped")
                elif line.strip():
                    decoded = decode(line, path, number)
                    if isinstance(decoded, str):
                        problem(number, decoded)
                    else:
                        builder.add(decoded)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        problem(0, f"compressed data damaged, the rest is lost: {error}")
    except OSError as error:
        raise InputError(f"cannot read the run file: {error.strerror or error}", file=path) from None
    if not builder.lines:
        why = f": {problems[0]}" if problems else ", it is empty"
        raise InputError(f"not a run file{why}", file=path)
    if not builder.headers:
        problem(1, 'no header: no line {"kind": "run", ...}; is this a run file of capmatrix?')
    if count > MAX_PROBLEMS:
        problems.append(f"and {count - MAX_PROBLEMS} more problems")
    run = builder.result()
    run.problems = problems
    return run


def _open(path: str | os.PathLike[str]) -> IO[bytes]:
    if os.path.exists(path) and not os.path.isfile(path):
        raise InputError("not a regular file; a run file is needed", file=path)
    if os.fspath(path).endswith(".gz"):
        return cast("IO[bytes]", gzip.open(path, "rb"))
    return open(path, "rb")


def _lines(stream: IO[bytes], path: object) -> Iterator[tuple[int, bytes | None]]:
    """Numbered lines; None for one over ``MAX_LINE``. InputError past ``MAX_FILE`` bytes."""
    number = total = 0
    while True:
        line: bytes | None = stream.readline(MAX_LINE + 1)
        if not line:
            return
        number += 1
        total += len(line)
        if len(line) > MAX_LINE:
            piece = line
            line = None
            while piece and not piece.endswith(b"\n") and total <= MAX_FILE:
                piece = stream.readline(MAX_LINE)
                total += len(piece)
        if total > MAX_FILE:
            raise InputError(f"larger than {MAX_FILE >> 20} MiB; split the run into several files", file=path)
        yield number, line


def created(header: Mapping[str, Any]) -> str:
    """When a run was made, as its header says; "" where it does not."""
    stated = (header.get(key) for key in ("created", "started_at", "created_at"))
    return next((text for text in stated if isinstance(text, str) and text), "")


def merge(runs: Sequence[Run]) -> Run:
    """One run of several: per cell the highest attempt, a later run winning ties; the first header. One is itself."""
    if len(runs) == 1:
        return runs[0]
    builder = _Builder()
    for run in runs:
        builder.run.environments.update(run.environments)
        builder.run.problems.extend(run.problems)
        for record in run.records:
            builder.add_record(record)
        for pair in run.pairs:
            builder.add_pair(pair)
        for name in run.started:
            builder.begun[name] = max(run.attempts.get(name, 1), builder.begun.get(name, 0))
    merged = builder.result()
    if runs:
        merged.header = {**runs[0].header, "merged": len(runs)}
    done = builder.recorded()
    merged.started = [name for name in merged.started if name not in done]
    return merged


def resume_plan(run: Run, cells: Iterable[Cell]) -> list[Cell]:
    """The cells still to do: those without a record, and those recorded in an older version."""
    done = {record.cell_id for record in run.records if record.version >= RECORD_VERSION}
    return [cell for cell in cells if codec.cell_id(cell) not in done]
