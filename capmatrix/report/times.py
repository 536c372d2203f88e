"""Measured times as a table beside the support table: what works, and how fast it is beside its rivals.

The model and its plain-text form; Markdown draws the same rows. Times differ from run to run, so that a table with
times is the one part of a report that two runs of the same cells do not give alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..cell import Record, Verdict
from ..selection.hints import VERY_SLOW
from ..timings import UNCAPTURED
from . import text
from .dialect import Dialect
from .plots.times import PHASES, Condition, condition, named, sound

#: Tables of one place; a run may time many drafters under many profiles.
MOST = 12

#: What is to be known of every entry.
ABOUT = (
    f"Times in microseconds a call of one layer; x: times the fastest of that block; over {VERY_SLOW:g}x is very slow"
)
#: Beside it, where the GPU is no AMD one.
_NOT_AMD = "; not an AMD GPU's: an order may carry over, a gap does not"


class Time(NamedTuple):
    """One entry: the median in microseconds, and how many times the fastest of its block and column that is.

    ``uncaptured``: replayed from a graph, where vLLM captures none for so many tokens and would call eagerly.
    """

    us: float
    factor: float
    uncaptured: bool = False

    @property
    def very_slow(self) -> bool:
        """Whether it is beyond any doubt: the same word as in the default-selection table's hints."""
        return self.factor > VERY_SLOW


class Times(NamedTuple):
    """Times of one drafter at one degree under one profile.

    ``columns`` are phase and conditions in words; ``rows`` are block size, backend, and an entry a column, None where
    nothing was timed. ``repeats``: the fewest of an entry; ``widest``: the widest interval, as a part of its median.
    """

    drafter: str
    tp: int
    workload: str
    columns: tuple[str, ...]
    rows: tuple[tuple[int, str, tuple[Time | None, ...]], ...]
    repeats: int
    widest: float

    @property
    def sure(self) -> str:
        """How sure the entries are, and what a ``*`` is, without text of a record."""
        said = f"medians of {self.repeats} or more, 95 % intervals at most {self.widest * 100:.1f} % wide"
        marked = any(entry and entry.uncaptured for _, _, entries in self.rows for entry in entries)
        return f"{said}; *: replayed from a graph that vLLM would not capture for this batch" if marked else said


def tables(records: Iterable[Record]) -> list[Times]:
    """The tables of one place's records, in a fixed order; of several times for one entry the slowest."""
    groups: dict[tuple[str, int, str], list[tuple[Record, Condition, int]]] = {}
    for record in records:
        if record.verdict is Verdict.PASS:
            for at, timing in enumerate(record.times):
                if sound(record.cell, timing):
                    key = (record.cell.drafter, record.cell.tp, timing.workload)
                    groups.setdefault(key, []).append((record, condition(record.cell), at))
    return [_table(*key, groups[key]) for key in sorted(groups)]


def _table(drafter: str, tp: int, workload: str, found: Sequence[tuple[Record, Condition, int]]) -> Times:
    words = named({where for _, where, _ in found})
    phases = [phase for phase in PHASES if any(r.times[at].phase == phase for r, _, at in found)]
    columns = [(phase, where) for where in words for phase in phases]
    slowest: dict[tuple[int, str, tuple[str, Condition]], float] = {}
    uncaptured = set()
    for record, where, at in found:
        key = record.cell.block_size, record.cell.backend, (record.times[at].phase, where)
        slowest[key] = max(record.times[at].median_us, slowest.get(key, 0.0))
        if UNCAPTURED in record.times[at].detail:
            uncaptured.add(key)
    best: dict[tuple[int, tuple[str, Condition]], float] = {}
    for (block, _, column), us in slowest.items():
        best[block, column] = min(us, best.get((block, column), us))

    def entry(block: int, backend: str, column: tuple[str, Condition]) -> Time | None:
        us = slowest.get((block, backend, column))
        return None if us is None else Time(us, us / best[block, column], (block, backend, column) in uncaptured)

    timings = [r.times[at] for r, _, at in found]
    return Times(
        drafter,
        tp,
        workload,
        tuple(f"{phase}, {words[where]}" for phase, where in columns),
        tuple(
            (block, backend, tuple(entry(block, backend, column) for column in columns))
            for block, backend in sorted({key[:2] for key in slowest})
        ),
        min(t.repeats for t in timings),
        max((t.high_us - t.low_us) / t.median_us for t in timings),
    )


