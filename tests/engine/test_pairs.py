"""Pairs through vLLM's own engine set-up: what 0.32.0 resolves, where it refuses, both sides' attention in one pool.

Each expectation was read in vLLM's source as well as seen: layouts in ``get_supported_kv_cache_layouts`` and
``resolve_kv_cache_layout``, kernel blocks in ``select_common_block_size``, inheritance in ``apply_draft_overrides``
(V2) and ``_create_draft_vllm_config`` (V1). Targets have eight KV heads: with two, ROCM_ATTN's K and V slots are
as many as another backend's heads, specs look alike, and layouts come out as if nothing were mixed.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest

from capmatrix import paths
from capmatrix.cell import Flag, Phase, Rung, Verdict
from capmatrix.pair import Pair, PairRecord
from capmatrix.pairs import pairfile
from capmatrix.pairs.pairfile import PairMatrix, Product
from capmatrix.workers.pool import Pool

pytestmark = pytest.mark.engine

Ask = Callable[..., PairRecord]

SHIPPED = pairfile.load(paths.matrices_dir() / "pairs.toml")
LLAMA = {"target_model": "llama3.1-8b", "drafter": "eagle3-llama3.1-8b"}
SEED = {"target_model": "minimax-m3", "drafter": "minimax-m3-eagle3", "tp": 4, "kv_cache_dtype": "fp8"}


def pair(matrix: PairMatrix, target: str, batches: tuple[str, ...], **values: Any) -> Pair:
    """One pair: a file's table with single values, those not given its defaults."""
    all_values = {key: default for key, (_, default) in pairfile._KEYS.items() if default is not None}
    all_values |= {key: (value,) for key, value in values.items()}
    part = Product("one", "one", all_values, batches, ())
    one = PairMatrix("", "", "", {"one": part}, matrix.switches, matrix.models, matrix.families)
    return pairfile.expand(one, None, [target])[0]


@pytest.fixture(scope="session")
def ask(pool: Pool) -> Ask:
    """Runs one pair: ``ask(LLAMA, block_size=16, batches=("decode",), target="offline:gfx942")``."""
    if find_spec("vllm") is None:
        pytest.skip("vLLM is not installed")

    def one(
        models: dict[str, Any], target: str = "offline:gfx942", batches: tuple[str, ...] = (), **values: Any
    ) -> PairRecord:
        return pool.run_pair(pair(SHIPPED, target, batches, **models, **values))

    return one


def backends(record: PairRecord) -> tuple[str, str]:
    return "+".join(record.target_model.backends), "+".join(record.drafter.backends)


def kernel_blocks(record: PairRecord) -> set[int | None]:
    return {group.kernel_block for group in record.groups}


def test_both_left_to_vllm_share_a_native_layout(ask: Ask) -> None:
    """Equal heads give equal specs, so that any layout will do, and ROCM_ATTN's first is the native one."""
    record = ask(LLAMA, block_size=16)
    assert (record.verdict, record.rung, record.runner) == (Verdict.PASS, Rung.DECLARED, "v2")
    assert backends(record) == ("ROCM_ATTN", "ROCM_ATTN")
    assert (record.target_model.how, record.drafter.how) == ("automatic", "automatic")
    assert (record.layout, record.layouts) == ("LHBNC", ("LHBNC", "LBHNC"))
    assert (record.target_model.native_path, record.drafter.native_path) == (True, True)
    (group,) = record.groups
    assert (group.manager_block, group.kernel_block) == (16, 16)
    assert group.layers == {"drafter ROCM_ATTN": 1, "target ROCM_ATTN": 8}
    assert record.graph_support == "ALWAYS"


def test_a_group_of_two_backends_takes_the_block_that_both_do(ask: Ask) -> None:
    record = ask(LLAMA, target_backend="ROCM_ATTN", drafter_backend="ROCM_AITER_FA", block_size=128)
    assert record.verdict is Verdict.PASS
    assert backends(record) == ("ROCM_ATTN", "ROCM_AITER_FA")
    assert (record.manager_block, kernel_blocks(record)) == (128, {32})
    assert record.layout == "LBHNC"  # K and V as two slots beside eight heads: mixed, so block-compact
    assert record.target_model.native_path is False
    assert "not packed" in record.target_model.native_reason
    assert record.graph_support == "UNIFORM_BATCH"  # ROCM_AITER_FA's


