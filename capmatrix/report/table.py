"""The support table as a model: what stands where, before anything is drawn.

One table an architecture (and set of versions); rows are backend x drafter (at a tensor-parallel
degree), columns block size x KV cache dtype. An entry is a verdict, its rung, marks and the numbers
of its footnotes; a footnote is one line that says why, in which batch and at which phase.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from .. import summary
from ..batches import NAMES as BATCHES
from ..cell import Cell, Environment, Flag, Force, Record, Rung, Verdict
from ..pair import PairRecord
from ..summary import Place, Summary
from ..vocabulary import KV_CACHE_DTYPES, ROCM_BACKENDS
from . import pair_expected, text
from .steady import steady


class Column(NamedTuple):
    """``block_size`` is the manager block in tokens."""

    block_size: int
    kv_cache_dtype: str


class Group(NamedTuple):
    """Rows that share a drafter and a tensor-parallel degree."""

    drafter: str
    tp: int


class Row(NamedTuple):
    """``variant`` names what tells this row from others of the same backend: ``forced validation``, ``fp16``."""

    backend: str
    variant: tuple[str, ...] = ()


@dataclass(frozen=True)
class Footnote:
    """``number`` counts through all tables of a report; ``batches`` are those that the line holds for.

    ``conflict`` is the target that says otherwise, empty in a footnote on the entry's own verdict. With
    ``claim`` the footnote is not about a verdict but about what that claim layer refuses.
    """

    number: int
    verdict: Verdict
    rung: Rung
    phase: str
    batches: tuple[str, ...]
    reason: str
    conflict: str = ""
    claim: str = ""


def footnote_text(note: Footnote, quote: Callable[[str, int], str], limit: int = 10_000) -> str:
    """``error (compiled) at compile, in verify: <reason>``; of a conflict the target first, of a claim its refusal.

    ``quote`` makes text of a record, cut to so many characters, fit for where the line is shown; ``limit`` is a
    reason's.
    """
    if note.claim:
        return f"declared: {quote(note.reason, limit)}"
    out = f"conflict: {quote(note.conflict, 60)} says {note.verdict.value}" if note.conflict else note.verdict.value
    if note.verdict not in (Verdict.REJECTED, Verdict.UNAVAILABLE):
        out += f" ({note.rung.value})"
    if note.phase:
        out += f" at {note.phase}"
    out += f", in {', '.join(quote(b, 60) for b in note.batches)}"
    return f"{out}: {quote(note.reason, limit)}" if note.reason else out


@dataclass(frozen=True)
class Entry:
    """One place of a table.

    ``summary`` is None where nothing was run (which is not "unsupported"). ``ran`` and ``expected`` count
    batches; ``kernel_block`` is set where the kernels get another block than the manager's.
    """

    summary: Summary | None = None
    footnotes: tuple[int, ...] = ()
    ran: int = 0
    expected: int = 0
    kernel_block: int | None = None
    missing: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict | None:
        """The summary's, None for "not run"."""
        return self.summary.verdict if self.summary else None

    @property
    def marks(self) -> tuple[Flag, ...]:
        """Flags that are marked beside the verdict."""
        return tuple(f for f in self.summary.flags if f in text.MARKS) if self.summary else ()

    @property
    def partial(self) -> bool:
        """Whether some batch that others of its drafter have is missing or did not run."""
        return self.ran > 0 and self.ran < self.expected


@dataclass(frozen=True)
class Table:
    """``rows`` by group, in order; ``entries`` by (group, row, column); ``shared`` what all cells have in common."""

    place: Place
    versions: tuple[tuple[str, str], ...]
    shared: tuple[str, ...]
    targets: tuple[str, ...]
    columns: tuple[Column, ...]
    groups: Mapping[Group, tuple[Row, ...]]
    geometry: Mapping[Group, str]
    entries: Mapping[tuple[Group, Row, Column], Entry]
    footnotes: tuple[Footnote, ...]
    records: tuple[Record, ...]

    def entry(self, group: Group, row: Row, column: Column) -> Entry:
        """What stands there; an empty entry where nothing was run."""
        return self.entries.get((group, row, column), Entry())


