"""What a plot is: a named SVG with a title and a caption, and the file it makes when it stands alone."""

from __future__ import annotations

import dataclasses

from . import svg


@dataclasses.dataclass(frozen=True)
class Figure:
    """One plot.

    ``name`` is unique among the figures of one call, and fit for a file name, an id and a link
    (``time-gfx942-minimax-m3-eagle3-seed``). ``title`` and ``caption`` are plain text: whoever puts them into
    HTML escapes them; the caption says what the plot does not show. ``svg`` is one ``<svg>`` element without an XML
    declaration, to be put into a page as it is: every text in it is escaped, and it holds no script and no link. It
    carries its own style under the class ``cm-plot``, follows ``prefers-color-scheme``, and takes a page's colours
    from ``--bg``, ``--fg``, ``--soft`` and ``--line`` where the page has them. ``width`` and ``height`` in pixels.
    ``kind`` is ``published``, ``time``, ``roofline`` or ``kernels``.
    """

    name: str
    title: str
    svg: str
    caption: str
    width: int
    height: int
    kind: str


def standalone(figure: Figure) -> str:
    """``figure`` as a file of its own: with an XML declaration, and its caption written beneath."""
    lines = svg.wrapped(figure.caption, figure.width - 32, 11)
    height = figure.height + 16 * len(lines) + 14
    texts = [svg.label(16, figure.height + 14 + 16 * i, line, "cm-s") for i, line in enumerate(lines)]
    size = f'viewBox="0 0 {figure.width} {height}" width="{figure.width}" height="{height}"'
    ground = svg.rectangle("cm-bg", 0, 0, figure.width, height)
    # The plot brings its style along; a nested element is drawn at the top.
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<svg xmlns="http://www.w3.org/2000/svg" class="cm-plot" {size}>\n'
        f"{ground}\n{figure.svg}\n<g>{''.join(texts)}</g>\n</svg>\n"
    )
