"""Time of one attention call by backend over block size: a panel for each KV cache dtype and phase."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ...cell import Cell, Force, Record, Timing, Verdict
from ...summary import switch_words
from .. import text
from . import evidence, panel, svg
from .evidence import Source, Sources
from .figure import Figure
from .palette import looks
from .panel import Box, Point
from .scales import Scale, Slots, fitting, number

PHASES = ("decode", "verify", "prefill")

_LEFT, _HEIGHT, _GAP_X, _GAP_Y = 62, 150, 66, 58


class Key(NamedTuple):
    """What one figure is of."""

    source: Source
    drafter: str
    role: str
    workload: str

    @property
    def words(self) -> tuple[str, ...]:
        """What names its figure."""
        return self.source.title, self.drafter, "" if self.role == "drafter" else self.role, self.workload


class Condition(NamedTuple):
    """What one row of panels is of; only what varies within a figure is written beside it."""

    kv_cache_dtype: str
    dtype: str
    tp: int
    num_speculative_tokens: int
    execution: str
    runner: str
    scales: str
    switches: tuple[tuple[str, str], ...]
    forced: str


class Timed(NamedTuple):
    """One measured time and the record it is of."""

    record: Record
    timing: Timing


def collect(records: Iterable[Record], sources: Sources) -> dict[Key, list[Timed]]:
    """The times of cells that passed, by figure; the order of the records changes nothing."""
    found: dict[Key, list[Timed]] = {}
    for record in records:
        if not record.times or record.verdict is not Verdict.PASS:
            continue
        where = sources.of(record, gpu=True)
        for timing in record.times:
            if not sound(record.cell, timing):
                continue
            key = Key(where, record.cell.drafter, record.cell.role.value, timing.workload)
            found.setdefault(key, []).append(Timed(record, timing))
    return {key: sorted(found[key], key=lambda t: (t.record.cell_id, t.timing.median_us)) for key in sorted(found)}


def sound(cell: Cell, timing: Timing) -> bool:
    """Whether a time is one that can be drawn; a record may hold anything."""
    if not evidence.sane(timing.median_us, timing.low_us, timing.high_us, cell.block_size, timing.repeats):
        return False
    return timing.phase in PHASES and 1e-6 <= timing.low_us <= timing.median_us <= timing.high_us


def condition(cell: Cell) -> Condition:
    """The condition of a cell."""
    words = ("forced", cell.force.value.replace("_", " "), str(cell.kernel_block or ""))
    forced = "" if cell.force is Force.NONE else " ".join(words)
    return Condition(
        cell.kv_cache_dtype,
        cell.dtype,
        cell.tp,
        cell.num_speculative_tokens,
        cell.execution,
        cell.runner,
        cell.scales,
        cell.switches,
        forced.strip(),
    )


def named(conditions: Iterable[Condition]) -> dict[Condition, str]:
    """Each condition in words that tell it from the others, in the order of a page."""
    found = sorted(set(conditions), key=lambda c: (evidence.kv_rank(c.kv_cache_dtype), c[1:]))
    varying = [len({c[i] for c in found}) > 1 for i in range(len(Condition._fields))]
    out = {}
    for c in found:
        parts = [f"KV {c.kv_cache_dtype}"]
        parts += [w for w, v in zip(_words(c), varying[1:], strict=True) if v and w]
        out[c] = text.one_line(", ".join(parts), 120)
    return out


def _words(c: Condition) -> tuple[str, ...]:
    switches = switch_words(c.switches) or "no switches"
    scales = f"{c.scales.replace('_', '-')} scales"
    counted = f"TP {c.tp}", f"k={c.num_speculative_tokens}"
    return (text.dtype(c.dtype), *counted, c.execution, f"runner {c.runner}", scales, switches, c.forced)


def draw(records: Sequence[Record], sources: Sources, taken: set[str]) -> list[Figure]:
    """A figure for each place, drafter and workload that has times."""
    found = collect(records, sources)
    return [_figure(key, timed, _untimed(key, timed, records, sources), taken) for key, timed in found.items()]


def _points(timed: Sequence[Timed]) -> dict[tuple[Condition, str], dict[str, dict[int, Point]]]:
    grouped: dict[tuple[Condition, str, str, int], list[Timed]] = {}
    for one in timed:
        cell = one.record.cell
        at = (condition(cell), one.timing.phase, evidence.short(cell.backend), cell.block_size)
        grouped.setdefault(at, []).append(one)
    out: dict[tuple[Condition, str], dict[str, dict[int, Point]]] = {}
    for (where, phase, backend, block), ones in grouped.items():
        out.setdefault((where, phase), {}).setdefault(backend, {})[block] = _point(backend, block, phase, ones)
    return out


def _point(backend: str, block: int, phase: str, ones: Sequence[Timed]) -> Point:
    """Of several measurements the slowest median and the widest interval, as the derived table takes them."""
    worst = max(ones, key=lambda t: t.timing.median_us).timing
    low, high = min(t.timing.low_us for t in ones), max(t.timing.high_us for t in ones)
    repeats = sum(t.timing.repeats for t in ones)
    part = worst.share_of_roofline
    share = "" if part is None else f", {text.percent(part)} of the roofline"
    flags = ", ".join(sorted({f.value for t in ones for f in t.record.flags}))
    title = (
        f"{backend}, block {block}, {phase}: {number(worst.median_us)} \N{MICRO SIGN}s "
        f"({number(low)} to {number(high)}, {repeats} repeats){share}{f'; {flags}' if flags else ''}"
    )
    return Point(worst.median_us, low, high, title)


def _figure(key: Key, timed: Sequence[Timed], untimed: str, taken: set[str]) -> Figure:
    data = _points(timed)
    rows = named(where for where, _ in data)
    columns = [p for p in PHASES if any(phase == p for _, phase in data)]
    blocks = tuple(sorted({b for by in data.values() for points in by.values() for b in points}))
    shown = looks(backend for by in data.values() for backend in by)
    most = max(sum(map(len, by.values())) for by in data.values())
    wide = min(max(250, 14 * most), 420)
    right = max(_LEFT + len(columns) * (wide + _GAP_X) - _GAP_X + 20, 640)
    title = f"Attention time: {key.drafter}, workload {key.workload}, {key.source.title}"
    heads = f"{key.role} role, {evidence.geometry(t.record.cell for t in timed)}"
    under = [f"{heads}. {key.source.stack}", "\N{MICRO SIGN}s a call, less is better; over block size (evenly spaced)"]
    out, y = panel.heading(16, right - 10, title, under)
    keys, y = panel.legend(16, y + 10, right - 10, shown)
    out += keys
    scales = {p: _bounds([points for (_, phase), points in data.items() if phase == p]) for p in columns}
    for where, name in rows.items():
        y += 30
        for i, phase in enumerate(columns):
            box = Box(_LEFT + i * (wide + _GAP_X), y, wide, _HEIGHT)
            axis = Scale(scales[phase].low, scales[phase].high, box.bottom, box.top, scales[phase].log)
            x = Slots(blocks, box.left, box.right)
            log = " (log)" if axis.log else ""
            out.append(svg.label(box.left, box.top - 10, f"{phase}, {name}{log}", "cm-b", pixels=wide + _GAP_X - 8))
            out += panel.frame(box, axis) + panel.block_axis(box, x)
            points = data.get((where, phase), {})
            out += panel.series(box, x, axis, shown, points)
            if not points:
                out.append(svg.label(box.left + wide / 2, box.top + _HEIGHT / 2, "not timed", "cm-s cm-m"))
        y += _HEIGHT + _GAP_Y - 30
    caption = _caption(key, timed, data, untimed)
    name = evidence.name(taken, "time", *key.words)
    width, height = round(right), round(y + 4)
    drawing = svg.document(name, title, caption, out, width, height)
    return Figure(name, text.one_line(title), drawing, caption, width, height, "time")


def _bounds(panels: Iterable[Mapping[str, Mapping[int, Point]]]) -> Scale:
    """One axis for all panels of a phase, so that KV dtypes can be compared."""
    points = [p for by in panels for series in by.values() for p in series.values()]
    return fitting([v for p in points for v in (p.low, p.value, p.high)], 0, 1)


def _caption(
    key: Key,
    timed: Sequence[Timed],
    data: Mapping[tuple[Condition, str], Mapping[str, Mapping[int, Point]]],
    untimed: str,
) -> str:
    points = [p for by in data.values() for series in by.values() for p in series.values()]
    widest = max((p.high - p.low) / p.value for p in points)
    once = len(timed) == len(points)
    rounds = all(t.timing.rounds for t in timed)
    within, apart = ("and what rounds are apart", "runs") if rounds else ("in one process", "processes")
    rungs = evidence.rungs(t.record for t in timed)
    return evidence.sentences(
        f"Median time of one attention call of one layer of one rank, cache write included; {rungs}.",
        f"Whiskers: the 95 % interval of the median over repeats {within}, at most {widest:.1%} wide here; "
        "often narrower than the marker.",
        f"Each point is one unrepeated run: what differs between {apart} or days is not in the interval."
        if once
        else "Where several runs measured a point: the slowest median, the widest interval.",
        evidence.no_amd(key.source),
        untimed,
        "Not shown: a server's throughput, other layers, other GPUs.",
    )


def _untimed(key: Key, timed: Sequence[Timed], records: Sequence[Record], sources: Sources) -> str:
    """Backends that have records of the same cells but no time, and why, so that an absent line is not misread."""
    have = {(condition(t.record.cell), t.record.cell.block_size, t.record.cell.backend) for t in timed}
    wanted = {(c, b) for c, b, _ in have}
    missing: dict[tuple[str, str], set[int]] = {}
    for r in records:
        if r.cell.drafter != key.drafter or r.times or sources.of(r, gpu=True) != key.source:
            continue
        at = (condition(r.cell), r.cell.block_size)
        if at in wanted and (*at, r.cell.backend) not in have:
            missing.setdefault((evidence.short(r.cell.backend), r.verdict.value), set()).add(r.cell.block_size)
    parts = [f"{b} at block {', '.join(map(str, sorted(n)))} ({v})" for (b, v), n in sorted(missing.items())]
    more = f" and {len(parts) - 6} more" if len(parts) > 6 else ""
    return f"Without a time: {'; '.join(parts[:6])}{more}." if parts else ""
