"""Pairs against the default-selection table: the seed's drafter beside its target, by runner."""

from __future__ import annotations

import argparse

import msgspec
import pytest
from test_pair import made, recorded, refused

from capmatrix import cli
from capmatrix.cell import Environment, Geometry, Rung, Verdict
from capmatrix.commands import pairs as commands_pairs
from capmatrix.errors import InputError
from capmatrix.guard.judge import Status
from capmatrix.pair import GroupFacts, Pair, PairRecord, Side, SideFacts
from capmatrix.pairs import pair_guard, pairfile
from capmatrix.selection.defaults import Defaults, Other, Row

ROW = Row(
    architecture="gfx942",
    drafter="minimax-m3-eagle3",
    role="drafter",
    block_size=128,
    kv_cache_dtype="fp8",
    dtype="auto",
    backend="TRITON_ATTN",
    reason="served",
    policy="lightest",
    fastest="ROCM_AITER_UNIFIED_ATTN",
    other=(Other(backend="ROCM_ATTN", why="slower", times_best=3.47),),
)
TABLE = Defaults(policy="lightest", margin_percent=5.0, row=(ROW,))


def record(how: str, backend: str, **changes: object) -> PairRecord:
    facts = SideFacts(backends={backend: 1}, how=how, order=("ROCM_ATTN", "TRITON_ATTN"))
    return recorded(drafter=facts, verdict=Verdict.PASS, rung=Rung.DECLARED, runs=(), **changes)


def judged(one: PairRecord, table: Defaults = TABLE) -> tuple[Status, str]:
    (finding,), choices = pair_guard.judge_pair(table, one, 10.0)
    assert choices == []
    return finding.status, finding.sentence


def test_an_inherited_backend_agrees_where_it_is_the_table_s() -> None:
    status, sentence = judged(record("inherited", "TRITON_ATTN"))
    assert status is Status.AGREES
    assert sentence.startswith("beside minimax-m3:TRITON_ATTN: the drafter inherits TRITON_ATTN")


def test_a_default_whose_set_up_contradicts_itself_fails() -> None:
    status, sentence = judged(record("inherited", "TRITON_ATTN", contradictions=("blocks of 64, not of 32",)))
    assert status is Status.FAILING and "set-up contradicts itself: blocks of 64, not of 32" in sentence
    asked = made(drafter=Side("minimax-m3-eagle3", "LlamaForCausalLMEagle3", Geometry(16, 16, 128), "ROCM_ATTN"))
    choice = pair_guard.judge_choice(recorded(asked, contradictions=("blocks of 64, not of 32",)))
    assert (choice.status, choice.reasons) == (Status.AGREES, "")
    assert choice.sentence.endswith("wins; set-up contradicts itself: blocks of 64, not of 32")


def test_what_v1_chooses_is_slow() -> None:
    status, sentence = judged(record("automatic", "ROCM_ATTN", runner="v1"))
    assert status is Status.SLOW and "3.47x slower" in sentence


def test_a_refused_set_up_selects_nothing() -> None:
    left = refused(drafter=SideFacts(backends={"ROCM_AITER_FA": 1}, how="automatic"))
    left = msgspec.structs.replace(left, pair=made())
    status, sentence = judged(left)
    assert status is Status.NOTHING
    assert "No common block size for 128" in sentence and "TRITON_ATTN works" in sentence


def test_a_row_is_found_by_the_block_that_set_up_ended_with() -> None:
    pair = made(block_size=None)
    groups = (GroupFacts("FullAttentionSpec", 128, 128, 1, {}),)
    chosen = msgspec.structs.replace(record("inherited", "TRITON_ATTN", groups=groups), pair=pair)
    assert judged(chosen)[0] is Status.AGREES
    other = msgspec.structs.replace(chosen, manager_block=16)
    assert pair_guard.judge_pair(TABLE, other, 10.0) == ([], [])


@pytest.mark.parametrize("field,value", [("architecture", "gfx950"), ("drafter", "x"), ("kv_cache_dtype", "auto")])
def test_rows_of_other_keys_say_nothing(field: str, value: str) -> None:
    table = Defaults(policy="lightest", margin_percent=5.0, row=(msgspec.structs.replace(ROW, **{field: value}),))
    assert pair_guard.judge_pair(table, record("inherited", "TRITON_ATTN"), 10.0) == ([], [])


