"""One process's way of running cells: its worker slot, the run file, and what is known already."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from .. import timings
from ..cell import Cell, Environment, Record, Verdict
from ..codec import cell_id, server_key
from ..errors import CapmatrixError, InputError
from ..pair import carrier
from ..store import RunWriter
from ..workers.limits import Limits
from ..workers.pool import Pool
from . import jobs, runfile, timed
from .alone import alone, room_of, together
from .jobs import Job, JobRecord
from .options import Options
from .plan import Plan
from .repeats import REPEATS, fold


class Runner:
    """Runs cells one after another, and times them; ``close`` gives the slot back.

    ``beside``: other processes of the run run cells at the same time.
    """

    def __init__(self, plan: Plan, options: Options, *, beside: bool = False) -> None:
        path = self._path = Path(plan.run_path)
        found = runfile.state(path)
        self._known = dict(found.done) if plan.resume else {}
        self._attempts = dict(found.attempts)
        self._told = found.environments
        self._session_dir = Path(plan.session_dir)
        self._shares = options.rerun_unexpected
        self._workloads = plan.workloads
        self._beside = beside
        self._is_told = False
        self._writer = RunWriter.attach(path)
        self._environments: set[str] = set()
        self._pool = Pool(
            engine=options.engine,
            options={"aiter": aiter_path(options), "triton_cache": options.triton_cache},
            limits=limits(options),
            session_dir=Path(plan.session_dir),
        )

    def known(self, job: Job) -> bool:
        """Whether the cell or pair has a record, so that ``run`` launches nothing."""
        return jobs.name(job) in self._known

    def run(self, job: Job) -> tuple[JobRecord, bool]:
        """The job's record, and whether it was there already. Raises StoreError where it cannot be written."""
        name = jobs.name(job)
        known = self._known.get(name)
        if known is not None:
            return known, True
        with self._among_others(job):
            return self._attempt(job), False

    @contextlib.contextmanager
    def _among_others(self, job: Job) -> Iterator[None]:
        """While the body runs no other process has the machine, or the job's GPU, to itself."""
        with contextlib.ExitStack() as rooms:
            if self._shares:
                rooms.enter_context(together(self._session_dir))
            if self._workloads and isinstance(job, Cell) and timings.applies(job):
                rooms.enter_context(together(self._session_dir, room_of(self._pool.gpu())))
            yield

    def repeat(self, record: JobRecord) -> JobRecord:
        """A job run again, alone and each time in a fresh worker; the record of all its attempts is kept."""
        job: Job = record.cell if isinstance(record, Record) else record.pair
        worker = job if isinstance(job, Cell) else carrier(job)
        records: list[Any] = [record]
        for _ in range(REPEATS):
            with alone(self._session_dir):
                self._pool.end_worker(worker)
                records.append(self._attempt(job))
                self._pool.end_worker(worker)
        folded: JobRecord = fold(records)
        self._keep(folded)
        return folded

    def prepare(self, record: JobRecord) -> None:
        """Has a passing cell's worker compile what its time will need, while other cells of the run compile theirs.

        What goes wrong there is no matter of the cell's verdict: its time will meet it again.
        """
        if not self._beside or not isinstance(record, Record):
            return
        for name, workload in self._workloads.items():
            if timed.lacks(record, name):
                with contextlib.suppress(CapmatrixError), self._among_others(record.cell):
                    self._pool.time(record.cell, workload, 0)

    def time(self, rivals: Sequence[Cell]) -> timed.Timed:
        """Times those of the rivals that passed and lack a time, in turn, with their GPU to themselves.

        Their records are written again with what was found. Raises StoreError where they cannot be written.
        """
        since = time.monotonic()
        self._read_others()
        records = [r for cell in rivals if isinstance(r := self._known.get(cell_id(cell)), Record)]
        out = timed.Timed(label=timed.shared(rivals), times=[], refused=[], idle="", seconds=0.0)
        self._pool.keep_warm(len({server_key(record.cell) for record in records}))
        for name, workload in self._workloads.items():
            due = [self._latest(record) for record in records if timed.lacks(self._latest(record), name)]
            if not due:
                continue
            with alone(self._session_dir, room_of(self._pool.gpu())):
                found = timed.take(due, name, workload, self._pool.time)
            for record in due:
                self._complete(record, name, found[record.cell_id], out)
        out["seconds"] = round(time.monotonic() - since, 3)
        if not out["times"] and not out["refused"]:
            out["idle"] = self._idle(rivals, records)
        return out

    def _complete(self, record: Record, name: str, found: timed.Found, out: timed.Timed) -> None:
        if not found.foreign:
            self._keep(timed.completed(record, name, found))
        who = timed.rival(record.cell)
        if found.timing is None:
            out["refused"].append(f"{who}: not timed under {name}: {found.refused}")
        else:
            out["times"].append((who, name, found.timing.median_us))

    def _latest(self, record: Record) -> Record:
        found = self._known[record.cell_id]
        assert isinstance(found, Record)
        return found

    def _idle(self, rivals: Sequence[Cell], records: Sequence[Record]) -> str:
        if len(records) < len(rivals):
            return f"{len(rivals) - len(records)} of {len(rivals)} cells have no record: --resume times them"
        passing = [r for r in records if r.verdict is Verdict.PASS]
        if not passing:
            return "no cell passed"
        if any(t.workload in self._workloads for record in passing for t in record.times):
            return timed.TIMED_ALREADY
        return "each was tried before and refused: its record says why"

    def _read_others(self) -> None:
        """The records that other processes of this run wrote: no cell of it waits or runs any more."""
        if self._beside and not self._is_told:
            found = runfile.state(self._path)
            self._known.update(found.done)
            self._told = {**self._told, **found.environments}
            self._is_told = True

    def environment(self, record: JobRecord) -> Environment | None:
        """What a record's cell or pair ran on."""
        return self._pool.environments.get(record.environment) or self._told.get(record.environment)

    def _attempt(self, job: Job) -> JobRecord:
        name = jobs.name(job)
        attempt = self._attempts.get(name, 0) + 1
        self._attempts[name] = attempt
        self._writer.started(name, attempt)
        record: JobRecord = self._pool.run(job) if isinstance(job, Cell) else self._pool.run_pair(job)
        if record.attempt != attempt:
            record = msgspec.structs.replace(record, attempt=attempt)
        self._tell_environment(record)
        self._keep(record)
        return record

    def _keep(self, record: JobRecord) -> None:
        if isinstance(record, Record):
            self._writer.record(record)
        else:
            self._writer.pair(record)
        self._known[jobs.record_id(record)] = record

    def _tell_environment(self, record: JobRecord) -> None:
        environment = self._pool.environments.get(record.environment)
        if environment is not None and environment.id not in self._environments:
            self._environments.add(environment.id)
            self._writer.environment(environment)

    def close(self) -> None:
        """End this process's worker and close the run file."""
        self._pool.close()
        self._writer.close()


def limits(options: Options) -> Limits:
    """The pool's limits with what the command line changes."""
    # A limit that is given is meant as it stands, on an emulated GPU too.
    factor = None if options.limit_run is None else 1.0
    changed = {"compile_s": options.limit_compile, "run_s": options.limit_run, "emulated_factor": factor}
    return msgspec.structs.replace(Limits(), **{k: v for k, v in changed.items() if v is not None})


def aiter_path(options: Options) -> str:
    """The AITER checkout to use, absolute, or "" for the installed one. InputError where it is no directory."""
    given = options.aiter or os.environ.get("CAPMATRIX_AITER", "")
    if not given:
        return ""
    path = Path(given).expanduser()
    if not path.is_dir():
        key = "--aiter" if options.aiter else "CAPMATRIX_AITER"
        raise InputError("this AITER checkout is not a directory", key=key, value=given)
    return str(path.resolve())