def test_a_block_that_is_no_power_of_two_is_split_too(ask: Ask) -> None:
    record = ask(
        LLAMA, target_backend="ROCM_AITER_FA", drafter_backend="TRITON_ATTN", block_size=544, kv_cache_dtype="fp8"
    )
    assert record.verdict is Verdict.PASS
    assert (record.manager_block, kernel_blocks(record)) == (544, {32})
    assert (record.target_model.kv_cache_dtype, record.drafter.kv_cache_dtype) == ("fp8", "fp8")


def test_a_preferred_block_is_not_taken_where_none_is_given(ask: Ask) -> None:
    """ROCM_AITER_UNIFIED_ATTN prefers 64; the smallest default that all take is 16."""
    record = ask(LLAMA, target_backend="ROCM_AITER_UNIFIED_ATTN", drafter_backend="TRITON_ATTN")
    assert record.verdict is Verdict.PASS
    assert (record.pair.block_size, record.manager_block, kernel_blocks(record)) == (None, 16, {16})


@pytest.mark.parametrize("target_backend", ["ROCM_ATTN", "FLEX_ATTENTION"])
def test_layouts_without_any_in_common_are_refused(ask: Ask, target_backend: str) -> None:
    other = {"ROCM_ATTN": "FLEX_ATTENTION", "FLEX_ATTENTION": "ROCM_ATTN"}[target_backend]
    record = ask(LLAMA, target_backend=target_backend, drafter_backend=other, block_size=64)
    assert (record.verdict, record.phase, record.step) == (Verdict.REJECTED, Phase.BUILD, "KV cache layout")
    assert "No KV cache layout satisfies every supported set" in record.reasons[0]
    assert record.failure is not None and "get_supported_kv_cache_layouts" in record.failure.frame
    assert backends(record) == (target_backend, other)  # what was resolved before the refusal stays known
    assert record.groups == ()


def test_the_seed_s_drafter_has_no_common_block_with_sparse_layers(ask: Ask) -> None:
    record = ask(SEED, target_backend="TRITON_ATTN", drafter_backend="ROCM_AITER_FA", block_size=128)
    assert (record.verdict, record.phase) == (Verdict.REJECTED, Phase.BUILD)
    assert record.step == "kernel blocks and metadata builders"
    assert "No common block size for 128" in record.reasons[0]
    assert "MINIMAX_M3_SPARSE: [128]" in record.reasons[0]
    (group,) = record.groups
    assert (group.manager_block, group.kernel_block) == (128, None)
    assert group.layers["drafter ROCM_AITER_FA"] == 1
    assert group.layers["target MINIMAX_M3_SPARSE"] == 3


@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_only_v2_inherits(ask: Ask, runner: str) -> None:
    """The seed's complaint is gone in V2, where the drafter takes TRITON_ATTN from its target, and stays in V1."""
    record = ask(SEED, target_backend="TRITON_ATTN", block_size=128, runner=runner)
    assert (record.verdict, record.runner) == (Verdict.PASS, runner)
    expected = {"v1": ("ROCM_ATTN", "automatic"), "v2": ("TRITON_ATTN", "inherited")}[runner]
    assert (*record.drafter.backends, record.drafter.how) == expected
    assert record.effective["attention_backend"] is None  # what was asked of the draft: nothing
    assert ("never inherits" in record.rules[1]) == (runner == "v1")


def test_the_indexer_forces_the_block_where_none_is_given(ask: Ask) -> None:
    record = ask(SEED, target_backend="TRITON_ATTN")
    assert (record.verdict, record.manager_block, kernel_blocks(record)) == (Verdict.PASS, 128, {128})
    assert record.target_model.backends == {"TRITON_ATTN": 3, "MINIMAX_M3_SPARSE_INDEXER": 3, "MINIMAX_M3_SPARSE": 3}


