"""A published comparison as bars: a bar a backend, how much better it is than the baseline, what did not run."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ...selection.measures import load_text
from ...selection.published import METRICS, READ, UNKNOWN, Published, Result, deciding_metric, improvement_percent
from .. import text
from . import evidence, panel, svg
from .figure import Figure
from .palette import Look, looks
from .scales import Scale, fitting, number

_LABEL, _BARS, _BESIDE, _ROW, _BAR = 270, 420, 230, 30, 18
_WIDTH = _LABEL + _BARS + _BESIDE


def draw(tables: Sequence[Published], taken: set[str]) -> list[Figure]:
    """A figure for each table that has a figure to compare by."""
    return [made for table in sorted(tables, key=lambda t: t.name) if (made := _figure(table, taken)) is not None]


def _figure(table: Published, taken: set[str]) -> Figure | None:
    groups: dict[bytes, list[Result]] = {}
    for result in table.results:
        groups.setdefault(msgspec.json.encode(result.load), []).append(result)
    metrics = {key: deciding_metric(tuple(rows), table.compare) for key, rows in groups.items()}
    if not any(metrics.values()):
        return None
    shared = [f"block {table.block_size}" if table.block_size else "block size not stated"]
    shared.append(f"KV {table.kv_cache_dtype or 'dtype not stated'}")
    if table.tp:
        shared.append(f"TP {table.tp}")
    gpu = "GPU not stated" if table.arch == UNKNOWN else f"{table.hardware} ({table.arch})"
    under = [f"{table.source}, {table.date}: {table.model or 'model not stated'}", f"{', '.join(shared)}; {gpu}"]
    out, y = panel.heading(16, _WIDTH - 10, table.title, under)
    shown = looks(evidence.short(r.backend) for r in table.results)
    for key, rows in groups.items():
        metric = metrics[key]
        if not metric:
            continue
        better = "more" if METRICS[metric].better > 0 else "less"
        y += 26
        what = f"{METRICS[metric].title}, {better} is better; {load_text(rows[0].load)}"
        out.append(svg.label(16, y, what, "cm-b", pixels=_WIDTH - 26))
        part, y = _bars(table, rows, metric, y + 10, shown)
        out += part
    caption = _caption(table)
    name = evidence.name(taken, "published", table.name)
    height = round(y + 14)
    drawing = svg.document(name, table.title, caption, out, _WIDTH, height)
    return Figure(name, text.one_line(table.title), drawing, caption, _WIDTH, height, "published")


def _bars(
    table: Published, rows: Sequence[Result], metric: str, top: float, shown: dict[str, Look]
) -> tuple[list[str], float]:
    base = next((r.figures[metric] for r in rows if r.backend == table.baseline and metric in r.figures), None)
    reach = [r.figures[metric] + (r.spread or 0.0) for r in rows if metric in r.figures]
    axis = fitting(reach, _LABEL, _LABEL + _BARS, log=False)
    bottom = top + _ROW * len(rows)
    out = []
    for tick in axis.ticks(6):
        x = axis.at(tick)
        out += [svg.path("cm-grid", ((x, top), (x, bottom))), svg.label(x, bottom + 15, number(tick), "cm-s cm-m")]
    based = False
    for i, row in enumerate(rows):
        first = row.backend == table.baseline and not based and metric in row.figures
        based = based or first
        out.append(_row(row, metric, axis, top + i * _ROW, shown, None if first else base, first))
    out.append(svg.path("cm-axis", ((_LABEL, top), (_LABEL, bottom))))
    return out, bottom + 18


def _row(
    row: Result, metric: str, axis: Scale, top: float, shown: dict[str, Look], base: float | None, first: bool
) -> str:
    backend = evidence.short(row.backend)
    name = f"{backend}, {row.variant}" if row.variant else backend
    middle = top + _ROW / 2
    look = shown[backend]
    parts = [look.marker(16 + 6, middle), svg.label(36, middle + 4, name, pixels=_LABEL - 44)]
    value = row.figures.get(metric)
    if value is None:
        said = f"{row.status}: {row.reason}" if row.reason else f"{row.status}; no such figure"
        parts.append(svg.label(_LABEL + 8, middle + 4, said, "cm-s cm-halo", pixels=_BARS + _BESIDE - 20))
        return svg.group(f"{name}: {said}", parts, look.css)
    figure = f"{value:,.{METRICS[metric].decimals}f}"
    end = axis.at(value)
    parts.append(svg.rectangle("cm-bar", _LABEL, middle - _BAR / 2, end - _LABEL, _BAR))
    if row.spread:
        low, high = axis.clamped(value - row.spread), axis.clamped(value + row.spread)
        caps = (((at, middle - 4), (at, middle + 4)) for at in (low, high))
        parts.append(svg.path("cm-limit cm-whisker", ((low, middle), (high, middle)), *caps))
        figure += f" \N{PLUS-MINUS SIGN} {number(row.spread)}"
        end = high
    beside = "baseline" if first else improvement(metric, value, base)
    said = f"{figure} ({beside})" if beside else figure
    parts.append(svg.label(end + 8, middle + 4, said, "cm-b cm-halo"))
    return svg.group(f"{name}: {figure} {METRICS[metric].title}{f', {beside}' if beside else ''}", parts, look.css)


def improvement(metric: str, value: float, baseline: float | None) -> str:
    """``+241.44 %``: by how much better than the baseline, as a rate; "" without one."""
    return "" if baseline is None else f"{improvement_percent(metric, value, baseline):+,.2f} %"


def _caption(table: Published) -> str:
    once = all(r.repeats == 1 for r in table.results if r.status == "pass")
    missing = sum(r.status != "pass" for r in table.results)
    better = f"Percentages: how much better than {table.baseline}, computed from the figures shown."
    return evidence.sentences(
        f"As published in {text.one_line(table.source, 200)}; not measured here.",
        better if table.baseline else "",
        "Each figure is one unrepeated run: there is no interval."
        if once
        else "Whiskers: the spread that the source gives, where it gives one.",
        "The GPU is not stated: no row of one architecture rests on it alone." if table.arch == UNKNOWN else "",
        f"{text.count(missing, 'row')} without a bar did not run." if missing else "",
        "" if table.read == READ[0] else f"The source was read {table.read}.",
        "Not shown: other figures of the source, other loads, block sizes and GPUs.",
    )
