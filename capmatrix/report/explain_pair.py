"""Everything known of one pair, as text: both sides, the groups they share, what ran, and how to run it again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ..cell import Environment, Verdict
from ..pair import PairRecord, Side, SideFacts
from . import environment_facts, pairs, text
from .rerun import matrix_path

#: What a contradiction means, where it is told at length, and what avoids it.
_CONTRADICTION = (
    (
        "it means",
        "what set-up built is wrong, whether or not a call showed it: those draft passes attend to the wrong tokens. "
        "Verification keeps the output right; fewer drafted tokens are accepted, without a message.",
    ),
    ("finding", "docs/findings.md#8-v2s-drafter-reads-other-blocks-than-its-kv-cache-has"),
    (
        "way round it",
        "the V1 runner (VLLM_USE_V2_MODEL_RUNNER=0), or equal kernel blocks: one backend for both, or a --block-size "
        "that the target's backend takes whole; see docs/pairs.md#contradictions",
    ),
)


def render(
    record: PairRecord,
    environment: Environment | None,
    header: Mapping[str, Any] | None = None,
    *,
    width: int = 100,
    again: Sequence[str] = (),
    expected: str = "",
) -> str:
    """One pair, ending with a newline. ``again``: what runs it again, where it is no pair of a file; ``expected``: why
    its failure is expected."""
    out = [text.one_line(record.pair_id, 1000), ""]
    out += _row("verdict", f"{pairs.result(record)}: {text.VERDICT_MEANING[record.verdict]}", width)
    ended = f"{record.phase.value}: {record.step}" if record.step else record.phase.value
    out += _row("ended at", text.one_line(ended), width)
    for index, reason in enumerate(record.reasons):
        out += _row("" if index else "reasons", f"- {text.one_line(reason, 2000)}", width)
    if expected:
        out += _row("expected", text.one_line(expected, 600), width)
    for index, said in enumerate(record.contradictions):
        out += _row("" if index else "CONTRADICTION", text.one_line(said, 600), width)
    if record.contradictions:
        for label, line in _CONTRADICTION:
            out += _row(label, line, width)
    out += _row("asked", text.one_line(_asked(record), 600), width)
    rules = [rule for rule in record.rules if rule not in record.contradictions]
    out += _row("runner", text.one_line("; ".join(rules) or record.pair.runner, 600), width)
    for name, asked, facts in (
        ("Target", record.pair.target_model, record.target_model),
        ("Drafter", record.pair.drafter, record.drafter),
    ):
        out += ["", name, *_side(asked, facts, width)]
    if record.effective:
        said = ", ".join(f"{key} {value}" for key, value in record.effective.items())
        out += _row("effective", text.one_line(said, 800), width)
    out += _shared(record, width)
    if record.runs:
        out += ["", "Calls in the shared pool"]
        for run in record.runs:
            out += text.fill(pairs.run_line(run), width, "  ", "      ")
            for reason in run.reasons:
                out += text.fill(f"- {text.one_line(reason, 600)}", width, "      ", "        ")
            if run.canary is not None:
                word = {True: "kept", False: "BROKEN", None: "not looked at"}[run.canary.ok]
                out += text.fill(f"canaries {word}: {text.one_line(run.canary.detail)}", width, "      ", "        ")
        for one in record.uncalled:
            out += text.fill(f"not called: {pairs.not_called(one)}", width, "  ", "      ")
    if record.failure is not None:
        out += ["", "Failure", *_row("type", record.failure.type, width)]
        out += _row("message", text.one_line(record.failure.message, 2000), width)
        out += _row("deepest frame", text.one_line(record.failure.frame), width)
    out += _ending(record, environment, width)
    out += ["", "To run it again", f"  {text.one_line(shlex.join(again or _rerun(record, header or {})), 2000)}"]
    if record.verdict is Verdict.UNAVAILABLE:
        out += text.fill("`capmatrix doctor` says what is missing on this machine.", width, "  ", "  ")
    return "\n".join(line.rstrip() for line in out) + "\n"


def _row(label: str, value: str, width: int) -> list[str]:
    return text.fill(value, width, text.pad(f"  {label}", 18) + " ", " " * 19)


def _asked(record: PairRecord) -> str:
    pair = record.pair
    given = "not given" if pair.block_size is None else str(pair.block_size)
    draft = "" if pair.draft_kv_cache_dtype is None else f", the draft's {pair.draft_kv_cache_dtype}"
    return f"{pairs.models(record)}, block {given}, KV cache {pair.kv_cache_dtype}{draft}, runner {pair.runner}"


def _side(asked: Side, facts: SideFacts, width: int) -> list[str]:
    heads = f"{asked.geometry.num_heads}/{asked.geometry.num_kv_heads} heads of {asked.geometry.head_size} a rank"
    out = _row("model", text.one_line(f"{asked.family} ({facts.model_class or 'not loaded'}), {heads}"), width)
    how = f" ({facts.how})" if facts.how else ""
    resolved = ", ".join(f"{name} in {count} layers" for name, count in facts.backends.items()) or "not resolved"
    out += _row("backend", text.one_line(f"asked {asked.backend or 'nothing'}; {resolved}{how}", 500), width)
    if facts.order:
        out += _row("vLLM's order", text.one_line(", ".join(facts.order), 500), width)
    for index, (name, reasons) in enumerate(facts.rejections.items()):
        out += _row("" if index else "refused", text.one_line(f"{name}: {'; '.join(reasons)}", 300), width)
    if facts.kinds:
        out += _row("KV specs", text.one_line(", ".join(f"{n} of {c}" for n, c in facts.kinds.items())), width)
    if facts.kv_cache_dtype:
        out += _row("KV dtype", text.one_line(facts.kv_cache_dtype), width)
    if facts.backends:
        any_layout = "any" if facts.layouts is None else ", ".join(facts.layouts) or "none in common"
        out += _row("layouts", text.one_line(any_layout), width)
    if facts.metadata:
        out += _row("metadata", text.one_line(", ".join(facts.metadata)), width)
    if facts.graph_support:
        out += _row("graph support", facts.graph_support, width)
    if facts.native_reason:
        word = {True: "yes", False: "no", None: "not known"}[facts.native_path]
        out += _row("native path", text.one_line(f"{word}: {facts.native_reason}"), width)
    return out


def _shared(record: PairRecord, width: int) -> list[str]:
    if not record.layout and not record.groups:
        return []
    out = ["", "Shared"]
    if record.layout:
        among = f", first of {', '.join(record.layouts)}" if len(record.layouts) > 1 else ""
        out += _row("layout", text.one_line(record.layout + among), width)
    for index, group in enumerate(record.groups):
        layers = ", ".join(f"{count} {name}" for name, count in group.layers.items())
        kernel = "no common kernel block" if group.kernel_block is None else f"kernel block {group.kernel_block}"
        said = f"{group.spec}, block {group.manager_block}, {kernel}, page {text.size(group.page_bytes)}: {layers}"
        out += _row("" if index else "groups", text.one_line(said, 500), width)
    if record.graph_support:
        out += _row("graph support", record.graph_support, width)
    if record.pool:
        out += _row("pool", text.one_line(", ".join(f"{value} {key}" for key, value in record.pool.items())), width)
    return out


def _rerun(record: PairRecord, header: Mapping[str, Any]) -> list[str]:
    path = matrix_path(header) or "matrices/pairs.toml"
    return ["pytest", f"{path}::{record.pair_id}", "--target", record.pair.target]


def _ending(record: PairRecord, environment: Environment | None, width: int) -> list[str]:
    out = [""]
    if record.durations:
        spent = ", ".join(f"{name} {text.seconds(value)}" for name, value in record.durations.items())
        out += _row("durations", text.one_line(spent), width)
    if record.shims:
        out += _row("answered by", text.one_line("; ".join(record.shims), 800), width)
    out += ["", "Environment"]
    if environment is None:
        return [*out, f"  {environment_facts.UNKNOWN}"]
    for label, value in environment_facts.rows(record.pair.target, environment):
        out += _row(label, value, width)
    return out
