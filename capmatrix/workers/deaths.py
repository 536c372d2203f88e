"""What a worker's death, silence or nonsense means for the cell it ran, as a record."""

from __future__ import annotations

import signal

import msgspec

from .. import codec, rungs
from ..cell import Cell, Environment, Failure, Phase, Record, Rung, Verdict
from ..errors import printable
from . import failure
from .limits import Limits
from .protocol import Exit
from .worker import EXIT_CONNECTION


class Progress:
    """Where a cell was when last heard of, and what it has used of its two budgets.

    ``kernel``: detail of the last phase. Times in seconds of the monotonic clock.
    """

    def __init__(self, limits: Limits, now: float) -> None:
        self.limits = limits
        self.phase = Phase.SELECT
        self.kernel = ""
        self.used = {"compile": 0.0, "run": 0.0}
        self.since = now

    @property
    def clock(self) -> str:
        """Which budget is running: ``compile`` or ``run``."""
        return "compile" if self.phase is Phase.COMPILE else "run"

    @property
    def allowed(self) -> float:
        """The running budget's size in seconds."""
        return self.limits.compile_s if self.clock == "compile" else self.limits.run_s

    @property
    def deadline(self) -> float:
        """When the running budget is used up."""
        return self.since + self.allowed - self.used[self.clock]

    def enter(self, phase: str, detail: str, at: float) -> None:
        """The worker says that it entered a phase at ``at``; unknown phases count as running on."""
        at = max(at, self.since)
        self.used[self.clock] += at - self.since
        self.since = at
        self.kernel = printable(detail)[:300]
        if phase in Phase._value2member_map_:
            self.phase = Phase(phase)

    @property
    def where(self) -> str:
        """``compile of kernel_unified_attention``, for a reason's text."""
        return f"{self.phase.value} of {self.kernel}" if self.kernel else self.phase.value


def crash(cell: Cell, environment: Environment, exit: Exit, progress: Progress, number: int) -> Record:
    """The record of a cell whose worker died by itself."""
    name, what = _how(exit)
    text = failure.tail(exit.output, number, progress.limits.output_bytes)
    telling, frame, frames = failure.of_output(text)
    reason = f"{what} in {progress.where}"
    if telling:
        reason += f": {telling}"
    problem = Failure(
        type=name,
        message=telling or what,
        frame=frame,
        traceback=frames,
        exit_code=exit.code,
        signal=name if exit.signal is not None else "",
        stderr_tail=text[-progress.limits.stderr_tail :],
    )
    return _record(cell, Verdict.CRASH, environment.id, progress, (reason, *_left(exit)), problem)


def _how(exit: Exit) -> tuple[str, str]:
    """Name and one line of how a worker ended."""
    if exit.signal is not None:
        try:
            name = signal.Signals(exit.signal).name
        except ValueError:
            name = f"signal {exit.signal}"
        text = f"worker died of {name}"
        if exit.signal == signal.SIGKILL:
            text += " (sent from outside; often the kernel, out of memory)"
        return name, text
    if exit.code == EXIT_CONNECTION:
        return "exit", "worker lost its connection before finishing the cell (did the cell close it?)"
    return "exit", f"worker exited with code {exit.code} before finishing the cell"


def timeout(cell: Cell, environment: Environment, exit: Exit | None, progress: Progress, number: int) -> Record:
    """The record of a cell that used up a budget; ``exit`` is None where the worker could not be reaped."""
    text = failure.tail(exit.output, number, progress.limits.output_bytes) if exit else ""
    _, frame, frames = failure.of_output(text)
    limit = f"{progress.clock} limit of {progress.allowed:g} s"
    problem = Failure(
        type="timeout",
        message=f"{limit} reached",
        frame=frame,
        traceback=frames,
        stderr_tail=text[-progress.limits.stderr_tail :],
    )
    reason = f"{limit} reached in {progress.where}"
    left = _left(exit) if exit else ("the worker could not be reaped in time",)
    return _record(cell, Verdict.TIMEOUT, environment.id, progress, (reason, *left), problem)


def nonsense(cell: Cell, environment: Environment, exit: Exit | None, progress: Progress, what: str) -> Record:
    """The record of a cell that damaged its worker's connection."""
    text = exit.output if exit else ""
    problem = Failure(
        type="protocol", message=printable(what), stderr_tail=printable(text[-progress.limits.stderr_tail :])
    )
    reason = f"worker's connection was damaged in {progress.where}: {printable(what)}"
    return _record(cell, Verdict.CRASH, environment.id, progress, (reason,), problem)


def invalid(cell: Cell, environment: Environment, progress: Progress, what: str) -> Record:
    """The record of a cell whose engine returned something that is not its record."""
    reason = f"the engine returned an invalid record: {printable(what)}"
    problem = Failure(type="InvalidRecord", message=printable(what))
    return _record(cell, Verdict.ERROR, environment.id, progress, (reason,), problem)


def lost(cell: Cell, environment: Environment, progress: Progress) -> Record:
    """The record of a cell during which the server was lost more than once."""
    reason = f"the worker server was lost twice in {progress.where}; the cell may be what kills it"
    problem = Failure(type="lost", message=reason)
    return _record(cell, Verdict.CRASH, environment.id, progress, (reason,), problem)


def unavailable(cell: Cell, environment: Environment, reason: str) -> Record:
    """The record of a cell whose target cannot run here."""
    return Record(
        cell_id=codec.cell_id(cell),
        cell=cell,
        verdict=Verdict.UNAVAILABLE,
        rung=Rung.DECLARED,
        phase=Phase.SELECT,
        environment=environment.id,
        reasons=(printable(reason),),
    )


def with_reasons(record: Record, *more: str) -> Record:
    """The record with reasons added after its own."""
    return msgspec.structs.replace(record, reasons=record.reasons + more)


def _left(exit: Exit) -> tuple[str, ...]:
    lines = []
    if exit.strays:
        lines.append(f"{exit.strays} process{'es' if exit.strays > 1 else ''} it left running killed")
    if exit.unkillable:
        lines.append(f"processes that cannot be killed: {', '.join(map(str, exit.unkillable))}")
    return tuple(lines)


def _record(
    cell: Cell, verdict: Verdict, environment: str, progress: Progress, reasons: tuple[str, ...], problem: Failure
) -> Record:
    return Record(
        cell_id=codec.cell_id(cell),
        cell=cell,
        verdict=verdict,
        rung=rungs.reachable(cell.target),
        phase=progress.phase,
        environment=environment,
        reasons=reasons,
        failure=problem,
        durations={name: round(value, 3) for name, value in progress.used.items() if value},
    )
