"""SVG as text: elements, escaped text, the style that every plot carries, the whole document."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from .. import text as words
from .palette import COLORS
from .scales import coordinate

#: Pixels of the text of a plot.
SIZE = 12

#: What every plot carries. ``--bg``, ``--fg``, ``--soft`` and ``--line`` are a page's own, where it has them.
STYLE = (
    ".cm-plot{--cm-bg:var(--bg,#fff);--cm-fg:var(--fg,#1b1f24);--cm-soft:var(--soft,#59636e);--cm-line:var(--line,#d5dae0);"
    + "".join(f"--cm-{i}:{color};" for i, color in enumerate(COLORS))
    + "}"
    "@media (prefers-color-scheme:dark){.cm-plot{--cm-bg:var(--bg,#101418);--cm-fg:var(--fg,#e4e8ec);"
    "--cm-soft:var(--soft,#9aa5b1);--cm-line:var(--line,#2c343c)}}"
    ".cm-plot text{font:12px system-ui,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;fill:var(--cm-fg)}"
    ".cm-plot .cm-h{font-size:15px;font-weight:600}.cm-plot .cm-b{font-weight:600}"
    ".cm-plot .cm-s{fill:var(--cm-soft);font-size:11px}"
    ".cm-plot .cm-e{text-anchor:end}.cm-plot .cm-m{text-anchor:middle}"
    ".cm-plot .cm-halo{paint-order:stroke;stroke:var(--cm-bg);stroke-width:3px;stroke-linejoin:round}"
    ".cm-plot .cm-bg{fill:var(--cm-bg)}.cm-plot .cm-grid{stroke:var(--cm-line);fill:none}"
    ".cm-plot .cm-axis{stroke:var(--cm-soft);fill:none}"
    ".cm-plot .cm-limit{stroke:var(--cm-fg);stroke-width:1.5;fill:none}.cm-plot .cm-dash{stroke-dasharray:6 4}"
    ".cm-plot .cm-line{stroke:var(--cm-c);stroke-width:1.5;fill:none}"
    ".cm-plot .cm-mark{fill:var(--cm-c);stroke:var(--cm-bg);stroke-width:1}"
    ".cm-plot .cm-open .cm-mark{fill:none;stroke:var(--cm-c);stroke-width:2}.cm-plot .cm-bar{fill:var(--cm-c)}"
    + "".join(f".cm-plot .cm-c{i}{{--cm-c:var(--cm-{i})}}" for i in range(len(COLORS)))
)


def safe(value: object, limit: int = 300) -> str:
    """Text from anywhere as one printable, escaped line: fit for an element and for an attribute."""
    return escape(words.one_line(value, limit))


def width(text: str, size: float = SIZE) -> float:
    """About how many pixels ``text`` takes; rather too many than too few, since no font is at hand."""
    return size * sum(_share(c) for c in text)


def _share(c: str) -> float:
    if c.isascii():
        wide, narrow = c.isupper() or c in "_mw@%+<>=", c in " .,:;'|il-"
        return 0.76 if wide else 0.34 if narrow else 0.6
    return 1.05 if words.width(c) > 1 else 0.75


def clipped(value: object, pixels: float, size: float = SIZE) -> str:
    """``value`` as one line that takes at most ``pixels``, shortened with an ellipsis; not yet escaped."""
    line = words.one_line(value, 300)
    if width(line, size) <= pixels:
        return line
    while line and width(line + "\N{HORIZONTAL ELLIPSIS}", size) > pixels:
        line = line[:-1]
    return line.rstrip() + "\N{HORIZONTAL ELLIPSIS}"


def wrapped(value: object, pixels: float, size: float = SIZE) -> list[str]:
    """``value`` in lines of at most ``pixels``; a word longer than a line is cut. Not yet escaped."""
    lines: list[str] = []
    for word in words.one_line(value, 4000).split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and width(longer, size) <= pixels:
            lines[-1] = longer
        else:
            lines.append(clipped(word, pixels, size))
    return lines


def label(x: float, y: float, value: object, classes: str = "", *, pixels: float | None = None) -> str:
    """A line of text with its baseline at ``y``; where it had to be shortened, the whole of it is its title."""
    line = words.one_line(value, 300)
    size = 11 if "cm-s" in classes.split() else 15 if "cm-h" in classes.split() else SIZE
    shown = line if pixels is None else clipped(line, pixels, size)
    whole = "" if shown == line else f"<title>{escape(line)}</title>"
    kind = f' class="{classes}"' if classes else ""
    return f'<text{kind} x="{coordinate(x)}" y="{coordinate(y)}">{whole}{escape(shown)}</text>'


def path(classes: str, *lines: Iterable[tuple[float, float]]) -> str:
    """A line through points, or several."""
    steps = "".join("M" + "L".join(f"{coordinate(x)} {coordinate(y)}" for x, y in points) for points in lines)
    return f'<path class="{classes}" d="{steps}"/>'


def rectangle(classes: str, x: float, y: float, w: float, h: float) -> str:
    """An upright rectangle."""
    place = " ".join(f'{n}="{coordinate(v)}"' for n, v in (("x", x), ("y", y), ("width", w), ("height", h)))
    return f'<rect class="{classes}" {place}/>'


def group(title: object, parts: Iterable[str], classes: str = "") -> str:
    """Elements under one title, which a pointer over them shows and a screen reader says."""
    kind = f' class="{classes}"' if classes else ""
    return f"<g{kind}><title>{safe(title, 600)}</title>{''.join(parts)}</g>"


def document(name: str, title: str, description: str, body: Iterable[str], w: int, h: int) -> str:
    """The whole ``<svg>``: named and described for a screen reader, its style, a background, ``body``."""
    ids = f"{name}-title {name}-desc"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="cm-plot" viewBox="0 0 {w} {h}" width="{w}" height="{h}" '
        f'role="img" aria-labelledby="{ids}">'
        f'<title id="{name}-title">{safe(title)}</title><desc id="{name}-desc">{safe(description, 4000)}</desc>'
        f"<style>{STYLE}</style>{rectangle('cm-bg', 0, 0, w, h)}{''.join(body)}</svg>"
    )