def test_a_backend_of_another_platform_is_refused_when_the_drafter_loads(ask: Ask) -> None:
    record = ask(SEED, target_backend="TRITON_ATTN", drafter_backend="FLASH_ATTN", block_size=128)
    assert (record.verdict, record.phase, record.step) == (Verdict.REJECTED, Phase.SELECT, "drafter")
    assert "FLASH_ATTN is not valid" in record.reasons[0]


def test_v2_drops_what_is_asked_for_a_plain_draft_model(ask: Ask) -> None:
    """``StandaloneARSpeculator.load_draft_model`` reads no attention_backend; V1's proposer does."""
    models = {"target_model": "qwen3-8b", "drafter": "draft-model-qwen3-0.6b"}
    asked = {"target_backend": "TRITON_ATTN", "drafter_backend": "ROCM_ATTN"}
    dropped = ask(models, **asked, runner="v2")
    assert (*dropped.drafter.backends, dropped.drafter.how) == ("TRITON_ATTN", "ignored")
    assert any("ROCM_ATTN, is dropped" in rule for rule in dropped.rules)
    honoured = ask(models, **asked, runner="v1")
    assert (*honoured.drafter.backends, honoured.drafter.how) == ("ROCM_ATTN", "explicit")


@pytest.mark.parametrize("target_kv,draft_kv", [("fp8", "auto"), ("auto", "fp8")])
def test_the_draft_s_own_kv_dtype(ask: Ask, target_kv: str, draft_kv: str) -> None:
    record = ask(LLAMA, block_size=16, kv_cache_dtype=target_kv, draft_kv_cache_dtype=draft_kv)
    assert record.verdict is Verdict.PASS
    assert (record.target_model.kv_cache_dtype, record.drafter.kv_cache_dtype) == (target_kv, draft_kv)
    assert record.layout == "LBHNC"  # pages of two sizes


@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_a_non_causal_drafter_does_not_ask_its_target_for_it(ask: Ask, runner: str) -> None:
    """The demand was engine-wide once; now the drafter alone is asked, and picks a backend that can."""
    record = ask({"target_model": "qwen3-8b", "drafter": "dflash-qwen3.6-27b"}, runner=runner)
    assert record.verdict is Verdict.PASS
    assert "ROCM_AITER_UNIFIED_ATTN" in record.target_model.order
    assert "ROCM_AITER_UNIFIED_ATTN" not in record.drafter.order
    assert any("non-causal" in reason for reason in record.drafter.rejections["ROCM_AITER_UNIFIED_ATTN"])


def test_a_causal_backend_is_refused_for_a_non_causal_drafter(ask: Ask) -> None:
    models = {"target_model": "qwen3-8b", "drafter": "dflash-qwen3.6-27b"}
    record = ask(models, drafter_backend="ROCM_AITER_UNIFIED_ATTN")
    assert (record.verdict, record.step) == (Verdict.REJECTED, "drafter")
    assert "non-causal" in record.reasons[0]


def test_a_hybrid_s_states_set_the_block(ask: Ask) -> None:
    """544 at TP 2 without speculation; two tokens widen the convolution's state, and it is 560."""
    record = ask({"target_model": "qwen3-next-80b", "drafter": "qwen3-next-mtp", "tp": 2})
    assert record.verdict is Verdict.PASS
    assert (record.pair.block_size, record.manager_block) == (None, 560)
    assert [group.spec for group in record.groups].count("MambaSpec") >= 1
    assert record.target_model.backends["GDN_ATTN"] == 6
    assert record.drafter.native_path is False
    pages = {group.page_bytes for group in record.groups}
    assert len(pages) == 1  # one page size for states and attention


def test_windows_and_full_attention_are_groups_of_one_pool(ask: Ask) -> None:
    record = ask({"target_model": "gpt-oss-120b", "drafter": "gpt-oss-eagle3"}, target_backend="TRITON_ATTN")
    assert record.verdict is Verdict.PASS
    assert {group.spec for group in record.groups} == {"SlidingWindowSpec", "FullAttentionSpec"}
    assert record.pool["allocations"] == 1


