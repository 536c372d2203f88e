"""How backends look: a colour and a marker shape each, the same in every plot."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...vocabulary import OTHER_BACKENDS, ROCM_BACKENDS
from .scales import coordinate

#: Colours that people with any colour vision tell apart, of Okabe and Ito ("Color Universal Design", 2008); their
#: yellow, orange and sky blue are too light for a white page, so that an ochre and a violet stand in. Each has a
#: contrast of at least 3 to white and to the page's dark background.
COLORS: tuple[str, ...] = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#A87700", "#8465D1")

#: Outlines around the origin, about 9 pixels wide.
SHAPES: tuple[tuple[str, tuple[tuple[float, float], ...]], ...] = (
    ("square", ((-4, -4), (4, -4), (4, 4), (-4, 4))),
    ("circle", ()),
    ("triangle", ((0, -5.5), (5.2, 4), (-5.2, 4))),
    ("diamond", ((0, -6), (6, 0), (0, 6), (-6, 0))),
    ("triangle down", ((0, 5.5), (5.2, -4), (-5.2, -4))),
    ("bow", ((-5, -4.5), (5, 4.5), (5, -4.5), (-5, 4.5))),
    ("hexagon", ((-5.5, 0), (-2.8, -4.8), (2.8, -4.8), (5.5, 0), (2.8, 4.8), (-2.8, 4.8))),
)

_KNOWN = ROCM_BACKENDS + OTHER_BACKENDS


@dataclass(frozen=True)
class Look:
    """Index of a colour in ``COLORS`` and of a shape in ``SHAPES``."""

    color: int
    shape: int

    @property
    def css(self) -> str:
        """The class that gives an element this colour."""
        return f"cm-c{self.color}"

    def marker(self, x: float, y: float) -> str:
        """The marker, its middle at a pixel."""
        place = f'transform="translate({coordinate(x)} {coordinate(y)})"'
        outline = SHAPES[self.shape][1]
        if not outline:
            return f'<circle class="cm-mark" {place} r="4.8"/>'
        steps = "L".join(f"{coordinate(a)} {coordinate(b)}" for a, b in outline)
        return f'<path class="cm-mark" {place} d="M{steps}Z"/>'


def looks(backends: Iterable[str]) -> dict[str, Look]:
    """A look for each backend, in the order of a table. Two known ones never look alike."""
    found = set(backends)
    strangers = sorted(found.difference(_KNOWN))
    names = [name for name in _KNOWN if name in found] + strangers
    places = [_KNOWN.index(n) if n in _KNOWN else len(_KNOWN) + strangers.index(n) for n in names]
    return {n: Look(i % len(COLORS), i % len(SHAPES)) for n, i in zip(names, places, strict=True)}
