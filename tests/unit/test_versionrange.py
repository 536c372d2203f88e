"""Ranges of versions: parsing, membership, and the interval algebra that precedence rests on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from capmatrix.expect.versionrange import Bound, Range, RangeError, parse, version

POINTS = [Version(f"0.{n}") for n in range(6)]
BOUNDS = st.none() | st.builds(Bound, st.sampled_from(POINTS[1:5]), st.booleans())
RANGES = st.builds(Range, BOUNDS, BOUNDS).filter(lambda r: Range().intersection(r) is not None)
#: Versions on, between and beyond the bounds.
PROBES = [*POINTS, *(Version(f"0.{n}.5") for n in range(6))]


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        (">=0.31,<0.33", ["0.31", "0.32.0", "0.32.9"], ["0.30.9", "0.33", "0.33.0"]),
        ("> 0.31 , <= 0.33", ["0.31.1", "0.33"], ["0.31", "0.33.1"]),
        ("==0.32.0", ["0.32", "0.32.0"], ["0.32.1"]),
        ("<3.7", ["3.6.9", "3.7.0rc1"], ["3.7"]),
    ],
)
def test_membership(text: str, inside: list[str], outside: list[str]) -> None:
    found = parse(text)
    assert [v for v in inside if Version(v) not in found] == []
    assert [v for v in outside if Version(v) in found] == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not a range"),
        ("0.32", "not a range"),
        ("~=0.32", "not a range"),
        ("!=0.32", "not a range"),
        (">=0.1,<0.2,<0.3", "not a range"),
        (">=zero", "not a range"),
        (">=0..1", "not a version"),
        (">=0.32+cpu", "build labels"),
        (">0.1,>=0.2", "two lower"),
        ("<0.1,<0.2", "two upper"),
        (">0.3,<0.2", "no version"),
        (">0.2,<=0.2", "no version"),
        ("==0.2,<0.1", "two upper"),
        (">=" + "9" * 5000, "not a range"),
    ],
)
def test_what_is_no_range(text: str, why: str) -> None:
    with pytest.raises(RangeError, match=why):
        parse(text)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("0.32.0", "0.32.0"),
        ("2.13.0+cpu", "2.13.0"),
        ("0.1.7.post2.dev18", "0.1.7.post2.dev18"),
        ("0.1.20-46-ge4048607a5", "0.1.20.post46"),
        ("v0.1.20-2-gabcdef0", "0.1.20.post2"),
        ("unknown", None),
        ("", None),
    ],
)
def test_versions_as_distributions_and_checkouts_state_them(text: str, wanted: str | None) -> None:
    found = version(text)
    assert (str(found) if found else None) == wanted


@given(RANGES)
def test_text_and_back(found: Range) -> None:
    assert str(found) == "" or parse(str(found)) == found


@given(RANGES, RANGES)
def test_intersection_and_inclusion(a: Range, b: Range) -> None:
    both = a.intersection(b)
    for probe in PROBES:
        assert (both is not None and probe in both) == (probe in a and probe in b)
    if a.within(b):
        assert all(probe in b for probe in PROBES if probe in a)
    assert a.within(a) and a.within(Range())
