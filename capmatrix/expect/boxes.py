"""Sets of points in a grid as few products of values: how entries are merged over axes. Pure.

A box maps every axis to the values it takes; what it holds is their product. Merging is exact: two boxes that
differ in one axis become one, so that no point is ever covered that was not given. Widening, which drops an axis,
is asked for apart and only where enough points speak for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

Value = str | int | bool
Point = Mapping[str, Value]
Box = dict[str, frozenset[Value]]


def of(points: Iterable[Point], order: Sequence[str]) -> list[Box]:
    """The points as boxes, merged along the axes of ``order``, first the first; the same for any order of points."""
    return merge([{axis: frozenset({value}) for axis, value in point.items()} for point in points], order)


def merge(boxes: Sequence[Box], order: Sequence[str]) -> list[Box]:
    """Boxes with those merged that differ in one axis alone, until none are left."""
    found = _distinct(boxes)
    while True:
        before = len(found)
        for axis in order:
            grouped: dict[object, Box] = {}
            for box in found:
                rest = frozenset((name, values) for name, values in box.items() if name != axis)
                key = (rest, axis in box)
                if key in grouped and axis in box:
                    grouped[key] = {**box, axis: grouped[key][axis] | box[axis]}
                else:
                    grouped[key] = box
            found = list(grouped.values())
        if len(found) == before:
            return _distinct(found)


def widen(box: Box, axis: str, own: Sequence[Point], others: Sequence[Point]) -> Box | None:
    """``box`` without ``axis``; None where the points do not speak for it.

    They do where ``own``, all points that may be inside, have two of its values or more there, and ``others`` none.
    """
    wider = {name: values for name, values in box.items() if name != axis}
    seen = {point[axis] for point in own if holds(wider, point)}
    if len(seen) < 2 or any(holds(wider, point) for point in others):
        return None
    return wider


def holds(box: Box, point: Point) -> bool:
    """Whether the point lies in the box; an axis that the box does not have is any value."""
    return all(point[axis] in values for axis, values in box.items())


def without_inner(boxes: Sequence[Box]) -> list[Box]:
    """Boxes without those that lie inside another."""
    kept: list[Box] = []
    for i, box in enumerate(boxes):
        wider = [other for j, other in enumerate(boxes) if j != i and _within(box, other)]
        if not any(not _within(other, box) or boxes.index(other) < i for other in wider):
            kept.append(box)
    return kept


def _within(a: Box, b: Box) -> bool:
    return all(axis in a and a[axis] <= values for axis, values in b.items())


def _distinct(boxes: Sequence[Box]) -> list[Box]:
    found = {frozenset(box.items()): box for box in boxes}
    return sorted(found.values(), key=_key)


def _key(box: Box) -> tuple[object, ...]:
    return tuple((axis, tuple(sorted(map(_order, values)))) for axis, values in sorted(box.items()))


def _order(value: Value) -> tuple[int, int, str]:
    return (1, 0, value) if isinstance(value, str) else (0, int(value), "")
