"""What changed between two runs, or between two derived tables. Pure.

Two cells are the same where their ids are. A cell that passed and now fails, or is refused, is a regression; one
that passed and now only cannot be told is lost evidence, which is no regression. A time is slower or faster where
the intervals of the repeats part and the medians differ by more than the margin.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from .. import summary
from ..cell import Environment, Record, Timing, Verdict
from ..pair import PairRecord
from ..selection.defaults import Defaults, Row
from ..store import Run
from ..timings import sound

#: Kinds of change, the gravest first, and their titles. ``REGRESSIONS`` decide the exit status.
KINDS: dict[str, str] = {
    "regression": "Regressions",
    "slower": "Slower",
    "lost": "Evidence lost",
    "verdict": "Other changes of verdict",
    "fix": "Fixes",
    "faster": "Faster",
    "default": "Defaults changed",
    "rung": "Rungs changed",
    "mark": "Marks changed",
    "route": "Kernels or kernel blocks changed",
    "added": "Only in the new one",
    "removed": "Only in the old one",
    "environment": "Environments",
}
REGRESSIONS: frozenset[str] = frozenset({"regression", "slower"})

_GOOD = frozenset({Verdict.PASS})
_BAD = summary.FAILED | {Verdict.REJECTED}


class Change(msgspec.Struct, frozen=True, order=True):
    """One change: its kind, what changed (a cell id, a row, a version), and how, in words."""

    kind: str
    subject: str
    text: str


class Diff(msgspec.Struct, frozen=True):
    """All changes, by kind in the order of ``KINDS``, then by subject. ``same`` counts what did not change."""

    changes: tuple[Change, ...]
    same: int
    what: str = "cell"

    @property
    def regressed(self) -> bool:
        """Whether any change is a regression."""
        return any(change.kind in REGRESSIONS for change in self.changes)

    def of(self, kind: str) -> tuple[Change, ...]:
        """The changes of one kind."""
        return tuple(change for change in self.changes if change.kind == kind)


def _made(changes: Iterable[Change], same: int, what: str) -> Diff:
    order = list(KINDS)
    unique = sorted(set(changes), key=lambda c: (order.index(c.kind), c.subject, c.text))
    return Diff(tuple(unique), same, what)


def of_runs(old: Run, new: Run, margin_percent: float = 5.0) -> Diff:
    """Changes from ``old`` to ``new``; ``margin_percent`` is what a time may differ by without being a change."""
    before = {r.cell_id: r for r in old.records}
    after = {r.cell_id: r for r in new.records}
    changes: list[Change] = []
    same = 0
    for name in before.keys() & after.keys():
        one, two = before[name], after[name]
        machines = {hardware(old.environments.get(one.environment)), hardware(new.environments.get(two.environment))}
        found = of_records(one, two, margin_percent, same_hardware=len(machines) == 1)
        changes += found
        same += not found
    changes += [Change("added", name, _word(after[name])) for name in after.keys() - before.keys()]
    changes += [Change("removed", name, _word(before[name])) for name in before.keys() - after.keys()]
    changes += _defaults(before, after)
    changes += _environments(old.environments, new.environments)
    return _made(changes, same, "cell")


def of_records(one: Record, two: Record, margin_percent: float = 5.0, *, same_hardware: bool = True) -> list[Change]:
    """Changes from ``one`` record to ``two``; times are only compared on the same hardware."""
    found = [*_verdicts(one, two), *_routes(one, two)]
    return found + (_times(one, two, margin_percent) if same_hardware else [])


def of_pairs(one: PairRecord, two: PairRecord) -> list[Change]:
    """Changes from ``one`` record of a pair to ``two``: the outcome, and what set-up decided."""
    out = []
    for name, was, now in zip(("target's", "drafter's"), _sides(one), _sides(two), strict=True):
        if was != now and was and now:
            out.append(f"the {name} backends {', '.join(was)} -> {', '.join(now)}")
    for name in ("layout", "manager_block", "graph_support"):
        old, new = getattr(one, name), getattr(two, name)
        if old != new and old and new:
            out.append(f"{name.replace('_', ' ')} {old} -> {new}")
    return _verdicts(one, two) + ([Change("route", two.pair_id, "; ".join(out))] if out else [])


def _sides(record: PairRecord) -> list[list[str]]:
    return [sorted(side.backends) for side in (record.target_model, record.drafter)]


def _word(record: Record | PairRecord) -> str:
    return f"{record.verdict.value} ({record.rung.value})"


def _why(record: Record | PairRecord) -> str:
    if record.reasons:
        text = record.reasons[0]
    elif record.failure is not None:
        text = f"{record.failure.type}: {record.failure.message}"
    else:
        return ""
    text = " ".join(text.split()).removeprefix(f"{record.verdict.value}: ")
    return f": {text if len(text) <= 200 else text[:197] + '...'}"


def _verdicts(one: Record | PairRecord, two: Record | PairRecord) -> list[Change]:
    name = two.cell_id
    if one.verdict is not two.verdict:
        kind = "verdict"
        if one.verdict in _GOOD:
            kind = "regression" if two.verdict in _BAD else "lost"
        elif two.verdict in _GOOD and one.verdict in _BAD:
            kind = "fix"
        return [Change(kind, name, f"{_word(one)} -> {_word(two)} at {two.phase.value}{_why(two)}")]
    out = []
    if one.rung is not two.rung:
        out.append(Change("rung", name, f"{two.verdict.value}: {one.rung.value} -> {two.rung.value}"))
    if set(one.flags) != set(two.flags):
        lost = ", ".join(sorted(f.value for f in set(one.flags) - set(two.flags)))
        gained = ", ".join(sorted(f.value for f in set(two.flags) - set(one.flags)))
        words = [f"gained {gained}"] if gained else []
        words += [f"lost {lost}"] if lost else []
        out.append(Change("mark", name, "; ".join(words)))
    return out


def _routes(one: Record, two: Record) -> list[Change]:
    out = []
    if one.kernel_block != two.kernel_block and None not in (one.kernel_block, two.kernel_block):
        out.append(f"kernel block {one.kernel_block} -> {two.kernel_block}")
    ran = [[(k.phase, k.name) for k in r.route] for r in (one, two)]
    if ran[0] != ran[1] and all(ran):
        names = [", ".join(dict.fromkeys(name for _, name in route)) for route in ran]
        out.append(f"{names[0]} -> {names[1]}" if names[0] != names[1] else "the same kernels in another order")
    return [Change("route", two.cell_id, "; ".join(out))] if out else []


def _times(one: Record, two: Record, margin_percent: float) -> list[Change]:
    before = {(t.phase, t.workload): t for t in one.times}
    out = []
    for now in two.times:
        was = before.get((now.phase, now.workload))
        kind = faster_or_slower(was, now, margin_percent) if was is not None else ""
        if was is not None and kind:
            change = f" ({(now.median_us / was.median_us - 1) * 100:+.1f} %)" if was.median_us > 0 else ""
            text = f"{now.phase}, {now.workload}: {was.median_us:g} -> {now.median_us:g} us{change}"
            out.append(Change(kind, two.cell_id, text))
    return out


def faster_or_slower(was: Timing, now: Timing, margin_percent: float) -> str:
    """``slower`` or ``faster`` where the intervals part and the medians differ by more than the margin, else ""."""
    if not (sound(was) and sound(now)):
        return ""
    factor = 1 + margin_percent / 100
    if now.low_us > was.high_us and now.median_us > was.median_us * factor:
        return "slower"
    if now.high_us < was.low_us and now.median_us * factor < was.median_us:
        return "faster"
    return ""


def hardware(environment: Environment | None) -> str:
    """The name of the GPU that an environment states, "" where it states none."""
    facts = environment.hardware if environment is not None else {}
    return str(facts.get("name") or facts.get("gpu") or "")


def _selected(record: Record) -> str | None:
    for claim in record.claims:
        if claim.layer == "selector":
            return str(claim.data.get("default") or "nothing") if "default" in claim.data else None
    return None


def _defaults(before: Mapping[str, Record], after: Mapping[str, Record]) -> list[Change]:
    """vLLM's own default where it changed; once for cells that differ in backend or batch alone."""
    out = []
    for name in before.keys() & after.keys():
        was, now = _selected(before[name]), _selected(after[name])
        if was is not None and now is not None and was != now:
            cell = after[name].cell
            where = f"{cell.target}, {cell.drafter}, tp {cell.tp}, block {cell.block_size}, {cell.kv_cache_dtype}"
            out.append(Change("default", where, f"vLLM's own: {was} -> {now}"))
    return out


