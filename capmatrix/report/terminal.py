"""The support table as plain text for a terminal.

Columns that do not fit the width go to further blocks of the same table; rungs are spelt out where
there is room. Colour is added only where asked for; no information is in colour alone.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO, Any

from ..cell import RUNGS, Environment, Flag, Record, Rung, Verdict
from ..pair import PairRecord
from . import pairs as pairs_section
from . import text, times
from .cautions import cautions
from .table import Column, Entry, Group, Report, Row, Table, build, footnote_text

_CODES = {
    Verdict.PASS: "32",
    Verdict.WRONG: "1;31",
    Verdict.CRASH: "1;31",
    Verdict.ERROR: "31",
    Verdict.TIMEOUT: "35",
    Verdict.REJECTED: "34",
    Verdict.UNAVAILABLE: "2",
    Verdict.UNVERIFIED: "33",
}
_GAP = "  "
_DEFAULT_WIDTH = 100

Paint = Callable[[str, str], str]


def use_color(stream: IO[str], environ: Mapping[str, str] = os.environ) -> bool:
    """Colour on a terminal, unless NO_COLOR is set (https://no-color.org) or the terminal is dumb."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def use_width(stream: IO[str]) -> int:
    """Columns of the terminal (COLUMNS outranks it), 100 where the output is not one."""
    if os.environ.get("COLUMNS") or stream.isatty():
        return max(40, shutil.get_terminal_size((_DEFAULT_WIDTH, 24)).columns)
    return _DEFAULT_WIDTH


def render(
    records: Iterable[Record],
    environments: Mapping[str, Environment],
    header: Mapping[str, Any] | None = None,
    *,
    width: int = _DEFAULT_WIDTH,
    color: bool = False,
    unfinished: Sequence[str] = (),
    pairs: Sequence[PairRecord] = (),
) -> str:
    """The whole report, ending with a newline."""
    return draw(build(records, environments, header, unfinished, pairs), width=width, color=color)


def draw(report: Report, *, width: int = _DEFAULT_WIDTH, color: bool = False) -> str:
    """``report`` in at most ``width`` columns, as far as a single column of its table allows."""
    paint: Paint = (lambda s, code: f"\x1b[{code}m{s}\x1b[0m") if color else (lambda s, code: s)
    out: list[str] = []
    title = text.header_title(report.header)
    total = text.jobs(len(report.records), len(report.pairs))
    counts = text.counted(report.records)
    head = f"{title}: {total}" if title else total
    out += text.fill(head + (f": {counts}" if counts else ""), width)
    for table in report.tables:
        out += ["", *_table(table, width, paint)]
    out += pairs_section.lines(
        report.pairs, width, report.environments, report.expected_pairs, lambda title: paint(title, "1")
    )
    notes = cautions(report)
    if notes:
        out += ["", paint("What this does not show", "1")]
        for note in notes:
            out += text.fill(note, width, "- ", "  ")
    if report.tables:
        out += ["", *_legend(report, width, paint)]
    return "\n".join(line.rstrip() for line in out) + "\n"


def _table(table: Table, width: int, paint: Paint) -> list[str]:
    versions = ", ".join(f"{n} {text.one_line(v, 60)}" for n, v in table.versions)
    title = text.one_line(table.place.title)
    about = f"{versions}; {', '.join(text.one_line(t, 60) for t in table.targets)}".lstrip("; ")
    if text.width(title) + 3 + text.width(about) <= width:
        out = [f"{paint(title, '1')}   {about}"]
    else:
        out = [paint(title, "1"), *text.fill(about, width, "  ")]
    out += text.fill(", ".join(table.shared), width, "  ")
    out.append("")

    labels = {row: _label(row) for rows in table.groups.values() for row in rows}
    label_width = min(max(2 + text.width(label) for label in labels.values()), max(20, width // 2))
    full = _columns(table, lambda r: r.value)
    needed = label_width + sum(len(_GAP) + w for w in full.widths.values())
    chosen = full if needed <= width else _columns(table, text.RUNG_TAG.__getitem__)
    blocks = _blocks(table.columns, chosen.widths, width - label_width)
    for i, block in enumerate(blocks):
        if i:
            out.append("")
        out += _block(table, block, chosen, labels, label_width, width, paint, geometry=i == 0)
    if table.footnotes:
        out.append("")
    for note in table.footnotes:
        number = f"[{note.number}]"
        out += text.fill(footnote_text(note, text.one_line), width, f"{number:>5} ", " " * 6)
    out += times.lines(table.records, width, amd=bool(table.place.architecture))
    return out


class _Drawn:
    """Entries as text, with the columns' widths; verdict and rest apart, so that colour changes no width."""

    def __init__(self, cells: dict[tuple[Group, Row, Column], tuple[str, str]], widths: dict[Column, int]) -> None:
        self.cells = cells
        self.widths = widths


def _columns(table: Table, rung: Callable[[Rung], str]) -> _Drawn:
    cells = {}
    widths = {c: text.width(_heading(c)) for c in table.columns}
    for group, rows in table.groups.items():
        for row in rows:
            for column in table.columns:
                word, rest = entry_text(table.entry(group, row, column), rung)
                cells[group, row, column] = (word, rest)
                widths[column] = max(widths[column], text.width(word + rest))
    return _Drawn(cells, widths)


def _blocks(columns: Sequence[Column], widths: Mapping[Column, int], room: int) -> list[list[Column]]:
    """Columns in blocks that fit ``room``; a block size is not torn apart where it fits whole."""
    blocks: list[list[Column]] = [[]]
    used = 0
    for block_size in dict.fromkeys(c.block_size for c in columns):
        family = [c for c in columns if c.block_size == block_size]
        need = sum(len(_GAP) + widths[c] for c in family)
        if blocks[-1] and used + need > room and need <= room:
            blocks.append([])
            used = 0
        for column in family:
            need = len(_GAP) + widths[column]
            if blocks[-1] and used + need > room:
                blocks.append([])
                used = 0
            blocks[-1].append(column)
            used += need
    return blocks


def _block(
    table: Table,
    block: Sequence[Column],
    drawn: _Drawn,
    labels: Mapping[Row, str],
    label_width: int,
    width: int,
    paint: Paint,
    geometry: bool,
) -> list[str]:
    heading = "".join(_GAP + text.pad(_heading(c), drawn.widths[c]) for c in block)
    out = [" " * label_width + paint(heading.rstrip(), "1")]
    for group, rows in table.groups.items():
        name = f"{text.one_line(group.drafter, 60)}, TP {group.tp}"
        about = f"{name}: {table.geometry[group]}" if geometry and table.geometry[group] else name
        out += text.fill(about, width, "", "    ")
        for row in rows:
            pieces = text.fill(labels[row], label_width, "  ", "      ")
            line = text.pad(pieces[-1], label_width)
            for column in block:
                word, rest = drawn.cells[group, row, column]
                entry = table.entry(group, row, column)
                code = _CODES[entry.verdict] if entry.verdict else "2"
                line += _GAP + paint(word, code) + rest + " " * (drawn.widths[column] - text.width(word + rest))
            out += [*pieces[:-1], line]
    return out


def _label(row: Row) -> str:
    return ", ".join((row.backend, *row.variant))


def _heading(column: Column) -> str:
    return f"b{column.block_size} {text.one_line(column.kv_cache_dtype, 40)}"


def entry_text(entry: Entry, rung: Callable[[Rung], str]) -> tuple[str, str]:
    """The verdict's word, and what follows it: rung, coverage, kernel block, marks, footnotes."""
    if entry.summary is None:
        return text.NOT_RUN, ""
    found = entry.summary
    parts = []
    if entry.ran:
        parts.append(rung(found.rung))
        if entry.partial:
            parts.append(f"{entry.ran}/{entry.expected}")
        if entry.kernel_block is not None:
            parts.append(f"k{entry.kernel_block}")
    marks = "".join(text.MARKS[flag][0] for flag in entry.marks)
    if marks:
        parts.append(marks)
    if entry.footnotes:
        parts.append(f"[{','.join(map(str, entry.footnotes))}]")
    return found.verdict.value, "".join(f" {p}" for p in parts)


def _legend(report: Report, width: int, paint: Paint) -> list[str]:
    entries = [e for t in report.tables for e in t.entries.values()]
    out = [paint("Legend", "1")]

    def line(name: str, meaning: str) -> None:
        out.extend(text.fill(meaning, width, f"  {name:<12} ", " " * 15))

    shown = {e.verdict for e in entries} | {n.verdict for t in report.tables for n in t.footnotes if not n.claim}
    for verdict in Verdict:
        if verdict in shown:
            line(verdict.value, text.VERDICT_MEANING[verdict])
    if any(t.entry(g, r, c).summary is None for t in report.tables for g, rs in t.groups.items() for r in rs
           for c in t.columns):  # fmt: skip
        line(text.NOT_RUN, text.NOT_RUN_MEANING)
    rungs = {e.summary.rung for e in entries if e.summary and e.ran}
    for rung in RUNGS:
        if rung in rungs:
            line(f"{rung.value[:12]}", f"({text.RUNG_TAG[rung]}) pass: {text.RUNG_MEANING[rung]}")
    marks = {flag for e in entries for flag in e.marks}
    for flag in Flag:
        if flag in marks:
            letter, word, meaning = text.MARKS[flag]
            line(letter, f"{word}: {meaning}")
    if any(e.kernel_block is not None for e in entries):
        line("k<n>", "the kernels get blocks of n tokens, not the manager's block")
    if any(e.partial for e in entries):
        line("n/m", "n of the m batches of that drafter ran; the rest is footnoted or has no record")
    return out