def test_calls_are_compiled_at_the_resolved_block(ask: Ask) -> None:
    """Decode of ROCM_AITER_FA in a group whose kernel block is 32: what the seed's forced block died of."""
    record = ask(
        LLAMA, batches=("decode",), target_backend="ROCM_ATTN", drafter_backend="ROCM_AITER_FA", block_size=128
    )
    assert [(run.role, run.backend, run.kernel_block) for run in record.runs] == [
        ("target", "ROCM_ATTN", 32),
        ("drafter", "ROCM_AITER_FA", 32),
    ]
    target, drafter = record.runs
    assert target.verdict is Verdict.PASS
    assert "kernel_paged_attention_2d" in [kernel.name for kernel in target.route]  # not native: LBHNC
    assert drafter.verdict is Verdict.UNVERIFIED and "paged_attention_v1" in drafter.reasons[0]
    assert (record.verdict, record.rung) == (Verdict.UNVERIFIED, Rung.COMPILED)
    assert target.canary is not None and target.canary.ok is True


def test_sparse_layers_are_called_with_their_indexer(ask: Ask) -> None:
    """``MiniMaxM3SparseAttention._run_attention`` on ROCm: both halves are Triton's, the write before it is native."""
    record = ask(SEED, batches=("decode",), target_backend="TRITON_ATTN", drafter_backend="TRITON_ATTN", block_size=128)
    assert (record.verdict, record.rung, record.uncalled) == (Verdict.PASS, Rung.COMPILED, ())
    assert [run.backend for run in record.runs] == ["TRITON_ATTN", "MINIMAX_M3_SPARSE", "TRITON_ATTN"]
    sparse = record.runs[1]
    assert (sparse.role, sparse.kernel_block, sparse.flags) == ("target", 128, (Flag.STAND_IN,))
    kernels = {kernel.name: kernel.kind for kernel in sparse.route}
    assert kernels["_C.fused_minimax_m3_qknorm_rope_kv_insert"] == "stand_in"
    for name in ("_decode_topk_fused_kernel", "_gqa_sparse_decode_kernel", "_merge_topk_attn_out_kernel"):
        assert kernels[name] == "triton"
    assert sparse.canary is not None and sparse.canary.ok is True


def test_recurrent_layers_are_said_to_be_no_attention(ask: Ask) -> None:
    hybrid = {"target_model": "qwen3-next-80b", "drafter": "qwen3-next-mtp", "tp": 2}
    record = ask(hybrid, batches=("decode",), target_backend="TRITON_ATTN", drafter_backend="TRITON_ATTN")
    assert record.verdict is Verdict.PASS
    (left,) = record.uncalled
    assert (left.role, left.backend, left.layers) == ("target", "GDN_ATTN", 6)
    assert left.reason == "no attention: recurrent states"


#: A target whose backend takes kernel blocks of 16 and 32, beside a drafter whose backend takes any multiple of 16.
SPLIT = {"target_backend": "ROCM_AITER_FA", "drafter_backend": "TRITON_ATTN"}
OTHER_BLOCKS = "the drafter's own metadata builder counts blocks of {}, the KV cache is in blocks of {}"


@pytest.mark.parametrize(
    ("runner", "k", "block", "when"),
    [
        ("v2", 3, 64, "draft steps 2 to 3 read"),
        ("v2", 2, 544, "draft step 2 reads"),
        ("v2", 1, 64, ""),  # no draft step of the speculator's own
        ("v2", 3, 32, ""),  # the manager's block is the kernels'
        ("v1", 3, 64, ""),  # V1's proposer is told the kernel block
    ],
)
def test_set_up_alone_tells_of_a_drafter_that_takes_other_blocks(
    ask: Ask, runner: str, k: int, block: int, when: str
) -> None:
    """V2's speculator makes its builders of the draft layers alone (``DraftModelSpeculator.set_attn``)."""
    record = ask(LLAMA, **SPLIT, runner=runner, num_speculative_tokens=k, block_size=block)
    assert (record.verdict, record.rung, kernel_blocks(record)) == (Verdict.PASS, Rung.DECLARED, {32})
    assert bool(record.contradictions) == bool(when)
    assert set(record.contradictions) <= set(record.rules)
    for said in record.contradictions:
        assert said.startswith(when) and OTHER_BLOCKS.format(block, 32) in said


