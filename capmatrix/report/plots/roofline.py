"""Rooflines: what timed calls reached against what their GPU can do, a panel for each KV cache dtype."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...cell import Environment, Record, Timing
from ...grid import Workload
from .. import text
from . import evidence, limits, panel, svg, times
from .evidence import Sources
from .figure import Figure
from .limits import Product
from .palette import Look, looks
from .panel import Box
from .scales import Scale, fitting, number
from .work import Work, work

_LEFT, _WIDTH, _HEIGHT, _GAP = 62, 400, 300, 76


class Spot(NamedTuple):
    """One timed call in the plane of a roofline."""

    record: Record
    timing: Timing
    work: Work

    @property
    def rate(self) -> float:
        """Operations a second."""
        return self.work.operations / (self.timing.median_us * 1e-6)

    @property
    def reached(self) -> float:
        """Bytes a second."""
        return self.work.moved / (self.timing.median_us * 1e-6)


def draw(
    records: Sequence[Record], sources: Sources, workloads: Mapping[str, Workload], taken: set[str]
) -> list[Figure]:
    """A figure for each place, drafter and workload whose times tell what was moved."""
    out = []
    for key, timed in times.collect(records, sources).items():
        told = [(t, work(t.record, t.timing, workloads)) for t in timed]
        spots = [Spot(t.record, t.timing, w) for t, w in told if w is not None]
        if spots:
            out.append(_figure(key, spots, len(told) - len(spots), sources.environments, taken))
    return out


def _figure(
    key: times.Key, spots: list[Spot], untold: int, environments: Mapping[str, Environment], taken: set[str]
) -> Figure:
    environment = environments.get(spots[0].record.environment)
    product = limits.product(environment)
    rows = times.named(times.condition(s.record.cell) for s in spots)
    shown = looks(evidence.short(s.record.cell.backend) for s in spots)
    columns = min(2, len(rows))
    width = max(_LEFT + columns * (_WIDTH + _GAP) - _GAP + 20, 640)
    title = f"Roofline: {key.drafter}, workload {key.workload}, {key.source.title}"
    heads = f"{key.role} role, {evidence.geometry(s.record.cell for s in spots)}"
    under = [f"{heads}. {key.source.stack}", "TFLOP/s reached, over FLOP a byte moved (both log)"]
    out, y = panel.heading(16, width - 10, title, under)
    keys, y = panel.legend(16, y + 10, width - 10, shown, "cm-open")
    out += keys
    read = max((s.work.bandwidth for s in spots if s.work.bandwidth), default=None)
    xs, ys = _axes(spots, read, product)
    for i, (where, name) in enumerate(rows.items()):
        top = y + 32 + (i // columns) * (_HEIGHT + 76)
        box = Box(_LEFT + (i % columns) * (_WIDTH + _GAP), top, _WIDTH, _HEIGHT)
        here = [s for s in spots if times.condition(s.record.cell) == where]
        out += _panel(box, name, here, shown, xs, ys, read, product)
    y += (32 + _HEIGHT + 44) * -(-len(rows) // columns)
    caption = _caption(key, spots, untold, product, read)
    name = evidence.name(taken, "roofline", *key.words)
    drawing = svg.document(name, title, caption, out, round(width), round(y + 4))
    return Figure(name, text.one_line(title), drawing, caption, round(width), round(y + 4), "roofline")


def _axes(spots: Sequence[Spot], read: float | None, product: Product | None) -> tuple[Scale, Scale]:
    """Axes that hold every call, the compute roof where there is one, and the place where the roofs meet."""
    intensities = [s.work.intensity for s in spots]
    rates = [s.rate / 1e12 for s in spots]
    bandwidth = (product.bandwidth if product else None) or read
    if product and product.bf16:
        rates.append(product.bf16 / 1e12)
        if bandwidth:
            intensities.append(2 * product.bf16 / bandwidth)
    elif bandwidth:
        rates += [bandwidth * i / 1e12 for i in intensities]
    wide = [min(intensities) * 0.7, max(intensities) * 1.4]
    tall = [min(rates) * 0.7, max(rates) * 1.4]
    return fitting(wide, 0, 1, log=True), fitting(tall, 0, 1, log=True)


def _panel(
    box: Box, name: str, spots: Sequence[Spot], shown: Mapping[str, Look], xs: Scale, ys: Scale,
    read: float | None, product: Product | None,
) -> list[str]:  # fmt: skip
    x = Scale(xs.low, xs.high, box.left, box.right, log=True)
    y = Scale(ys.low, ys.high, box.bottom, box.top, log=True)
    out = [svg.label(box.left, box.top - 10, name, "cm-b", pixels=_WIDTH), *panel.frame(box, y)]
    out += [svg.label(x.at(tick), box.bottom + 15, number(tick), "cm-s cm-m") for tick in x.ticks(6)]
    out.append(svg.label(box.left + box.width / 2, box.bottom + 31, "FLOP a byte", "cm-s cm-m"))
    for i, phase in enumerate(times.PHASES):
        here = [s.work.intensity for s in spots if s.timing.phase == phase]
        if here:
            at = x.at(sum(here) / len(here))
            out.append(svg.path("cm-grid cm-dash", ((at, box.top), (at, box.bottom))))
            out.append(svg.label(at + 4, box.bottom - 6 - 14 * i, phase, "cm-s cm-halo"))
    out += _roofs(box, x, y, read, product)
    for s in sorted(spots, key=lambda s: (s.record.cell.backend, s.record.cell.block_size, s.timing.phase)):
        look = shown[evidence.short(s.record.cell.backend)]
        marker = look.marker(x.at(s.work.intensity), y.at(s.rate / 1e12))
        out.append(svg.group(_words(s), [marker], f"cm-open {look.css}"))
    return out


def _roofs(box: Box, x: Scale, y: Scale, read: float | None, product: Product | None) -> list[str]:
    out = []
    flat = product.bf16 if product else None
    stated = product.bandwidth if product else None
    for bandwidth, classes in ((stated, "cm-limit cm-dash"), (read, "cm-limit")):
        if bandwidth:
            # From where the roof enters the panel to where it leaves it, or meets the compute roof.
            first = max(x.low, y.low * 1e12 / bandwidth)
            last = min(x.high, min(y.high * 1e12, flat or float("inf")) / bandwidth)
            if first < last:
                ends = ((i, bandwidth * i / 1e12) for i in (first, last))
                out.append(svg.path(f"{classes} cm-roof", ((x.at(i), y.at(r)) for i, r in ends)))
    texts = []
    if read:
        texts.append(f"solid: {number(read / 1e12)} TB/s read here")
    if stated:
        texts.append(f"dashed: {number(stated / 1e12)} TB/s, data sheet")
    if flat:
        out += panel.limit(box, y, flat / 1e12, f"{number(flat / 1e12)} TFLOP/s, bf16 dense, data sheet")[0]
    else:
        texts.append("compute roof: not known here")
    out += [svg.label(box.left + 8, box.top + 34 + 15 * i, line, "cm-s cm-halo") for i, line in enumerate(texts)]
    return out


def _words(spot: Spot) -> str:
    cell, w = spot.record.cell, spot.work
    backend = evidence.short(cell.backend)
    share = f", {spot.reached / w.bandwidth:.0%} of what was read here" if w.bandwidth else ""
    return (
        f"{backend}, block {cell.block_size}, {spot.timing.phase}: {number(spot.reached / 1e12)} TB/s{share}, "
        f"{number(spot.rate / 1e12)} TFLOP/s at {number(w.intensity)} FLOP a byte"
    )


def _caption(key: times.Key, spots: Sequence[Spot], untold: int, product: Product | None, read: float | None) -> str:
    above = max((s.reached / s.work.bandwidth for s in spots if s.work.bandwidth), default=0.0)
    if product is None:
        known = "No data sheet of this GPU is known here: its peak bandwidth and compute roof are not drawn."
    else:
        known = f"Peaks: {product.source}." + (
            "" if product.bf16 else " Its compute roof is not known here and not drawn."
        )
    return evidence.sentences(
        "Bytes are the fewest that a call moves (keys and values once, new ones written, query and output) and "
        "operations the fewest it needs, so that a point tells how far a call is from the best, not what it did.",
        f"The solid roof is what plain sums read in the same process; a kernel can pass it (here up to {above:.0%})."
        if above > 1 and read
        else "The solid roof is what plain sums read in the same process."
        if read
        else "No bandwidth was measured beside these times.",
        known,
        "The compute roof is that of bf16: a kernel that multiplies in fp8 has a higher one.",
        evidence.no_amd(key.source),
        f"{text.count(untold, 'time')} not drawn: no record tells what was moved." if untold else "",
        "Not shown: intervals, and prefills whose workload profile is not known.",
    )
