"""Pairs as data: ids, what stands for them in a worker, their records in a run file, and pytest's words."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from capmatrix import codec, store
from capmatrix.cell import Check, Failure, Geometry, Phase, Record, Rung, Verdict
from capmatrix.errors import InputError
from capmatrix.outcome import Expectation, Kind
from capmatrix.pair import (
    PAIR_VERSION,
    GroupFacts,
    Pair,
    PairRecord,
    Side,
    SideFacts,
    SideRun,
    carrier,
    of_death,
    pair_id,
    server_key,
)
from capmatrix.pairs import pair_outcome


def made(**changes: object) -> Pair:
    """The seed's pair."""
    base = Pair(
        target="offline:gfx942",
        target_model=Side("minimax-m3", "MiniMaxM3SparseForConditionalGeneration", Geometry(16, 1, 128), "TRITON_ATTN"),
        drafter=Side("minimax-m3-eagle3", "LlamaForCausalLMEagle3", Geometry(16, 16, 128)),
        tp=4,
        method="eagle3",
        num_speculative_tokens=2,
        block_size=128,
        kv_cache_dtype="fp8",
        batches=("decode", "verify"),
    )
    return msgspec.structs.replace(base, **changes)


def recorded(pair: Pair | None = None, **changes: object) -> PairRecord:
    """Its record: one that passes."""
    pair = pair or made()
    base = PairRecord(
        pair_id=pair_id(pair),
        pair=pair,
        verdict=Verdict.PASS,
        rung=Rung.COMPILED,
        phase=Phase.FORWARD,
        environment="env",
        runner="v2",
        rules=("V2 model runner", "an unset drafter backend inherits the target's"),
        target_model=SideFacts(
            model_class="MiniMaxM3SparseForConditionalGeneration",
            backends={"MINIMAX_M3_SPARSE": 3, "TRITON_ATTN": 3},
            how="explicit",
            order=("ROCM_ATTN", "TRITON_ATTN"),
        ),
        drafter=SideFacts(model_class="Eagle3LlamaForCausalLM", backends={"TRITON_ATTN": 1}, how="inherited"),
        effective={"method": "eagle3", "block_size": 128},
        layout="LBNHC",
        layouts=("LBNHC", "LBHNC"),
        manager_block=128,
        groups=(GroupFacts("UniformTypeKVCacheSpecs", 128, 128, 524288, {"drafter TRITON_ATTN": 1}),),
        graph_support="UNIFORM_BATCH",
        runs=(
            SideRun("target", "model.layers.0", "TRITON_ATTN", "decode", Verdict.PASS, Rung.COMPILED, Phase.FORWARD),
            SideRun(
                "drafter",
                "model.layers.6",
                "TRITON_ATTN",
                "decode",
                Verdict.PASS,
                Rung.COMPILED,
                Phase.FORWARD,
                kernel_block=128,
                canary=Check("canary", True, detail="blocks of 1 group keep to their own pages"),
            ),
        ),
        durations={"select": 0.07},
    )
    return msgspec.structs.replace(base, **changes)


def refused(**changes: object) -> PairRecord:
    """The seed's pair with a drafter backend that lists 16 and 32."""
    said = "ValueError: No common block size for 128 (MINIMAX_M3_SPARSE: [128]; FLASH_ATTN: [16, 32])."
    drafter = Side("minimax-m3-eagle3", "LlamaForCausalLMEagle3", Geometry(16, 16, 128), "ROCM_AITER_FA")
    fields: dict[str, object] = {
        "verdict": Verdict.REJECTED,
        "rung": Rung.DECLARED,
        "phase": Phase.BUILD,
        "step": "kernel blocks and metadata builders",
        "reasons": (said,),
        "failure": Failure("ValueError", said.removeprefix("ValueError: "), "vllm/v1/worker/utils.py:554"),
        "drafter": SideFacts(backends={"ROCM_AITER_FA": 1}, how="explicit"),
        "groups": (GroupFacts("UniformTypeKVCacheSpecs", 128, None, 524288, {"drafter ROCM_AITER_FA": 1}),),
        "graph_support": "",
        "runs": (),
    }
    return recorded(made(drafter=drafter), **{**fields, **changes})


def test_an_id_says_what_was_asked() -> None:
    assert pair_id(made()) == ("offline:gfx942-pair-minimax-m3:TRITON_ATTN+minimax-m3-eagle3:auto-b128-fp8-tp4-k2-bf16")
    other = made(
        block_size=None,
        draft_kv_cache_dtype="auto",
        runner="v1",
        dtype="float16",
        switches=(("VLLM_ROCM_USE_AITER", "1"),),
    )
    assert pair_id(other).endswith("-bauto-fp8+auto-tp4-k2-fp16-v1-VLLM_ROCM_USE_AITER=1")


