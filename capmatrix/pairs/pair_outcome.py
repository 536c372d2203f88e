"""A pair's record in pytest's words. Pure.

vLLM refusing a pair is an answer, not a failure: it is skipped with the reason, as a rejected cell is.
"""

from __future__ import annotations

from ..cell import Rung, Verdict
from ..outcome import FAILING, UNTOLD, Kind, Outcome, one_line, reason
from ..pair import PairRecord


def outcome(record: PairRecord) -> Outcome:
    """Passed where set-up passed and nothing that ran failed; skipped where vLLM refused or nothing could be told."""
    said = reason(record)
    if record.verdict in UNTOLD:
        return Outcome(Kind.SKIPPED, f"{record.verdict.value}: {said}")
    if record.verdict is Verdict.REJECTED:
        return Outcome(Kind.SKIPPED, f"rejected at {where(record)}: {said}")
    if record.verdict in FAILING:
        return Outcome(Kind.FAILED, f"{record.verdict.value} at {where(record)}: {said}")
    return Outcome(Kind.PASSED, f"pass ({record.rung.value}): {setup(record)}")


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