@dataclass(frozen=True)
class Absent:
    """A target on which nothing could be run, and why."""

    target: str
    cells: int
    reason: str


@dataclass(frozen=True)
class Report:
    """Everything that a report shows. ``unfinished``: cells that were begun and left no record; ``expected_pairs``:
    why a pair's failure is expected, by its id."""

    header: Mapping[str, Any]
    environments: Mapping[str, Environment]
    records: tuple[Record, ...]
    tables: tuple[Table, ...]
    absent: tuple[Absent, ...]
    counts: Mapping[Verdict, int]
    unfinished: tuple[str, ...] = ()
    pairs: tuple[PairRecord, ...] = ()
    expected_pairs: Mapping[str, str] = field(default_factory=dict)


@dataclass
class _Notes:
    """Footnotes so far; equal texts share a number."""

    first: int = 1
    notes: dict[Footnote, Footnote] = field(default_factory=dict)

    def number(self, note: Footnote) -> int:
        """The number of ``note``, whose own is 0."""
        if note not in self.notes:
            self.notes[note] = replace(note, number=self.first + len(self.notes))
        return self.notes[note].number


def build(
    records: Iterable[Record],
    environments: Mapping[str, Environment],
    header: Mapping[str, Any] | None = None,
    unfinished: Sequence[str] = (),
    pairs: Sequence[PairRecord] = (),
) -> Report:
    """The tables of ``records``, in whatever order; ``environments`` by id; ``header`` is the run file's first line.

    ``pairs`` have a section of their own.
    """
    everything = tuple(sorted(records, key=_order))
    homes = homes_of(everything, environments)
    tables: list[Table] = []
    absent: list[Absent] = []
    first = 1
    for (place, versions), group in sorted(homes.items(), key=lambda item: _home_order(item[0])):
        if all(r.verdict is Verdict.UNAVAILABLE for r in group):
            by_target: dict[tuple[str, str], int] = Counter((r.cell.target, _reason(r)) for r in group)
            absent += [Absent(target, n, reason) for (target, reason), n in by_target.items()]
            continue
        table = _table(place, versions, group, first)
        first += len(table.footnotes)
        tables.append(table)
    return Report(
        header=dict(header or {}),
        environments=environments,
        records=everything,
        tables=tuple(tables),
        absent=tuple(absent),
        counts=Counter(r.verdict for r in everything),
        unfinished=tuple(unfinished),
        pairs=tuple(pairs),
        expected_pairs=pair_expected.of(pairs, environments),
    )


def _order(record: Record) -> tuple[object, ...]:
    """By axes, not as workers came to an end: the same cells give the same table."""
    cell = record.cell
    axes = (_rank(ROCM_BACKENDS, cell.backend), cell.block_size, _rank(KV_CACHE_DTYPES, cell.kv_cache_dtype))
    return (cell.target, cell.drafter, cell.tp, *axes, _rank(BATCHES, cell.batch), record.cell_id)


def homes_of(
    records: Iterable[Record], environments: Mapping[str, Environment]
) -> dict[tuple[Place, tuple[tuple[str, str], ...]], list[Record]]:
    """Records by the table that they belong to: its place and versions."""
    homes: dict[tuple[Place, tuple[tuple[str, str], ...]], list[Record]] = {}
    for record in records:
        environment = environments.get(record.environment)
        homes.setdefault((summary.place(record, environment), summary.versions(environment)), []).append(record)

    # A target that could not start has no versions to tell: its records belong to the architecture's table if
    # there is exactly one, and are otherwise a line of their own.
    for home in [h for h, rs in homes.items() if not h[1] and all(r.verdict is Verdict.UNAVAILABLE for r in rs)]:
        others = [h for h in homes if h[0] == home[0] and h[1]]
        if len(others) == 1:
            homes[others[0]] += homes.pop(home)
    return homes