def _environments(old: Mapping[str, Environment], new: Mapping[str, Environment]) -> list[Change]:
    out = []
    targets = sorted({e.target for e in (*old.values(), *new.values())})
    for target in targets:
        before, after = ([e for e in side.values() if e.target == target] for side in (old, new))
        if not before or not after:
            out.append(Change("environment", target, "only in the new one" if after else "only in the old one"))
            continue
        out += [Change("environment", target, f"{key}: {was} -> {now}") for key, was, now in of_facts(before, after)]
    return out


def of_facts(old: Iterable[Environment], new: Iterable[Environment]) -> list[tuple[str, str, str]]:
    """What environments state differently: the fact's name, and all that either side says of it ("none": nothing)."""
    before, after = list(old), list(new)
    said = _facts(before), _facts(after)
    out = []
    for key in sorted({*said[0], *said[1]}):
        was, now = (", ".join(sorted(side.get(key, ()))) or "none" for side in said)
        if was != now:
            out.append((key, was, now))
    # These are many and long: only those that the other side has not.
    ours, theirs = ({text for e in side for text in e.extensions} for side in (before, after))
    if ours != theirs:
        was, now = ("; ".join(sorted(side)) or "nothing else" for side in (ours - theirs, theirs - ours))
        out.append(("changed by capmatrix", was, now))
    return out


