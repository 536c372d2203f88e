"""Verdict and expectation to pytest outcome, over all that matters of a record."""

from __future__ import annotations

from typing import Any

import pytest
from samples import cell, failure, record

from capmatrix.cell import Claim, Flag, Force, Phase, Record, Rung, Verdict
from capmatrix.outcome import FAILING, Expectation, Kind, declared, outcome, told

FAILED_VERDICTS = sorted(FAILING, key=lambda v: v.value)


def made(verdict: Verdict, accepts: bool | None = True, force: Force = Force.NONE, **changes: Any) -> Record:
    claims = () if accepts is None else (Claim("selector", not accepts), Claim("validation", accepts))
    return record(cell(force=force), verdict, claims=claims, reasons=("because", "also"), **changes)


@pytest.mark.parametrize("verdict", FAILED_VERDICTS)
def test_declared_and_failing_is_over_advertised(verdict: Verdict) -> None:
    got = outcome(made(verdict))
    assert got.kind is Kind.FAILED
    assert got.text == f"over-advertised: the backend declares this cell; {verdict.value} in forward: because"


def test_declared_and_passing_passes() -> None:
    got = outcome(made(Verdict.PASS, flags=(Flag.FALLBACK, Flag.NAN_UNSAFE)))
    assert got.kind is Kind.PASSED and got.text == "pass (compiled) [fallback]"
    assert got.warning.startswith("nan_unsafe")
    assert outcome(made(Verdict.PASS)).warning == ""


@pytest.mark.parametrize("accepts", [True, False, None])
@pytest.mark.parametrize("force", list(Force))
@pytest.mark.parametrize("verdict", [Verdict.UNAVAILABLE, Verdict.UNVERIFIED])
def test_what_could_not_be_told_is_skipped_with_its_reason(
    verdict: Verdict, force: Force, accepts: bool | None
) -> None:
    rec = made(verdict, accepts, force)
    for expectation in (None, Expectation((Verdict.PASS,)), Expectation((Verdict.ERROR,))):
        got = outcome(rec, expectation)
        assert got.kind is Kind.SKIPPED and got.text == f"{verdict.value}: because"


@pytest.mark.parametrize("accepts", [True, False, None])
def test_rejected_is_skipped_with_all_reasons(accepts: bool | None) -> None:
    got = outcome(made(Verdict.REJECTED, accepts))
    assert got.kind is Kind.SKIPPED and got.text == "rejected: because; also"


@pytest.mark.parametrize("verdict", FAILED_VERDICTS)
def test_forced_and_failing_is_xfailed(verdict: Verdict) -> None:
    assert outcome(made(verdict, False, Force.VALIDATION)).kind is Kind.XFAILED
    assert outcome(made(verdict, None, Force.VALIDATION)).kind is Kind.XFAILED
    assert outcome(made(verdict, True, Force.KERNEL_BLOCK)).kind is Kind.XFAILED


def test_only_forced_validation_makes_under_advertised() -> None:
    assert outcome(made(Verdict.PASS, False, Force.VALIDATION)).kind is Kind.XPASSED
    assert outcome(made(Verdict.PASS, True, Force.KERNEL_BLOCK)).kind is Kind.PASSED
    assert outcome(made(Verdict.PASS, False, Force.KERNEL_BLOCK)).kind is Kind.PASSED


def test_forcing_what_is_declared_changes_nothing() -> None:
    assert outcome(made(Verdict.PASS, True, Force.VALIDATION)).kind is Kind.PASSED
    got = outcome(made(Verdict.ERROR, True, Force.VALIDATION))
    assert got.kind is Kind.FAILED and got.text.startswith("over-advertised")


def test_the_flag_says_what_was_really_forced() -> None:
    forced = made(Verdict.WRONG, True, Force.NONE, flags=(Flag.FORCED_KERNEL_BLOCK,))
    assert outcome(forced).kind is Kind.XFAILED


def test_nothing_known_of_the_declaration() -> None:
    assert outcome(made(Verdict.PASS, None)).kind is Kind.PASSED
    got = outcome(made(Verdict.CRASH, None))
    assert got.kind is Kind.FAILED and "over-advertised" not in got.text


@pytest.mark.parametrize(
    ("verdict", "expected", "kind"),
    [
        (Verdict.PASS, (Verdict.PASS,), Kind.PASSED),
        (Verdict.PASS, (Verdict.ERROR,), Kind.FAILED),
        (Verdict.ERROR, (Verdict.ERROR,), Kind.XFAILED),
        (Verdict.WRONG, (Verdict.ERROR,), Kind.FAILED),
        (Verdict.ERROR, (Verdict.PASS,), Kind.FAILED),
        (Verdict.ERROR, (Verdict.PASS, Verdict.ERROR), Kind.XFAILED),
        (Verdict.PASS, (Verdict.PASS, Verdict.ERROR), Kind.PASSED),
        (Verdict.REJECTED, (Verdict.REJECTED,), Kind.SKIPPED),
        (Verdict.REJECTED, (Verdict.PASS,), Kind.FAILED),
    ],
)
@pytest.mark.parametrize("accepts", [True, False])
@pytest.mark.parametrize("force", [Force.NONE, Force.VALIDATION])
def test_a_committed_expectation_outranks_declaration_and_force(
    verdict: Verdict, expected: tuple[Verdict, ...], kind: Kind, accepts: bool, force: Force
) -> None:
    got = outcome(made(verdict, accepts, force), Expectation(expected, "vllm#1"))
    assert got.kind is kind
    if kind in (Kind.FAILED, Kind.XFAILED):
        assert "vllm#1" in got.text


def test_an_expected_pass_still_warns() -> None:
    got = outcome(made(Verdict.PASS, flags=(Flag.NAN_UNSAFE,)), Expectation((Verdict.PASS,)))
    assert got.kind is Kind.PASSED and got.warning


def test_declared_is_the_backends_own_validation() -> None:
    assert declared(made(Verdict.PASS, True)) is True
    assert declared(made(Verdict.PASS, False)) is False
    assert declared(made(Verdict.PASS, None)) is None
    assert declared(made(Verdict.REJECTED, None)) is False


def test_reasons_are_one_harmless_line() -> None:
    rec = record(verdict=Verdict.ERROR, reasons=(), failure=failure("E", "a\nb\x1b[31m  c"))
    assert outcome(rec).text.endswith(": E: a b\N{REPLACEMENT CHARACTER}[31m c")


@pytest.mark.parametrize("verdict", list(Verdict))
@pytest.mark.parametrize("rung", list(Rung))
def test_what_counts_as_told(verdict: Verdict, rung: Rung) -> None:
    ran = verdict in {Verdict.PASS, Verdict.WRONG, Verdict.ERROR, Verdict.CRASH, Verdict.TIMEOUT}
    rec = made(verdict, rung=rung, phase=Phase.FORWARD)
    assert told(rec) is (ran and rung is not Rung.DECLARED)
