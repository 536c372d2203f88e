"""Two selections of records side by side: by run, by version, by architecture or target, or by an axis. Pure.

Records are the same entry where their cells agree in everything that the selectors do not name. An entry that one side
has no record of is "not run" there, which says nothing of the backend.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from ..cell import Cell, Check, Timing
from ..codec import cell_tokens
from ..errors import InputError
from ..summary import strength
from ..timings import sound
from . import diff, sameness
from .selectors import ORDERED, natural, select
from .sources import Source, Sourced, by_date
from .sources import records as records_of

#: Kinds of entry, those that matter most first. ``left`` and ``right``: only that side has a record.
KINDS: tuple[str, ...] = (
    *("regression", "slower", "lost", "verdict", "fix", "faster", "rung", "mark", "route", "same", "left", "right"),
)

#: Tokens of a cell's id that say nothing once an axis is not aligned on: heads follow from drafter and degree, and a
#: slow target reduces them.
_FOLLOWING: dict[str, frozenset[str]] = {
    "target": frozenset({"num_heads"}),
    "tp": frozenset({"num_heads"}),
    "drafter": frozenset({"num_heads", "head_size"}),
}


class Numbers(NamedTuple):
    """One numeric comparison on both sides; None: that side has none such."""

    part: str
    cache: str
    left: Check | None
    right: Check | None


class Times(NamedTuple):
    """One call's time on both sides, in microseconds.

    ``ratio`` is right over left, of the medians; it lies between ``low`` and ``high`` (right's lowest over left's
    highest, and the reverse); None where a side has no time. ``kind``: ``slower`` or ``faster`` on the right, beyond
    the margin and on the same hardware, else "".
    """

    phase: str
    workload: str
    left: Timing | None
    right: Timing | None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    kind: str = ""


class Entry(msgspec.Struct, frozen=True):
    """One cell, without what is not aligned on, and its record on either side (None: not run there).

    ``tokens`` are the axes that it is aligned on and how an id states each; ``changes`` are from left to right.
    ``begun``: the side that has no record launched it.
    """

    name: str
    tokens: tuple[tuple[str, str], ...]
    left: Sourced | None
    right: Sourced | None
    changes: tuple[diff.Change, ...] = ()
    margin_percent: float = 5.0
    begun: bool = False

    @property
    def kind(self) -> str:
        """The gravest of its changes, one of ``KINDS``."""
        if self.left is None or self.right is None:
            return "left" if self.left is not None else "right"
        return min((c.kind for c in self.changes), key=KINDS.index, default="same")

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the record that are not the same, as ``sameness.parts`` names them."""
        if self.left is None or self.right is None:
            return ()
        return sameness.differing(sameness.parts(self.left.record), sameness.parts(self.right.record))

    @property
    def numbers(self) -> tuple[Numbers, ...]:
        """Numeric comparisons, in the left one's order."""
        sides = [{(c.part, c.cache): c for c in side.record.checks} if side else {} for side in (self.left, self.right)]
        return tuple(Numbers(*key, sides[0].get(key), sides[1].get(key)) for key in {**sides[0], **sides[1]})

    @property
    def times(self) -> tuple[Times, ...]:
        """Measured times, in the left one's order."""
        sides = [
            {(t.phase, t.workload): t for t in side.record.times} if side else {} for side in (self.left, self.right)
        ]
        same = self.left is None or self.right is None or _same_hardware(self.left, self.right)
        margin = self.margin_percent
        return tuple(_times(sides[0].get(k), sides[1].get(k), same, margin) for k in {**sides[0], **sides[1]})

    @property
    def facts(self) -> list[tuple[str, str, str]]:
        """What the two environments state differently: name, left, right."""
        if self.left is None or self.right is None:
            return []
        return environments(self.left, self.right)


