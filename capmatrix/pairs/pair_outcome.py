"""A pair's record compared to what was expected of the pair, in pytest's words. Pure.

What is expected is the committed expectation where there is one, else that set-up passes and the calls do. vLLM
refusing a pair is an answer, not a failure: it is skipped with the reason, as a rejected cell is.
"""

from __future__ import annotations

from ..cell import Rung, Verdict
from ..outcome import FAILING, UNTOLD, Expectation, Kind, Outcome, against_expectation, flake, one_line, reason
from ..pair import PairRecord


def outcome(record: PairRecord, expectation: Expectation | None = None) -> Outcome:
    """Passed where set-up passed and nothing that ran failed; skipped where vLLM refused or nothing could be told.

    An expectation outranks that: what it does not say, a pass or a refusal as much as an error, is a failure.
    A set-up that contradicts itself stays what ran of it, and warns: its verdict is for calls to say.
    """
    if torn := flake(record, expectation):
        return torn
    said = reason(record)
    contradiction = "; ".join(map(one_line, record.contradictions))
    if record.verdict in UNTOLD:
        return Outcome(Kind.SKIPPED, f"{record.verdict.value}: {said}", contradiction)
    passed = Outcome(Kind.PASSED, f"pass ({record.rung.value}): {setup(record)}", contradiction)
    if expectation is not None:
        return against_expectation(record, expectation, passed)
    if record.verdict is Verdict.REJECTED:
        return Outcome(Kind.SKIPPED, f"rejected at {where(record)}: {said}")
    if record.verdict in FAILING:
        return Outcome(Kind.FAILED, f"{record.verdict.value} at {where(record)}: {said}")
    return passed


def told(record: PairRecord) -> bool:
    """Whether vLLM's set-up decided about the pair, either way, or something ran."""
    if record.verdict is Verdict.UNVERIFIED:
        return bool(record.layout)
    return record.verdict not in UNTOLD


def where(record: PairRecord) -> str:
    """The step that refused, or the phase of a call that failed."""
    return record.step or record.phase.value


def setup(record: PairRecord) -> str:
    """What set-up resolved, in a line: backends, kernel blocks, layout."""
    sides = " + ".join("/".join(side.backends) or "?" for side in (record.target_model, record.drafter))
    blocks = sorted({group.kernel_block for group in record.groups if group.kernel_block is not None})
    kernel = f", kernel block {'/'.join(map(str, blocks))}" if blocks else ""
    ran = "" if record.rung is Rung.DECLARED else f", {len(record.runs)} calls"
    return one_line(f"{sides}, block {record.manager_block}{kernel}, {record.layout or 'no layout'}{ran}")
