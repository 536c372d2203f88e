"""Timing rivals in turn: which times are missing, in which order they are taken, what becomes of the records. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypedDict

import msgspec

from .. import timings
from ..cell import Cell, Phase, Record, Timing, Verdict
from ..codec import cell_tokens
from ..errors import printable
from ..grid import Workload
from ..timings import Sample

#: Times a cell's call so often under a profile, in its worker.
Ask = Callable[[Cell, Workload, int], Sample]

#: What the name of an item that times rivals begins with.
PREFIX = "times["

#: Why nothing of a group was timed, where that is as it should be.
TIMED_ALREADY = "timed already"


class Timed(TypedDict):
    """What became of a group: for a status line, as plain values that survive the way from an xdist node.

    ``times``: backend (with its switches), profile and median in microseconds. ``refused``: cells that could not be
    timed, a line each. ``idle``: why nothing was timed, where that is no failure of anything.
    """

    label: str
    times: list[tuple[str, str, float]]
    refused: list[str]
    idle: str
    seconds: float


class Found(NamedTuple):
    """A cell's time, or why there is none. ``foreign``: nothing of it may go into the record, which is of elsewhere."""

    timing: Timing | None
    refused: str = ""
    foreign: bool = False


def groups(cells: Iterable[Cell]) -> list[list[Cell]]:
    """Cells that may be timed by what rivals share, in order of first appearance, each cell once."""
    found: dict[Cell, list[Cell]] = {}
    for cell in dict.fromkeys(cells):
        if timings.applies(cell):
            found.setdefault(timings.rivals_key(cell), []).append(cell)
    return list(found.values())


def name(rivals: Sequence[Cell]) -> str:
    """Name of the item that times them: what their ids share."""
    return f"{PREFIX}{shared(rivals)}]"


def shared(rivals: Sequence[Cell]) -> str:
    """The tokens of their ids but for backend and switches."""
    return "-".join(token for axis, token in cell_tokens(rivals[0]) if axis not in ("backend", "switches"))


def rival(cell: Cell) -> str:
    """What tells a cell from its rivals."""
    return " ".join([cell.backend, *(f"{key}={value}" for key, value in cell.switches)])


def lacks(record: Record, workload: str) -> bool:
    """Whether a record's cell is still to be timed under a profile: it passed, and no attempt at it is noted."""
    if record.verdict is not Verdict.PASS or not timings.applies(record.cell):
        return False
    attempted = any(reason.startswith(_refusal(workload)) for reason in record.reasons)
    return not attempted and all(t.workload != workload for t in record.times)


def take(records: Sequence[Record], name: str, workload: Workload, ask: Ask) -> dict[str, Found]:
    """The rivals' times under a profile, by cell id: each round goes through all of them.

    One that is refused in a round is left out of those that follow, and has no time.
    """
    rounds: dict[str, list[Sample]] = {record.cell_id: [] for record in records}
    out: dict[str, Found] = {}
    for repeats in timings.shares():
        for record in records:
            if record.cell_id in out:
                continue
            sample = ask(record.cell, workload, repeats)
            if sample.environment != record.environment:
                why = sample.refused or "its record is of another environment than this one"
                out[record.cell_id] = Found(None, why, foreign=True)
            elif sample.refused or not sample.microseconds:
                out[record.cell_id] = Found(None, sample.refused or "the engine measured nothing")
            else:
                rounds[record.cell_id].append(sample)
    timed = [record for record in records if record.cell_id not in out]
    for record in timed:
        note = f"in turn with {_others(len(timed) - 1)}"
        out[record.cell_id] = Found(timings.summary(record.cell, name, rounds[record.cell_id], note))
    return out


def _others(count: int) -> str:
    return f"{count} rival{'s' * (count != 1)}" if count else "no rival"


def completed(record: Record, workload: str, found: Found) -> Record:
    """The record with its time, or with the line that says why it has none."""
    if found.timing is None:
        line = printable(f"{_refusal(workload)}{' '.join(found.refused.split())}")
        return msgspec.structs.replace(record, reasons=(*record.reasons, line))
    return msgspec.structs.replace(record, phase=Phase.TIME, times=(*record.times, found.timing))


def _refusal(workload: str) -> str:
    return f"not timed under {workload}: "
