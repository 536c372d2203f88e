"""Offline targets: vLLM's dispatch runs, and Triton compiles true code objects within true limits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from engine_helpers import claim, kernel

from capmatrix.cell import Flag, Force, Geometry, Phase, Record, Rung, Verdict

pytestmark = pytest.mark.engine

Run = Callable[..., Record]


@pytest.mark.parametrize("block", [16, 128])
@pytest.mark.parametrize("dtype", ["auto", "fp8"])
def test_triton_attn_compiles_for_gfx942(run: Run, block: int, dtype: str) -> None:
    record = run("offline:gfx942", "TRITON_ATTN", block, dtype, "verify")
    assert (record.verdict, record.rung) == (Verdict.PASS, Rung.COMPILED)
    assert (record.kernel_block, record.layout, record.implementation) == (block, "LBNHC", "TritonAttentionImpl")
    attention = kernel(record, "kernel_unified_attention")
    assert attention.phase == "forward"
    assert 0 < (attention.lds_bytes or 0) <= 65536
    assert 0 < (attention.vgprs or 0) <= 512
    assert attention.vgpr_spills == 0


def test_decode_of_few_requests_splits_the_context(run: Run) -> None:
    """TRITON_ATTN's switch: up to 128 // KV heads requests decode in three dimensions, and are then reduced."""
    few = run("offline:gfx942", "TRITON_ATTN", 16, "auto", "decode")
    many = run("offline:gfx942", "TRITON_ATTN", 16, "auto", "many_decode")
    assert "reduce_segments" in [k.name for k in few.route]
    assert "reduce_segments" not in [k.name for k in many.route]


def test_rocm_attn_at_block_16_is_native(run: Run) -> None:
    record = run("offline:gfx942", "ROCM_ATTN", 16, "fp8", "decode")
    assert record.verdict is Verdict.UNVERIFIED
    assert kernel(record, "_rocm_C.paged_attention").kind == "native"
    assert kernel(record, "_C_cache_ops.reshape_and_cache").kind == "stand_in"
    assert Flag.STAND_IN in record.flags and Flag.FALLBACK not in record.flags
    assert "wrote 4 of 4 rows" in record.reasons[0]


def test_rocm_attn_verifies_with_triton_where_its_decode_is_native(run: Run) -> None:
    record = run("offline:gfx942", "ROCM_ATTN", 16, "fp8", "verify")
    assert record.verdict is Verdict.PASS
    assert kernel(record, "_fwd_kernel").kind == "triton"
    assert kernel(record, "_rocm_C.paged_attention").kind == "native"


def test_rocm_attn_at_block_128_falls_back(run: Run) -> None:
    record = run("offline:gfx942", "ROCM_ATTN", 128, "fp8", "decode")
    assert record.verdict is Verdict.PASS
    assert Flag.FALLBACK in record.flags
    fallback = kernel(record, "kernel_paged_attention_2d")
    assert fallback.grid == (4, 16, 1)
    assert fallback.lds_bytes == 32768


def test_a_kernel_beyond_the_lds_limit_is_an_error_in_compile_or_forward(run: Run) -> None:
    """The limit is the architecture's: gfx950 has 160 KiB of LDS where gfx942 has 64."""
    shape = {"dtype": "float32", "geometry": Geometry(8, 8, 256), "method": "none", "num_speculative_tokens": 2}
    record = run("offline:gfx942", "ROCM_ATTN", 16, "auto", "verify", **shape)
    assert record.verdict is not Verdict.PASS
    if record.verdict is Verdict.ERROR:
        assert record.failure is not None and record.failure.type == "OutOfResources"
        assert "65536" in record.failure.message


def test_claim_layers_are_apart(run: Run) -> None:
    record = run("offline:gfx942", "ROCM_AITER_FA", 128, "fp8", "decode", forced_block=128)
    assert claim(record, "validation").accepts is True
    assert claim(record, "selector").data["default"] == "ROCM_ATTN"
    blocks = claim(record, "kernel_block")
    assert blocks.data["declared"] == ["16", "32"]
    assert blocks.data["manager_accepted"] is True
    assert blocks.data["resolved"] == 32
    assert claim(record, "shared_group").accepts is False
    assert "No common block size for 128" in claim(record, "shared_group").detail
    assert claim(record, "proposer").accepts is None


