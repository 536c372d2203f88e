"""Pairs as a table: what set-up resolved for a target and its drafter together, and what then ran.

The model and its plain-text form; Markdown and HTML draw the same rows.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .. import outcome, summary
from ..cell import Environment, Rung, Verdict
from ..pair import PairRecord, Side, SideFacts, SideRun, Uncalled
from ..pairs import pair_outcome
from ..vocabulary import KV_CACHE_DTYPES, ROCM_BACKENDS
from . import text
from .dialect import GITHUB, Dialect
from .pair_legend import legend
from .steady import steady

HEADINGS = ("target", "drafter", "block", "KV dtype", "runner", "layout", "graphs", "result")

#: What a reader has to know of every pair.
ABOUT = (
    "vLLM's own engine set-up of tiny models with these heads, head sizes and kinds of layers; "
    "a block is the manager's, after > the kernels'."
)


class Row(NamedTuple):
    """One pair: a text under each heading, its verdict, the number of its footnote (0: none) and its id.

    ``torn``: nothing that ran of it failed, and its set-up contradicts itself, so that no sign may say that it is well.
    """

    cells: tuple[str, ...]
    verdict: Verdict
    note: int
    torn: bool
    id: str


@dataclass(frozen=True)
class Table:
    """Pairs of one place, versions, target, pair of models and degree. ``notes`` by number, in order."""

    place: summary.Place
    versions: tuple[tuple[str, str], ...]
    target: str
    models: str
    rows: tuple[Row, ...]
    notes: tuple[tuple[int, str], ...]

    @property
    def home(self) -> tuple[summary.Place, tuple[tuple[str, str], ...], str]:
        """What tables under one title share."""
        return self.place, self.versions, self.target

    @property
    def title(self) -> str:
        """The place in one line, as a table of cells has it."""
        return text.one_line(self.place.title, 120)

    @property
    def made_of(self) -> str:
        """Versions in one line."""
        return text.one_line(", ".join(f"{name} {version}" for name, version in self.versions), 300)

    @property
    def about(self) -> str:
        """Versions and target in one line."""
        return "; ".join(filter(None, (self.made_of, text.one_line(self.target, 60))))


#: What a report knows beside the records: environments by id, and why failures are expected, by pair id.
Environments = Mapping[str, Environment]
Expected = Mapping[str, str]


def tables(
    records: Sequence[PairRecord], environments: Environments | None = None, expected: Expected | None = None
) -> list[Table]:
    """The tables of ``records`` in the order of places, targets and models, whatever order they ran in."""
    homes: dict[tuple[bool, str, summary.Place, tuple[tuple[str, str], ...], str, str], list[PairRecord]] = {}
    for record in records:
        environment = (environments or {}).get(record.environment)
        place = summary.place_of(record.pair.target, environment)
        made = (place, summary.versions(environment), record.pair.target, models(record))
        homes.setdefault((not place.architecture, place.title, *made), []).append(record)
    found = []
    first = 1
    for (_, _, place, versions, target, name), group in sorted(homes.items(), key=lambda item: item[0]):
        notes: dict[str, int] = {}
        rows = tuple(_row(record, notes, first, expected or {}) for record in sorted(group, key=_order))
        found.append(
            Table(place, versions, target, name, rows, tuple((number, note) for note, number in notes.items()))
        )
        first += len(notes)
    return found


def _order(record: PairRecord) -> tuple[object, ...]:
    """By backends as shown, block, KV dtype and runner; a block that vLLM took stands after the same one given."""
    pair = record.pair
    sides = ((pair.target_model, record.target_model), (pair.drafter, record.drafter))
    backends = tuple((_rank(ROCM_BACKENDS, backend(*one)), side(*one)) for one in sides)
    block_size = pair.block_size or record.manager_block or 0
    dtypes = tuple(_rank(KV_CACHE_DTYPES, name or "") for name in (pair.kv_cache_dtype, pair.draft_kv_cache_dtype))
    chosen = record.runner or pair.runner
    return (*backends, block_size, pair.block_size is None, *dtypes, chosen, runner(record), record.pair_id)


def _rank(order: Sequence[str], name: str) -> tuple[int, str]:
    return (order.index(name) if name in order else len(order), name)


def models(record: PairRecord) -> str:
    """Both models of a pair in a few words."""
    pair = record.pair
    sides = f"{pair.target_model.family} with {pair.drafter.family}"
    tokens = f"{pair.method}, k={pair.num_speculative_tokens}, {text.dtype(pair.dtype)}"
    switches = "".join(f", {name}={value}" for name, value in pair.switches)
    return text.one_line(f"{sides}, TP {pair.tp}, {tokens}{switches}", 200)


def _row(record: PairRecord, notes: dict[str, int], first: int, expected: Expected) -> Row:
    why = expected.get(record.pair_id, "")
    note = footnote(record, why)
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
        runner(record),
        layout(record),
        record.graph_support or "-",
        result(record) + (", expected" if why else "") + (f" [{number}]" if number else ""),
    )
    torn = bool(record.contradictions) and record.verdict not in summary.FAILED
    return Row(
        tuple(text.one_line(cell, 80) for cell in cells),
        record.verdict,
        number,
        torn,
        text.one_line(record.pair_id, 1000),
    )


def side(asked: Side, facts: SideFacts) -> str:
    """The backends a side resolved to and how, or what was asked where set-up did not get there."""
    first = backend(asked, facts)
    if not facts.backends:
        return first
    # Layers that name their own backend (recurrent, sparse) are counted, and listed by explain.
    others = f" +{len(facts.backends) - 1}" if len(facts.backends) > 1 else ""
    if facts.how == "ignored":
        return f"{first}{others} (not {asked.backend})"
    return first + others + ("" if facts.how in ("explicit", "") else f" ({facts.how})")


def backend(asked: Side, facts: SideFacts) -> str:
    """The one that a side is named by: of those that it resolved to the asked or first one, else what was asked."""
    if not facts.backends:
        return asked.backend or "auto"
    chosen = asked.backend if asked.backend in facts.backends else None
    return chosen or next((name for name in facts.order if name in facts.backends), next(iter(facts.backends)))


def block(record: PairRecord) -> str:
    """``128``, ``128>32``, ``auto=560``: what was given, what the manager has, what the kernels get."""
    given = record.pair.block_size
    out = "auto" if given is None else str(given)
    if record.groups and record.manager_block not in (given, None):
        out += f"={record.manager_block}"
    kernel = sorted({g.kernel_block for g in record.groups if g.kernel_block not in (None, g.manager_block)})
    return out + (f">{'/'.join(map(str, kernel))}" if kernel else "")


def runner(record: PairRecord) -> str:
    """``v1``, ``auto=v2``: what was asked for, and what vLLM chose where that was left to it."""
    asked = record.pair.runner
    return asked if record.runner in ("", asked) else f"{asked}={record.runner}"


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


def footnote(record: PairRecord, expected: str = "") -> str:
    """What contradicts itself, why a pair did not pass and, if so, why that is expected, which layers no call reached;
    empty where there is nothing."""
    parts = [f"contradiction: {text.one_line(one, 300)}" for one in record.contradictions]
    if record.verdict is not Verdict.PASS:
        parts.append(text.one_line(f"at {pair_outcome.where(record)}: {outcome.reason(record)}", 300))
    if expected:
        parts.append(text.one_line(f"expected: {expected}", 400))
    if record.uncalled:
        parts.append("not called: " + "; ".join(not_called(one) for one in record.uncalled))
    return text.one_line("; ".join(parts), 1000)


def not_called(one: Uncalled) -> str:
    """``6 target layers of GDN_ATTN (no attention: recurrent states)``."""
    layers = "layer" if one.layers == 1 else "layers"
    return text.one_line(f"{one.layers} {one.role} {layers} of {one.backend} ({one.reason})", 300)


def counted(records: Sequence[PairRecord], expected: Expected | None = None) -> str:
    """``12 pass, 3 rejected``, how many of them contradict themselves, and how many failures are expected."""
    counts = Counter(record.verdict for record in records)
    said = ", ".join(f"{counts[verdict]:,} {verdict.value}" for verdict in Verdict if counts[verdict])
    bad = sum(bool(record.contradictions) for record in records)
    said += f"; {bad:,} of them with a set-up that contradicts itself" if bad else ""
    known = sum(record.pair_id in (expected or {}) for record in records)
    return said + (f"; {text.count(known, 'failure')} expected" if known else "")


def run_line(run: SideRun) -> str:
    """One call of one side in a line: whose, with what, how it went, which kernels."""
    kernels = ", ".join(dict.fromkeys(kernel.name for kernel in run.route if kernel.phase == "forward"))
    word = f"{run.verdict.value} ({run.rung.value})"
    out = f"{run.role}, {run.batch}: {word}, {run.backend}, kernel block {run.kernel_block}"
    return text.one_line(out + (f", {kernels}" if kernels else ""), 400)


def _by_home(found: Iterable[Table]) -> Iterator[tuple[bool, Table]]:
    """Each table, and whether it is the first of its place, versions and target, which are then said."""
    for _, some in itertools.groupby(found, key=lambda table: table.home):
        yield from ((number == 0, table) for number, table in enumerate(some))


def shown(found: Iterable[Table]) -> list[tuple[str, str]]:
    """The legend of ``found``: sign and meaning."""
    return legend(HEADINGS, (row.cells for table in found for row in table.rows))


def lines(
    records: Sequence[PairRecord],
    width: int,
    environments: Environments | None = None,
    expected: Expected | None = None,
    strong: Callable[[str], str] = str,
) -> list[str]:
    """The section as plain text in ``width`` columns; ``strong`` marks titles."""
    if not records:
        return []
    out = ["", *text.fill(f"Pairs: {counted(records, expected)}", width), *text.fill(ABOUT, width, "  ", "  ")]
    found = tables(records, environments, expected)
    for is_first, table in _by_home(found):
        if is_first:
            out += ["", strong(table.title), *text.fill(table.about, width, "  ")]
        out += ["", *text.fill(table.models, width)]
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
    signs = shown(found)
    if signs:
        size = max(len(sign) for sign, _ in signs)
        out += ["", strong("Legend of pairs")]
        for sign, meaning in signs:
            out += text.fill(meaning, width, f"  {sign:<{size}} ", " " * (size + 3))
    return out


#: Before the result of a pair that passes and whose set-up contradicts itself; the other signs are those of verdicts.
WARNING = "\N{WARNING SIGN}\N{VARIATION SELECTOR-16}"


def markdown(
    records: Sequence[PairRecord],
    dialect: Dialect = GITHUB,
    environments: Environments | None = None,
    expected: Expected | None = None,
) -> list[str]:
    """The section as Markdown; every text of a record stands in a code span."""
    from .markdown import SIGN

    code, code_in_table = dialect.code, dialect.code_in_table
    if not records:
        return []
    about = ABOUT.replace(">", dialect.code(">", 1))
    out = ["", f"{dialect.heading}Pairs: {counted(records, expected)}", "", about]
    found = tables(records, environments, expected)
    for is_first, table in _by_home(found):
        if is_first:
            versions = ", ".join(f"{name} {code(version, 60)}" for name, version in table.versions)
            parts = "; ".join(filter(None, (versions, code(table.target, 60))))
            out += ["", f"**{code(table.title, 100)}**: {parts}"]
        out += ["", f"**{code(table.models, 200)}**", ""]
        out += [f"| {' | '.join(HEADINGS)} |", dialect.rule * len(HEADINGS) + "|"]
        for row in table.rows:
            cells = [code_in_table(cell, 80) for cell in row.cells[:-1]]
            sign = WARNING if row.torn else SIGN[row.verdict]
            out.append(f"| {' | '.join(cells)} | {sign} {code_in_table(row.cells[-1], 80)} |")
        if table.notes:
            notes = [f"- [{number}] {code(steady(note), 500)}" for number, note in table.notes]
            out += ["", *dialect.fold(text.count(len(notes), "footnote"), notes)]
    signs = shown(found)
    if signs:
        told = [f"- {code(sign, 60)}: {meaning}" for sign, meaning in signs]
        out += ["", *dialect.fold("Legend of pairs", told)]
    return out


def html(
    records: Sequence[PairRecord], environments: Environments | None = None, expected: Expected | None = None
) -> str:
    """The section as HTML without a script, every text escaped."""
    from html import escape

    if not records:
        return ""
    out = [f"<section><h2>Pairs</h2><p>{escape(counted(records, expected))}. {escape(ABOUT)}</p>"]
    found = tables(records, environments, expected)
    for is_first, table in _by_home(found):
        if is_first:
            out.append(f"<h3>{escape(table.title)}</h3><p>{escape(table.about)}</p>")
        out.append(f"<h4>{escape(table.models)}</h4><table><thead><tr>")
        out += [f"<th>{escape(heading)}</th>" for heading in HEADINGS]
        out.append("</tr></thead><tbody>")
        for row in table.rows:
            cells = "".join(f"<td>{escape(cell)}</td>" for cell in row.cells)
            out.append(f'<tr class="{"torn" if row.torn else row.verdict.value}">{cells}</tr>')
        out.append("</tbody></table>")
        if table.notes:
            items = "".join(f"<li>[{number}] {escape(note)}</li>" for number, note in table.notes)
            out.append(f"<ul>{items}</ul>")
    items = "".join(f"<dt>{escape(sign)}</dt><dd>{escape(meaning)}</dd>" for sign, meaning in shown(found))
    return "".join(out) + (f"<dl>{items}</dl>" if items else "") + "</section>"