def _home_order(home: tuple[Place, tuple[tuple[str, str], ...]]) -> tuple[bool, str, object]:
    return (not home[0].architecture, home[0].title, home[1])


def _table(place: Place, versions: tuple[tuple[str, str], ...], records: list[Record], first: int) -> Table:
    varying = _varying(records)
    expected: dict[Group, list[str]] = {}
    slots: dict[tuple[Group, Row, Column], list[Record]] = {}
    for record in records:
        cell = record.cell
        group, column = Group(cell.drafter, cell.tp), Column(cell.block_size, cell.kv_cache_dtype)
        batches = expected.setdefault(group, [])
        if cell.batch not in batches:
            batches.append(cell.batch)
        slots.setdefault((group, _row(cell, varying), column), []).append(record)

    groups: dict[Group, tuple[Row, ...]] = {}
    for group, row, _ in sorted(slots, key=lambda s: (s[0], _rank(ROCM_BACKENDS, s[1].backend), s[1])):
        if row not in groups.setdefault(group, ()):
            groups[group] += (row,)
    columns = sorted({c for _, _, c in slots}, key=lambda c: (c.block_size, _rank(KV_CACHE_DTYPES, c.kv_cache_dtype)))

    notes = _Notes(first=first)
    entries: dict[tuple[Group, Row, Column], Entry] = {}
    for group, rows in groups.items():
        for row in rows:
            for column in columns:
                found = slots.get((group, row, column))
                if found:
                    entries[group, row, column] = _entry(found, expected[group], notes)
    return Table(
        place=place,
        versions=versions,
        shared=_shared(records, varying),
        targets=tuple(sorted({r.cell.target for r in records})),
        columns=tuple(columns),
        groups=groups,
        geometry={g: _geometry([r.cell for r in records if Group(r.cell.drafter, r.cell.tp) == g]) for g in groups},
        entries=entries,
        footnotes=tuple(notes.notes.values()),
        records=tuple(records),
    )


def _rank(order: Sequence[str], name: str) -> tuple[int, str]:
    return (order.index(name) if name in order else len(order), name)


def _entry(records: list[Record], expected: list[str], notes: _Notes) -> Entry:
    found = summary.summarise(records)
    numbers: list[int] = []

    def note(group: Iterable[Record], conflict: bool = False) -> None:
        """Footnotes of records, those that differ in the batch alone joined."""
        joined: dict[Footnote, list[str]] = {}
        for r in group:
            against = text.one_line(r.cell.target, 60) if conflict else ""
            shared = Footnote(0, r.verdict, r.rung, _phase(r), (), _reason(r), against)
            joined.setdefault(shared, []).append(r.cell.batch)
        for shared, batches in joined.items():
            numbers.append(notes.number(replace(shared, batches=tuple(batches))))

    order = summary.RAN + summary.DID_NOT_RUN
    findings = sorted(found.findings, key=lambda f: order.index(f.record.verdict))
    note(f.record for f in findings if _notable(f.record))
    note((r for f in findings for r in f.conflicts), conflict=True)
    # What ran alone can still fail beside its target: the claim stands by itself, whatever the verdict.
    for refusal in dict.fromkeys(filter(None, map(_refused_group, records))):
        numbers.append(notes.number(Footnote(0, Verdict.PASS, Rung.DECLARED, "", (), refusal, claim="shared_group")))
    have = {f.batch for f in found.findings}
    blocks = {f.record.kernel_block for f in found.findings if f.ran}
    kernel_block = blocks.pop() if len(blocks) == 1 else None
    return Entry(
        summary=found,
        footnotes=tuple(sorted(set(numbers))),
        ran=sum(f.ran for f in found.findings),
        expected=len(expected),
        kernel_block=None if kernel_block == records[0].cell.block_size else kernel_block,
        missing=tuple(b for b in expected if b not in have),
    )


def _notable(record: Record) -> bool:
    """Whether a record needs a line of its own: a pass only where it is marked, or contradicts its declaration."""
    marked = bool(text.reason(record)) and any(f in text.MARKS for f in record.flags)
    return record.verdict is not Verdict.PASS or marked or summary.under_advertised(record)


