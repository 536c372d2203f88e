"""The nearest passing neighbour of a cell that fails: what to compare it with, and what may be the cause."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from .. import summary
from ..cell import Cell, Environment, Record, Verdict

#: What two cells may differ in, by title, in the order in which a difference is told. A drafter family stands for its
#: geometry, method and role; where the family is the same, they are axes of their own.
_AXES: dict[str, tuple[str, ...]] = {
    "target": ("target",),
    "backend": ("backend",),
    "block size": ("block_size",),
    "KV cache dtype": ("kv_cache_dtype",),
    "drafter": ("drafter",),
    "tensor-parallel degree": ("tp",),
    "role": ("role", "method"),
    "geometry": ("geometry",),
    "speculative tokens": ("num_speculative_tokens",),
    "batch": ("batch",),
    "lengths": ("lengths",),
    "dtype": ("dtype",),
    "execution": ("execution",),
    "runner": ("runner",),
    "scales": ("scales",),
    "switches": ("switches",),
    "forced": ("force", "kernel_block"),
}

#: What follows from another drafter and does not count beside it.
_OF_THE_DRAFTER = ("tensor-parallel degree", "role", "geometry", "speculative tokens")


class Difference(NamedTuple):
    """An axis in which two cells differ, with the failing cell's value and the passing one's, as text."""

    axis: str
    failing: str
    passing: str


class Neighbour(NamedTuple):
    """A passing record and what its cell differs in."""

    record: Record
    differences: tuple[Difference, ...]


def differences(failing: Cell, passing: Cell) -> tuple[Difference, ...]:
    """The axes in which two cells differ; none where they are the same cell."""
    other_family = failing.drafter != passing.drafter
    found = []
    for title, fields in _AXES.items():
        one, two = ([getattr(cell, field) for field in fields] for cell in (failing, passing))
        if one != two and not (other_family and title in _OF_THE_DRAFTER):
            found.append(Difference(title, _shown(title, failing), _shown(title, passing)))
    return tuple(found)


def nearest(
    record: Record, records: Iterable[Record], environments: Mapping[str, Environment] | None = None
) -> Neighbour | None:
    """The passing cell among ``records`` that differs from ``record``'s in the fewest axes; None where none passes.

    Only passes that say at least as much count: of the record's own rung or a higher one, on the same place where
    ``environments`` tells. Among equals a difference in block size weighs by its ratio, then the stronger rung wins,
    then the cell's id decides, so that the answer is always the same.
    """
    known = environments or {}
    home = summary.place(record, known.get(record.environment)).title
    places: dict[tuple[str, str], str] = {}
    best: tuple[tuple[object, ...], Neighbour] | None = None
    for other in records:
        if other.verdict is not Verdict.PASS or other.cell_id == record.cell_id:
            continue
        if summary.strength(other.rung) < summary.strength(record.rung):
            continue
        where = other.cell.target, other.environment
        if where not in places:
            places[where] = summary.place(other, known.get(other.environment)).title
        if known and places[where] != home:
            continue
        found = differences(record.cell, other.cell)
        if not found:
            continue
        key = (len(found), _ratio(record.cell, other.cell), -summary.strength(other.rung), other.cell_id)
        if best is None or key < best[0]:
            best = key, Neighbour(other, found)
    return best[1] if best else None


def _ratio(one: Cell, two: Cell) -> float:
    sizes = sorted((max(1, one.block_size), max(1, two.block_size)))
    return sizes[1] / sizes[0]


def _shown(title: str, cell: Cell) -> str:
    if title == "role":
        return f"{cell.role.value}, method {cell.method}"
    if title == "geometry":
        return ", ".join(f"{name} {value}" for name, value in msgspec.to_builtins(cell.geometry).items())
    if title == "switches":
        return summary.switch_words(cell.switches) or "none"
    if title == "forced":
        block = f" {cell.kernel_block}" if cell.kernel_block is not None else ""
        return f"{cell.force.value}{block}"
    return str(getattr(cell, _AXES[title][0]))