def chosen(how: str, backend: str, verdict: Verdict = Verdict.PASS) -> PairRecord:
    side = Side("minimax-m3-eagle3", "LlamaForCausalLMEagle3", Geometry(16, 16, 128), "ROCM_ATTN")
    facts = SideFacts(backends={backend: 1} if backend else {}, how=how)
    return recorded(made(drafter=side), drafter=facts, verdict=verdict, reasons=("not valid",))


def test_an_explicit_choice_must_win_or_be_refused() -> None:
    for one, status, said in (
        (chosen("explicit", "ROCM_ATTN"), Status.AGREES, "wins"),
        (chosen("explicit", "", Verdict.REJECTED), Status.AGREES, "is refused"),
        (chosen("ignored", "TRITON_ATTN"), Status.IGNORED, "has no effect: TRITON_ATTN"),
    ):
        findings, (choice,) = pair_guard.judge_pair(TABLE, one, 10.0)
        assert findings == []
        assert choice.status is status and said in choice.sentence
        assert "beside minimax-m3:TRITON_ATTN" in choice.sentence


def test_only_pairs_that_a_row_is_about_are_set_up() -> None:
    pairs = [made(), made(target="offline:gfx950"), made(kv_cache_dtype="auto"), made(draft_kv_cache_dtype="auto")]
    assert pair_guard.wanted(TABLE, pairs) == pairs[:1]
    assert pair_guard.wanted(TABLE, pairs, ["gfx950"]) == []


def words(**given: object) -> argparse.Namespace:
    base = {
        "arch": "gfx942",
        "target_model": "minimax-m3",
        "target_backend": "",
        "drafter": "minimax-m3-eagle3",
        "drafter_backend": "ROCM_ATTN",
        "tp": 4,
        "block_size": 128,
        "kv_cache_dtype": "fp8",
        "dtype": "auto",
        "runner": "v1",
        "switch": ["VLLM_ROCM_USE_AITER=1"],
    }
    least = ["default", "--arch", "gfx942", "--drafter", "minimax-m3-eagle3"]
    return argparse.Namespace(**{**vars(cli._parser().parse_args(least)), **base, **given})


def test_the_words_of_default_make_a_pair() -> None:
    pair = commands_pairs.asked(words())
    assert (pair.target, pair.runner, pair.block_size, pair.dtype) == ("offline:gfx942", "v1", 128, "bfloat16")
    assert (pair.target_model.backend, pair.drafter.backend) == (None, "ROCM_ATTN")
    assert pair.switches == (("VLLM_ROCM_USE_AITER", "1"),)
    assert pair.batches == ()


@pytest.mark.parametrize(
    "change",
    [
        {"target_model": "minimax-m4"},
        {"drafter": "target-minimax-m3"},
        {"drafter_backend": "ROCM_ATN"},
        {"kv_cache_dtype": "fp9"},
        {"tp": 3},
        {"arch": "gfx94"},
    ],
)
def test_words_that_fit_nothing(change: dict[str, object]) -> None:
    with pytest.raises(InputError):
        commands_pairs.asked(words(**change))


def test_one_pair_has_the_defaults_of_a_file() -> None:
    pair = pairfile.one({"target_model": "llama3.1-8b", "drafter": "eagle3-llama3.1-8b"}, "offline:gfx950")
    assert (pair.tp, pair.block_size, pair.kv_cache_dtype, pair.runner) == (1, None, "auto", "auto")


def test_a_block_that_is_not_given_is_said() -> None:
    assert pair_guard.beside(made()) == "minimax-m3:TRITON_ATTN"
    assert pair_guard.beside(made(block_size=None)) == "minimax-m3:TRITON_ATTN, no block given"


def test_what_two_pairs_say_alike_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def set_up(pairs: list[Pair], aiter: str) -> tuple[list[PairRecord], dict[str, Environment]]:
        both = [made(runner="v2"), made(), made(block_size=None)]
        return [recorded(one) for one in both], {}

    monkeypatch.setattr(commands_pairs, "set_up", set_up)
    asked = argparse.Namespace(pairs="pairs", arch=["gfx942"], aiter="", tolerance=5.0)
    findings, _ = commands_pairs.guard(asked, TABLE)
    assert len(findings) == 2