def test_forcing_the_kernel_block_is_another_experiment(run: Run) -> None:
    record = run("offline:gfx942", "ROCM_AITER_FA", 128, "fp8", "decode", force=Force.KERNEL_BLOCK, kernel_block=128)
    assert Flag.FORCED_KERNEL_BLOCK in record.flags
    assert record.kernel_block == 128
    assert record.verdict in (Verdict.UNVERIFIED, Verdict.UNAVAILABLE)
    plain = run("offline:gfx942", "ROCM_AITER_FA", 128, "fp8", "decode")
    assert plain.kernel_block == 32


def test_a_rejection_names_vllms_reasons_and_runs_nothing(run: Run) -> None:
    record = run("offline:gfx942", "FLEX_ATTENTION", 16, "fp8", "decode")
    assert (record.verdict, record.rung, record.phase) == (Verdict.REJECTED, Rung.DECLARED, Phase.SELECT)
    assert record.reasons == ("kv_cache_dtype not supported",)
    assert record.route == ()


def test_forcing_validation_shows_where_a_rejected_cell_breaks(run: Run) -> None:
    record = run("offline:gfx942", "ROCM_ATTN", 16, "int8_per_token_head", "decode", force=Force.VALIDATION)
    assert Flag.FORCED_VALIDATION in record.flags
    assert record.verdict is not Verdict.REJECTED
    assert claim(record, "validation").accepts is False


def test_an_error_of_set_up_has_its_phase_and_frame(run: Run) -> None:
    record = run("offline:gfx942", "FLEX_ATTENTION", 544, "auto", "decode")
    assert (record.verdict, record.phase) == (Verdict.ERROR, Phase.BUILD)
    assert record.failure is not None
    assert record.failure.frame.startswith("vllm/v1/attention/backends/flex_attention.py")
    assert "power of 2" in record.failure.message


@pytest.mark.parametrize("target", ["offline:gfx942", "offline:gfx950"])
def test_flex_attention_is_inductors_template_for_the_architecture(run: Run, target: str) -> None:
    record = run(target, "FLEX_ATTENTION", 16, "auto", "verify")
    assert (record.verdict, record.rung) == (Verdict.PASS, Rung.COMPILED), record.reasons
    (attention,) = [k for k in record.route if k.phase == "forward"]
    assert "flex_attention" in attention.name
    assert (attention.lds_bytes or 0) > 0 and (attention.vgprs or 0) > 0


def test_flex_attention_out_of_lds_is_compiled_again_without_pipelining(run: Run) -> None:
    """As Inductor does: with two stages it needs 73,728 bytes, of which gfx942 has 65,536 and gfx950 163,840."""
    stages = {}
    for target in ("offline:gfx942", "offline:gfx950"):
        record = run(target, "FLEX_ATTENTION", 128, "auto", "verify", geometry=Geometry(4, 4, 128))
        assert record.verdict is Verdict.PASS, record.reasons
        (attention,) = [k for k in record.route if k.phase == "forward"]
        stages[target] = attention.num_stages
        assert 0 < (attention.lds_bytes or 0) <= 65536 or target == "offline:gfx950"
    assert stages == {"offline:gfx942": 1, "offline:gfx950": 2}


def test_flex_attention_beyond_the_lds_is_an_error_that_says_so(run: Run) -> None:
    wide = Geometry(4, 4, 256)
    record = run("offline:gfx942", "FLEX_ATTENTION", 128, "auto", "verify", geometry=wide, dtype="float32")
    assert (record.verdict, record.phase) == (Verdict.ERROR, Phase.COMPILE)
    assert "shared memory, Required: 131072, Hardware limit: 65536" in record.reasons[0]


def test_attention_that_pytorch_computes_is_not_called_compiled(run: Run) -> None:
    record = run("offline:gfx942", "TURBOQUANT", 16, "turboquant_k8v4", "prefill")
    assert record.verdict is Verdict.UNVERIFIED
    assert "PyTorch computed the attention" in record.reasons[0]


def test_the_record_says_what_it_rests_on(run: Run, pool: object) -> None:
    record = run("offline:gfx942", "TRITON_ATTN", 16, "auto", "verify")
    environment = pool.environments[record.environment]  # type: ignore[attr-defined]
    assert environment.target == "offline:gfx942"
    assert environment.identity["arch"] == "gfx942"
    assert {"vllm", "torch", "triton", "python"} <= set(environment.versions)
    assert any("virtual ROCm platform" in change for change in environment.extensions)
    assert record.durations["forward"] >= 0
