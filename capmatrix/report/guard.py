"""What the guard and ``capmatrix default`` say, as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ..guard.family_question import named
from ..guard.judge import BAD, Choice, Finding, Status
from ..guard.questions import Answer, Question
from .text import one_line

_LIMIT = 600


def finding(one: Finding) -> str:
    """A finding in a line: status, architecture, runner and sentence; a stale row says why it is."""
    runner = f" {one.answer.runner}" if one.answer is not None and one.answer.runner else ""
    stale = f" [stale: {one_line(one.stale)}]" if one.stale else ""
    return f"{one.status.value:<9} {one.arch}{runner}: {one_line(one.sentence, _LIMIT)}{stale}"


def details(one: Finding) -> list[str]:
    """What a contradiction rests on: the row, its evidence, vLLM's priority list."""
    row = one.row
    lines = [f"  table: {row.backend or 'no backend'} ({one_line(row.reason)})"]
    evidence = [*row.records, *row.published]
    for other in row.other:
        if one.answer is not None and other.backend == one.answer.backend:
            evidence += [*other.records, *other.published]
    rests = ", ".join(dict.fromkeys(evidence))
    if rests:
        lines.append(f"  rests on ({row.rung or 'declared'}): {one_line(rests, _LIMIT)}")
    if row.marks:
        lines.append(f"  marks: {', '.join(row.marks)}")
    if one.answer is not None:
        lines.append(f"  vLLM: {resolved(one.answer)}")
    return lines


def resolved(answer: Answer) -> str:
    """How vLLM came to its choice, in one sentence."""
    runner = f"runner {answer.runner}" if answer.runner else "no runner"
    if answer.default_runner and answer.runner != answer.default_runner:
        runner += f" (vLLM's own: {answer.default_runner})"
    loader = f", loaded by {answer.loader}" if answer.loader else ""
    if answer.error:
        return f"{runner}{loader}: {one_line(answer.error, _LIMIT)}"
    how = {
        "priority": "its configuration names no backend; the first valid one of the priority list",
        "explicit": "its configuration names the chosen backend",
        "inherited": f"its configuration names {answer.configured}, the target's",
    }[answer.source]
    return f"{runner}{loader}: {how}"


def answer(question: Question, one: Answer, versions: Mapping[str, str]) -> str:
    """``capmatrix default``: the choice, how it came to be, and the priority list with every rejection."""
    lines = [f"vllm {versions.get('vllm') or 'unknown'}, aiter {versions.get('aiter') or 'not importable'}"]
    lines += [named(question)]
    lines += [f"default: {one.backend or 'none'}", f"  {resolved(one)}"]
    if one.ignored:
        lines.append(f"  the explicit choice {one.ignored} had no effect")
    if one.tried:
        lines.append("priority list:")
        width = max(len(tried.backend) for tried in one.tried)
        for number, tried in enumerate(one.tried, 1):
            says = f"rejected: {one_line('; '.join(tried.reasons), _LIMIT)}" if tried.reasons else "valid"
            lines.append(f"  {number}. {tried.backend:<{width}}  {says}")
    return "\n".join(lines) + "\n"


def report(
    findings: Sequence[Finding], choices: Sequence[Choice], versions: Mapping[str, str], *, verbose: bool = False
) -> str:
    """The guard's text: contradictions first, then the rest, the explicit choices, stale rows, and a count."""
    lines = [f"vllm {versions.get('vllm') or 'unknown'}, aiter {versions.get('aiter') or 'not importable'}", ""]
    ordered = sorted(findings, key=lambda one: not one.bad)
    for one in ordered:
        lines.append(finding(one))
        if one.bad or verbose:
            lines += details(one)
    lines += ["", *_choices(choices, verbose)] if choices else []
    stale = [one for one in findings if one.stale]
    if stale:
        lines += ["", "stale rows:"]
        rows = {f"  {one.row.architecture} {one.row.drafter} b{one.row.block_size} {one.row.kv_cache_dtype}: "
                f"{one_line(one.stale)}" for one in stale}  # fmt: skip
        lines += sorted(rows)
    counts = Counter(one.status for one in findings)
    told = ", ".join(f"{counts[status]} {status.value}" for status in Status if counts[status])
    lines += ["", f"{len(findings)} rows: {told}" if findings else "no row of the table was asked for"]
    return "\n".join(lines) + "\n"


def _choices(choices: Sequence[Choice], verbose: bool) -> list[str]:
    bad = [one for one in choices if one.status in BAD]
    wins = sum(1 for one in choices if one.status is Status.AGREES and not one.reasons)
    refused = sum(1 for one in choices if one.reasons)
    lines = [f"explicit choices: {wins} win, {refused} are refused with reasons, {len(bad)} have no effect"]
    for one in choices:
        if one.status in BAD or verbose:
            reasons = f": {one_line(one.reasons, _LIMIT)}" if one.reasons else ""
            lines.append(f"  {one.status.value:<9} {one_line(one.sentence, _LIMIT)}{reasons}")
    return lines