def _facts(environments: Iterable[Environment]) -> dict[str, set[str]]:
    out: dict[str, set[str]] = {}

    def add(prefix: str, entries: Mapping[str, Any]) -> None:
        for name, value in entries.items():
            out.setdefault(f"{prefix}{name}", set()).add(str(value))

    for environment in environments:
        add("", environment.versions)
        add("commit of ", environment.commits)
        add("hardware ", environment.hardware)
        add("identity ", environment.identity)
        add("switch ", environment.switches)
    return out


def of_tables(old: Defaults, new: Defaults) -> Diff:
    """Changes from ``old`` to ``new`` by row. A regression: a candidate fails or is refused, or none is left."""
    before = {row.key: row for row in old.row}
    after = {row.key: row for row in new.row}
    changes: list[Change] = []
    same = 0
    for key in before.keys() & after.keys():
        found = _rows(_name(after[key]), before[key], after[key])
        changes += found
        same += not found
    changes += [Change("added", _name(after[key]), after[key].backend or "no default") for key in after.keys() - before]
    changes += [Change("removed", _name(before[key]), before[key].backend or "none") for key in before.keys() - after]
    for name in ("policy", "margin_percent", "workload"):
        was, now = getattr(old, name), getattr(new, name)
        if was != now:
            changes.append(Change("environment", name, f"{was or 'none'} -> {now or 'none'}"))
    return _made(changes, same, "row")


def _name(row: Row) -> str:
    return f"{row.architecture}, {row.drafter} ({row.role}), block {row.block_size}, {row.kv_cache_dtype}, {row.dtype}"


def _states(row: Row) -> dict[str, str]:
    states = {other.backend: other.why for other in row.other}
    return states | ({row.backend: "pass"} if row.backend else {})


_BARRED = frozenset({"failed", "rejected", "barred"})
_UNKNOWN = frozenset({"unverified", "unavailable", "not run"})


def _rows(name: str, one: Row, two: Row) -> list[Change]:
    out = []
    was, now = _states(one), _states(two)
    details = {other.backend: other.detail for other in two.other}
    for backend in sorted(was.keys() & now.keys()):
        old, new = (states[backend] for states in (was, now))
        if old not in _BARRED | _UNKNOWN and new in _BARRED:
            detail = f": {details[backend]}" if details.get(backend) else ""
            out.append(Change("regression", name, f"{backend} {new}{detail}"))
        elif old in _BARRED and new not in _BARRED | _UNKNOWN:
            out.append(Change("fix", name, f"{backend} was {old}, now a candidate"))
    if one.backend and not two.backend:
        out.append(Change("regression", name, f"{one.backend} -> no backend is a candidate"))
    elif one.backend != two.backend:
        out.append(Change("default", name, f"{one.backend or 'none'} -> {two.backend} ({two.reason})"))
    if one.rung != two.rung:
        out.append(Change("rung", name, f"{one.rung or 'none'} -> {two.rung or 'none'}"))
    if set(one.marks) != set(two.marks):
        words = [f"gained {m}" for m in two.marks if m not in one.marks]
        words += [f"lost {m}" for m in one.marks if m not in two.marks]
        out.append(Change("mark", name, "; ".join(words)))
    versions = {n: (one.versions.get(n, "none"), two.versions.get(n, "none")) for n in {*one.versions, *two.versions}}
    moved = [f"{n} {a} -> {b}" for n, (a, b) in sorted(versions.items()) if a != b]
    if moved:
        out.append(Change("environment", name, ", ".join(moved)))
    return out
