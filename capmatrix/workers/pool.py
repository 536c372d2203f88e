"""``Pool``: runs cells in isolated workers; whatever happens to a worker is the cell's record."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import msgspec

from .. import codec, rungs
from ..cell import Cell, Environment, Record, Rung
from ..engine import Unavailable
from ..grid import Workload
from ..pair import Pair, PairRecord, carrier, of_death
from ..runlines import now
from ..timings import Sample
from . import blame, deaths, processes, session, slots
from .deaths import Progress, with_reasons
from .limits import Limits, for_target
from .protocol import Begin, ConnectionLost, Event, Exit, Hello, ProtocolError, Result, Run, Time, send
from .worker import EXIT_HUNG_UP

#: Warm workers a slot keeps, of as many servers; and while rivals of several servers are timed in turn.
_WARM, _MOST_WARM = 2, 8

ENGINE = "capmatrix.engine.session:open_session"

Listener = Callable[[Cell, str, dict[str, Any]], None]


class _Round(NamedTuple):
    """Repeats of a cell under a profile, rather than the cell itself."""

    workload: Workload
    repeats: int


#: What a worker is asked of a cell: the cell, the pair that it stands for, or its time.
_Job = Pair | _Round | None
_Outcome = Record | PairRecord | Sample


class _Stale(Exception):
    """The worker was dead, or died, before it began the cell."""


class _Worker:
    """A connected worker with the cells it has run."""

    def __init__(self, connection: session.Connection, history: int) -> None:
        self.connection = connection
        self.history: deque[Cell] = deque(maxlen=history)
        self.number = 0


class Pool:
    """Runs cells, one at a time for each calling thread, each thread in a worker slot of its own.

    Args:
        engine: ``module:function`` that opens a session, imported in the server only.
        options: what the engine is opened with.
        session_dir: folder shared by the processes of one run (see ``session``); a temporary one if None.
        slot: this process's slot, which picks its GPU on target ``device``; the next free one if None.
        retry_alone: repeat a crash or timeout that came after other cells alone, and find its cause.
        listener: called with each event of a cell as it comes: cell, name, data.

    ``environments`` holds, by id, every environment that a returned record names.
    """

    def __init__(
        self,
        engine: str = ENGINE,
        options: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        session_dir: str | os.PathLike[str] | None = None,
        *,
        slot: int | None = None,
        retry_alone: bool = True,
        listener: Listener | None = None,
    ) -> None:
        self.engine = engine
        self.options = dict(options or {})
        self.limits = limits or Limits()
        self.retry_alone = retry_alone
        self.listener = listener
        self.environments: dict[str, Environment] = {}
        self._most_warm = _WARM
        self._temporary = session_dir is None
        self.session_dir = Path(tempfile.mkdtemp(prefix="capmatrix-") if session_dir is None else session_dir)
        self.session_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._owner = session.owner_of(self.session_dir)
        self._slot = slot
        self._local = threading.local()
        self._lock = threading.Lock()
        self._workers: list[_Worker] = []
        self._slots: list[slots.Slot] = []
        self._unavailable: dict[tuple[Any, ...], str] = {}

    def run(self, cell: Cell) -> Record:
        """Runs a cell and returns its record, blocking; a crash, a hang or an exit is a record like any other.

        Raises ``session.ServerError`` where no worker can be had: infrastructure, not a verdict.
        """
        started = now()
        key = codec.server_key(cell)
        try:
            if key in self._unavailable:
                raise Unavailable(self._unavailable[key])
            record = self._run(cell)
        except Unavailable as error:
            self._unavailable[key] = str(error)
            record = deaths.unavailable(cell, self._nowhere(cell), str(error))
        return msgspec.structs.replace(
            record, started_at=record.started_at or started, ended_at=record.ended_at or now()
        )

    def run_pair(self, pair: Pair) -> PairRecord:
        """Runs a pair as ``run`` does a cell. A death is the pair's own: nothing before it is suspected."""
        started = now()
        stand_in = carrier(pair)
        key = codec.server_key(stand_in)
        try:
            if key in self._unavailable:
                raise Unavailable(self._unavailable[key])
            record = self._attempt(stand_in, pair)[0]
        except Unavailable as error:
            self._unavailable[key] = str(error)
            record = deaths.unavailable(stand_in, self._nowhere(stand_in), str(error))
        assert not isinstance(record, Sample)
        found = of_death(record, pair) if isinstance(record, Record) else record
        return msgspec.structs.replace(found, started_at=found.started_at or started, ended_at=found.ended_at or now())

    def time(self, cell: Cell, workload: Workload, repeats: int) -> Sample:
        """Times a cell's call under a profile, ``repeats`` times; with 0 only what that will need is made ready.

        A death, a hang or an exception is a sample that says so (``refused``), and costs the worker, nothing else.
        """
        key = codec.server_key(cell)
        try:
            if key in self._unavailable:
                raise Unavailable(self._unavailable[key])
            found = self._attempt(cell, _Round(workload, repeats))[0]
        except Unavailable as error:
            self._unavailable[key] = str(error)
            return Sample(refused=str(error))
        if isinstance(found, Sample):
            return found
        return Sample(refused=found.reasons[0], environment=found.environment)

    def keep_warm(self, servers: int) -> None:
        """Lets each slot keep workers of so many servers, within bounds, so that a turn through them starts none."""
        self._most_warm = min(max(_WARM, servers), _MOST_WARM)

    def gpu(self) -> str:
        """The GPU that this thread's workers are shown, as the runtime's visibility variable names it; "": none."""
        return next(iter(slots.device_environment(self._own_slot()).values()), "")

    def _run(self, cell: Cell) -> Record:
        record, before = self._attempt(cell)
        assert isinstance(record, Record)
        if before and self.retry_alone and record.verdict in blame.DEADLY:
            return blame.investigate(record, before, self._replay, self.limits)
        return record

    def _attempt(self, cell: Cell, job: _Job = None) -> tuple[_Outcome, list[Cell]]:
        """A cell's (or a pair's) outcome, or its time, in this slot's worker; the cells that ran before it there."""
        losses = stale = 0
        while True:
            worker = self._worker(cell)
            before = list(worker.history)
            progress = Progress(for_target(self.limits, cell.target), time.monotonic())
            try:
                record = self._cell(worker, cell, progress, job)
            except _Stale:
                self._drop(cell, worker)
                stale += 1
                if stale > 3:
                    raise session.ServerError(f"workers of {cell.target} die before they begin a cell") from None
                continue
            except ConnectionLost:
                self._drop(cell, worker)
                losses += 1
                if losses > 1:
                    return deaths.lost(cell, worker.connection.environment, progress), before
                continue
            except BaseException:
                self._drop(cell, worker)  # interrupted: the worker is in the middle of a cell
                raise
            if losses and isinstance(record, Record):
                record = with_reasons(
                    record, "the worker server was lost while this cell ran (killed?); it was run again"
                )
            return record, before

    def _cell(self, worker: _Worker, cell: Cell, progress: Progress, job: _Job = None) -> _Outcome:
        """Runs or times a cell in a worker. Raises _Stale, or ConnectionLost where the keeper is gone too."""
        connection = worker.connection
        environment = connection.environment
        worker.number += 1
        number = worker.number
        begun = False
        try:
            connection.link.settimeout(self.limits.fork_s)
            if isinstance(job, _Round):
                send(connection.link, Time(number, cell, job.workload, job.repeats))
            else:
                send(connection.link, Run(number, cell, job))
            while True:
                message = connection.reader.read(progress.deadline)
                if isinstance(message, Event):
                    self._event(cell, message, progress)
                elif isinstance(message, Result) and message.number == number:
                    if isinstance(job, _Round):
                        return _decode_sample(message.record, cell, environment, progress)
                    if job is not None:
                        return _decode_pair(message.record, cell, job, environment, progress)
                    worker.history.append(cell)
                    return _decode(message.record, cell, environment, progress)
                elif isinstance(message, Begin) and message.number == number:
                    begun = True
                    progress.since = min(message.at, time.monotonic())
                elif isinstance(message, Exit):
                    if not begun:
                        raise _Stale
                    self._drop(cell, worker)
                    return deaths.crash(cell, environment, message, progress, number)
                else:
                    raise ProtocolError(f"unexpected {type(message).__name__.lower()}")
        except TimeoutError:
            progress.used[progress.clock] = progress.allowed
            return deaths.timeout(cell, environment, self._kill(cell, worker), progress, number)
        except ProtocolError as error:
            exit = self._kill(cell, worker)
            if exit is not None and not exit.killed and exit.code != EXIT_HUNG_UP:
                return deaths.crash(cell, environment, exit, progress, number)
            return deaths.nonsense(cell, environment, exit, progress, str(error))
        except (OSError, ConnectionLost) as error:
            if not begun:
                raise _Stale from None
            raise ConnectionLost(str(error)) from None

    def _event(self, cell: Cell, event: Event, progress: Progress) -> None:
        if event.name == "phase":
            at = min(event.at, time.monotonic())
            progress.enter(str(event.data.get("phase", "")), str(event.data.get("detail", "")), at)
        if self.listener is not None:
            self.listener(cell, event.name, event.data)

    def _kill(self, cell: Cell, worker: _Worker) -> Exit | None:
        """Has the keeper kill a worker and all it left; None where that did not happen in time."""
        connection = worker.connection
        deadline = time.monotonic() + self.limits.reap_s
        exit = None
        with contextlib.suppress(OSError, ConnectionLost, TimeoutError):
            connection.link.shutdown(1)  # half closed: the keeper still reports
            while exit is None:
                with contextlib.suppress(ProtocolError):
                    message = connection.reader.read(deadline)
                    exit = message if isinstance(message, Exit) else None
        if exit is None:
            # The keeper is stopped or stuck. Without it the server reaps what it guarded.
            for process in (connection.worker, connection.keeper):
                processes.kill(process)
        self._drop(cell, worker)
        return exit

    def _replay(self, cells: Sequence[Cell]) -> Record | None:
        for cell in cells[:1]:
            self.end_worker(cell)
        for cell in cells[:-1]:
            record, _ = self._attempt(cell)
            assert isinstance(record, Record)
            if record.verdict in blame.DEADLY:
                return None
        record, before = self._attempt(cells[-1])
        assert isinstance(record, Record)
        return record if len(before) == min(len(cells) - 1, self.limits.history) else None

    def _warm(self) -> OrderedDict[tuple[Any, ...], _Worker]:
        """This thread's workers by server key, longest unused first."""
        if not hasattr(self._local, "warm"):
            self._local.warm = OrderedDict()
        warm: OrderedDict[tuple[Any, ...], _Worker] = self._local.warm
        return warm

    def _worker(self, cell: Cell) -> _Worker:
        warm = self._warm()
        key = codec.server_key(cell)
        if key in warm:
            warm.move_to_end(key)
            return warm[key]
        while len(warm) >= self._most_warm:
            self._forget(warm.popitem(last=False)[1])
        server = session.Server(
            self.session_dir, self.engine, cell.target, dict(cell.switches), self.options, self.limits
        )
        worker = _Worker(server.connect(self._hello(cell)), self.limits.history)
        self.environments[worker.connection.environment.id] = worker.connection.environment
        with self._lock:
            self._workers.append(worker)
        warm[key] = worker
        return worker

    def _hello(self, cell: Cell) -> Hello:
        limits = self.limits
        on_device = cell.target.partition(":")[0] in ("device", "emulator")
        env = slots.device_environment(self._own_slot()) if on_device else {}
        memory = None if on_device else limits.memory_bytes
        return Hello(env, memory, limits.file_bytes, limits.output_bytes)

    def _own_slot(self) -> int:
        if self._slot is not None:
            return self._slot
        if not hasattr(self._local, "slot"):
            self._local.slot = slots.claim(self.session_dir)
            with self._lock:
                self._slots.append(self._local.slot)
        index: int = self._local.slot.index
        return index

    def end_worker(self, cell: Cell) -> None:
        """Ends this slot's worker for such cells: the next one starts in a fresh process."""
        worker = self._warm().get(codec.server_key(cell))
        if worker is not None:
            self._drop(cell, worker)

    def _drop(self, cell: Cell, worker: _Worker) -> None:
        warm = self._warm()
        if warm.get(codec.server_key(cell)) is worker:
            del warm[codec.server_key(cell)]
        self._forget(worker)

    def _forget(self, worker: _Worker) -> None:
        worker.connection.link.close()
        with self._lock, contextlib.suppress(ValueError):
            self._workers.remove(worker)

    def _nowhere(self, cell: Cell) -> Environment:
        """The environment of cells that could not run: their target and switches."""
        switches = dict(cell.switches)
        digest = hashlib.sha256(codec.encode([cell.target, switches])).hexdigest()[:12]
        environment = Environment(id=f"none-{digest}", target=cell.target, switches=switches)
        return self.environments.setdefault(environment.id, environment)

    def close(self) -> None:
        """Ends this pool's workers and, where this process owns the session, its servers. Idempotent."""
        with self._lock:
            workers, self._workers = self._workers, []
            claimed, self._slots = self._slots, []
        for worker in workers:
            worker.connection.link.close()
        for slot in claimed:
            slot.release()
        self._local = threading.local()
        if self._owner == processes.myself():
            session.stop(self.session_dir)
        if self._temporary:
            shutil.rmtree(self.session_dir, ignore_errors=True)

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _decode(raw: msgspec.Raw, cell: Cell, environment: Environment, progress: Progress) -> Record:
    try:
        record = codec.decode(bytes(raw), Record)
    except msgspec.DecodeError as error:
        return deaths.invalid(cell, environment, progress, str(error))
    if record.cell != cell:
        return deaths.invalid(cell, environment, progress, f"it is of another cell, {record.cell_id}")
    if rungs.reachable(cell.target) is Rung.EMULATED:
        # How long an emulator takes says nothing of the GPU: whatever was measured is left out.
        return msgspec.structs.replace(record, times=())
    return record


def _decode_pair(
    raw: msgspec.Raw, cell: Cell, pair: Pair, environment: Environment, progress: Progress
) -> Record | PairRecord:
    try:
        record = codec.decode(bytes(raw), PairRecord)
    except msgspec.DecodeError as error:
        return deaths.invalid(cell, environment, progress, str(error))
    if record.pair != pair:
        return deaths.invalid(cell, environment, progress, f"it is of another pair, {record.pair_id}")
    return record


def _decode_sample(raw: msgspec.Raw, cell: Cell, environment: Environment, progress: Progress) -> Record | Sample:
    try:
        sample = codec.decode(bytes(raw), Sample)
    except msgspec.DecodeError as error:
        return deaths.invalid(cell, environment, progress, str(error))
    return msgspec.structs.replace(sample, environment=environment.id)
