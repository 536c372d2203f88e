"""All that two records of one cell say, side by side, for a terminal and for a pull request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..analysis.compare import Entry, Numbers, Times
from ..analysis.sources import Sourced
from ..cell import Check, Kernel, Timing
from . import text as words
from .compare import ratio, timing, verdict_words
from .markdown import code, code_in_table
from .timing_facts import timing_facts

_NOTHING = "-"


class Row(NamedTuple):
    """One fact, and what either side says of it."""

    label: str
    left: str
    right: str

    @property
    def differs(self) -> bool:
        """Whether the sides say different things."""
        return self.left != self.right


class Section(NamedTuple):
    """Rows under a title."""

    title: str
    rows: tuple[Row, ...]


def sections(entry: Entry) -> tuple[Section, ...]:
    """Everything, one printable line a side; sections without rows are left out."""
    sides = (entry.left, entry.right)
    found = (
        Section("Outcome", tuple(_outcome(sides))),
        Section("Claims", tuple(_claims(sides))),
        Section("Set-up", tuple(_setup(sides))),
        Section("Route", tuple(_route(sides))),
        Section("Numbers (error, worst row's error over its bound)", tuple(map(_numbers, entry.numbers))),
        Section("Times (microseconds a call)", tuple(row for t in entry.times for row in _time(t))),
        Section("Environment", tuple(_environment(entry, sides))),
    )
    return tuple(section for section in found if section.rows)


def text(entry: Entry, left: str, right: str, width: int = 100) -> str:
    """Plain text in two columns, ending with a newline; a row that differs is marked with ``*``."""
    label_width = min(26, max(len(row.label) for section in sections(entry) for row in section.rows))
    column = max(24, (width - label_width - 8) // 2)
    out = [words.one_line(entry.name, 1000), ""]
    out += _columns("", "", words.one_line(left), words.one_line(right), label_width, column)
    for title, rows in sections(entry):
        out += ["", title]
        for row in rows:
            out += _columns("*" if row.differs else "", row.label, row.left, row.right, label_width, column)
    return "\n".join(line.rstrip() for line in out) + "\n"


def markdown(entry: Entry, left: str, right: str) -> str:
    """For GitHub, ending with a newline; a row that differs stands in bold."""
    out = [f"## {code(entry.name, 1000)}"]
    for title, rows in sections(entry):
        out += ["", f"| {title} | {code_in_table(left, 120)} | {code_in_table(right, 120)} |", "|---|---|---|"]
        for row in rows:
            label = code_in_table(row.label) if row.label else " "
            label = f"**{label}**" if row.differs and row.label else label
            out.append(f"| {label} | {code_in_table(row.left, 400)} | {code_in_table(row.right, 400)} |")
    return "\n".join(out) + "\n"


def _columns(mark: str, label: str, left: str, right: str, label_width: int, column: int) -> list[str]:
    labels = words.fill(label, max(label_width, 1)) if label else [""]
    blocks = (labels, words.fill(left, column), words.fill(right, column))
    out = []
    for i in range(max(map(len, blocks))):
        one, two, three = (block[i] if i < len(block) else "" for block in blocks)
        head = f" {mark if i == 0 else '':<1} {words.pad(one, label_width)}"
        out.append(f"{head}  {words.pad(two, column)}  {three}")
    return out


def _pair(label: str, sides: Sequence[object]) -> Row:
    left, right = (words.one_line(value, 600) if value not in (None, "", (), {}) else _NOTHING for value in sides)
    return Row(words.one_line(label, 60), left, right)


def _rows(facts: Iterable[tuple[str, Sequence[object]]]) -> list[Row]:
    rows = [_pair(label, sides) for label, sides in facts]
    return [row for row in rows if (row.left, row.right) != (_NOTHING, _NOTHING)]


def _outcome(sides: Sequence[Sourced | None]) -> list[Row]:
    records = [side.record if side else None for side in sides]
    return [
        Row("verdict", *(verdict_words(side) for side in sides)),
        *_rows(
            (
                ("run", [side.source.name if side else "" for side in sides]),
                ("date", [side.source.date if side else "" for side in sides]),
                ("cell id", [r.cell_id if r else "" for r in records]),
                ("ended at", [r.phase.value if r else "" for r in records]),
                ("reasons", ["; ".join(r.reasons) if r else "" for r in records]),
                ("failure", [f"{r.failure.type}: {r.failure.message}" if r and r.failure else "" for r in records]),
                ("deepest frame", [r.failure.frame if r and r.failure else "" for r in records]),
                ("repeats", [", ".join(v.value for v in r.repeats) if r else "" for r in records]),
            )
        ),
    ]


def _claims(sides: Sequence[Sourced | None]) -> list[Row]:
    said = [{claim.layer: claim for claim in side.record.claims} if side else {} for side in sides]
    facts = []
    for layer in {**said[0], **said[1]}:
        claims = [side.get(layer) for side in said]
        word = {True: "yes", False: "no", None: "-"}
        facts.append((layer, [f"{word[c.accepts]} {c.detail}".strip() if c else "" for c in claims]))
    return _rows(facts)


def _setup(sides: Sequence[Sourced | None]) -> list[Row]:
    records = [side.record if side else None for side in sides]
    names = ("kernel_block", "layout", "implementation", "graph_support")
    facts = [(name.replace("_", " "), [getattr(r, name) if r else "" for r in records]) for name in names]
    keys = dict.fromkeys(key for r in records if r for key in r.kv_cache)
    facts += [(f"KV cache {key}", [r.kv_cache.get(key, "") if r else "" for r in records]) for key in keys]
    return _rows(facts)


def _route(sides: Sequence[Sourced | None]) -> list[Row]:
    """Kernels beside each other in the order that they ran in."""
    routes = [side.record.route if side else () for side in sides]
    facts = []
    for i in range(max(map(len, routes))):
        kernels = [route[i] if i < len(route) else None for route in routes]
        phase = next(k.phase for k in kernels if k)
        facts.append((phase, [_kernel(k) if k else "" for k in kernels]))
    return _rows(facts)


def _kernel(k: Kernel) -> str:
    parts = [f"{k.name} ({k.kind})"]
    parts += [f"x{k.calls}"] if k.calls != 1 else []
    parts += [f"grid {'x'.join(map(str, k.grid))}"] if k.grid else []
    figures = (("warps", k.num_warps), ("VGPR", k.vgprs), ("AGPR", k.agprs), ("SGPR", k.sgprs))
    parts += [f"{name} {value}" for name, value in figures if value is not None]
    parts += [f"LDS {words.size(k.lds_bytes)}"] if k.lds_bytes is not None else []
    spilled = [value for value in (k.vgpr_spills, k.sgpr_spills) if value]
    parts += [f"spills {'+'.join(map(str, spilled))}"] if spilled else []
    parts += [f"scratch {words.size(k.scratch_bytes)}"] if k.scratch_bytes else []
    return ", ".join(parts)


def _numbers(found: Numbers) -> Row:
    label = found.part if found.cache == "zeroed" else f"{found.part}, {found.cache} slots"
    left, right = (_check(check) for check in (found.left, found.right))
    return Row(words.one_line(label, 60), left, right)


def _check(c: Check | None) -> str:
    if c is None:
        return _NOTHING
    parts = [{True: "ok", False: "BAD", None: "not judged"}[c.ok]]
    if c.relative_l2 is not None:
        parts.append(f"relative L2 {c.relative_l2:.3g}")
    elif c.max_abs is not None:
        parts.append(f"largest {c.max_abs:.3g}")
    if c.bound is not None:
        parts.append(f"bound {c.bound:.3g}")
    if c.worst_row_error is not None:
        parts.append(f"worst row {c.worst_row_error:.3g}")
    parts += [f"{c.nan_count} NaN"] if c.nan_count else []
    parts += [f"{c.unwritten_count} unwritten"] if c.unwritten_count else []
    return ", ".join(parts)


def _time(t: Times) -> list[Row]:
    rows = [Row(words.one_line(f"{t.phase}, {t.workload}", 60), _timing(t.left), _timing(t.right))]
    said = ratio(t)
    rows += [Row("ratio, right over left", "1", said)] if said else []
    sides = [dict(timing_facts(side)) if side else {} for side in (t.left, t.right)]
    return rows + _rows((name, [side.get(name, "") for side in sides]) for name in {**sides[0], **sides[1]})


def _timing(t: Timing | None) -> str:
    if t is None:
        return "not timed"
    share = f", {words.percent(t.share_of_roofline)} of roofline" if t.share_of_roofline is not None else ""
    return f"{timing(t)}, {words.count(t.repeats, 'repeat')}{share}"


def _environment(entry: Entry, sides: Sequence[Sourced | None]) -> list[Row]:
    if entry.left is not None and entry.right is not None:
        rows = [_pair(name, (left, right)) for name, left, right in entry.facts]
        return rows or [Row("", "the same", "the same")]
    known = [side.environment.versions if side and side.environment else {} for side in sides]
    return _rows((name, [side.get(name, "") for side in known]) for name in {**known[0], **known[1]})
