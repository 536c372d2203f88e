"""One process's way of running cells: its worker slot, the run file, and what is known already."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from ..cell import Cell, Record
from ..codec import cell_id
from ..errors import InputError
from ..store import RunWriter
from ..workers.limits import Limits
from ..workers.pool import Pool
from . import runfile
from .options import Options
from .plan import Plan


class Runner:
    """Runs cells one after another; ``close`` gives the slot back."""

    def __init__(self, plan: Plan, options: Options) -> None:
        path = Path(plan.run_path)
        found = runfile.state(path)
        self._known = dict(found.done) if plan.resume else {}
        self._attempts = found.attempts
        self._writer = RunWriter.attach(path)
        self._environments: set[str] = set()
        self._pool = Pool(
            engine=options.engine,
            options={"aiter": aiter_path(options), "triton_cache": options.triton_cache},
            limits=limits(options),
            session_dir=Path(plan.session_dir),
        )

    def known(self, cell: Cell) -> bool:
        """Whether the cell has a record, so that ``run`` launches nothing."""
        return cell_id(cell) in self._known

    def run(self, cell: Cell) -> tuple[Record, bool]:
        """The cell's record, and whether it was there already. Raises StoreError where it cannot be written."""
        name = cell_id(cell)
        known = self._known.get(name)
        if known is not None:
            return known, True
        attempt = self._attempts.get(name, 0) + 1
        self._writer.started(name, attempt)
        record = self._pool.run(cell)
        if record.attempt != attempt:
            record = msgspec.structs.replace(record, attempt=attempt)
        self._tell_environment(record)
        self._writer.record(record)
        self._known[name] = record
        return record, False

    def _tell_environment(self, record: Record) -> None:
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
    changed = {"compile_s": options.limit_compile, "run_s": options.limit_run}
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
