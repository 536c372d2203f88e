"""Whether two timed runs on one hardware agree: how many times lie within each other's intervals, and of those that
do not, what the records know that may be why. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from ..cell import Timing
from .compare import Comparison, Entry, Times
from .diff import hardware

#: By how much of itself a clock or a bandwidth must differ to be named, in percent.
_CLOCK_PERCENT, _BANDWIDTH_PERCENT = 1.0, 2.0


class Apart(NamedTuple):
    """A time whose intervals do not meet, and what is recorded that may be why; empty where nothing is."""

    entry: Entry
    times: Times
    why: tuple[str, ...]


class Agreement(msgspec.Struct, frozen=True):
    """``agree``: how many times of both sides have intervals that meet; ``apart``: the others, the furthest first."""

    agree: int
    apart: tuple[Apart, ...]


def agreement(found: Comparison) -> Agreement | None:
    """Of two runs or versions: their times of the same cells on the same hardware; None where there are none such."""
    if not found.ordered:
        return None
    agree, apart = 0, []
    for entry in found.entries:
        if not _same_hardware(entry):
            continue
        for times in entry.times:
            if times.low is None or times.high is None:
                continue
            if times.low <= 1 <= times.high:
                agree += 1
            else:
                apart.append(Apart(entry, times, tuple(_why(entry, times))))
    if not agree and not apart:
        return None
    return Agreement(agree, tuple(sorted(apart, key=lambda one: (-_distance(one.times), one.entry.name))))


def lacking(found: Comparison) -> tuple[int, int]:
    """Times of the left that the right has none for, and the reverse."""
    missing = [(t.right is None, t.left is None) for entry in found.entries for t in entry.times]
    return sum(right for right, _ in missing), sum(left for _, left in missing)


def _same_hardware(entry: Entry) -> bool:
    if entry.left is None or entry.right is None:
        return False
    return hardware(entry.left.environment) == hardware(entry.right.environment)


def _distance(times: Times) -> float:
    ratio = times.ratio or 1.0
    return max(ratio, 1 / ratio)


def _why(entry: Entry, times: Times) -> Iterator[str]:
    left, right = times.left, times.right
    assert left is not None and right is not None
    if left.gpu and right.gpu and left.gpu != right.gpu:
        yield f"another GPU of its kind: {left.gpu} -> {right.gpu}"
    yield from _clocks(left, right)
    one, two = left.bandwidth_tb_s, right.bandwidth_tb_s
    if one and two and _percent(one, two) > _BANDWIDTH_PERCENT:
        yield f"{one:g} -> {two:g} TB/s moved in the same process"
    for side, timing in (("left", left), ("right", right)):
        if not timing.rounds:
            yield f"the {side} has no rounds: what its interval leaves out is not known"
        elif timing.drifted:
            yield f"the rounds of the {side} drifted, {_us(min(timing.rounds))} to {_us(max(timing.rounds))} us"
    yield from (change.text for change in entry.changes if change.kind == "route")
    for name, was, now in entry.facts:
        yield f"{name.removeprefix('hardware ')} {was} -> {now}"


def _clocks(left: Timing, right: Timing) -> Iterator[str]:
    """Clocks whose ranges do not meet. Power and temperature follow from what runs, and are not named."""
    for name in left.clocks:
        if not name.endswith("_mhz") or name not in right.clocks:
            continue
        one, two = left.clocks[name], right.clocks[name]
        if min(*one, *two) <= 0:
            continue  # no clock
        gap = max(two[0] - one[1], one[0] - two[1])
        if gap > 0 and gap / max(one[1], two[1]) * 100 > _CLOCK_PERCENT:
            yield f"{name} {_range(one)} -> {_range(two)}"


def _range(ends: tuple[float, float]) -> str:
    return f"{ends[0]:g}" if ends[0] == ends[1] else f"{ends[0]:g} to {ends[1]:g}"


def _percent(one: float, two: float) -> float:
    return abs(one - two) / max(one, two) * 100


def _us(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
