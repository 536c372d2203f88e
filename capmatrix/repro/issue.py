"""A bug report of one cell, in the shape that vLLM's tracker asks for, as Markdown for GitHub.

Records are data from elsewhere: what one wrote stands in code spans or fenced blocks, where nothing takes effect; all
other text is this module's own, or made of words that ``plan.check_words`` knows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..analysis.neighbour import Neighbour
from ..cell import Check, Claim, Environment, Failure, Flag, Kernel, Record, Rung, Verdict
from ..errors import InputError
from ..pair import PairRecord
from ..report import text
from ..report.dialect import github_code as code
from ..report.dialect import github_code_in_table as in_table
from ..report.rerun import pytest_command
from ..summary import declared_supported, place, under_advertised
from .plan import architecture, check_words
from .script import hardware, outcome, script, seen

#: Most rows of a table, lines of an exception and reasons, so that a report stays below what GitHub takes.
_ROWS = 20
_LINES = 20
_REASONS = 8

_CLAIMS = {
    "validation": "the backend's `validate_configuration`",
    "selector": "vLLM's own choice",
    "kernel_block": "kernel block sizes",
    "shared_group": "a KV cache group shared with the target",
    "proposer": "the proposer's allow-list",
    "mla_prefill": "MLA prefill backend",
}
_CHECKS = {
    "write": "what the cache holds",
    "forward": "attention over what the cache holds",
    "needles": "the same, one key dominating",
    "query": "absorbed query",
    "repeat": "a second call",
    "guard": "bytes that nobody may change",
    "accuracy": "against unquantised inputs (not judged)",
    "graph": "replay of a captured graph",
    "execution": "mode of execution (said, not judged)",
}


def issue(
    record: Record | PairRecord,
    environment: Environment | None,
    header: Mapping[str, Any] | None = None,
    neighbour: Neighbour | None = None,
) -> str:
    """The report, ending with a newline; its title stands in a comment on the first line.

    ``neighbour`` is the nearest passing cell. Raises InputError where there is nothing to report, with the reason.
    """
    if isinstance(record, PairRecord):
        message = "a pair has no report of this form: `capmatrix explain` tells everything of it"
        raise InputError(message, key="cell", value=record.cell_id)
    check_words(record.cell)
    if not reportable(record):
        message = f"there is no bug to report: the cell's verdict is {record.verdict.value}"
        raise InputError(message, key="cell", value=record.cell_id)
    parts = [
        f"<!-- Title: {title(record, environment)} -->",
        "### Your current environment",
        *_environment(environment),
        "### 🐛 Describe the bug",
        _summary(record, environment),
        "#### To reproduce",
        *_to_reproduce(record, environment, header or {}),
        "#### Expected",
        _expected(record),
        "#### Actual",
        *_actual(record),
        "#### Evidence",
        *_evidence(record),
        "#### Nearest passing neighbour",
        *_neighbour(neighbour),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def reportable(record: Record) -> bool:
    """Whether the record says that something is wrong: it failed, was refused, or passes with a reservation."""
    if record.verdict is Verdict.PASS:
        return Flag.NAN_UNSAFE in record.flags or under_advertised(record)
    return record.verdict not in (Verdict.UNAVAILABLE, Verdict.UNVERIFIED)


def title(record: Record, environment: Environment | None = None) -> str:
    """``[Bug]: ...``; holds known words alone."""
    cell, arch = record.cell, architecture(record, environment)
    where = f" ({arch})" if arch else ""
    what = "refused, and right when forced" if under_advertised(record) else outcome(record)
    return (
        f"[Bug]: {cell.backend}, block {cell.block_size}, {cell.kv_cache_dtype} KV cache, {cell.batch}: {what}{where}"
    )


def fenced(lines: Sequence[str], language: str = "text") -> str:
    """A fenced block that shows ``lines`` as they are, whatever they hold."""
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}{language}", *lines, fence])


def _folded(summary: str, inside: str) -> str:
    return f"<details>\n<summary>{summary}</summary>\n\n{inside}\n\n</details>"


def _environment(environment: Environment | None) -> list[str]:
    ask = "<!-- Add the output of `python collect_env.py` of the machine with the GPU. -->"
    if environment is None:
        return [ask, "Not recorded."]
    lines: list[str] = []
    for label, facts in (
        ("", environment.versions),
        ("commit ", environment.commits),
        ("hardware ", environment.hardware),
        ("platform ", environment.identity),
        ("switch ", environment.switches),
    ):
        lines += [text.one_line(f"{label}{name}: {value}", 200) for name, value in list(facts.items())[:_ROWS]]
    lines += [text.one_line(f"changed: {extension}", 200) for extension in environment.extensions[:_ROWS]]
    return [ask, _folded("Versions and hardware of the run", fenced(lines))]


def _summary(record: Record, environment: Environment | None) -> str:
    cell, g = record.cell, record.cell.geometry
    heads = f"{g.num_heads} query heads over {g.num_kv_heads} KV heads of {g.head_size}"
    extra = text.heads(cell).split(", ")[1:]
    arch = architecture(record, environment)
    where = f" on {arch}" if arch else ""
    gpu = code(place(record, environment).title) if record.rung is Rung.EXECUTED and environment else ""
    return (
        f"`{cell.backend}`{where} with blocks of {cell.block_size} tokens, KV cache dtype `{cell.kv_cache_dtype}`, "
        f"`{cell.dtype}`, {', '.join([heads, *extra])}, batch {cell.batch}: **{outcome(record)}**. "
        f"Seen {f'on {gpu}' if gpu else seen(record)}."
    )


def _to_reproduce(record: Record, environment: Environment | None, header: Mapping[str, Any]) -> list[str]:
    again = f"With capmatrix: {code(pytest_command(record, header), 3000)}"
    try:
        lines = script(record, environment).splitlines()
    except InputError as error:
        return [f"No standalone script: {error.message.removeprefix('there is no script for it: ')}.", again]
    block = _folded("<code>repro.py</code>, with vLLM and PyTorch alone", fenced(lines, "python"))
    return [fenced([f"python repro.py  # on {hardware(architecture(record, environment))}"], "sh"), block, again]


def _expected(record: Record) -> str:
    if record.verdict is Verdict.WRONG:
        return (
            "Each row of the output within its bound of attention in float64 over what the cache should hold. The "
            "bound is a budget of unit roundoffs, made from dtypes and lengths alone."
        )
    if record.verdict is Verdict.REJECTED:
        return "That the backend takes this configuration."
    if under_advertised(record):
        return "That the backend takes this configuration: with its validation passed over, the numbers are right."
    if record.verdict is Verdict.PASS:
        return "That what unused slots of the KV cache hold does not matter, NaN included: pools are shared."
    if declared_supported(record):
        return (
            "That the call ends well, since the backend's own validation accepts this configuration; or that the "
            "validation refuses it, with a reason."
        )
    return "That the call ends well."


def _actual(record: Record) -> list[str]:
    out = [f"- {code(reason, 600)}" for reason in record.reasons[:_REASONS]]
    if not out and record.failure is None:
        out = [f"- {outcome(record)}"]
    parts = [f"It ended at {text.PHASE_WORDS[record.phase]}."] if record.verdict is not Verdict.PASS else []
    parts += ["\n".join(out)] if out else []
    return parts + _failure(record.failure)


def _failure(failure: Failure | None) -> list[str]:
    if failure is None:
        return []
    message = [text.one_line(line, 1000) for line in text.lines(failure.message, 4000)[:_LINES]]
    lines = [f"{text.one_line(failure.type, 200)}: {message[0] if message else ''}".rstrip(": "), *message[1:]]
    frame = [f"Deepest frame: {code(failure.frame)}"] if failure.frame else []
    died = [f"signal {failure.signal}"] if failure.signal else []
    died += [f"exit code {failure.exit_code}"] if failure.exit_code is not None else []
    parts = [fenced(lines), *frame, *([f"Died with {code(', '.join(died))}."] if died else [])]
    frames = [text.one_line(line, 300) for line in failure.traceback[-_LINES:]]
    tail = [text.one_line(line, 300) for line in text.lines(failure.stderr_tail, 8000)[-_LINES:]]
    for name, block in (("Frames, deepest last", frames), ("End of standard error", tail)):
        parts += [_folded(name, fenced(block))] if block else []
    return parts


def _evidence(record: Record) -> list[str]:
    facts = []
    if record.implementation:
        facts.append(f"implementation {code(record.implementation)}")
    if record.kernel_block is not None:
        facts.append(f"kernel blocks of {record.kernel_block} tokens")
    if record.layout:
        facts.append(f"layout {code(record.layout)}")
    if record.graph_support:
        facts.append(f"graph support {code(record.graph_support)}")
    out = [f"Set-up: {', '.join(facts)}."] if facts else []
    out.append(_claims(record.claims))
    out.append(_route(record.route))
    out.append(_numbers(record.checks))
    found = [part for part in out if part]
    return found or ["None beside the above."]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table without the columns that no row has anything in; "" without rows."""
    shown = [i for i in range(len(heads)) if any(row[i] for row in rows)]
    if not rows or not shown:
        return ""
    lines = [[heads[i] for i in shown], ["---"] * len(shown), *([row[i] or " " for i in shown] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _claims(claims: Sequence[Claim]) -> str:
    words = {True: "yes", False: "no", None: "-"}
    rows = [
        (_CLAIMS.get(claim.layer) or in_table(claim.layer), words[claim.accepts], in_table(claim.detail, 200))
        for claim in claims[:_ROWS]
    ]
    return _table(("What is claimed", "accepts", "detail"), rows)


def _route(route: Sequence[Kernel]) -> str:
    rows = [
        (
            in_table(k.name, 120),
            in_table(k.phase),
            in_table(k.kind),
            "" if k.lds_bytes is None else text.size(k.lds_bytes),
            _number(k.vgprs),
            _number(k.vgpr_spills),
            "" if k.scratch_bytes is None else text.size(k.scratch_bytes),
            in_table(k.detail, 120),
        )
        for k in route[:_ROWS]
    ]
    return _table(("Route: what ran", "phase", "kind", "LDS", "VGPRs", "spilled", "scratch", "detail"), rows)


def _numbers(checks: Sequence[Check]) -> str:
    rows = [
        (
            _CHECKS.get(c.part) or in_table(c.part),
            {True: "ok", False: "**off**", None: "-"}[c.ok],
            in_table(c.cache),
            _number(c.relative_l2),
            _number(c.bound),
            _number(c.worst_row_error),
            _number(c.plain_error),
            str(c.nan_count or ""),
            str(c.unwritten_count or ""),
            in_table(c.detail, 160),
        )
        for c in checks[:_ROWS]
    ]
    heads = ("Numbers", "", "unused slots", "rel. L2 error", "bound", "worst row / its bound", "plain PyTorch's error")
    return _table((*heads, "NaN", "unwritten", "detail"), rows)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def _neighbour(found: Neighbour | None) -> list[str]:
    if found is None:
        return ["None: no cell of the run passes with evidence as strong."]
    rows = [(d.axis, in_table(d.failing, 160), in_table(d.passing, 160)) for d in found.differences]
    axes = text.count(len(rows), "axis", "axes")
    first = f"Passes ({found.record.rung.value}): {code(found.record.cell_id)}. It differs in {axes}:"
    return [first, _table(("Axis", "fails", "passes"), rows)]
