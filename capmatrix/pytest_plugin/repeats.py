"""What repeating a cell says: the same again, or a flake. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from ..cell import Record, Verdict
from ..pair import PairRecord

JobRecord = TypeVar("JobRecord", Record, PairRecord)

#: How often a cell that is not as expected is repeated.
REPEATS = 2

#: What a flake's record shows, worst first: all that a table must not hide behind a lucky repetition.
_WORST = (
    Verdict.WRONG,
    Verdict.CRASH,
    Verdict.TIMEOUT,
    Verdict.ERROR,
    Verdict.REJECTED,
    Verdict.UNVERIFIED,
    Verdict.UNAVAILABLE,
    Verdict.PASS,
)


def fold(records: Sequence[JobRecord]) -> JobRecord:
    """One record of a job's attempts, in order: the worst, with all verdicts and a line that says what they were."""
    verdicts = tuple(r.verdict for r in records)
    worst = min(verdicts, key=_WORST.index)
    kept: JobRecord = next(r for r in reversed(records) if r.verdict is worst)
    seen = ", ".join(v.value for v in verdicts)
    if len(set(verdicts)) > 1:
        reasons = (*kept.reasons, f"flaky: {seen}; the repetitions were alone, each in a fresh worker")
    else:
        reasons = (*kept.reasons, f"the same {len(records) - 1} times more, alone, each in a fresh worker")
    return msgspec.structs.replace(kept, attempt=records[-1].attempt, reasons=reasons, repeats=verdicts)
