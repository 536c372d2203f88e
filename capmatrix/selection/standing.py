"""One backend for one key: what its records and published results say together.

A key's other axes (tensor parallel degree, execution, runner, scales, speculative tokens) are conditions: a
backend must pass under every one that it was run under. Environment switches are not: a backend stands as it
does with none set, and only if it was never run so, with those it was run with.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from .. import batches, summary
from ..cell import Cell, Environment, Flag, Record, Role, Rung, Timing, Verdict
from ..timings import sound
from .published import Published, Result

Switches = tuple[tuple[str, str], ...]

#: Flags that make a pass weaker beside another's, for ties.
BLEMISHES: tuple[Flag, ...] = (Flag.NAN_UNSAFE, Flag.FALLBACK)


class Piece(NamedTuple):
    """A record, the environment it was made in, and how a table refers to it (``run::cell id``)."""

    record: Record
    environment: Environment | None
    ref: str


class Condition(NamedTuple):
    """What varies within a key and counts together: a backend must pass under each."""

    tp: int
    num_speculative_tokens: int
    execution: str
    runner: str
    scales: str

    def __str__(self) -> str:
        return f"tp {self.tp}, k={self.num_speculative_tokens}, {self.execution}, runner {self.runner}, {self.scales}"


class Served(NamedTuple):
    """One published result of a key, and how a table refers to it (``file#row``)."""

    result: Result
    table: Published
    ref: str


class Time(NamedTuple):
    """A measured kernel time, where it was measured (GPU), under which condition, and its record."""

    timing: Timing
    machine: str
    condition: Condition
    ref: str


@dataclass(frozen=True)
class Decision:
    """One batch under one condition: the piece that decides, and those that contradict it."""

    batch: str
    condition: Condition
    piece: Piece
    conflicts: tuple[Piece, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The deciding verdict."""
        return self.piece.record.verdict


@dataclass(frozen=True)
class Standing:
    """What is known of one backend for one key.

    ``state``: ``pass`` (a candidate), or the ``Other.why`` that keeps it from being one. ``rung``: of the
    weakest needed batch of a candidate, of the deciding record else. ``missing``: needed batches without
    any. ``shapes``: passing batch shapes over all conditions. ``blemishes``: flags of ``BLEMISHES`` seen.
    """

    backend: str
    state: str
    detail: str = ""
    rung: Rung | None = None
    missing: tuple[str, ...] = ()
    shapes: int = 0
    blemishes: tuple[Flag, ...] = ()
    switches: Switches = ()
    refs: tuple[str, ...] = ()
    served: tuple[Served, ...] = ()
    times: tuple[Time, ...] = ()
    conflicts: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    dates: tuple[str, ...] = ()


def version_key(text: str) -> tuple[tuple[int, ...], int, str]:
    """A version in an order good enough to tell newer from older: release numbers, then post or pre, then text."""
    match = re.match(r"(\d+(?:\.\d+)*)(.*)", text)
    if match is None:
        return (), 0, text
    rest = match[2].lower()
    stage = -1 if re.match(r"[._-]?(rc|a|b|dev)\d*", rest) else 1 if "post" in rest else 0
    return tuple(int(n) for n in match[1].split(".")), stage, rest


def _age(piece: Piece) -> tuple[tuple[tuple[int, ...], int, str], ...]:
    found = dict(summary.versions(piece.environment))
    return tuple(version_key(found.get(name, "")) for name in summary.COMPARED_VERSIONS)


def decide(pieces: Iterable[Piece]) -> Decision:
    """One batch under one condition: a verdict that tells beats one that does not; among these the highest rung,
    then the newest versions, then the worst verdict. A refusal by newer versions than the rest beats them all.

    Raises ValueError when there is no piece.
    """
    found = list(pieces)
    told = [p for p in found if p.record.verdict is Verdict.PASS or p.record.verdict in summary.FAILED]
    refused = [p for p in found if p.record.verdict is Verdict.REJECTED]
    pool = told or [p for p in found if p.record.verdict is Verdict.UNVERIFIED] or refused or found
    if refused and told and max(map(_age, refused))[0] > max(map(_age, told))[0]:
        pool = refused
    rung = max(summary.strength(p.record.rung) for p in pool)
    pool = [p for p in pool if summary.strength(p.record.rung) == rung]
    newest = max(map(_age, pool))
    pool = [p for p in pool if _age(p) == newest]
    verdict = summary.worst(p.record.verdict for p in pool)
    first = min((p for p in pool if p.record.verdict is verdict), key=lambda p: p.ref)
    claims = [p for p in (*told, *refused) if p.record.verdict is not first.record.verdict]
    conflicts = claims if first in (*told, *refused) else []
    cell = first.record.cell
    return Decision(cell.batch, condition_of(cell), first, tuple(sorted(conflicts, key=lambda p: p.ref)))


def condition_of(cell: Cell) -> Condition:
    """What of a cell is a condition."""
    return Condition(cell.tp, cell.num_speculative_tokens, cell.execution, cell.runner, cell.scales)


def standing(backend: str, pieces: Sequence[Piece], served: Sequence[Served], *, shared_pool: bool = False) -> Standing:
    """What the pieces and published results of one key say of ``backend``."""
    by_switches: dict[Switches, list[Piece]] = {}
    for piece in pieces:
        by_switches.setdefault(piece.record.cell.switches, []).append(piece)
    options = {switches: _of_records(backend, group, shared_pool) for switches, group in by_switches.items()}
    if not options:
        return _with_served(Standing(backend, "not run"), served)
    order = sorted(options, key=lambda switches: (switches != (), options[switches].state != "pass", switches))
    chosen = options[order[0]]
    if order[0] == () and chosen.state != "pass":
        working = [s for s in order[1:] if options[s].state == "pass"]
        if working:
            words = summary.switch_words(working[0])
            chosen = replace(chosen, detail=f"{chosen.detail}; passes with {words}")
    return _with_served(replace(chosen, switches=order[0]), served)


def _of_records(backend: str, pieces: Sequence[Piece], shared_pool: bool) -> Standing:
    groups: dict[tuple[Condition, str], list[Piece]] = {}
    for piece in pieces:
        cell = piece.record.cell
        groups.setdefault((condition_of(cell), cell.batch), []).append(piece)
    decisions = [decide(groups[name]) for name in sorted(groups)]
    first = pieces[0].record.cell
    needed = batches.needed(first.method, Role(first.role))
    wanted = [d for d in decisions if d.batch in needed]
    conflicts = tuple(_conflict(d, p) for d in decisions for p in d.conflicts)
    blemishes = tuple(f for f in BLEMISHES if any(f in d.piece.record.flags for d in wanted))
    passing = [d for d in decisions if d.verdict is Verdict.PASS]
    base = Standing(
        backend,
        "pass",
        shapes=len({d.batch for d in passing} - {d.batch for d in decisions if d.verdict is not Verdict.PASS}),
        blemishes=blemishes,
        refs=tuple(sorted(d.piece.ref for d in wanted)),
        times=_times(d.piece for d in passing),
        conflicts=conflicts,
        versions=_versions(d.piece for d in decisions),
        dates=tuple(sorted({d.piece.record.ended_at[:10] for d in decisions if d.piece.record.ended_at})),
    )
    for verdicts, state in (
        (summary.FAILED, "failed"),
        ({Verdict.REJECTED}, "rejected"),
        ({Verdict.UNVERIFIED}, "unverified"),
    ):
        hits = [d for d in wanted if d.verdict in verdicts]
        if hits:
            worst = min(hits, key=lambda d: (summary.RAN + summary.DID_NOT_RUN).index(d.verdict))
            refs = tuple(sorted(d.piece.ref for d in hits))
            return replace(base, state=state, detail=_where(worst, hits), rung=worst.piece.record.rung, refs=refs)
    ran = {d.batch for d in wanted if d.verdict is Verdict.PASS}
    missing = tuple(batch for batch in needed if batch not in ran)
    if not ran:
        unavailable = [d for d in wanted if d.verdict is Verdict.UNAVAILABLE]
        if unavailable:
            return replace(base, state="unavailable", detail=_reason(unavailable[0].piece.record), rung=None)
        return replace(base, state="not run", detail=f"none of {', '.join(needed)}", rung=None)
    rung = min((d.piece.record.rung for d in wanted if d.verdict is Verdict.PASS), key=summary.strength)
    base = replace(base, rung=rung, missing=missing)
    if shared_pool and Flag.NAN_UNSAFE in blemishes:
        hit = next(d for d in wanted if Flag.NAN_UNSAFE in d.piece.record.flags)
        text = f"NaN in unused slots reaches its output in {hit.batch}, and this family's pool is shared"
        return replace(base, state="barred", detail=text)
    return base


def _where(worst: Decision, hits: Sequence[Decision]) -> str:
    """``wrong at compare in decode (tp 4 ...): reason``, and in which other batches."""
    record = worst.piece.record
    if record.verdict is Verdict.REJECTED:
        text = _reason(record) or "refused without a reason"
    else:
        text = f"{record.verdict.value} at {record.phase.value}, {record.rung.value}"
        reason = _reason(record)
        text += f": {reason}" if reason else ""
    where = ", ".join(sorted({d.batch for d in hits}))
    conditions = {d.condition for d in hits}
    place = str(worst.condition)
    if len(conditions) > 1:
        place = f"{len(conditions)} conditions, among them {place}"
    return f"{text} (in {where}; {place})"


def _reason(record: Record) -> str:
    if record.reasons:
        text = record.reasons[0].removeprefix(f"{record.verdict.value}: ")
    elif record.failure is not None:
        text = f"{record.failure.type}: {record.failure.message}"
    else:
        return ""
    text = " ".join(text.split())
    return text if len(text) <= 200 else text[:197] + "..."


def _conflict(decision: Decision, piece: Piece) -> str:
    won, lost = decision.piece.record, piece.record
    return (
        f"{won.cell.backend} in {decision.batch}: {won.verdict.value} ({won.rung.value}, {decision.piece.ref}) "
        f"stands against {lost.verdict.value} ({lost.rung.value}, {piece.ref})"
    )


def _times(pieces: Iterable[Piece]) -> tuple[Time, ...]:
    out = []
    for piece in pieces:
        hardware = piece.environment.hardware if piece.environment else {}
        machine = str(hardware.get("name") or hardware.get("gpu") or "")
        condition = condition_of(piece.record.cell)
        out += [Time(timing, machine, condition, piece.ref) for timing in piece.record.times if sound(timing)]
    return tuple(sorted(out, key=lambda t: (t.ref, t.timing.phase, t.timing.workload)))


def _versions(pieces: Iterable[Piece]) -> dict[str, str]:
    """The newest version of each distribution among the deciding pieces."""
    found: dict[str, set[str]] = {}
    for piece in pieces:
        for name, version in summary.versions(piece.environment):
            found.setdefault(name, set()).add(version)
    return {name: max(found[name], key=version_key) for name in sorted(found)}


def _with_served(one: Standing, served: Sequence[Served]) -> Standing:
    """Published results added: they make a candidate of what was not run, and a refusal bars, unless execution
    after it says otherwise. What contradicts stands as a conflict."""
    if not served:
        return one
    passing = tuple(s for s in served if s.result.status == "pass")
    failing = [s for s in served if s.result.status != "pass"]
    conflicts = list(one.conflicts)
    newest = max(s.table.date for s in served)
    ran_later = one.rung is Rung.EXECUTED and bool(one.dates) and one.dates[-1] > newest
    dates = tuple(sorted({*one.dates, *(s.table.date for s in served)}))
    one = replace(one, served=tuple(served), dates=dates)
    if failing and not passing:
        first = failing[0]
        text = f"published in {first.table.source}: {first.result.reason}"
        if one.state == "pass":
            rung = one.rung.value if one.rung is not None else "no rung"
            conflicts.append(f"{one.backend}: pass ({rung}) against {first.result.status}, {text}")
            if ran_later:
                return replace(one, conflicts=tuple(conflicts))
        if one.state in ("pass", "not run", "unverified", "unavailable"):
            state = "rejected" if first.result.status == "rejected" else "failed"
            return replace(one, state=state, detail=text, rung=Rung.SERVED, conflicts=tuple(conflicts))
        return replace(one, conflicts=tuple(conflicts))
    if failing:
        text = "; ".join(f"{s.result.status} in {s.ref}" for s in failing)
        conflicts.append(f"{one.backend}: served in {passing[0].ref}, but {text}")
    if one.state in ("failed", "rejected", "barred"):
        conflicts.append(f"{one.backend}: {one.state} here, but served in {passing[0].ref}")
        return replace(one, conflicts=tuple(conflicts))
    return replace(one, state="pass", detail="", rung=Rung.SERVED, missing=(), conflicts=tuple(conflicts))
