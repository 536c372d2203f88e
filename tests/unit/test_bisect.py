"""Delta debugging over changes: the smallest passing set, whatever the predicate, within a number of runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capmatrix.bisect.delta import Answer, Budget, Change, Changes, Spent, idle, idle_together, smallest

LETTERS = [Change(name, "1") for name in "ABCDEF"]


def named(names: str) -> Changes:
    return frozenset(Change(n, "1") for n in names)


def asking(passes: Callable[[str], bool], same: Callable[[str], object] | None = None, most: int = 1000) -> Budget:
    """A budget whose answers depend on the names of a set's knobs, sorted."""

    def ask(some: Changes) -> Answer:
        names = "".join(sorted(c.knob for c in some))
        return Answer(passes(names), same(names) if same else (passes(names), names))

    return Budget(ask, most)


def test_one_change_is_enough() -> None:
    ask = asking(lambda names: "C" in names)
    found = smallest(LETTERS, ask)
    assert (found.smallest, found.proven, found.complete) == (named("C"), True, True)
    assert len(ask.answers) == 1 + len(LETTERS)


def test_every_single_change_that_passes_is_named() -> None:
    found = smallest(LETTERS, asking(lambda names: bool(set(names) & set("BE"))))
    assert {found.smallest, *found.others} == {named("B"), named("E")}


def test_what_passes_as_it_is_needs_no_change() -> None:
    ask = asking(lambda names: True)
    assert smallest(LETTERS, ask).smallest == frozenset()
    assert len(ask.answers) == 1


def test_two_changes_that_work_only_together() -> None:
    found = smallest(LETTERS, asking(lambda names: {"B", "F"} <= set(names)))
    assert (found.smallest, found.proven) == (named("BF"), True)


def test_a_superset_of_the_answer_may_fail() -> None:
    """Everything at once fails, so that nothing can be reduced; the pair is found all the same."""
    found = smallest(LETTERS, asking(lambda names: names == "AD"))
    assert (found.smallest, found.proven) == (named("AD"), True)


def test_subsets_of_what_was_reduced_are_run() -> None:
    """No single one of A, B, C, D can be left out of the four, and yet A and B alone pass."""
    found = smallest(LETTERS[:4], asking(lambda names: names in ("ABCD", "AB")))
    assert (found.smallest, found.proven) == (named("AB"), True)


def test_three_changes_and_their_proof() -> None:
    found = smallest(LETTERS, asking(lambda names: {"A", "C", "E"} <= set(names)))
    assert (found.smallest, found.proven, found.complete) == (named("ACE"), True, True)


def test_a_larger_set_than_is_searched_is_found_by_reducing() -> None:
    found = smallest(LETTERS, asking(lambda names: set("ABCDE") <= set(names)), largest=2)
    assert (found.smallest, found.complete) == (named("ABCDE"), True)
    assert not found.proven


def test_two_values_of_a_knob_are_never_together() -> None:
    changes = [Change("block", "16"), Change("block", "64"), Change("A", "1")]
    asked: list[Changes] = []

    def ask(some: Changes) -> Answer:
        asked.append(some)
        return Answer(some == {changes[1], changes[2]}, some)

    assert smallest(changes, Budget(ask, 100)).smallest == {changes[1], changes[2]}
    assert all(len({c.knob for c in some}) == len(some) for some in asked)


def test_nothing_passes() -> None:
    found = smallest(LETTERS[:3], asking(lambda names: False))
    assert (found.smallest, found.proven, found.complete) == (None, True, True)
    found = smallest(LETTERS, asking(lambda names: False))
    assert (found.smallest, found.proven, found.complete) == (None, False, True)


@pytest.mark.parametrize("most", range(1, 60, 3))
def test_the_bound_holds_and_is_said(most: int) -> None:
    ask = asking(lambda names: {"A", "C", "E"} <= set(names), most=most)
    found = smallest(LETTERS, ask)
    assert len(ask.answers) <= most
    if found.smallest is None:
        assert not found.complete and not found.proven
    if found.complete:
        assert found.smallest == named("ACE")


