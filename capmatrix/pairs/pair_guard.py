"""Pairs against the default-selection table: what vLLM's own set-up chooses beside a target, row by row. Pure.

A row of the table is about one backend in a drafter's place; which one that is can depend on the target beside it:
inheritance, a block that it forces, a layout in common. So a pair whose drafter is left to vLLM is an answer to the row
of its architecture, drafter, block and KV cache dtype, and is judged by the same rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .. import outcome
from ..cell import Verdict
from ..guard.judge import Asked, Choice, Finding, Status, judge
from ..guard.questions import Answer, Question, Source, Tried
from ..pair import Pair, PairRecord
from ..selection.defaults import Defaults, Row

_SOURCES: dict[str, Source] = {"inherited": "inherited", "explicit": "explicit"}
_STAGES = {"configure": "configure", "select": "load"}


def wanted(table: Defaults, pairs: Iterable[Pair], archs: Sequence[str] = ()) -> list[Pair]:
    """The pairs that a row of the table is about, each for its architecture alone; ``archs``: only these."""
    rows = [(row.architecture, row.drafter, row.kv_cache_dtype) for row in table.row]
    found = []
    for pair in pairs:
        arch = pair.target.partition(":")[2]
        kv = pair.draft_kv_cache_dtype or pair.kv_cache_dtype
        if (not archs or arch in archs) and (arch, pair.drafter.family, kv) in rows:
            found.append(pair)
    return found


def judge_pair(table: Defaults, record: PairRecord, tolerance_percent: float) -> tuple[list[Finding], list[Choice]]:
    """What is said of a pair's drafter: against its rows where it was left to vLLM, else whether its choice won."""
    pair = record.pair
    if pair.drafter.backend is not None:
        return [], [judge_choice(record)]
    found = []
    for row in _rows(table, record):
        asked = Asked(row, pair.target.partition(":")[2], question(pair))
        judged = judge(asked, answer(record), tolerance_percent)
        judged = judged._replace(sentence=f"beside {beside(pair)}: {judged.sentence}")
        if record.contradictions:
            judged = judged._replace(status=Status.FAILING, sentence=judged.sentence + _contradiction(record))
        found.append(judged)
    return found, []


def _rows(table: Defaults, record: PairRecord) -> list[Row]:
    """Rows of the pair's key; its block is what set-up ended with, or what was given where it did not get there."""
    pair = record.pair
    block = record.manager_block if record.groups else pair.block_size
    arch, kv = pair.target.partition(":")[2], pair.draft_kv_cache_dtype or pair.kv_cache_dtype
    return [
        row
        for row in table.row
        if (row.architecture, row.drafter, row.block_size, row.kv_cache_dtype) == (arch, pair.drafter.family, block, kv)
        and row.dtype in ("auto", pair.dtype)
    ]


def answer(record: PairRecord) -> Answer:
    """The drafter's side of a pair as the selector's answer; a set-up that vLLM refuses selects nothing."""
    drafter = record.drafter
    refused = record.verdict in (Verdict.REJECTED, Verdict.ERROR) and not record.runs
    name = next(iter(drafter.backends), "")
    tried = tuple(Tried(name) for name in drafter.order)
    tried += tuple(Tried(name, tuple(reasons)) for name, reasons in drafter.rejections.items())
    return Answer(
        backend="" if refused else name,
        source=_SOURCES.get(drafter.how, "priority"),
        tried=tried,
        configured=name if drafter.how == "inherited" else "",
        runner=record.runner,
        stage=_STAGES.get(record.phase.value, "select") if refused else "",
        error=outcome.reason(record) if refused else "",
    )


def judge_choice(record: PairRecord) -> Choice:
    """Whether an explicit drafter backend won in the pair, was refused with a reason, or was dropped."""
    pair = record.pair
    option = "speculative_config.attention_backend"
    backend = pair.drafter.backend or ""
    whose = f"{option} {backend} ({pair.target.partition(':')[2]}, {pair.method}, runner {record.runner}, "
    whose += f"beside {beside(pair)})"
    if record.drafter.how == "ignored":
        got = ", ".join(record.drafter.backends) or "nothing"
        return Choice(Status.IGNORED, backend, option, question(pair), f"{whose} has no effect: {got}")
    if record.verdict is Verdict.REJECTED:
        said = outcome.reason(record)
        return Choice(Status.AGREES, backend, option, question(pair), f"{whose} is refused", said)
    # Which backend vLLM takes is the guard's question; what set-up then makes of it is said beside the answer.
    return Choice(Status.AGREES, backend, option, question(pair), f"{whose} wins{_contradiction(record)}")


def _contradiction(record: PairRecord) -> str:
    said = "; ".join(map(outcome.one_line, record.contradictions))
    return f"; set-up contradicts itself: {said}" if said else ""


def beside(pair: Pair) -> str:
    """``minimax-m3:TRITON_ATTN``: the target model and what is asked of it, also where no block is given."""
    block = "" if pair.block_size is not None else ", no block given"
    return f"{pair.target_model.family}:{pair.target_model.backend or 'auto'}{block}"


def question(pair: Pair) -> Question:
    """The drafter's side as a question, for a report to name."""
    return Question(
        arch=pair.target.partition(":")[2],
        geometry=pair.drafter.geometry,
        block_size=pair.block_size,
        kv_cache_dtype=pair.kv_cache_dtype,
        dtype=pair.dtype,
        method=pair.method,
        num_speculative_tokens=pair.num_speculative_tokens,
        runner="" if pair.runner == "auto" else pair.runner,
        target_backend=pair.target_model.backend or "",
        drafter_backend=pair.drafter.backend or "",
        tp=pair.tp,
        switches=pair.switches,
    )
