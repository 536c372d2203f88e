"""Pairs as a table: what set-up resolved for a target and its drafter together, and what then ran.

The model and its plain-text form; Markdown and HTML draw the same rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .. import outcome
from ..cell import Rung, Verdict
from ..pair import PairRecord, Side, SideFacts, SideRun, Uncalled
from ..pairs import pair_outcome
from . import text
from .dialect import GITHUB, Dialect
from .steady import steady

HEADINGS = ("target", "drafter", "block", "KV dtype", "runner", "layout", "graphs", "result")

#: What a reader has to know of every pair.
ABOUT = (
    "vLLM's own engine set-up of tiny models with these heads, head sizes and kinds of layers; "
    "a block is the manager's, after > the kernels'."
)


class Row(NamedTuple):
    """One pair: a text under each heading, its verdict, and the number of its footnote (0: none)."""

    cells: tuple[str, ...]
    verdict: Verdict
    note: int


@dataclass(frozen=True)
class Table:
    """Pairs of one target, one pair of models and one degree. ``notes`` by number, in order."""

    target: str
    models: str
    rows: tuple[Row, ...]
    notes: tuple[tuple[int, str], ...]


def tables(records: Sequence[PairRecord], first: int = 1) -> list[Table]:
    """The tables of ``records``, in order of first appearance; footnotes are numbered from ``first``."""
    homes: dict[tuple[str, str], list[PairRecord]] = {}
    for record in records:
        homes.setdefault((record.pair.target, models(record)), []).append(record)
    found = []
    for (target, name), group in homes.items():
        notes: dict[str, int] = {}
        rows = tuple(_row(record, notes, first) for record in group)
        found.append(Table(target, name, rows, tuple((number, note) for note, number in notes.items())))
        first += len(notes)
    return found


def models(record: PairRecord) -> str:
    """Both models of a pair in a few words."""
    pair = record.pair
    sides = f"{pair.target_model.family} with {pair.drafter.family}"
    tokens = f"{pair.method}, k={pair.num_speculative_tokens}, {text.dtype(pair.dtype)}"
    switches = "".join(f", {name}={value}" for name, value in pair.switches)
    return text.one_line(f"{sides}, TP {pair.tp}, {tokens}{switches}", 200)


def _row(record: PairRecord, notes: dict[str, int], first: int) -> Row:
    note = footnote(record)
    number = notes.setdefault(note, first + len(notes)) if note else 0
    pair = record.pair
    kv = pair.kv_cache_dtype
    if pair.draft_kv_cache_dtype is not None:
        kv += f", draft {pair.draft_kv_cache_dtype}"
    cells = (
        side(pair.target_model, record.target_model),
        side(pair.drafter, record.drafter),
        block(record),
        kv,
        record.runner or pair.runner,
        layout(record),
        record.graph_support or "-",
        result(record) + (f" [{number}]" if number else ""),
    )
    return Row(tuple(text.one_line(cell, 80) for cell in cells), record.verdict, number)


def side(asked: Side, facts: SideFacts) -> str:
    """The backends a side resolved to and how, or what was asked where set-up did not get there."""
    if not facts.backends:
        return asked.backend or "auto"
    chosen = asked.backend if asked.backend in facts.backends else None
    first = chosen or next((name for name in facts.order if name in facts.backends), next(iter(facts.backends)))
    # Layers that name their own backend (recurrent, sparse) are counted, and listed by explain.
    others = f" +{len(facts.backends) - 1}" if len(facts.backends) > 1 else ""
    if facts.how == "ignored":
        return f"{first}{others} (not {asked.backend})"
    return first + others + ("" if facts.how in ("explicit", "") else f" ({facts.how})")


def block(record: PairRecord) -> str:
    """``128``, ``128>32``, ``auto=560``: what was given, what the manager has, what the kernels get."""
    given = record.pair.block_size
    out = "auto" if given is None else str(given)
    if record.groups and record.manager_block not in (given, None):
        out += f"={record.manager_block}"
    kernel = sorted({g.kernel_block for g in record.groups if g.kernel_block not in (None, g.manager_block)})
    return out + (f">{'/'.join(map(str, kernel))}" if kernel else "")


def layout(record: PairRecord) -> str:
    """The resolved layout, and whether ROCM_ATTN keeps its native kernels in it."""
    native = [f.native_path for f in (record.target_model, record.drafter) if f.native_path is not None]
    if not record.layout or not native:
        return record.layout or "-"
    word = "native" if all(native) else "not native" if not any(native) else "native in part"
    return f"{record.layout}, {word}"


def result(record: PairRecord) -> str:
    """The verdict and its rung, with how many of the calls passed where some ran, and whether set-up fits together."""
    bad = ", CONTRADICTION" if record.contradictions else ""
    if record.rung is Rung.DECLARED and record.verdict is Verdict.PASS:
        return "set-up passes" + bad
    out = record.verdict.value
    if record.runs and record.verdict not in (Verdict.REJECTED, Verdict.UNAVAILABLE):
        passed = sum(run.verdict is Verdict.PASS for run in record.runs)
        out += f" ({record.rung.value}) {passed}/{len(record.runs)}"
        left = sum(one.layers for one in record.uncalled)
        out += f", {left} layers not called" if left else ""
    return out + bad


def footnote(record: PairRecord) -> str:
    """What contradicts itself, why a pair did not pass, which layers no call reached; empty where there is nothing."""
    parts = [f"contradiction: {text.one_line(one, 300)}" for one in record.contradictions]
    if record.verdict is not Verdict.PASS:
        parts.append(text.one_line(f"at {pair_outcome.where(record)}: {outcome.reason(record)}", 300))
    if record.uncalled:
        parts.append("not called: " + "; ".join(not_called(one) for one in record.uncalled))
    return text.one_line("; ".join(parts), 600)


def not_called(one: Uncalled) -> str:
    """``6 target layers of GDN_ATTN (no attention: recurrent states)``."""
    layers = "layer" if one.layers == 1 else "layers"
    return text.one_line(f"{one.layers} {one.role} {layers} of {one.backend} ({one.reason})", 300)


def counted(records: Sequence[PairRecord]) -> str:
    """``12 pass, 3 rejected``, and how many of them contradict themselves."""
    counts = Counter(record.verdict for record in records)
    said = ", ".join(f"{counts[verdict]:,} {verdict.value}" for verdict in Verdict if counts[verdict])
    bad = sum(bool(record.contradictions) for record in records)
    return said + (f"; {bad:,} of them with a set-up that contradicts itself" if bad else "")


def run_line(run: SideRun) -> str:
    """One call of one side in a line: whose, with what, how it went, which kernels."""
    kernels = ", ".join(dict.fromkeys(kernel.name for kernel in run.route if kernel.phase == "forward"))
    word = f"{run.verdict.value} ({run.rung.value})"
    out = f"{run.role}, {run.batch}: {word}, {run.backend}, kernel block {run.kernel_block}"
    return text.one_line(out + (f", {kernels}" if kernels else ""), 400)


def lines(records: Sequence[PairRecord], width: int) -> list[str]:
    """The section as plain text in ``width`` columns."""
    if not records:
        return []
    out = ["", f"Pairs: {counted(records)}", *text.fill(ABOUT, width, "  ", "  ")]
    for table in tables(records):
        out += ["", *text.fill(f"{table.target}: {table.models}", width)]
        rows = [HEADINGS, *(row.cells for row in table.rows)]
        widths = [max(text.width(row[i]) for row in rows) for i in range(len(HEADINGS))]
        is_narrow = 2 + sum(widths) + 2 * len(widths) > width
        for row in rows:
            cells = [text.pad(cell, size) for cell, size in zip(row, widths, strict=True)]
            # Where the line is too short for all, both sides stand above what they got.
            parts = [cells[:2], ["  ", *cells[2:]]] if is_narrow else [cells]
            out += [("  " + "  ".join(part)).rstrip() for part in parts]
        for number, note in table.notes:
            out += text.fill(note, width, f"{f'[{number}]':>5} ", " " * 6)
    return out


def markdown(records: Sequence[PairRecord], dialect: Dialect = GITHUB) -> list[str]:
    """The section as Markdown; every text of a record stands in a code span."""
    from .markdown import SIGN

    code, code_in_table = dialect.code, dialect.code_in_table
    if not records:
        return []
    out = ["", f"{dialect.heading}Pairs: {counted(records)}", "", ABOUT.replace(">", dialect.code(">", 1))]
    for table in tables(records):
        out += ["", f"**{code(table.target, 60)}**: {code(table.models, 200)}", ""]
        out += [f"| {' | '.join(HEADINGS)} |", dialect.rule * len(HEADINGS) + "|"]
        for row in table.rows:
            cells = [code_in_table(cell, 80) for cell in row.cells[:-1]]
            out.append(f"| {' | '.join(cells)} | {SIGN[row.verdict]} {code_in_table(row.cells[-1], 80)} |")
        if table.notes:
            notes = [f"- [{number}] {code(steady(note), 300)}" for number, note in table.notes]
            out += ["", *dialect.fold(text.count(len(notes), "footnote"), notes)]
    return out


def html(records: Sequence[PairRecord]) -> str:
    """The section as HTML, every text escaped."""
    from html import escape

    if not records:
        return ""
    out = [f"<section><h2>Pairs</h2><p>{escape(counted(records))}. {escape(ABOUT)}</p>"]
    for table in tables(records):
        out.append(f"<h3>{escape(table.target)}: {escape(table.models)}</h3><table><thead><tr>")
        out += [f"<th>{escape(heading)}</th>" for heading in HEADINGS]
        out.append("</tr></thead><tbody>")
        for row in table.rows:
            cells = "".join(f"<td>{escape(cell)}</td>" for cell in row.cells)
            out.append(f'<tr class="{row.verdict.value}">{cells}</tr>')
        out.append("</tbody></table>")
        if table.notes:
            items = "".join(f"<li>[{number}] {escape(note)}</li>" for number, note in table.notes)
            out.append(f"<ul>{items}</ul>")
    return "".join(out) + "</section>"
