"""Bisecting a cell: runs sets of changes through whatever runs cells, and says what turned the failure into a pass."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from .. import codec
from ..analysis import sameness
from ..cell import Cell, Record, Verdict
from . import delta, knobs
from .delta import Answer, Budget, Change, Changes, Spent

#: Runs a cell in a fresh worker.
Run = Callable[[Cell], Record]

#: Told of each set before it runs and, with the record, after.
Tell = Callable[[Changes, Cell, "Record | None"], None]


#: Servers of the bound that a search leaves for establishing what has no effect.
_KEPT = 5

#: How the environment of a cell begins that no server could be had for.
NOWHERE = "none-"


class Limits(NamedTuple):
    """``servers``: worker servers that may start, one a switch set; ``runs``: sets; ``largest``: changes of one set."""

    servers: int = 24
    runs: int = 120
    largest: int = 3


class Tried(NamedTuple):
    """A change made alone: what came of it, and in what that differs from the cell as it is (parts of a record)."""

    change: Change
    record: Record
    differs: tuple[str, ...]


class Result(NamedTuple):
    """What a bisection found.

    ``baseline``: the cell as it is. ``found``: see ``delta.Found``; ``passed``: the record of its set. ``tried``:
    each change alone. ``idle``: changes that did nothing, with the contexts in which that was seen. ``unsteady``:
    parts in which two runs of the cell as it is differ, which therefore do not count. ``verified``: whether the cell
    failed as before, and the set passed, once more in fresh workers; None where there was nothing to verify.
    """

    cell: Cell
    baseline: Record
    found: delta.Found
    passed: Record | None
    tried: tuple[Tried, ...]
    idle: dict[Change, list[Changes]]
    unsteady: tuple[str, ...]
    verified: bool | None
    runs: int
    servers: int
    seconds: float


class _Lab:
    """Runs changed cells and remembers their records."""

    def __init__(self, cell: Cell, run: Run, tell: Tell, limits: Limits) -> None:
        self.cell = cell
        self.run = run
        self.tell = tell
        self.limits = limits
        self.records: dict[Changes, Record] = {}
        self.servers: set[object] = set()
        #: Servers that may start by now: some are kept for asking what has no effect.
        self.allowed = limits.servers - min(_KEPT, limits.servers // 4)
        self.unsteady: tuple[str, ...] = ()
        self.repeats = 0

    def ask(self, changes: Changes) -> Answer:
        """One set, run. Raises Spent where it needs one server too many."""
        cell = knobs.apply(self.cell, changes)
        key = codec.server_key(cell)
        if key not in self.servers and len(self.servers) >= self.allowed:
            raise Spent
        self.servers.add(key)
        record = self.attempt(changes)
        self.records[changes] = record
        if not changes:
            again = self.attempt(changes)
            self.repeats += 1
            self.unsteady = sameness.differing(sameness.parts(record), sameness.parts(again))
        return Answer(record.verdict is Verdict.PASS, self.same(record))

    def attempt(self, changes: Changes) -> Record:
        """The record of one set, run now."""
        cell = knobs.apply(self.cell, changes)
        self.tell(changes, cell, None)
        record = self.run(cell)
        self.tell(changes, cell, record)
        return record

    def same(self, record: Record) -> tuple[str, ...]:
        """What must be equal for two sets to have done the same."""
        steady = (text for name, text in sameness.parts(record).items() if name not in self.unsteady)
        return (str(record.verdict is Verdict.PASS), *steady)

    def differs(self, record: Record) -> tuple[str, ...]:
        """In what a record differs from that of the cell as it is."""
        base = sameness.parts(self.records[frozenset()])
        return tuple(n for n in sameness.differing(base, sameness.parts(record)) if n not in self.unsteady)


def bisect_cell(cell: Cell, changes: Sequence[Change], run: Run, tell: Tell, limits: Limits) -> Result:
    """Finds the smallest set of ``changes`` with which ``cell`` passes, and the changes that do nothing."""
    started = time.monotonic()
    lab = _Lab(cell, run, tell, limits)
    budget = Budget(lab.ask, limits.runs)
    base: Changes = frozenset()
    budget(base)
    baseline = lab.records[base]
    found = delta.Found(base)
    dead: dict[Change, list[Changes]] = {}
    verified = None
    if baseline.verdict is Verdict.UNAVAILABLE and baseline.environment.startswith(NOWHERE):
        found = delta.Found(None, proven=False, complete=False)  # no server: no switch brings the hardware
    elif baseline.verdict is not Verdict.PASS:
        found, dead = _search(lab, budget, changes)
        if found.smallest:
            verified = "verdict" not in lab.unsteady and _again(lab, found.smallest)
    tried = [Tried(c, r, lab.differs(r)) for c in changes if (r := lab.records.get(frozenset([c]))) is not None]
    return Result(
        cell=cell,
        baseline=baseline,
        found=found,
        passed=lab.records.get(found.smallest) if found.smallest else None,
        tried=tuple(tried),
        idle=dead,
        unsteady=lab.unsteady,
        verified=verified,
        runs=len(lab.records) + lab.repeats,
        servers=len(lab.servers),
        seconds=time.monotonic() - started,
    )


def _search(lab: _Lab, budget: Budget, changes: Sequence[Change]) -> tuple[delta.Found, dict[Change, list[Changes]]]:
    """The smallest passing set, and the switches without effect, which larger sets are not made of."""
    contexts: list[Changes] = [frozenset()]
    with contextlib.suppress(Spent):
        passing = delta.alone(changes, budget)
        before = budget(()).same
        working = passing[:1] or [c for c in changes if budget([c]).same != before]
        beside = [knobs.MASTER] if knobs.MASTER in changes else []
        contexts += [frozenset([c]) for c in dict.fromkeys([*beside, *working])]
    lab.allowed = lab.limits.servers
    dead = _without_effect(lab, budget, changes, contexts)
    live = [c for c in changes if c not in dead]
    return delta.smallest(live, budget, lab.limits.largest), dead


def _without_effect(
    lab: _Lab, budget: Budget, changes: Sequence[Change], contexts: Sequence[Changes]
) -> dict[Change, list[Changes]]:
    """Switches that do nothing alone, nor all together, nor beside the master switch or any that does something.

    Their defaults, set, are asked too: the table of defaults may be wrong for the installed version.
    """
    switched = [c for c in changes if c.knob in knobs.SWITCHES]
    dead = delta.idle(switched, contexts, budget)
    explicit = delta.idle_together(knobs.defaults(dead, lab.cell), frozenset(), budget)
    spoken = {c.knob for c in explicit}
    present = dict(lab.cell.switches)
    return {c: seen for c, seen in dead.items() if c.knob in spoken or c.knob in present}


def _again(lab: _Lab, changes: Changes) -> bool:
    """Whether a set does once more, in a fresh worker, what it did."""
    lab.repeats += 1
    return lab.attempt(changes).verdict is lab.records[changes].verdict
