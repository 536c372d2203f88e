"""What a report tells the process that shows it: plain values that survive the way from an xdist node."""

from __future__ import annotations

from typing import TypedDict

from ..cell import Cell, Record
from ..outcome import Outcome
from . import jobs
from .jobs import JobRecord


class Facts(TypedDict):
    """A finished cell in a line. ``seconds``: wall time of the cell; ``resumed``: the record was there already.

    ``repeats``: verdicts of a cell that was repeated because it was not as expected.
    """

    cell: str
    label: str
    verdict: str
    rung: str
    kind: str
    text: str
    seconds: float
    told: bool
    resumed: bool
    repeats: list[str]


def facts_of(record: JobRecord, result: Outcome, resumed: bool) -> Facts:
    """The facts of one record, of a cell or a pair."""
    return Facts(
        cell=jobs.record_id(record),
        label=label(record.cell) if isinstance(record, Record) else jobs.pair_label(record.pair),
        verdict=record.verdict.value,
        rung=record.rung.value,
        kind=result.kind.value,
        text=result.text,
        seconds=round(sum(record.durations.values()), 3),
        told=jobs.told(record),
        resumed=resumed,
        repeats=[v.value for v in record.repeats] if isinstance(record, Record) else [],
    )


def label(cell: Cell) -> str:
    """A cell in short, for a status line: what a matrix usually varies, without the geometry."""
    text = f"{cell.target} {cell.backend} b{cell.block_size} {cell.kv_cache_dtype} "
    text += f"{cell.drafter} tp{cell.tp} {cell.batch}"
    if cell.execution != "eager":
        text += f" {cell.execution}"
    if cell.force.value != "none":
        text += f" force_{cell.force.value}"
    if cell.switches:
        text += " " + " ".join(f"{name}={value}" for name, value in cell.switches)
    return text
