"""What kernels cost, by backend over block size: compile time, registers, LDS against the limit, spills."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...cell import Kernel, Record, Rung
from .. import text
from . import evidence, limits, panel, svg
from .evidence import Source, Sources
from .figure import Figure
from .limits import Resources
from .palette import Look, looks
from .panel import Box, Point
from .scales import Scale, Slots, fitting, number

_LEFT, _WIDTH, _HEIGHT, _GAP_X, _ROW = 54, 190, 96, 60, 174

#: Kernels of one figure; the ones that spill, fill or compile most come first.
MOST = 16


#: Row of what did not fit into the LDS, and so has no other figures.
UNFIT = "a kernel that did not fit"


class Metric(NamedTuple):
    """A column: its title, its unit in words, and the figure of a kernel (None: not recorded)."""

    title: str
    unit: str
    of: Callable[[Kernel], float | None]


class Range(NamedTuple):
    """Smallest and largest figure over cells, and the first cell that has the largest."""

    low: float
    high: float
    cell_id: str


@dataclass
class Found:
    """What is known of one place and KV cache dtype. ``ranges`` by metric, kernel, backend and block size;
    ``rungs`` a record of each; ``environment`` the id of one."""

    ranges: dict[tuple[int, str, str, int], Range] = field(default_factory=dict)
    cells: set[str] = field(default_factory=set)
    rungs: dict[Rung, Record] = field(default_factory=dict)
    environment: str = ""


def _nvidia(kernel: Kernel, what: str) -> float | None:
    found = re.search(rf"(?<!\d)(\d{{1,9}}) {what}", kernel.detail) if kernel.detail.startswith("NVIDIA: ") else None
    return float(found[1]) if found else None


def _registers(kernel: Kernel) -> float | None:
    return kernel.vgprs if kernel.vgprs is not None else _nvidia(kernel, "registers")


def _lds(kernel: Kernel) -> float | None:
    return None if kernel.lds_bytes is None else kernel.lds_bytes / 1024


def _spills(kernel: Kernel) -> float | None:
    if kernel.vgpr_spills is None and kernel.sgpr_spills is None:
        return _nvidia(kernel, "spills")
    return (kernel.vgpr_spills or 0) + (kernel.sgpr_spills or 0)


METRICS: tuple[Metric, ...] = (
    Metric("compile time", "s", lambda k: k.compile_s),
    Metric("registers", "a lane", _registers),
    Metric("LDS", "KiB", _lds),
    Metric("spills", "registers", _spills),
)


@functools.lru_cache(maxsize=4096)
def family(name: str) -> str:
    """A kernel's name without the numbers it was specialised for (AITER writes them into names): one row for all."""
    return evidence.short(re.sub(r"_\d+(?=_|$)", "_*", name))


def draw(records: Sequence[Record], sources: Sources, taken: set[str]) -> list[Figure]:
    """A figure for each place and KV cache dtype whose kernels' resources are known."""
    found: dict[tuple[Source, tuple[int, str]], Found] = {}
    for record in records:
        cell = record.cell
        kernels = [k for k in record.route if k.kind == "triton"] + _refused(record)
        if kernels and evidence.sane(cell.block_size):
            key = sources.of(record), evidence.kv_rank(cell.kv_cache_dtype)
            _note(found.setdefault(key, Found()), record, kernels)
    shown = sorted((key, one) for key, one in found.items() if one.ranges)
    return [_figure(where, kv, one, sources, taken) for (where, (_, kv)), one in shown]


def _refused(record: Record) -> list[Kernel]:
    """The kernel that needed more LDS than there is, as Triton's OutOfResources tells; it does not say which it was."""
    if record.failure is None or record.failure.type != "OutOfResources":
        return []
    told = re.search(r"shared memory, Required: (\d{1,12})(?!\d)", record.failure.message)
    return [Kernel(UNFIT, "triton", record.phase.value, lds_bytes=int(told[1]))] if told else []


def _note(found: Found, record: Record, kernels: Sequence[Kernel]) -> None:
    told = False
    for kernel in kernels:
        for i, metric in enumerate(METRICS):
            value = metric.of(kernel)
            if value is None or not evidence.sane(value):
                continue
            told = True
            key = i, family(kernel.name), record.cell.backend, record.cell.block_size
            was = found.ranges.get(key)
            if was is None:
                found.ranges[key] = Range(value, value, record.cell_id)
            elif value < was.low:
                found.ranges[key] = was._replace(low=value)
            elif value > was.high:
                found.ranges[key] = was._replace(high=value, cell_id=record.cell_id)
    if told:
        found.cells.add(record.cell_id)
        found.rungs[record.rung] = record
        found.environment = found.environment or record.environment


Data = dict[str, dict[str, dict[int, Point]]]