def _factor(factor: float) -> str:
    """``1.12x`` of a time that is not the fastest of its block."""
    if factor < 1.005:
        return ""
    return f"{factor:.0f}x" if factor >= 10 else f"{factor:.1f}x" if factor >= 2 else f"{factor:.2f}x"


def lines(records: Iterable[Record], width: int, *, amd: bool) -> list[str]:
    """The tables for a terminal of ``width`` columns; nothing where nothing was timed. ``amd``: on an AMD GPU."""
    found = tables(records)
    out = ["", *text.fill(ABOUT + ("" if amd else _NOT_AMD), width, "", "  ")] if found else []
    for one in found[:MOST]:
        head = f"{text.one_line(one.drafter, 80)}, TP {one.tp}, workload {text.one_line(one.workload, 60)}"
        out += ["", *text.fill(f"{head}: {one.sure}", width, "", "  ")]
        labels = [f"  b{block} {text.one_line(backend, 40)}" for block, backend, _ in one.rows]
        room = max(map(text.width, labels))
        cells = [[_plain(entry) for entry in entries] for _, _, entries in one.rows]
        widths = [max(text.width(name), *(text.width(row[i]) for row in cells)) for i, name in enumerate(one.columns)]
        for some in _blocks(widths, width - room):
            out.append(" " * room + "".join(f"  {one.columns[i]:>{widths[i]}}" for i in some))
            for label, row in zip(labels, cells, strict=True):
                pad = " " * (room - text.width(label))
                out.append(label + pad + "".join(f"  {row[i]:>{widths[i]}}" for i in some))
    return out + _more(len(found))


def _blocks(widths: Sequence[int], room: int) -> list[list[int]]:
    """Columns that fit beside each other, at least one at a time."""
    out: list[list[int]] = [[]]
    used = 0
    for i, one in enumerate(widths):
        if out[-1] and used + 2 + one > room:
            out.append([])
            used = 0
        out[-1].append(i)
        used += 2 + one
    return out


def _plain(entry: Time | None) -> str:
    if entry is None:
        return "-"
    parts = [_us(entry), _factor(entry.factor), "SLOW" if entry.very_slow else ""]
    return " ".join(filter(None, parts))


def markdown(records: Iterable[Record], dialect: Dialect, *, amd: bool) -> list[str]:
    """The same as Markdown tables."""
    found = tables(records)
    out = ["", f"{ABOUT}{'' if amd else _NOT_AMD}."] if found else []
    for one in found[:MOST]:
        title = f"**{dialect.code(one.drafter, 80)}, TP {one.tp}, workload {dialect.code(one.workload, 60)}**"
        out += ["", f"{title}: {one.sure.replace('*', chr(92) + '*')}", ""]
        heads = [dialect.code_in_table(name, 120) for name in one.columns]
        out.append(f"| Block | Backend | {' | '.join(heads)} |")
        out.append(dialect.rule * (2 + len(heads)) + "|")
        for block, backend, entries in one.rows:
            cells = " | ".join(map(_marked, entries))
            out.append(f"| {block} | {dialect.code_in_table(backend, 80)} | {cells} |")
    return out + _more(len(found))


def _marked(entry: Time | None) -> str:
    if entry is None:
        return " "
    factor = _factor(entry.factor)
    if entry.very_slow:
        return f"{_us(entry, escape=True)} **{factor}, very slow**"
    return f"{_us(entry, escape=True)} {factor}".rstrip()


def _us(entry: Time, *, escape: bool = False) -> str:
    star = "\\*" if escape else "*"
    return text.us(entry.us) + (star if entry.uncaptured else "")


def _more(count: int) -> list[str]:
    """A line for the tables that are left out."""
    return ["", f"{text.count(count - MOST, 'more table')} of times: see the run file."] if count > MOST else []