def test_a_drafter_that_splits_its_blocks_like_its_target_takes_no_others(ask: Ask) -> None:
    other_way = ask(LLAMA, target_backend="TRITON_ATTN", drafter_backend="ROCM_AITER_FA", block_size=64, runner="v2")
    assert (kernel_blocks(other_way), other_way.contradictions) == ({32}, ())


@pytest.mark.parametrize("drafter", ["dflash-qwen3.6-27b", "dspark-qwen3-8b"])
def test_a_drafter_of_one_pass_takes_other_blocks_in_it(ask: Ask, drafter: str) -> None:
    record = ask({"target_model": "qwen3-8b", "drafter": drafter}, **SPLIT, block_size=64, runner="v2")
    (said,) = record.contradictions
    assert said.startswith("every draft pass reads") and OTHER_BLOCKS.format(64, 32) in said


@pytest.mark.slow
@pytest.mark.parametrize(("runner", "decode"), [("v1", Verdict.PASS), ("v2", Verdict.WRONG)])
def test_v2_s_drafter_decodes_over_other_blocks(ask: Ask, runner: str, decode: Verdict) -> None:
    """The first pass (verify) is on the runner's metadata and right under either runner; V2's decodes are not."""
    batches = ("decode", "verify")
    record = ask(LLAMA, "interpreter:gfx950", batches, **SPLIT, block_size=64, num_speculative_tokens=2, runner=runner)
    drafts = {run.batch: run for run in record.runs if run.role == "drafter"}
    assert {batch: run.verdict for batch, run in drafts.items()} == {"decode": decode, "verify": Verdict.PASS}
    assert [run.kernel_block for run in drafts.values()] == [32, 32]
    wrong = [check for check in drafts["decode"].checks if check.ok is False]
    assert {check.part for check in wrong} == ({"forward", "needles"} if decode is Verdict.WRONG else set())
    assert bool(record.contradictions) == (decode is Verdict.WRONG)


@pytest.mark.slow
@pytest.mark.parametrize("kv_cache_dtype", ["auto", "fp8"])
def test_numbers_of_sparse_layers_are_right(ask: Ask, kv_cache_dtype: str) -> None:
    """The indexer's choice by its scores, and the attention over the blocks that it chose."""
    models = {**SEED, "drafter": "minimax-m3-eagle3-gqa", "kv_cache_dtype": kv_cache_dtype}
    record = ask(models, target="interpreter:gfx950", batches=("decode",), target_backend="TRITON_ATTN", block_size=128)
    assert (record.verdict, record.rung) == (Verdict.PASS, Rung.INTERPRETED)
    (sparse,) = [run for run in record.runs if run.backend == "MINIMAX_M3_SPARSE"]
    parts = {check.part: check for check in sparse.checks}
    assert parts["forward"].ok and parts["needles"].ok and parts["write"].ok and parts["guard"].ok
    # One request has more blocks than may be selected, so that the selection decides.
    assert parts["selection"].ok and parts["selection"].detail.startswith("1 of 4 rows had more blocks than the 16")


@pytest.mark.slow
def test_numbers_are_right_in_a_hybrid_s_pool(ask: Ask) -> None:
    """Both sides over the pages that recurrent states lie on, everything else in the pool a canary."""
    record = ask(
        {"target_model": "qwen3-next-80b", "drafter": "qwen3-next-mtp", "tp": 2},
        target="interpreter:gfx950",
        batches=("decode",),
    )
    assert (record.verdict, record.rung) == (Verdict.PASS, Rung.INTERPRETED)
    assert [run.role for run in record.runs] == ["target", "drafter"]
    assert [left.backend for left in record.uncalled] == ["GDN_ATTN"]
    for run in record.runs:
        assert run.kernel_block == 560
        assert run.canary is not None and run.canary.ok is True
        assert "compared after the call" in run.canary.detail
        assert any(check.part == "forward" and check.ok for check in run.checks)
