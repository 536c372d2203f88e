"""What plots are made of: framed panels with axes, a legend, points with intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from . import svg
from .palette import Look
from .scales import Scale, Slots, number

#: Of more points than this in a panel the values are not written, only told to a pointer.
CROWD = 12


@dataclass(frozen=True)
class Box:
    """The inner area of a panel in pixels; axis labels lie outside it."""

    left: float
    top: float
    width: float
    height: float

    @property
    def right(self) -> float:
        """Its right edge."""
        return self.left + self.width

    @property
    def bottom(self) -> float:
        """Its lower edge."""
        return self.top + self.height


@dataclass(frozen=True)
class Point:
    """One value of a series at a block size, the interval around it, and what it says in words."""

    value: float
    low: float
    high: float
    title: str


class Room(NamedTuple):
    """A rectangle in pixels that something stands in."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Room) -> bool:
        """Whether the two share any of it."""
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )


def frame(box: Box, y: Scale, ticks: Sequence[float] | None = None) -> list[str]:
    """Lower and left axis, a grid line and a number for each tick of ``y``."""
    out = []
    for tick in y.ticks(max(2, int(box.height // 30))) if ticks is None else ticks:
        at = y.at(tick)
        out.append(svg.path("cm-grid", ((box.left, at), (box.right, at))))
        out.append(svg.label(box.left - 6, at + 4, number(tick), "cm-s cm-e"))
    out.append(svg.path("cm-axis", ((box.left, box.top), (box.left, box.bottom), (box.right, box.bottom))))
    return out


def block_axis(box: Box, x: Slots, every: bool = True) -> list[str]:
    """Block sizes under the lower axis; only every other one where they would touch."""
    widest = max(svg.width(number(v), 11) for v in x.values)
    step = 1 if widest + 4 <= x.width else 1 + int(widest // x.width) + 1
    shown = x.values if every and step == 1 else x.values[::step]
    return [svg.label(x.at(v), box.bottom + 15, number(v), "cm-s cm-m") for v in shown]


def series(
    box: Box, x: Slots, y: Scale, looks: Mapping[str, Look], data: Mapping[str, Mapping[int, Point]],
    taken: Sequence[Room] = (),
) -> list[str]:  # fmt: skip
    """The points of each backend over block sizes, joined by a line, each with its interval.

    Backends stand beside each other at a block size. A value is written above or below its point where that hides
    nothing and is not one of very many; ``taken`` is room that is in use already.
    """
    lines: list[str] = []
    found: list[tuple[Look, Point, float, float]] = []
    names = [name for name in looks if data.get(name)]
    for i, name in enumerate(names):
        points = data[name]
        places = [(points[b], x.at(b, i, len(names)), y.clamped(points[b].value)) for b in x.values if b in points]
        if len(places) > 1:
            line = svg.path("cm-line", ((across, up) for _, across, up in places))
            lines.append(f'<g class="{looks[name].css}">{line}</g>')
        found += [(looks[name], *place) for place in places]
    rooms = [*taken, *(Room(across - 6, up - 6, across + 6, up + 6) for _, _, across, up in found)]
    rooms += [Room(across - 3, y.clamped(p.high), across + 3, y.clamped(p.low)) for _, p, across, _ in found]
    marks = []
    for look, point, across, up in found:
        parts = [interval(across, y.clamped(point.low), y.clamped(point.high)), look.marker(across, up)]
        text = number(point.value)
        half = svg.width(text, 11) / 2
        for base in (up - 10, up + 18) if len(found) <= CROWD else ():
            room = Room(across - half, base - 9, across + half, base + 1)
            within = box.top - 2 <= room.top and room.bottom <= box.bottom and room.right <= box.right + 8
            if within and not any(room.meets(other) for other in rooms):
                parts.append(svg.label(across, base, text, "cm-s cm-m cm-halo"))
                rooms.append(room)
                break
        marks.append(svg.group(point.title, parts, look.css))
    return lines + marks


def interval(x: float, low: float, high: float) -> str:
    """A whisker from one pixel to another, with caps."""
    strokes = ((x - 3, low), (x + 3, low)), ((x, low), (x, high)), ((x - 3, high), (x + 3, high))
    return svg.path("cm-line cm-whisker", *strokes)


def limit(box: Box, y: Scale, value: float, text: str) -> tuple[list[str], Room]:
    """A line across the panel at a limit, named at its right end, and the room that the name takes."""
    at = y.at(value)
    base = at - 4 if at - 4 > box.top + 8 else at + 13
    parts = [
        svg.path("cm-limit cm-dash", ((box.left, at), (box.right, at))),
        svg.label(box.right, base, text, "cm-s cm-e cm-halo", pixels=box.width),
    ]
    return parts, Room(box.right - svg.width(text, 11), base - 9, box.right, base + 1)


def legend(
    left: float, top: float, right: float, looks: Mapping[str, Look], classes: str = ""
) -> tuple[list[str], float]:
    """Markers and names of backends in as many lines as they need, and the pixel where they end."""
    out: list[str] = []
    x, y = left, top
    for name, look in looks.items():
        shown = svg.clipped(name, 400)
        needed = 16 + svg.width(shown) + 18
        if x > left and x + needed > right:
            x, y = left, y + 20
        out.append(
            svg.group(name, [look.marker(x + 6, y - 4), svg.label(x + 16, y, shown)], f"{classes} {look.css}".strip())
        )
        x += needed
    return out, y + 12


def heading(left: float, right: float, title: object, under: Iterable[object]) -> tuple[list[str], float]:
    """The title and the lines under it, wrapped, and the pixel where they end."""
    out = []
    y = 22.0
    for line in svg.wrapped(title, right - left, 15):
        out.append(svg.label(left, y, line, "cm-h"))
        y += 20
    for text in under:
        for line in svg.wrapped(text, right - left, 11):
            out.append(svg.label(left, y, line, "cm-s"))
            y += 16
    return out, y
