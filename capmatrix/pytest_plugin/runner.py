"""One process's way of running cells: its worker slot, the run file, and what is known already."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from ..cell import Cell, Environment, Record
from ..errors import InputError
from ..pair import carrier
from ..selection import workloads
from ..store import RunWriter
from ..workers.limits import Limits
from ..workers.pool import Pool
from . import jobs, runfile
from .alone import alone, together
from .jobs import Job, JobRecord
from .options import Options
from .plan import Plan
from .repeats import REPEATS, fold


class Runner:
    """Runs cells one after another; ``close`` gives the slot back."""

    def __init__(self, plan: Plan, options: Options) -> None:
        path = Path(plan.run_path)
        found = runfile.state(path)
        self._known = dict(found.done) if plan.resume else {}
        self._attempts = dict(found.attempts)
        self._told = found.environments
        self._session_dir = Path(plan.session_dir)
        self._shares = options.rerun_unexpected
        self._writer = RunWriter.attach(path)
        self._environments: set[str] = set()
        self._pool = Pool(
            engine=options.engine,
            options={"aiter": aiter_path(options), "triton_cache": options.triton_cache} | profiles(options.time),
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
        if not self._shares:
            return self._attempt(job), False
        with together(self._session_dir):
            return self._attempt(job), False

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


def profiles(names: str) -> dict[str, Any]:
    """The option ``time`` for the engine: profiles, fields by name, of ``seed,long`` or ``FILE.toml:NAME``; none: {}.

    InputError for unknown ones.
    """
    found = {}
    for name in filter(None, names.split(",")):
        wanted, known = workloads.choose(name.strip())
        found[wanted] = msgspec.structs.asdict(known[wanted])
    return {"time": found} if found else {}


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