class Side(msgspec.Struct, frozen=True):
    """One selection. ``items`` are the records compared; ``older`` is how many gave way to a newer or stronger one of
    the same entry; ``unfinished`` are ids of cells that were begun and have no record."""

    wanted: Mapping[str, str]
    items: tuple[Sourced, ...]
    older: int
    unfinished: frozenset[str]

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the runs that records come from."""
        return tuple(dict.fromkeys(item.source.name for item in self.items))


class Fact(NamedTuple):
    """Something that environments of the two sides state differently, and for how many entries."""

    name: str
    left: str
    right: str
    entries: int


class Comparison(msgspec.Struct, frozen=True):
    """Both sides, their entries by kind and name, and what differs in the environment.

    ``ordered``: time goes by from left to right (runs, versions), so that a change is a regression or a fix.
    ``dropped`` are the axes that are not aligned on.
    """

    left: Side
    right: Side
    entries: tuple[Entry, ...]
    facts: tuple[Fact, ...]
    ordered: bool
    dropped: tuple[str, ...]

    def of(self, kind: str) -> tuple[Entry, ...]:
        """The entries of one kind."""
        return tuple(entry for entry in self.entries if entry.kind == kind)


def compare(
    sources: Sequence[Source],
    left: Mapping[str, str],
    right: Mapping[str, str],
    *,
    where: Mapping[str, str] | None = None,
    margin_percent: float = 5.0,
) -> Comparison:
    """The records that fit ``left`` beside those that fit ``right`` (``selectors``); ``where`` holds for both.

    Where a side has several records of an entry the newest run's counts, and of one run's the strongest rung.
    InputError where a selector fits nothing, or both sides are the same selection.
    """
    if dict(left) == dict(right):
        raise InputError("both sides are the same selection", key="--right", value=_words(right))
    everything = select(list(records_of(by_date(sources))), where or {}, "--where")
    dropped = tuple(key for key in dict.fromkeys([*left, *right]) if left.get(key) != right.get(key))
    unordered = set(dropped) - ORDERED
    (one, before) = _side(left, select(everything, left, "--left"), unordered)
    (two, after) = _side(right, select(everything, right, "--right"), unordered)
    names = {**before, **after}
    entries = [_entry(name, before.get(name), after.get(name), unordered, margin_percent) for name in names]
    begun = {"left": two.unfinished, "right": one.unfinished}
    entries = [msgspec.structs.replace(e, begun=True) if e.name in begun.get(e.kind, ()) else e for e in entries]
    entries.sort(key=lambda entry: (KINDS.index(entry.kind), natural(entry.name)))
    return Comparison(one, two, tuple(entries), _facts(entries), not unordered, dropped)


def _side(wanted: Mapping[str, str], chosen: Sequence[Sourced], dropped: set[str]) -> tuple[Side, dict[str, Sourced]]:
    """A selection's side, and its records by the name of their entry; ``chosen`` holds the oldest runs first."""
    named: dict[str, Sourced] = {}
    for item in chosen:
        name = _name(aligned(item.record.cell, dropped))
        best = named.get(name)
        weaker = best is not None and strength(item.record.rung) < strength(best.record.rung)
        if best is None or item.source is not best.source or not weaker:
            named[name] = item
    sources = {item.source.name: item.source for item in chosen}.values()
    begun = frozenset(cell_id for source in sources for cell_id in source.run.started)
    return Side(wanted, tuple(named.values()), len(chosen) - len(named), begun), named


def aligned(cell: Cell, dropped: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """The tokens of a cell's id (axis, token) that two cells must share to stand side by side.

    Without the architecture a target still is a kind of target: compiled stands beside compiled.
    """
    without = set(dropped)
    for name in tuple(without):
        without |= _FOLLOWING.get(name, frozenset())
    out = [(axis, token) for axis, token in cell_tokens(cell) if axis not in without]
    if "arch" in without and out and out[0][0] == "target":
        out[0] = ("target", out[0][1].partition(":")[0])
    return tuple(out)


def environments(left: Sourced, right: Sourced) -> list[tuple[str, str, str]]:
    """What the environments of two records state differently: name, left, right."""
    one, two = left.environment, right.environment
    if one is None or two is None:
        was, now = ("not recorded" if e is None else "recorded" for e in (one, two))
        return [("environment", was, now)] if was != now else []
    return diff.of_facts([one], [two])


def _name(tokens: Iterable[tuple[str, str]]) -> str:
    return "-".join(token for _, token in tokens)


def _entry(name: str, left: Sourced | None, right: Sourced | None, dropped: set[str], margin_percent: float) -> Entry:
    known = left or right
    assert known is not None
    tokens = aligned(known.record.cell, dropped)
    if left is None or right is None:
        return Entry(name, tokens, left, right)
    same = _same_hardware(left, right)
    changes = diff.of_records(left.record, right.record, margin_percent, same_hardware=same)
    return Entry(name, tokens, left, right, tuple(changes), margin_percent)


def _same_hardware(left: Sourced, right: Sourced) -> bool:
    return diff.hardware(left.environment) == diff.hardware(right.environment)


def _times(left: Timing | None, right: Timing | None, same_hardware: bool, margin_percent: float) -> Times:
    known = left or right
    assert known is not None
    out = Times(known.phase, known.workload, left, right)
    if left is None or right is None or not (sound(left) and sound(right)):
        return out
    return out._replace(
        ratio=right.median_us / left.median_us,
        low=right.low_us / left.high_us,
        high=right.high_us / left.low_us,
        kind=diff.faster_or_slower(left, right, margin_percent) if same_hardware else "",
    )


def _facts(entries: Iterable[Entry]) -> tuple[Fact, ...]:
    known: dict[tuple[str, str, str, str], list[tuple[str, str, str]]] = {}
    counts: dict[tuple[str, str, str], int] = {}
    for entry in entries:
        if entry.left is None or entry.right is None:
            continue
        left, right = entry.left, entry.right
        key = (left.source.name, left.record.environment, right.source.name, right.record.environment)
        if key not in known:
            known[key] = environments(left, right)
        for fact in known[key]:
            counts[fact] = counts.get(fact, 0) + 1
    return tuple(Fact(*fact, count) for fact, count in sorted(counts.items()))


def _words(wanted: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in wanted.items())
