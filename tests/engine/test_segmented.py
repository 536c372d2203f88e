"""ROCM_SEGMENTED_ATTN without a GPU: its own kernels run, and unified attention stands for a fallback."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from engine_helpers import kernel

from capmatrix.cell import Flag, Geometry, Record, Rung, Verdict

pytestmark = pytest.mark.engine

Run = Callable[..., Record]

BACKEND, SMALL = "ROCM_SEGMENTED_ATTN", Geometry(4, 2, 64)


@pytest.mark.slow
@pytest.mark.parametrize("batch", ["decode", "verify", "prefill"])
def test_its_own_kernel_is_compiled(run: Run, batch: str) -> None:
    record = run("offline:gfx1201", BACKEND, 16, "auto", batch, geometry=SMALL)
    assert (record.verdict, record.rung) == (Verdict.PASS, Rung.COMPILED), record.reasons
    assert (kernel(record, "_segmented_attention_stage").vgprs or 0) > 0
    assert Flag.FALLBACK not in record.flags and "kernel_unified_attention" not in [k.name for k in record.route]


@pytest.mark.parametrize("block", [16, 272])
@pytest.mark.parametrize("dtype", ["auto", "fp8"])
def test_its_own_kernels_are_right(run: Run, block: int, dtype: str) -> None:
    record = run("interpreter:gfx1201", BACKEND, block, dtype, "long_decode", geometry=SMALL)
    assert (record.verdict, record.flags) == (Verdict.PASS, ()), record.reasons
    assert [k.name for k in record.route][-2:] == ["_segmented_attention_stage", "_segmented_attention_reduce"]
    assert "q.is_cuda (segmented_attention)" in record.shims


def test_a_soft_cap_is_for_unified_attention(run: Run) -> None:
    capped = Geometry(4, 2, 64, logits_soft_cap=30.0)
    record = run("interpreter:gfx1201", BACKEND, 16, "auto", "verify", geometry=capped)
    assert (record.verdict, record.flags) == (Verdict.PASS, (Flag.FALLBACK,)), record.reasons
    assert kernel(record, "kernel_unified_attention")


def test_a_window_reads_evicted_blocks(run: Run) -> None:
    record = run("interpreter:gfx1201", BACKEND, 16, "auto", "decode", geometry=Geometry(4, 2, 64, sliding_window=38))
    assert (record.verdict, record.flags) == (Verdict.PASS, (Flag.NAN_UNSAFE,)), record.reasons


def test_fp8_is_gfx12s(run: Run) -> None:
    record = run("interpreter:gfx1100", BACKEND, 16, "fp8", "decode", geometry=SMALL)
    assert (record.verdict, record.reasons) == (Verdict.REJECTED, ("FP8 segmented attention requires gfx12",))