def _refused_group(record: Record) -> str:
    """What vLLM says of a group shared with a layer of the family's target, where it refuses it."""
    for claim in record.claims:
        if claim.layer == "shared_group" and claim.accepts is False:
            peer = claim.data.get("peer", "a layer of its target")
            return text.one_line(f"in one group with {peer}: {claim.detail}", 300)
    return ""


def _reason(record: Record) -> str:
    """The one line that says why, with what the backend declares where that is another thing."""
    reason = steady(text.reason(record))
    if not reason and record.verdict is not Verdict.PASS:
        reason = "no reason recorded"
    if summary.over_advertised(record):
        reason += " (declared supported)"
    if summary.under_advertised(record):
        reason = f"{reason} (declared rejected)".strip()
    return reason


def _phase(record: Record) -> str:
    return "" if record.verdict in (Verdict.PASS, Verdict.UNAVAILABLE) else record.phase.value


#: Axes beside those of rows and columns: how a value is worded.
_AXES: dict[str, Callable[[Cell], str]] = {
    "dtype": lambda c: text.dtype(c.dtype),
    "execution": lambda c: c.execution,
    "runner": lambda c: f"runner {c.runner}",
    "scales": lambda c: f"{c.scales.replace('_', '-')} scales",
    "role": lambda c: f"role {c.role.value}",
    "method": lambda c: f"method {c.method}",
    "switches": lambda c: summary.switch_words(c.switches),
    "num_speculative_tokens": lambda c: f"k={c.num_speculative_tokens}",
}
_BY_DRAFTER = ("role", "method", "num_speculative_tokens")


def _varying(records: list[Record]) -> frozenset[str]:
    """Axes whose value a row's name has to say. What a drafter fixes counts only if it varies within one."""
    varying = set()
    for axis in _AXES:
        if axis in _BY_DRAFTER:
            values: dict[object, set[object]] = {}
            for r in records:
                values.setdefault((r.cell.drafter, r.cell.tp), set()).add(getattr(r.cell, axis))
            if any(len(v) > 1 for v in values.values()):
                varying.add(axis)
        elif len({getattr(r.cell, axis) for r in records}) > 1:
            varying.add(axis)
    return frozenset(varying)


def _row(cell: Cell, varying: frozenset[str]) -> Row:
    variant = [text.one_line(word(cell) or "no switches", 200) for axis, word in _AXES.items() if axis in varying]
    if cell.force is Force.VALIDATION:
        variant.append("forced validation")
    elif cell.force is Force.KERNEL_BLOCK:
        variant.append(f"forced kernel block {cell.kernel_block}")
    return Row(text.one_line(cell.backend, 60), tuple(variant))


def _shared(records: list[Record], varying: frozenset[str]) -> tuple[str, ...]:
    first = records[0].cell
    words = [_AXES[a](first) for a in ("dtype", "execution", "runner", "scales", "switches") if a not in varying]
    batches = list(dict.fromkeys(r.cell.batch for r in records))
    words.append(f"{'batch' if len(batches) == 1 else 'batches'} {', '.join(batches)}")
    return tuple(text.one_line(w, 300) for w in words if w)


def _geometry(cells: list[Cell]) -> str:
    """Heads as the family has them at this degree; where only scaled ones ran, those, and it says so."""
    whole = [c for c in cells if not c.geometry.scaled]
    scaled = sorted({text.heads(c) for c in cells if c.geometry.scaled})
    first = (whole or cells)[0]
    parts = []
    if first.num_speculative_tokens:
        parts.append(f"k={first.num_speculative_tokens}")
    if whole:
        parts.append(text.heads(whole[0]))
    if scaled:
        where = ", ".join(sorted({c.target for c in cells if c.geometry.scaled}))
        parts.append(f"reduced to {' and '.join(scaled)} on {where}")
    return text.one_line(", ".join(parts), 200)
