"""Delta debugging over changes: the smallest set of them that turns a failure into a pass, and those without effect.

Nothing here knows what a change is or how it is tried: ``ask`` runs one set and answers. Answers need not be
monotonic (a superset of a passing set may fail, two changes may work only together), so that nothing is concluded
from a set about another: what is reported was run. Runs are bounded; what the bound left open is said.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import combinations
from typing import NamedTuple


class Change(NamedTuple):
    """One knob at another value; the text of both is what people would type. Two changes of a knob exclude each other.

    ``value`` empty: the knob is not set.
    """

    knob: str
    value: str


Changes = frozenset[Change]


class Answer(NamedTuple):
    """What a set did. ``same`` is equal for two sets that did the same in everything that counts."""

    passed: bool
    same: Hashable


Ask = Callable[[Changes], Answer]


class Spent(Exception):
    """The bound on runs (or on what a run needs) is reached; raised by ``ask`` and by ``Budget``."""


class Budget:
    """Remembers answers and counts runs; the set after the last allowed one raises Spent."""

    def __init__(self, ask: Ask, most: int) -> None:
        self._ask = ask
        self.most = most
        self.answers: dict[Changes, Answer] = {}

    def __call__(self, changes: Iterable[Change]) -> Answer:
        """The answer for a set of changes, from memory where it is known."""
        wanted = frozenset(changes)
        if wanted not in self.answers:
            if len(self.answers) >= self.most:
                raise Spent
            self.answers[wanted] = self._ask(wanted)
        return self.answers[wanted]


class Found(NamedTuple):
    """The outcome of a search.

    ``smallest``: the smallest passing set, None where none was found, empty where the failure passes as it is.
    ``others``: further passing sets of that size that were seen. ``proven``: every smaller set of the changes was
    run and fails; otherwise only each subset of ``smallest`` was, unless ``complete`` is False: the bound came first.
    """

    smallest: Changes | None
    others: tuple[Changes, ...] = ()
    proven: bool = True
    complete: bool = True


def alone(changes: Sequence[Change], ask: Budget) -> list[Change]:
    """The changes that pass by themselves; each is run. Raises Spent."""
    return [c for c in changes if ask([c]).passed]


def smallest(changes: Sequence[Change], ask: Budget, largest: int = 3) -> Found:
    """The smallest set of ``changes`` that passes.

    First the empty set and each change alone. Then everything at once (one change a knob), reduced by delta
    debugging to a set no part of which can be left out, and all subsets of that. Then sets by size up to
    ``largest``, those whose members do something alone first, until one passes.
    """
    best: Changes | None = None
    try:
        base = ask(())
        if base.passed:
            return Found(frozenset())
        single = [frozenset([c]) for c in alone(changes, ask)]
        if single:
            return Found(single[0], tuple(single[1:]))
        ranked = sorted(changes, key=lambda c: ask([c]).same == base.same)
        best = _reduced(ranked, ask)
        known = len(best) if best is not None else largest + 1
        for size in range(2, min(known, largest + 1)):
            for some in _sets(ranked, size):
                if ask(some).passed:
                    return Found(some, _others(ask, some))
    except Spent:
        best = _least(ask, best)
        return Found(best, _others(ask, best), best is not None and _tried(changes, len(best), ask), complete=False)
    if best is not None:
        return Found(best, _others(ask, best), _tried(changes, len(best), ask))
    # Saying that no set passes needs all of them, larger ones than ``largest`` too.
    return Found(None, proven=_tried(changes, len({c.knob for c in changes}) + 1, ask))


def idle(changes: Sequence[Change], contexts: Sequence[Changes], ask: Budget) -> dict[Change, list[Changes]]:
    """Changes that do nothing in every context, with the contexts in which that was seen; bounded as ``ask`` is.

    In the empty context each is run alone, and then those that did nothing all at once. In another all that are left
    are added at once, and halved where that does something; a change whose knob the context has is not asked there.
    """
    left: dict[Change, list[Changes]] = {c: [] for c in changes}
    for context in contexts:
        knobs = {c.knob for c in context}
        here = [c for c in left if c.knob not in knobs]
        try:
            before = ask(context)
            working = set() if context else {c for c in here if ask([c]).same != before.same}
            working |= _working([c for c in here if c not in working], context, before, ask)
        except Spent:
            break
        for change in here:
            if change in working:
                del left[change]
            else:
                left[change].append(context)
    return {change: seen for change, seen in left.items() if seen}


def idle_together(changes: Sequence[Change], context: Changes, ask: Budget) -> list[Change]:
    """Changes that do nothing in ``context``, asked all at once and halved where that does something."""
    try:
        working = _working(changes, context, ask(context), ask)
    except Spent:
        return []
    return [c for c in changes if c not in working]


def _working(here: Sequence[Change], context: Changes, before: Answer, ask: Budget) -> set[Change]:
    """Those of ``here`` that do something on top of ``context``; all of a group that does it only together."""
    found: set[Change] = set()
    for group in _compatible(here):
        if ask(context | frozenset(group)).same == before.same:
            continue
        if len(group) > 1:
            half = len(group) // 2
            some = _working(group[:half], context, before, ask) | _working(group[half:], context, before, ask)
            found |= some or set(group)
        else:
            found.update(group)
    return found


def _compatible(changes: Iterable[Change]) -> Iterator[list[Change]]:
    """Groups of ``changes`` in which each knob stands once."""
    left = list(changes)
    while left:
        group = list({c.knob: c for c in reversed(left)}.values())[::-1]
        yield group
        left = [c for c in left if c not in group]


def _reduced(changes: Sequence[Change], ask: Budget) -> Changes | None:
    """Everything at once if that passes, less what can be left out; None where it fails."""
    everything = next(_compatible(changes), [])
    if len(everything) < 2 or not ask(everything).passed:
        return None
    small = _ddmin(everything, ask)
    for size in range(2, len(small)):
        for some in combinations(small, size):
            if ask(some).passed:
                return frozenset(some)
    return frozenset(small)


def _ddmin(changes: Sequence[Change], ask: Budget) -> list[Change]:
    """A passing part of ``changes`` from which no single change can be left out (Zeller and Hildebrandt's ddmin)."""
    kept = list(changes)
    pieces = 2
    while len(kept) >= 2:
        size = -(-len(kept) // pieces)
        parts = [kept[i : i + size] for i in range(0, len(kept), size)]
        rests = [[c for c in kept if c not in part] for part in parts] if len(parts) > 2 else []
        for part in (*parts, *rests):
            if part and ask(part).passed:
                pieces = 2 if part in parts else max(len(parts) - 1, 2)
                kept = part
                break
        else:
            if len(parts) >= len(kept):
                break
            pieces = min(len(kept), 2 * pieces)
    return kept


def _sets(changes: Sequence[Change], size: int) -> Iterator[Changes]:
    """Sets of ``size`` changes of different knobs; those of the earlier changes first."""
    rank = {c: i for i, c in enumerate(changes)}
    found = [some for some in combinations(changes, size) if len({c.knob for c in some}) == size]
    for some in sorted(found, key=lambda some: sum(rank[c] for c in some)):
        yield frozenset(some)


def _least(ask: Budget, best: Changes | None) -> Changes | None:
    passing = [some for some, answer in ask.answers.items() if answer.passed and some]
    return min(passing, key=len, default=best)


def _others(ask: Budget, best: Changes | None) -> tuple[Changes, ...]:
    if best is None:
        return ()
    return tuple(s for s, a in ask.answers.items() if a.passed and len(s) == len(best) and s != best)


def _tried(changes: Sequence[Change], size: int, ask: Budget) -> bool:
    """Whether every set of fewer than ``size`` changes was run."""
    for n in range(size):
        for some in combinations(changes, n):
            if len({c.knob for c in some}) == n and frozenset(some) not in ask.answers:
                return False
    return True
