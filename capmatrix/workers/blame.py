"""A crash that comes only after other cells: is it the cell's own, and if not, whose is it?"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from .. import codec
from ..cell import Cell, Phase, Record, Verdict
from .deaths import with_reasons
from .limits import Limits

DEADLY = (Verdict.CRASH, Verdict.TIMEOUT)

#: Runs cells one after the other in one fresh worker; the last one's record, None if an earlier one killed it.
Replay = Callable[[Sequence[Cell]], Record | None]


def investigate(failed: Record, before: Sequence[Cell], replay: Replay, limits: Limits) -> Record:
    """Repeats a cell that died alone; where it lives, finds the one earlier cell that makes it die.

    Args:
        failed: the crash's or timeout's record.
        before: cells that ran before it in the same worker, in order; not empty.

    Returns: the record to keep: the cell's own outcome, alone, with what was found in its reasons.
    """
    alone = replay([failed.cell])
    if alone is None:
        return failed
    how = f"{failed.verdict.value} ({failed.reasons[0]})"
    if alone.verdict in DEADLY:
        return with_reasons(alone, f"the same alone in a fresh worker; first, after {_count(before)}: {how}")
    culprit = _culprit(failed, before, replay, limits)
    if culprit is None:
        # Not "only after other cells": nothing says that they had a part in it.
        return with_reasons(alone, f"once, after {_count(before)} in one worker: {how}", _not_again(failed, before))
    return with_reasons(alone, f"only after other cells in one worker: {how}", culprit)


def _not_again(failed: Record, before: Sequence[Cell]) -> str:
    text = f"not seen again, neither alone nor after the same {_count(before)}"
    if failed.verdict is Verdict.TIMEOUT and failed.phase is Phase.COMPILE:
        # A repetition finds what the first attempt compiled in Triton's cache, and says nothing of the cold time.
        text += "; what was compiled by then is kept, so this cell compiles cold in about the limit or more"
    return text


def _culprit(failed: Record, before: Sequence[Cell], replay: Replay, limits: Limits) -> str | None:
    """Which earlier cell it is, as far as that was found; None where the same cells do not bring it back."""
    end = time.monotonic() + limits.bisect_s
    attempts = 0

    def dies(cells: Sequence[Cell]) -> bool:
        nonlocal attempts
        attempts += 1
        record = replay([*cells, failed.cell])
        return record is not None and record.verdict in DEADLY

    suspects = list(before)
    if not dies(suspects):
        return None
    while len(suspects) > 1:
        if attempts >= limits.bisect_attempts or time.monotonic() > end:
            return (
                f"one of {len(suspects)} cells causes it, {_name(suspects[0])} to {_name(suspects[-1])}; stopped there"
            )
        half = suspects[: len(suspects) // 2]
        suspects = half if dies(half) else suspects[len(half) :]
    if len(before) > 1 and not dies(suspects):
        return f"no single one of the {len(before)} cells before it causes it alone"
    return f"caused by {_name(suspects[0])}: run before this cell in one worker, it brings the {failed.verdict.value}"


def _count(cells: Sequence[Cell]) -> str:
    return f"{len(cells)} other cell{'s' if len(cells) > 1 else ''}"


def _name(cell: Cell) -> str:
    return codec.cell_id(cell)