def test_the_bound_may_be_the_askers() -> None:
    def ask(some: Changes) -> Answer:
        if len(some) > 1:
            raise Spent
        return Answer(False, some)

    found = smallest(LETTERS, Budget(ask, 100))
    assert (found.smallest, found.complete, found.proven) == (None, False, False)


def test_sets_whose_members_do_something_come_first() -> None:
    """B and F alone change what happens: of fifteen pairs theirs is the first."""
    ask = asking(lambda names: names == "BF", lambda names: "".join(n for n in names if n in "BF"))
    assert smallest(LETTERS, ask).smallest == named("BF")
    assert len(ask.answers) == 1 + 6 + 1 + 1  # as it is, each alone, all at once, the pair


@settings(max_examples=200, deadline=None)
@given(passing=st.sets(st.sets(st.sampled_from("ABCDE"), min_size=1).map(lambda s: "".join(sorted(s)))))
def test_any_predicate_gets_its_minimum(passing: set[str]) -> None:
    """Whatever sets pass, with runs to spare the answer is one of the smallest, and the proof is right."""
    found = smallest(LETTERS[:5], asking(lambda names: names in passing), largest=5)
    least = min((len(p) for p in passing), default=None)
    if least is None:
        assert found.smallest is None and found.proven
    else:
        assert found.smallest is not None and len(found.smallest) == least and found.proven
        assert {"".join(sorted(c.knob for c in s)) for s in (found.smallest, *found.others)} <= passing


def effect(works: Iterable[str]) -> Callable[[str], object]:
    """What a set does when only the sets of knobs in ``works`` do anything, each something of its own."""
    wanted = list(works)
    return lambda names: tuple(w for w in wanted if set(w) <= set(names))


def test_changes_without_effect_and_where_that_was_seen() -> None:
    ask = asking(lambda names: False, effect(["A"]))
    contexts = [frozenset(), named("A")]
    assert idle(LETTERS, contexts, ask) == {Change(n, "1"): contexts for n in "BCDEF"}
    # Alone: as it is, each of six, and the five without effect at once; beside A: the five at once.
    assert len(ask.answers) == 7 + 1 + 1


def test_an_effect_that_needs_another_switch_is_found() -> None:
    ask = asking(lambda names: False, effect(["A", "AD"]))
    assert set(idle(LETTERS, [frozenset(), named("A")], ask)) == named("BCEF")


def test_what_is_not_established_is_not_claimed() -> None:
    ask = asking(lambda names: False, effect(["A"]), most=8)
    assert idle(LETTERS, [frozenset(), named("A")], ask) == {Change(n, "1"): [frozenset()] for n in "BCDEF"}
    assert idle(LETTERS, [frozenset()], asking(lambda names: False, effect(["A"]), most=3)) == {}


@given(working=st.sets(st.sampled_from("ABCDEF")), beside=st.sets(st.sampled_from("BCDEF")))
@settings(max_examples=100, deadline=None)
def test_idle_is_what_neither_context_knows(working: set[str], beside: set[str]) -> None:
    works = [*sorted(working), *(f"A{b}" for b in sorted(beside))]
    found = idle(LETTERS, [frozenset(), named("A")], asking(lambda names: False, effect(works)))
    # A is asked beside those alone that do nothing by themselves.
    idle_in_truth = named("ABCDEF") - named("".join(working | beside | ({"A"} if beside - working else set())))
    assert set(found) <= idle_in_truth
    assert beside or set(found) == idle_in_truth


def test_all_pairs_are_looked_at_before_giving_up() -> None:
    ask = asking(lambda names: False)
    smallest(LETTERS, ask, largest=2)
    pairs = {frozenset(p) for p in combinations(LETTERS, 2)}
    assert pairs <= set(ask.answers)


def test_changes_that_do_something_only_together_are_not_called_idle() -> None:
    ask = asking(lambda names: False, effect(["BE"]))
    assert set(idle(LETTERS, [frozenset()], ask)) == set()
    assert idle_together(LETTERS, frozenset(), asking(lambda names: False, effect(["C"]))) == [
        c for c in LETTERS if c.knob != "C"
    ]
