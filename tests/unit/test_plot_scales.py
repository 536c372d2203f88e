"""Axes put values where they belong; backends look alike in every plot and unlike each other."""

from __future__ import annotations

import pytest
import samples
from hypothesis import given
from hypothesis import strategies as st

from capmatrix.report.plots import palette
from capmatrix.report.plots.scales import Slots, coordinate, fitting, number
from capmatrix.vocabulary import OTHER_BACKENDS, ROCM_BACKENDS

# Scales.


def test_a_linear_axis_starts_at_zero_and_ends_at_a_round_number() -> None:
    axis = fitting([120.0, 870.0], 200, 0)
    assert (axis.low, axis.high, axis.log) == (0, 1000, False)
    assert axis.at(0) == 200 and axis.at(1000) == 0 and axis.at(250) == 150
    assert axis.ticks() == [0, 200, 400, 600, 800, 1000]


def test_an_axis_is_logarithmic_where_the_range_asks_for_it() -> None:
    axis = fitting([3112.0, 172_562.0], 0, 100)
    assert axis.log and (axis.low, axis.high) == (2000, 200_000)
    assert axis.at(20_000) == pytest.approx(50)
    assert axis.ticks() == pytest.approx([2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000])
    assert not fitting([3112.0, 9000.0], 0, 100).log
    assert not fitting([0.0, 9000.0], 0, 100).log, "a logarithmic axis has no zero"
    with pytest.raises(ValueError, match="no zero"):
        axis.at(0)
    with pytest.raises(ValueError, match="needs a value"):
        fitting([], 0, 1)


@given(st.lists(st.floats(1e-6, 1e15), min_size=1, max_size=8), st.sampled_from([None, True, False]))
def test_every_value_lies_within_its_axis_and_so_do_the_ticks(values: list[float], log: bool | None) -> None:
    axis = fitting(values, 0, 1000, log=log)
    places = [axis.at(v) for v in sorted(values)]
    assert places == sorted(places)
    assert all(-0.01 <= p <= 1000.01 for p in places)
    assert 1 <= len(axis.ticks()) <= 9
    assert all(-0.01 <= axis.at(t) <= 1000.01 for t in axis.ticks())


def test_series_stand_beside_each_other_within_the_place_of_their_block() -> None:
    x = Slots((16, 128), 0, 200)
    assert x.at(16) == 50 and x.at(128) == 150
    beside = [x.at(128, i, 4) for i in range(4)]
    assert beside == sorted(set(beside)) and beside[0] > 100 and beside[-1] < 200


@pytest.mark.parametrize(
    ("value", "text"),
    [(172562.4, "172,562"), (0.6131, "0.613"), (12.345, "12.3"), (0, "0"), (1307.4, "1,307"), (0.00001, "0.00001")],
)  # fmt: skip
def test_numbers_are_for_people(value: float, text: str) -> None:
    assert number(value) == text


def test_coordinates_have_one_spelling() -> None:
    assert [coordinate(v) for v in (1.0, 0.1 + 0.2, -0.001, 12.345678)] == ["1", "0.3", "0", "12.35"]


# Looks.


def luminance(color: str) -> float:
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("ground", ["#ffffff", "#101418"])
def test_every_colour_stands_out_on_a_white_and_on_a_dark_page(ground: str) -> None:
    for color in palette.COLORS:
        light, dark = sorted((luminance(color), luminance(ground)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 3, color


def test_a_backend_looks_the_same_everywhere_and_no_two_known_ones_alike() -> None:
    every = palette.looks((*ROCM_BACKENDS, *OTHER_BACKENDS))
    rocm = {every[name] for name in ROCM_BACKENDS}
    assert len(rocm) == len(ROCM_BACKENDS)
    assert palette.looks(["TRITON_ATTN"])["TRITON_ATTN"] == every["TRITON_ATTN"]
    four = [every[name] for name in samples.BACKENDS]
    assert len({look.color for look in four}) == 4 and len({look.shape for look in four}) == 4
    assert list(palette.looks(["TRITON_ATTN", "ROCM_ATTN"])) == ["ROCM_ATTN", "TRITON_ATTN"]
