"""Numbers on a command line: their bounds, and what is said of others."""

from __future__ import annotations

import argparse

import pytest

from capmatrix import cli
from capmatrix.argtypes import percent, whole
from capmatrix.guard.tolerance import percent as tolerance


@pytest.mark.parametrize(("text", "found"), [("1", 1), ("007", 7), ("2147483647", 2147483647)])
def test_a_whole_number_above_0(text: str, found: int) -> None:
    assert whole()(text) == found


@pytest.mark.parametrize("text", ["", "0", "-1", "+1", " 1", "1.0", "1e3", "1_0", "two", "2147483648", "9" * 5000, "²"])
def test_no_whole_number_above_0(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a whole number above 0"):
        whole()(text)


def test_a_named_number_says_its_name_and_bounds() -> None:
    assert whole(64, "a size")("64") == 64
    with pytest.raises(argparse.ArgumentTypeError, match=r"'65' is not a size \(1 to 64\)"):
        whole(64, "a size")("65")


@pytest.mark.parametrize(("text", "found"), [("0", 0.0), ("10%", 10.0), ("2.5 %", 2.5), ("1000", 1000.0)])
def test_a_percentage(text: str, found: float) -> None:
    assert percent(1000)(text) == found


@pytest.mark.parametrize("text", ["", "%", "-1", "1000.1", "nan", "inf", "10%%", "ten"])
def test_no_percentage(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a percentage of 0 to 1000"):
        percent(1000)(text)


def test_a_tolerance_may_be_larger_than_a_margin() -> None:
    assert tolerance("100000") == 100_000.0
    with pytest.raises(argparse.ArgumentTypeError, match="of 0 to 100000"):
        tolerance("100001")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["default", "--arch", "gfx942", "--drafter", "x", "--block-size", "65537"], "a block size (1 to 65536)"),
        (["default", "--arch", "gfx942", "--drafter", "x", "--tp", "0"], "'0' is not a whole number above 0"),
        (["bisect", "x", "--runs", "0"], "'0' is not a whole number above 0"),
        (["bisect", "x", "--limit-run", "-3"], "--limit-run"),
        (["derive", "--margin", "1001"], "'1001' is not a percentage of 0 to 1000"),
        (["guard", "--tolerance", "-1"], "'-1' is not a percentage of 0 to 100000"),
    ],
)
def test_commands_refuse_what_is_out_of_bounds(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(words)
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err