@pytest.mark.parametrize(
    "change",
    [
        {"block_size": 64},
        {"kv_cache_dtype": "auto"},
        {"draft_kv_cache_dtype": "auto"},
        {"runner": "v1"},
        {"tp": 8},
        {"num_speculative_tokens": 1},
        {"target": "offline:gfx950"},
        {"switches": (("VLLM_ROCM_USE_AITER", "1"),)},
        {"drafter": Side("minimax-m3-eagle3", "LlamaForCausalLMEagle3", Geometry(16, 16, 128), "ROCM_ATTN")},
    ],
)
def test_pairs_that_differ_have_ids_that_differ(change: dict[str, object]) -> None:
    assert pair_id(made(**change)) != pair_id(made())


def test_a_pair_shares_its_server_with_cells_of_its_target_and_switches() -> None:
    pair = made(switches=(("VLLM_ROCM_USE_AITER", "1"),))
    assert server_key(pair) == codec.server_key(carrier(pair))


def test_a_death_is_the_pair_s_own_record() -> None:
    pair = made()
    death = Record(
        cell_id="x",
        cell=carrier(pair),
        verdict=Verdict.CRASH,
        rung=Rung.COMPILED,
        phase=Phase.BUILD,
        environment="env",
        reasons=("worker died of SIGSEGV in build",),
        failure=Failure("SIGSEGV", "worker died of SIGSEGV"),
    )
    found = of_death(death, pair)
    assert (found.pair_id, found.pair, found.verdict, found.phase) == (pair_id(pair), pair, Verdict.CRASH, Phase.BUILD)
    assert found.reasons == death.reasons and found.failure == death.failure


def test_a_record_survives_its_json() -> None:
    record = refused()
    assert codec.decode(codec.encode(record), PairRecord) == record
    assert record.cell_id == record.pair_id


def test_pairs_have_lines_of_their_own_in_a_run_file(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with store.RunWriter(path, {"matrix": "pairs"}) as writer:
        writer.started(recorded().pair_id)
        writer.pair(recorded(verdict=Verdict.ERROR))
        writer.started(recorded().pair_id, 2)
        writer.pair(recorded(attempt=2))
        writer.started(refused().pair_id)
    run = store.read(path)
    assert run.problems == [] and run.records == []
    assert [(r.pair_id, r.verdict) for r in run.pairs] == [(recorded().pair_id, Verdict.PASS)]
    assert run.started == [refused().pair_id]
    assert run.attempts[recorded().pair_id] == 2
    merged = store.merge([run, store.Run(pairs=[refused()])])
    assert [r.verdict for r in merged.pairs] == [Verdict.PASS, Verdict.REJECTED]
    assert merged.started == []


def test_a_newer_pair_record_is_named(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with store.RunWriter(path, {}) as writer:
        writer.pair(recorded())
    text = path.read_text().replace(f'"version":{PAIR_VERSION}', f'"version":{PAIR_VERSION + 1}')
    if f'"version":{PAIR_VERSION + 1}' not in text:
        text = text.replace('"kind":"pair","record":{', f'"kind":"pair","record":{{"version":{PAIR_VERSION + 1},')
    path.write_text(text)
    with pytest.raises(InputError, match=f"record version {PAIR_VERSION + 1}"):
        store.read(path)


def test_a_set_up_that_contradicts_itself_warns_and_stays_what_ran() -> None:
    said = "draft step 2 reads other tokens' keys"
    for verdict, kind in ((Verdict.PASS, Kind.PASSED), (Verdict.UNVERIFIED, Kind.SKIPPED)):
        got = pair_outcome.outcome(recorded(verdict=verdict, contradictions=(said,)))
        assert (got.kind, got.warning) == (kind, said)
    expected = Expectation((Verdict.PASS,), "why", "unreported")
    assert pair_outcome.outcome(recorded(contradictions=(said,)), expected).warning == said
    assert pair_outcome.outcome(recorded()).warning == ""
    assert pair_outcome.outcome(recorded(verdict=Verdict.WRONG, contradictions=(said,))).kind is Kind.FAILED


def test_outcomes_in_pytest_s_words() -> None:
    assert pair_outcome.outcome(recorded()).kind is Kind.PASSED
    skipped = pair_outcome.outcome(refused())
    assert skipped.kind is Kind.SKIPPED
    assert "kernel blocks and metadata builders" in skipped.text and "No common block size" in skipped.text
    failed = pair_outcome.outcome(recorded(verdict=Verdict.WRONG, reasons=("drafter: off",)))
    assert failed.kind is Kind.FAILED and "off" in failed.text
    untold = pair_outcome.outcome(recorded(verdict=Verdict.UNAVAILABLE, reasons=("no AITER",)))
    assert untold.kind is Kind.SKIPPED and "no AITER" in untold.text


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (recorded(), True),
        (refused(), True),
        (recorded(verdict=Verdict.UNVERIFIED), True),
        (recorded(verdict=Verdict.UNVERIFIED, layout=""), False),
        (recorded(verdict=Verdict.UNAVAILABLE), False),
    ],
)
def test_a_refusal_tells_something(record: PairRecord, expected: bool) -> None:
    assert pair_outcome.told(record) is expected
