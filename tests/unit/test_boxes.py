"""Points merged into boxes cover exactly what was given; widening needs evidence."""

from __future__ import annotations

from itertools import product
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from capmatrix.expect import boxes

DOMAIN = {"block": (16, 64, 128), "batch": ("decode", "verify"), "fp8": (True, False)}
EVERYWHERE = [dict(zip(DOMAIN, values)) for values in product(*DOMAIN.values())]
ORDER = tuple(DOMAIN)
SOME = st.lists(st.sampled_from(EVERYWHERE), min_size=1, unique_by=lambda p: tuple(p.items()))


def covered(found: list[boxes.Box]) -> list[Any]:
    return [p for p in EVERYWHERE if any(boxes.holds(b, p) for b in found)]


@given(SOME, st.randoms())
def test_merging_is_exact_and_knows_no_order(points: list[Any], random: Any) -> None:
    found = boxes.of(points, ORDER)
    assert covered(found) == [p for p in EVERYWHERE if p in points]
    random.shuffle(points)
    assert boxes.of(points, ORDER) == found


def test_a_product_becomes_one_box() -> None:
    points = [p for p in EVERYWHERE if p["block"] != 16]
    (box,) = boxes.of(points, ORDER)
    assert box == {
        "block": frozenset({64, 128}),
        "batch": frozenset({"decode", "verify"}),
        "fp8": frozenset({True, False}),
    }


def test_an_axis_is_dropped_where_two_values_speak_for_it() -> None:
    wrong = [p for p in EVERYWHERE if p["block"] == 64 and p["fp8"]]
    right = [p for p in EVERYWHERE if p not in wrong]
    (box,) = boxes.of(wrong, ORDER)
    assert boxes.widen(box, "batch", wrong, right) == {"block": frozenset({64}), "fp8": frozenset({True})}
    assert boxes.widen(box, "block", wrong, right) is None
    # One value alone says nothing of the others.
    assert boxes.widen(box, "block", wrong, []) is None


@given(SOME)
def test_widening_never_covers_what_is_different(points: list[Any]) -> None:
    others = [p for p in EVERYWHERE if p not in points]
    for box in boxes.of(points, ORDER):
        for axis in ORDER:
            wider = boxes.widen(box, axis, points, others)
            assert wider is None or not any(boxes.holds(wider, p) for p in others)


def test_inner_boxes_go_and_one_of_two_equal_stays() -> None:
    outer, inner = {"block": frozenset({64, 128})}, {"block": frozenset({64}), "fp8": frozenset({True})}
    assert boxes.without_inner([inner, outer, outer]) == [outer]
