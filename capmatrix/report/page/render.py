"""The document: the model, the evidence and the page's own script and style in one file that loads nothing.

A content security policy allows the one script by its hash, and no request at all. The model and the evidence stand in
data blocks, in which no text can end its element.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any

from ... import codec
from .. import plots, text
from . import compare, data, evidence, plain
from .data import NamedRun

#: The page's script, in this order; the last one draws what the others registered.
SCRIPTS = (
    "core.js",
    "summary.js",
    "overview.js",
    "table_model.js",
    "table_parts.js",
    "table.js",
    "list.js",
    "compare_model.js",
    "compare.js",
    "history.js",
    "plots.js",
    "pairs.js",
    "evidence.js",
    "panel.js",
    "shell.js",
)
STYLES = ("page.css", "compare.css")

#: Most characters of figures in a page; the rest are for ``capmatrix plot``.
MOST_PLOTS = 1_500_000

_ESCAPES = re.compile(r"\\.")

#: Plug-ins: what stands under their name in ``extra`` of the model, made of the runs.
EXTRAS: Mapping[str, Callable[[Sequence[NamedRun]], Any]] = {"compare": compare.extra}


def render(runs: Sequence[NamedRun]) -> str:
    """The page of named runs, the oldest first, as one HTML document."""
    model = data.build(runs, {name: make(runs) for name, make in EXTRAS.items()})
    script = "\n".join(asset(name) for name in SCRIPTS)
    style = "\n".join(asset(name) for name in STYLES)
    title = model.data["title"]
    blocks = (
        f'<script type="text/plain" id="e{i}">{chunk}</script>'
        for i, chunk in enumerate(evidence.chunks(model.records))
    )
    return (
        "\n".join(
            [
                '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
                f'<meta http-equiv="Content-Security-Policy" content="{policy(script)}">',
                '<meta name="viewport" content="width=device-width, initial-scale=1">',
                f"<title>{escape(f'Attention support: {title}' if title else 'Attention support')}</title>",
                f"<style>{style}</style></head><body>",
                '<header class="page"><div class="title"><h1>Attention support</h1>',
                f'<span class="soft">{escape(title)}</span></div><div id="overview"></div></header>',
                '<main><div id="toolbar" class="toolbar"></div><div id="view"></div>',
                f"<noscript>{plain.draw(model.report)}</noscript></main>",
                f'<aside id="panel" role="dialog" aria-labelledby="panel-title" hidden></aside>{_plots(model)}',
                f"<footer>capmatrix {escape(text.one_line(model.data['made'], 40))}</footer>",
                f'<script type="application/json" id="model">{block(model.data)}</script>',
                *blocks,
                f"<script>{script}</script></body></html>",
            ]
        )
        + "\n"
    )


def policy(script: str) -> str:
    """The content security policy of a page whose one script is ``script``."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def block(value: object) -> str:
    """JSON for a data block: nothing in it ends its element, begins a comment or looks like an attribute.

    ``<`` and quotation marks inside texts are escaped, and what a terminal would obey.
    """
    made = codec.printed(value).replace("<", "\\u003c")
    return _ESCAPES.sub(lambda found: "\\u0022" if found[0] == '\\"' else found[0], made)


def asset(name: str) -> str:
    """A file of the page's assets."""
    return (resources.files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _plots(model: data.Model) -> str:
    """The figures of the merged runs, as many as fit; inert until their tab is shown."""
    figures = plots.figures(model.report.records, model.report.environments, workloads=model.workloads)
    out: list[str] = []
    size = 0
    for figure in figures:
        size += len(figure.svg)
        if size > MOST_PLOTS:
            rest = text.count(len(figures) - len(out), "more figure")
            out.append(f"<p>{rest}: capmatrix plot writes all of them as files.</p>")
            break
        out.append(
            f'<figure id="plot-{escape(figure.name)}"><h3 class="sr">{escape(figure.title)}</h3>{figure.svg}'
            f"<figcaption>{escape(figure.caption)}</figcaption></figure>"
        )
    return f'<template id="plots">{"".join(out)}</template>'
