"""A record compared to what was expected of its cell, in pytest's words. Pure.

What is expected is the committed expectation where there is one, else what the backend declares,
which is what its own validation said of the cell (the record's ``validation`` claim). ``--force``
outranks neither: it only adds cells.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from .cell import Flag, Force, Record, Rung, Verdict
from .errors import printable
from .pair import PairRecord

#: The cell ran and did not do what it should.
FAILING = frozenset({Verdict.WRONG, Verdict.ERROR, Verdict.CRASH, Verdict.TIMEOUT})
#: Nothing was learnt of the cell on this target.
UNTOLD = frozenset({Verdict.UNAVAILABLE, Verdict.UNVERIFIED})


class Kind(str, Enum):
    """pytest's outcomes."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    XFAILED = "xfailed"
    XPASSED = "xpassed"


class Outcome(msgspec.Struct, frozen=True):
    """``text`` says in one line why; ``warning`` is what a passing cell still has to say ("" for nothing)."""

    kind: Kind
    text: str
    warning: str = ""


class Expectation(msgspec.Struct, frozen=True):
    """The committed verdicts for a cell; more than one for a known flake.

    ``reason`` says why they differ from the declared, ``link`` where it is reported, ``where`` its file and line.
    """

    verdicts: tuple[Verdict, ...]
    reason: str = ""
    link: str = ""
    where: str = ""


def declared(record: Record) -> bool | None:
    """Whether the backend's own validation accepts the cell; None where the record does not say.

    A cell that was rejected without any claim is one that the backend or the selector refused.
    """
    for claim in record.claims:
        if claim.layer == "validation":
            return claim.accepts
    return False if record.verdict is Verdict.REJECTED else None


def told(record: Record) -> bool:
    """Whether the cell got a verdict above the declared rung: it ran, and the target could tell how."""
    ran = record.verdict is Verdict.PASS or record.verdict in FAILING
    return ran and record.rung is not Rung.DECLARED


def flaky(record: Record | PairRecord) -> bool:
    """Whether repeating the cell or pair gave different verdicts."""
    return len(set(record.repeats)) > 1


def reason(record: Record | PairRecord) -> str:
    """The one line that says why the verdict is what it is; the verdict itself where nothing else is known."""
    if record.reasons:
        return one_line(record.reasons[0])
    if record.failure is not None:
        return one_line(f"{record.failure.type}: {record.failure.message}")
    return record.verdict.value


def one_line(text: str) -> str:
    """``text`` with runs of white space made one space and control characters made harmless."""
    return printable(" ".join(text.split()))


def outcome(record: Record, expectation: Expectation | None = None) -> Outcome:
    """The pytest outcome of a record; see the module's words for what it is compared to."""
    if torn := flake(record, expectation):
        return torn
    if record.verdict in UNTOLD:
        return Outcome(Kind.SKIPPED, f"{record.verdict.value}: {reason(record)}")
    if expectation is not None:
        return against_expectation(record, expectation, Outcome(Kind.PASSED, _passed(record), _warning(record)))
    return _against_declaration(record)


def flake(record: Record | PairRecord, expectation: Expectation | None) -> Outcome | None:
    """The failure that an unexpected flake is; None for everything else."""
    if not flaky(record) or (expectation is not None and set(record.repeats) <= set(expectation.verdicts)):
        return None
    seen = ", ".join(v.value for v in record.repeats)
    wanted = f"; expected {' or '.join(v.value for v in expectation.verdicts)}" if expectation is not None else ""
    return Outcome(Kind.FAILED, f"flaky: {seen}, one run after the other{wanted}: {reason(record)}")


def against_expectation(record: Record | PairRecord, expectation: Expectation, passed: Outcome) -> Outcome:
    """What a committed expectation says of a record of which something was learnt; ``passed``: of one that passes."""
    wanted = " or ".join(v.value for v in expectation.verdicts)
    parts = (expectation.reason, expectation.link, expectation.where)
    said = ", ".join(one_line(part) for part in parts if part)
    because = f" ({said})" if said else ""
    if record.verdict not in expectation.verdicts:
        unexpected = "unexpected pass" if record.verdict is Verdict.PASS else f"unexpected {record.verdict.value}"
        detail = "" if record.verdict is Verdict.PASS else f": {reason(record)}"
        return Outcome(Kind.FAILED, f"{unexpected}, expected {wanted}{because}{detail}")
    if record.verdict is Verdict.PASS:
        return passed
    if record.verdict is Verdict.REJECTED:
        return Outcome(Kind.SKIPPED, f"rejected as expected{because}: {reasons(record)}")
    return Outcome(Kind.XFAILED, f"{record.verdict.value} as expected{because}: {reason(record)}")


def _against_declaration(record: Record) -> Outcome:
    force = _force(record)
    accepts = declared(record)
    if record.verdict is Verdict.REJECTED:
        return Outcome(Kind.SKIPPED, f"rejected: {reasons(record)}")
    if record.verdict is Verdict.PASS:
        if accepts is False and force is not Force.KERNEL_BLOCK:
            return Outcome(
                Kind.XPASSED, "under-advertised: the backend rejects this cell and it passes", _warning(record)
            )
        return Outcome(Kind.PASSED, _passed(record), _warning(record))
    what = f"{record.verdict.value} in {record.phase.value}: {reason(record)}"
    if accepts is False or force is Force.KERNEL_BLOCK:
        forced = f"forced ({force.value}), " if force is not Force.NONE else "not declared, "
        return Outcome(Kind.XFAILED, forced + what)
    if accepts:
        return Outcome(Kind.FAILED, f"over-advertised: the backend declares this cell; {what}")
    if force is Force.VALIDATION:
        return Outcome(Kind.XFAILED, f"forced ({force.value}), {what}")
    return Outcome(Kind.FAILED, what)


def reasons(record: Record | PairRecord) -> str:
    """All reasons of a rejection in one line."""
    return "; ".join(one_line(r) for r in record.reasons) or reason(record)


def _force(record: Record) -> Force:
    """What was really overridden: the flags say it where the engine set them, else the cell's own wish."""
    if Flag.FORCED_KERNEL_BLOCK in record.flags:
        return Force.KERNEL_BLOCK
    if Flag.FORCED_VALIDATION in record.flags:
        return Force.VALIDATION
    return record.cell.force


def _passed(record: Record) -> str:
    marks = [f.value for f in record.flags if f is not Flag.NAN_UNSAFE]
    return f"pass ({record.rung.value})" + (f" [{', '.join(marks)}]" if marks else "")


def _warning(record: Record) -> str:
    if Flag.NAN_UNSAFE not in record.flags:
        return ""
    return "nan_unsafe: right with zeroed and with stale unused slots, not when they hold NaN"
