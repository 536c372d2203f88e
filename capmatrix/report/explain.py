"""Everything known of one cell, as text: what happened, how it is known, what ran, and how to run it again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..cell import Check, Claim, Environment, Failure, Flag, Force, Kernel, Phase, Record, Timing, Verdict
from ..pair import PairRecord
from ..summary import DID_NOT_RUN, over_advertised, switch_words, under_advertised
from . import environment_facts, explain_pair, pair_expected, text
from .lookup import find
from .rerun import pytest_command
from .timing_facts import timing_facts

_WIDTH = 100
_LABEL = 16

#: Claim layers in words.
LAYERS = {
    "validation": "backend's own validation",
    "selector": "vLLM's default",
    "kernel_block": "kernel block",
    "shared_group": "shared KV group",
    "proposer": "proposer's allow-list",
    "mla_prefill": "MLA prefill backend",
}
#: Kinds of a route's kernels in words.
KINDS = {
    "triton": "triton",
    "native": "native, no code here",
    "stand_in": "PyTorch stand-in",
    "torch": "torch",
}
#: Parts of the numerics in words.
CHECKS = {
    "write": "cache write alone",
    "forward": "forward alone",
    "needles": "needles",
    "repeat": "repeated call",
    "guard": "guard bands",
    "query": "absorbed query",
    "accuracy": "accuracy (reported only)",
    "execution": "mode of execution",
    "graph": "graph",
}
#: Meanings of the flags that no table marks.
FLAGS = {
    Flag.FORCED_VALIDATION: "forced past the backend's own validation",
    Flag.FORCED_KERNEL_BLOCK: "forced to another kernel block than vLLM resolves",
    Flag.STAND_IN: "a native operator was computed by an exact PyTorch stand-in",
}


def explain(
    query: str,
    records: Iterable[Record],
    environments: Mapping[str, Environment],
    header: Mapping[str, Any] | None = None,
    *,
    width: int = _WIDTH,
    pairs: Iterable[PairRecord] = (),
) -> str:
    """All records of the cell or pair that ``query`` names (``lookup.find``, which raises InputError), as text."""
    everything = list(records)
    named: list[Record | PairRecord] = [*everything, *pairs]
    meant = find(query, named)
    found = [record for record in meant if isinstance(record, Record)]
    both = [record for record in meant if isinstance(record, PairRecord)]
    if both:
        expected = pair_expected.of(both, environments)
        shown = [
            explain_pair.render(
                r, environments.get(r.environment), header, width=width, expected=expected.get(r.pair_id, "")
            )
            for r in both
        ]
        return f"\n{'=' * width}\n\n".join(shown)
    pages = [render(r, environments.get(r.environment), header, width=width) for r in found]
    others = _siblings(found[0], everything)
    if others:
        pages[-1] += "\n" + "\n".join([*_section("The same cell elsewhere in this run"), *others]) + "\n"
    return f"\n{'=' * width}\n\n".join(pages)


def render(
    record: Record, environment: Environment | None, header: Mapping[str, Any] | None = None, *, width: int = _WIDTH
) -> str:
    """One record, ending with a newline."""
    out = [text.one_line(record.cell_id, 1000), ""]
    out += _verdict(record, width)
    out += _cell(record, width)
    out += _claims(record.claims, width)
    out += _setup(record, width)
    out += _route(record.route, width)
    out += _checks(record.checks, width)
    out += _times(record.times, width)
    out += _failure(record.failure, width)
    out += _durations(record, width)
    out += _environment(record, environment, width)
    out += _rerun(record, header or {}, width)
    return "\n".join(line.rstrip() for line in out) + "\n"


def _section(title: str) -> list[str]:
    return ["", title]


def _row(label: str, value: str, width: int) -> list[str]:
    head = text.pad(f"  {label}", _LABEL + 2) + " "
    return text.fill(value, width, head, " " * (_LABEL + 3))


def _verdict(record: Record, width: int) -> list[str]:
    verdict, rung = record.verdict, record.rung
    word = verdict.value if verdict in DID_NOT_RUN else f"{verdict.value} ({rung.value})"
    out = _row("verdict", f"{word}: {text.VERDICT_MEANING[verdict]}", width)
    if verdict not in DID_NOT_RUN:
        out += _row("rung", f"{rung.value}: a pass on it means that {text.RUNG_MEANING[rung]}", width)
    out += _row("ended at", f"{record.phase.value}: {text.PHASE_WORDS[record.phase]}", width)
    for i, reason in enumerate(record.reasons):
        out += _row("reasons" if i == 0 else "", f"- {text.one_line(reason, 2000)}", width)
    for i, flag in enumerate(record.flags):
        meaning = text.MARKS[flag][2] if flag in text.MARKS else FLAGS[flag]
        out += _row("flags" if i == 0 else "", f"{flag.value}: {meaning}", width)
    if over_advertised(record):
        out += _row("", "over-advertised: the backend declares this cell supported", width)
    if under_advertised(record):
        out += _row("", "under-advertised: the backend rejects this cell, and it passes when forced", width)
    return out


def _cell(record: Record, width: int) -> list[str]:
    c = record.cell
    out = _section("Cell")
    out += _row("target", text.one_line(c.target), width)
    out += _row("backend", text.one_line(c.backend), width)
    out += _row("drafter", text.one_line(f"{c.drafter}, role {c.role.value}, method {c.method}, TP {c.tp}"), width)
    scaled = ", reduced from the family's own" if c.geometry.scaled else ""
    out += _row("geometry", f"{text.heads(c)} a rank{scaled}", width)
    out += _row("batch", text.one_line(f"{c.batch}, {c.lengths} lengths, k={c.num_speculative_tokens}"), width)
    out += _row("KV cache", text.one_line(f"dtype {c.kv_cache_dtype}, block {c.block_size}, {c.scales} scales"), width)
    out += _row("execution", text.one_line(f"{text.dtype(c.dtype)}, {c.execution}, runner {c.runner}"), width)
    if c.forced_block is not None:
        out += _row("family's block", f"{c.forced_block} tokens, forced by the target model on the group", width)
    if c.force is not Force.NONE:
        block = f" {c.kernel_block}" if c.kernel_block is not None else ""
        out += _row("forced", f"{c.force.value}{block}", width)
    if c.switches:
        out += _row("switches", text.one_line(switch_words(c.switches), 1000), width)
    return out


def _claims(claims: Sequence[Claim], width: int) -> list[str]:
    if not claims:
        return []
    out = _section("What is claimed of it")
    for claim in claims:
        word = {True: "yes", False: "no", None: "-"}[claim.accepts]
        label = LAYERS.get(claim.layer, text.one_line(claim.layer, 40))
        detail = text.one_line(claim.detail, 2000)
        out += text.fill(f"{word:<4} {detail}", width, f"  {text.pad(label, 25)} ", " " * 33)
        data = {name: value for name, value in claim.data.items() if value not in ([], {}, "", None)}
        if data:
            out += text.fill(_json(data), width, " " * 33, " " * 33)
    return out


def _json(value: Any) -> str:
    return text.one_line(json.dumps(value, default=str, sort_keys=True, ensure_ascii=False), 2000)


def _setup(record: Record, width: int) -> list[str]:
    c = record.cell
    rows: list[tuple[str, str]] = []
    if record.implementation:
        rows.append(("implementation", text.one_line(record.implementation)))
    if record.kernel_block is not None:
        split = "" if record.kernel_block == c.block_size else f": the manager's block of {c.block_size} is split"
        split = split if record.kernel_block <= c.block_size else f": larger than the manager's block of {c.block_size}"
        rows.append(("kernel block", f"{record.kernel_block} tokens, manager block {c.block_size}{split}"))
    elif record.verdict not in DID_NOT_RUN:
        rows.append(("kernel block", f"not resolved; manager block {c.block_size}"))
    if record.layout:
        rows.append(("layout", text.one_line(record.layout)))
    if record.kv_cache:
        facts = "; ".join(f"{n.replace('_', ' ')} {v}" for n, v in record.kv_cache.items())
        rows.append(("KV cache", text.one_line(facts, 1000)))
    if record.graph_support:
        rows.append(("graph support", text.one_line(record.graph_support)))
    if record.shims:
        rows.append(("answered by", "; ".join(text.one_line(s) for s in record.shims)))
    if not rows:
        return []
    out = _section("Set-up")
    for label, value in rows:
        out += _row(label, value, width)
    return out


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def _route(route: Sequence[Kernel], width: int) -> list[str]:
    if not route:
        return []
    heads = ("phase", "kind", "calls", "grid", "warps", "LDS", "VGPR", "AGPR", "SGPR", "spills", "scratch", "compile")
    rows = [_kernel(k) for k in route]
    shown = [i for i, head in enumerate(heads) if head in heads[:3] or any(r[i] for r in rows)]
    widths = {i: max(text.width(heads[i]), *(text.width(r[i]) for r in rows)) for i in shown}
    out = _section("Route: what ran, in order of first launch")
    out.append("      " + "  ".join(text.pad(heads[i], widths[i]) for i in shown))
    for number, (kernel, row) in enumerate(zip(route, rows), 1):
        out += text.fill(text.one_line(kernel.name, 300), width, f"  {number}. ", "     ")
        out.append("      " + "  ".join(text.pad(row[i], widths[i]) for i in shown))
        if kernel.detail:
            out += text.fill(text.one_line(kernel.detail), width, "      ", "      ")
    if any(k.compile_s is None and k.vgprs is not None for k in route):
        out += text.fill("A Triton kernel without a compile time came from Triton's cache.", width, "  ", "  ")
    return out


def _kernel(k: Kernel) -> tuple[str, ...]:
    spills = ""
    if k.vgpr_spills is not None or k.sgpr_spills is not None:
        spills = f"{_number(k.vgpr_spills) or '?'} V, {_number(k.sgpr_spills) or '?'} S"
    return (
        text.one_line(k.phase, 20),
        KINDS.get(k.kind, text.one_line(k.kind, 20)),
        str(k.calls),
        "x".join(map(str, k.grid)) if k.grid else "",
        _number(k.num_warps),
        "" if k.lds_bytes is None else text.size(k.lds_bytes),
        _number(k.vgprs),
        _number(k.agprs),
        _number(k.sgprs),
        spills,
        "" if k.scratch_bytes is None else text.size(k.scratch_bytes),
        "" if k.compile_s is None else text.seconds(k.compile_s),
    )


def _checks(checks: Sequence[Check], width: int) -> list[str]:
    if not checks:
        return []
    heads = ("", "check", "unused slots", "rel. L2", "worst row", "max abs", "bound", "plain", "NaN", "unwritten")
    rows = [_check(c) for c in checks]
    shown = [i for i in range(len(heads)) if any(r[i] for r in rows)]
    widths = {i: max(text.width(heads[i]), *(text.width(r[i]) for r in rows)) for i in shown}
    out = _section("Numbers")
    for row, detail in ((heads, ""), *zip(rows, (c.detail for c in checks))):
        out.append("  " + "  ".join(text.pad(row[i], widths[i]) for i in shown))
        if detail:
            out += text.fill(text.one_line(detail), width, " " * 8, " " * 8)
    out += text.fill(
        "Errors are relative to the reference's norm, but for a row's, which is a multiple of that row's own bound, "
        "and for max abs; the cache write's counts half units in the last place of the KV dtype; bounds are derived "
        "from dtypes and lengths; plain: the error of a plain implementation in the same dtypes.",
        width,
        "  ",
        "  ",
    )
    return out


def _times(times: Sequence[Timing], width: int) -> list[str]:
    """What one call took under each profile, and under which conditions."""
    if not times:
        return []
    out = _section("Times of one call of one layer of one rank, cache write included")
    for t in times:
        share = (
            ""
            if t.share_of_roofline is None
            else f", {text.percent(t.share_of_roofline)} of the roofline measured here"
        )
        said = f"{text.us(t.median_us)} us ({text.us(t.low_us)} to {text.us(t.high_us)})"
        said += f", {text.count(t.repeats, 'repeat')}{share}"
        out += _row(text.one_line(t.phase, 20), text.one_line(f"{said}; workload {t.workload}", 400), width)
        for name, line in timing_facts(t):
            out += text.fill(f"{name}: {line}", width, "      ", "        ")
    return out


def _check(c: Check) -> tuple[str, ...]:
    row = _number(c.worst_row_error)
    if c.worst_row is not None:
        row = f"{row} (row {c.worst_row})".strip()
    return (
        {True: "ok", False: "BAD", None: "-"}[c.ok],
        CHECKS.get(c.part, text.one_line(c.part, 40)),
        text.one_line(c.cache, 20),
        _number(c.relative_l2),
        row,
        _number(c.max_abs),
        _number(c.bound),
        _number(c.plain_error),
        str(c.nan_count or ""),
        str(c.unwritten_count or ""),
    )


def _failure(failure: Failure | None, width: int) -> list[str]:
    if failure is None:
        return []
    out = _section("Failure")
    message = text.lines(failure.message, 4000)
    out += _row("type", text.one_line(failure.type), width)
    for i, line in enumerate(message):
        out += _row("message" if i == 0 else "", line, width)
    if failure.frame:
        out += _row("deepest frame", text.one_line(failure.frame), width)
    if failure.signal or failure.exit_code is not None:
        died = [f"signal {text.one_line(failure.signal, 40)}"] if failure.signal else []
        died += [f"exit code {failure.exit_code}"] if failure.exit_code is not None else []
        out += _row("died with", ", ".join(died), width)
    for title, block in (("traceback", list(failure.traceback)), ("stderr, its end", text.lines(failure.stderr_tail))):
        if block:
            out.append(f"  {title}:")
            out += [f"    {line}" for entry in block for line in text.lines(entry, 4000)]
    return out


def _durations(record: Record, width: int) -> list[str]:
    if not record.durations and not record.started_at:
        return []
    out = _section("Time")
    if record.durations:
        order = {phase.value: i for i, phase in enumerate(Phase)}
        spent = sorted(record.durations.items(), key=lambda item: (order.get(item[0], len(order)), item[0]))
        parts = [f"{text.one_line(n, 40)} {text.seconds(s)}" for n, s in spent]
        out += _row("durations", ", ".join(parts), width)
    if record.started_at:
        out += _row("when", text.one_line(f"{record.started_at} to {record.ended_at or '?'}"), width)
    if record.attempt > 1:
        out += _row("attempt", str(record.attempt), width)
    return out


def _environment(record: Record, environment: Environment | None, width: int) -> list[str]:
    out = _section("Environment")
    if environment is None:
        return [*out, f"  {environment_facts.UNKNOWN}"]
    for label, value in environment_facts.rows(record.cell.target, environment):
        out += _row(label, value, width)
    return out


def _rerun(record: Record, header: Mapping[str, Any], width: int) -> list[str]:
    out = [*_section("To run it again"), f"  {pytest_command(record, header)}"]
    if record.verdict is Verdict.UNAVAILABLE:
        out += text.fill("`capmatrix doctor` says what is missing on this machine.", width, "  ", "  ")
    return out


def _siblings(record: Record, records: Sequence[Record]) -> list[str]:
    """One line for each record that differs from ``record`` in target or batch alone."""
    from ..summary import point

    mine = point(record.cell)
    rows = [r for r in records if point(r.cell) == mine and r.cell_id != record.cell_id]
    cut = 30
    out = []
    for r in rows[:cut]:
        word = r.verdict.value if r.verdict in DID_NOT_RUN else f"{r.verdict.value} ({r.rung.value})"
        where = text.pad(text.one_line(r.cell.target, 30), 20)
        out.append(f"  {where} {text.pad(text.one_line(r.cell.batch, 30), 16)} {word}")
    if len(rows) > cut:
        out.append(f"  and {len(rows) - cut} more")
    return out
