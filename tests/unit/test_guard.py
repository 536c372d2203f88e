"""The guard: what it asks, and what it says of recorded answers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import samples
from answers import IGNORED, NOTHING, TRIED, V1, V2_INHERITS, V2_UNSET, selects

from capmatrix import drafters
from capmatrix.cell import Role
from capmatrix.errors import InputError
from capmatrix.guard import judge as guard
from capmatrix.guard.family_question import Server
from capmatrix.guard.judge import Asked, Finding, Status
from capmatrix.guard.questions import Answer, Question
from capmatrix.report import guard as report
from capmatrix.selection import derive as selection
from capmatrix.selection import evidence, published
from capmatrix.selection.defaults import Defaults, Other, Row
from capmatrix.vocabulary import ROCM_BACKENDS

FAMILIES = drafters.load(drafters.DEFAULT_DIR)
WHAT = "minimax-m3-eagle3 at block 128, fp8"


def row(*other: Other, **changes: Any) -> Row:
    return samples.derived_row(*other, **({"fastest": "ROCM_AITER_UNIFIED_ATTN"} | changes))


def table(*rows: Row) -> Defaults:
    return Defaults("lightest", 5.0, row=rows)


def seed() -> Defaults:
    """The table that the published comparison gives."""
    one = published.load(published.find("vllm-47882-minimax-m3-eagle3"))
    found = evidence.gather([], [one], FAMILIES, arch="any")
    return selection.derive(found, selection.Question(families=FAMILIES, arch="any"))


def ask(one: Defaults, *archs: str, server: Server | None = None) -> list[Asked]:
    return guard.questions(one, FAMILIES, server or Server(), archs)


def judged(one: Row, answer: Answer, tolerance: float = 10.0) -> Finding:
    (asked,) = ask(table(one))
    return guard.judge(asked, answer, tolerance)


@pytest.mark.parametrize("answer", [V1, V2_UNSET])
def test_the_published_comparison_contradicts_the_default(answer: Answer) -> None:
    (asked,) = ask(seed(), "gfx950")
    found = guard.judge(asked, answer, 10.0)
    assert found.status is Status.SLOW and found.bad
    assert found.sentence == f"default ROCM_ATTN is 3.47x slower than ROCM_AITER_UNIFIED_ATTN for {WHAT}"


def test_a_drafter_that_inherits_the_better_backend_agrees_and_the_guard_says_so() -> None:
    (asked,) = ask(seed(), "gfx950")
    found = guard.judge(asked, V2_INHERITS, 10.0)
    assert found.status is Status.AGREES and not found.bad
    assert found.sentence == f"the drafter inherits TRITON_ATTN from the target for {WHAT}, as the table has it"


def test_the_tolerance_decides_what_is_slow() -> None:
    one = row(Other("ROCM_ATTN", "slower", times_best=1.08))
    assert judged(one, V2_UNSET, 10.0).status is Status.TOLERATED
    found = judged(one, V2_UNSET, 5.0)
    assert found.status is Status.SLOW
    assert found.sentence == f"default ROCM_ATTN is 8.0 % slower than ROCM_AITER_UNIFIED_ATTN for {WHAT}"


@pytest.mark.parametrize("why", ["failed", "rejected", "barred"])
def test_a_failing_default_is_a_contradiction_however_fast(why: str) -> None:
    found = judged(row(Other("ROCM_ATTN", why, "wrong in verify", times_best=0.5)), V2_UNSET)
    assert found.status is Status.FAILING and found.bad
    assert f"default ROCM_ATTN is a failing cell for {WHAT}: {why} (wrong in verify); TRITON_ATTN works" in (
        found.sentence
    )


@pytest.mark.parametrize("why", ["unverified", "unavailable", "incomplete", "not run"])
def test_what_the_evidence_cannot_tell_is_not_judged(why: str) -> None:
    found = judged(row(Other("ROCM_ATTN", why)), V2_UNSET)
    assert found.status is Status.UNJUDGED and not found.bad


def test_a_backend_without_a_time_is_tolerated_and_an_unknown_one_unjudged() -> None:
    assert judged(row(Other("ROCM_ATTN", "unmeasured")), V2_UNSET).status is Status.TOLERATED
    assert judged(row(), V2_UNSET).status is Status.UNJUDGED


def test_a_default_that_is_the_fastest_agrees_though_the_table_has_a_lighter_one() -> None:
    one = row(Other("ROCM_AITER_UNIFIED_ATTN", "heavier", times_best=1.0))
    found = judged(one, selects("ROCM_AITER_UNIFIED_ATTN"))
    assert found.status is Status.AGREES and "the table has TRITON_ATTN" in found.sentence


def test_a_default_that_resolves_to_nothing() -> None:
    found = judged(row(), NOTHING)
    assert found.status is Status.NOTHING and found.bad
    assert "default resolves to nothing" in found.sentence and NOTHING.error in found.sentence
    # Where nothing works, selecting nothing is right.
    assert judged(row(backend=""), NOTHING).status is Status.AGREES


@pytest.mark.parametrize(
    ("stage", "words"), [("configure", "the configuration is refused"), ("load", "the drafter cannot be loaded")]
)
def test_what_resolved_to_nothing_is_told(stage: str, words: str) -> None:
    assert words in judged(row(), msgspec.structs.replace(NOTHING, stage=stage)).sentence


def test_a_row_is_asked_as_its_drafter_is_served() -> None:
    (asked,) = ask(table(row()), server=Server(runner="v1", target_backend="TRITON_ATTN"))
    question = asked.question
    assert question is not None
    assert (question.arch, question.block_size, question.kv_cache_dtype) == ("gfx950", 128, "fp8")
    assert (question.method, question.role, question.num_speculative_tokens) == ("eagle3", Role.DRAFTER, 2)
    assert (question.runner, question.target_backend) == ("v1", "TRITON_ATTN")
    g = question.geometry
    assert (g.num_heads, g.num_kv_heads, g.head_size) == (16, 16, 128)


def test_rows_of_an_unknown_gpu_are_asked_for_the_architectures_named() -> None:
    (skipped,) = ask(seed())
    assert skipped.question is None and "--arch" in skipped.skipped
    assert guard.judge(skipped, None, 10.0).status is Status.UNJUDGED
    assert [a.arch for a in ask(seed(), "gfx942", "gfx950")] == ["gfx942", "gfx950"]


def test_only_the_architectures_named_are_asked() -> None:
    both = table(row(), row(architecture="gfx942"))
    assert [a.arch for a in ask(both)] == ["gfx950", "gfx942"]
    assert [a.arch for a in ask(both, "gfx942")] == ["gfx942"]
    with pytest.raises(InputError, match="no row of the table"):
        ask(both, "gfx1201")


def test_a_row_of_an_unknown_drafter_is_skipped() -> None:
    (asked,) = ask(table(row(drafter="mine")))
    assert asked.question is None and "mine" in asked.skipped


def test_a_model_dtype_left_to_the_checkpoint_is_asked_as_bfloat16() -> None:
    (asked,) = ask(table(row(dtype="auto")))
    assert asked.question is not None and asked.question.dtype == "bfloat16"


def test_every_rocm_backend_is_tried_as_an_explicit_choice() -> None:
    rows = [row(), row(block_size=16), row(drafter="target-minimax-m3", role="target", architecture="gfx942")]
    found = guard.choice_questions(ask(table(*rows)))
    # Rows that differ in block alone share one layer.
    assert [backend for backend, _, _ in found] == [*ROCM_BACKENDS, *ROCM_BACKENDS]
    drafts, targets = found[: len(ROCM_BACKENDS)], found[len(ROCM_BACKENDS) :]
    assert {option for _, option, _ in drafts} == {"speculative_config.attention_backend"}
    assert [q.drafter_backend for _, _, q in drafts] == list(ROCM_BACKENDS)
    assert {option for _, option, _ in targets} == {"--attention-backend"}
    assert [q.target_backend for _, _, q in targets] == list(ROCM_BACKENDS)


def choice(answer: Answer) -> guard.Choice:
    question = Question("gfx950", msgspec.structs.replace(ask(table(row()))[0].question.geometry))  # type: ignore[union-attr]
    return guard.judge_choice("ROCM_ATTN", "speculative_config.attention_backend", question, answer)


def test_an_explicit_choice_wins_or_is_refused_with_reasons() -> None:
    wins = choice(selects("ROCM_ATTN", source="explicit", configured="ROCM_ATTN"))
    assert wins.status is Status.AGREES and not wins.reasons
    refused = choice(msgspec.structs.replace(NOTHING, error="Reason: ['head_size not supported']"))
    assert refused.status is Status.AGREES and "head_size" in refused.reasons


def test_an_explicit_choice_without_effect_is_a_contradiction() -> None:
    found = choice(IGNORED)
    assert found.status is Status.IGNORED
    assert "has no effect: the layer gets TRITON_ATTN (inherited)" in found.sentence
    silent = choice(msgspec.structs.replace(NOTHING, error=""))
    assert silent.status is Status.IGNORED and "without a reason" in silent.sentence
    assert guard.failed([], [found]) and not guard.failed([], [choice(selects("ROCM_ATTN"))])


def test_stale_rows_fail_unless_they_are_to_be_ignored() -> None:
    stale = judged(row(Other("ROCM_ATTN", "failed"), stale="rests on vllm 0.24, 0.32 is newer"), V2_UNSET)
    assert guard.failed([stale], []) and not guard.failed([stale], [], ignore_stale=True)
    fresh = judged(row(Other("ROCM_ATTN", "failed")), V2_UNSET)
    assert guard.failed([stale, fresh], [], ignore_stale=True)


def test_the_report_puts_contradictions_first_and_lists_stale_rows() -> None:
    agrees = judged(row(), selects("TRITON_ATTN"))
    stale = judged(row(Other("ROCM_ATTN", "failed"), stale="too old", records=("run::cell",)), V1)
    text = report.report([agrees, stale], [choice(IGNORED)], {"vllm": "0.32.0", "aiter": ""})
    lines = text.splitlines()
    assert lines[0] == "vllm 0.32.0, aiter not importable"
    assert lines[2].startswith("failing   gfx950 v1: default ROCM_ATTN is a failing cell")
    assert lines[2].endswith("[stale: too old]")
    assert "  rests on (served): run::cell" in lines
    assert "  vLLM: runner v1 (vLLM's own: v2), loaded by EagleProposer: its configuration names no backend" in text
    assert lines.index("stale rows:") > lines.index(
        "explicit choices: 0 win, 0 are refused with reasons, 1 have no effect"
    )
    assert "  gfx950 minimax-m3-eagle3 b128 fp8: too old" in lines
    assert lines[-1] == "2 rows: 1 agrees, 1 failing"


def test_the_answer_shows_the_priority_list_with_every_rejection() -> None:
    (asked,) = ask(table(row()))
    assert asked.question is not None
    text = report.answer(asked.question, V2_INHERITS, {"vllm": "0.32.0", "aiter": "0.1.7"})
    assert "gfx950, eagle3 drafter, heads 16/16 of 128, block 128, fp8, bfloat16" in text
    assert "default: TRITON_ATTN" in text and "its configuration names TRITON_ATTN, the target's" in text
    for number, tried in enumerate(TRIED, 1):
        says = f"rejected: {tried.reasons[0]}" if tried.reasons else "valid"
        assert f"  {number}. {tried.backend:<23}  {says}" in text
