"""The report of a cell that contradicts what was expected of it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from ..cell import Check, Claim, Record
from ..errors import printable
from ..outcome import Outcome, one_line
from ..pair import PairRecord
from ..pairs import pair_outcome

#: Lines of a dead worker's stderr that are shown; the record keeps more.
_STDERR_LINES = 8

#: Characters of an exception's message that are shown; the record keeps more.
_MESSAGE = 600


def describe_pair(record: PairRecord, result: Outcome, rerun: Sequence[str], run_path: str) -> str:
    """The same of a pair: what set-up resolved stands in place of claims."""
    rows = [(result.kind.value, result.text), ("set-up", pair_outcome.setup(record))]
    rows += [("reason", one_line(text)) for text in record.reasons[1:]]
    rows += [("rule", one_line(text)) for text in record.rules]
    for one in record.runs:
        if one.failure is not None:
            rows.append(("exception", f"{one.failure.type}: {one_line(one.failure.message)[:_MESSAGE]}"))
            rows.append(("  at", one.failure.frame))
        rows += [("check", _check(check)) for check in one.checks if check.ok is False]
    if record.failure is not None:
        rows.append(("exception", f"{record.failure.type}: {one_line(record.failure.message)[:_MESSAGE]}"))
        rows.append(("  at", record.failure.frame))
    rows.append(("rerun", shlex.join(rerun)))
    if run_path:
        rows.append(("explain", shlex.join(["capmatrix", "explain", record.pair_id, run_path])))
    return "\n".join(f"{name:<10}{printable(text)}" for name, text in rows)


def describe(record: Record, result: Outcome, rerun: Sequence[str], run_path: str) -> str:
    """The lines of a failure: verdict, reasons, exception with its deepest frame, claims, and what to do next.

    ``rerun`` are the words of the command that runs this cell alone.
    """
    rows = list(_rows(record, result))
    rows.append(("rerun", shlex.join(rerun)))
    if run_path:
        rows.append(("explain", shlex.join(["capmatrix", "explain", record.cell_id, run_path])))
    return "\n".join(f"{name:<10}{printable(text)}" for name, text in rows)


def _rows(record: Record, result: Outcome) -> Iterator[tuple[str, str]]:
    yield result.kind.value, result.text
    yield "verdict", f"{record.verdict.value} ({record.rung.value}), in phase {record.phase.value}"
    for text in record.reasons[1:]:
        yield "reason", one_line(text)
    failure = record.failure
    if failure is not None:
        message = one_line(failure.message)
        yield "exception", f"{failure.type}: {message[:_MESSAGE]}{'...' if len(message) > _MESSAGE else ''}"
        if failure.frame:
            yield "  at", failure.frame
        if failure.signal:
            yield "  signal", failure.signal
        if failure.exit_code is not None:
            yield "  exit", str(failure.exit_code)
        for line in failure.stderr_tail.splitlines()[-_STDERR_LINES:]:
            yield "  stderr", line
    for check in record.checks:
        if check.ok is False:
            yield "check", _check(check)
    for claim in record.claims:
        yield "claim", _claim(claim)
    if record.kernel_block is not None:
        yield "block", f"manager {record.cell.block_size}, kernel {record.kernel_block}, layout {record.layout or '?'}"


def _check(check: Check) -> str:
    parts = [f"{check.part}, unused slots {check.cache}"]
    if check.relative_l2 is not None:
        parts.append(f"relative L2 {check.relative_l2:.3g}")
    if check.bound is not None:
        parts.append(f"bound {check.bound:.3g}")
    if check.worst_row is not None:
        times = "" if check.worst_row_error is None else f" at {check.worst_row_error:.3g} times its bound"
        parts.append(f"worst row {check.worst_row}{times}")
    if check.nan_count or check.unwritten_count:
        parts.append(f"{check.nan_count} NaN, {check.unwritten_count} unwritten")
    if check.detail:
        parts.append(one_line(check.detail))
    return "; ".join(parts)


def _claim(claim: Claim) -> str:
    says = {True: "accepts", False: "rejects", None: "not applicable"}[claim.accepts]
    return f"{claim.layer}: {says}" + (f" ({one_line(claim.detail)})" if claim.detail else "")