def _figure(source: Source, kv: str, found: Found, sources: Sources, taken: set[str]) -> Figure:
    has = limits.resources(source.architecture, sources.environments.get(found.environment))
    data = {m.title: _points(i, found) for i, m in enumerate(METRICS)}
    columns = [m for m in METRICS if data[m.title]]
    every = sorted({k[1] for k in found.ranges}, key=lambda name: _weight(name, data))
    kernels = every[:MOST]
    blocks = tuple(sorted({k[3] for k in found.ranges}))
    shown = looks({evidence.short(k[2]) for k in found.ranges})
    axes = {m.title: _axis(m, data[m.title], has) for m in columns}
    right = max(_LEFT + len(columns) * (_WIDTH + _GAP_X) - _GAP_X + 20, 560)
    title = f"What kernels cost: {source.title}, KV {text.one_line(kv, 40)}"
    how = "Over block size (evenly spaced). Marker: the largest of all cells; the bar reaches down to the smallest"
    out, y = panel.heading(16, right - 10, title, (source.stack, how))
    keys, y = panel.legend(16, y + 10, right - 10, shown)
    out += keys
    for name in kernels:
        out.append(svg.label(16, y + 24, name, "cm-b", pixels=right - 30))
        for i, metric in enumerate(columns):
            box = Box(_LEFT + i * (_WIDTH + _GAP_X), y + 50, _WIDTH, _HEIGHT)
            out += _panel(box, metric, axes[metric.title], blocks, data[metric.title].get(name, {}), shown, has)
        y += _ROW
    caption = _caption(source, found, columns, has, len(every) - len(kernels))
    name = evidence.name(taken, "kernels", source.title, kv)
    width, height = round(right), round(y + 16)
    drawing = svg.document(name, title, caption, out, width, height)
    return Figure(name, text.one_line(title), drawing, caption, width, height, "kernels")


def _points(metric: int, found: Found) -> Data:
    """One metric by kernel, backend and block size: the largest figure, and the range down to the smallest."""
    out: Data = {}
    about = METRICS[metric]
    for (which, kernel, backend, block), one in found.ranges.items():
        if which == metric:
            name = evidence.short(backend)
            span = "" if one.low == one.high else f" (from {number(one.low)})"
            what = f"{about.title} {number(one.high)} {about.unit}{span}"
            title = f"{name}, block {block}: {what}; most in {one.cell_id}"
            point = Point(one.high, one.low, one.high, title)
            out.setdefault(kernel, {}).setdefault(name, {})[block] = point
    return out


def _largest(data: Data, kernel: str) -> float:
    return max((p.value for by in data.get(kernel, {}).values() for p in by.values()), default=0.0)


def _weight(kernel: str, data: Mapping[str, Data]) -> tuple[bool, float, float, float, str]:
    registers = _largest(data["registers"], kernel)
    return (
        kernel != UNFIT,
        -_largest(data["spills"], kernel),
        -_largest(data["compile time"], kernel),
        -registers,
        kernel,
    )


def _limit(metric: Metric, has: Resources) -> float | None:
    if metric.title == "LDS":
        return None if has.lds_bytes is None else has.lds_bytes / 1024
    return has.registers if metric.title == "registers" else None


def _axis(metric: Metric, data: Data, has: Resources) -> Scale:
    """One axis for all kernels of a column, its limit within it."""
    values = [v for by in data.values() for series in by.values() for p in series.values() for v in (p.low, p.value)]
    most = _limit(metric, has)
    if most is not None:
        return Scale(0.0, 1.15 * max(most, *values), 0, 1)
    return fitting(values, 0, 1)


def _panel(
    box: Box, metric: Metric, bounds: Scale, blocks: tuple[int, ...], data: Mapping[str, Mapping[int, Point]],
    shown: Mapping[str, Look], has: Resources,
) -> list[str]:  # fmt: skip
    axis = Scale(bounds.low, bounds.high, box.bottom, box.top, bounds.log)
    slots = Slots(blocks, box.left, box.right)
    log = ", log" if axis.log else ""
    out = [svg.label(box.left, box.top - 8, f"{metric.title}, {metric.unit}{log}", "cm-s", pixels=box.width)]
    most = _limit(metric, has)
    # Quarters of the limit, which are round where thousands are not.
    ticks = None if most is None or most % 4 else [most * i / 4 for i in range(int(axis.high * 4 / most) + 1)]
    out += panel.frame(box, axis, ticks) + panel.block_axis(box, slots)
    named = []
    if most is not None:
        parts, room = panel.limit(box, axis, most, f"limit {number(most)}")
        out += parts
        named.append(room)
    if not data:
        out.append(svg.label(box.left + box.width / 2, box.top + box.height / 2, "not recorded", "cm-s cm-m"))
    return out + panel.series(box, slots, axis, shown, data, named)


def _caption(source: Source, found: Found, columns: Sequence[Metric], has: Resources, left: int) -> str:
    titles = {m.title for m in columns}
    unknown = [m.title for m in columns if m.title in ("registers", "LDS") and _limit(m, has) is None]
    cells = f"{text.count(len(found.cells), 'cell')}, {evidence.rungs(found.rungs.values())}"
    compiled = "No compile time: every kernel came from a cache."
    if "compile time" in titles:
        compiled = "Compile times depend on the machine that compiled, and are only of kernels that no cache held."
    unfit = "Of what did not fit only the LDS is known, not which kernel it was: it never ran."
    spilled = "Spills: vector registers, which go to memory, and scalar ones, which go to vector registers first."
    return evidence.sentences(
        f"What the compiler says of the Triton kernels of {cells}; over drafter families, TP degrees and batches.",
        compiled,
        f"Limits: {has.source}." if has.source else "",
        f"The limit of {' and '.join(unknown)} is not known for this GPU." if unknown else "",
        unfit if any(k[1] == UNFIT for k in found.ranges) else "",
        spilled if source.architecture and "spills" in titles else "",
        evidence.no_amd(source),
        f"{text.count(left, 'more kernel')} not drawn: they spill and compile less." if left else "",
        "Not shown: native operators, whose resources no record holds, and time.",
    )
