"""Geometries and caches beyond the plain ones, interpreted and judged: what is right, and what the flags say."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from engine_helpers import checks

from capmatrix.cell import Flag, Geometry, Record, Verdict
from capmatrix.workers.pool import Pool

pytestmark = [pytest.mark.engine, pytest.mark.slow]

Run = Callable[..., Record]
SMALL = Geometry(4, 2, 64)
WINDOWED = Geometry(4, 2, 64, sliding_window=32)
CAPPED = Geometry(4, 2, 64, logits_soft_cap=30.0)


def run_small(run: Run, backend: str, block: int, cache: str, batch: str, **more: Any) -> Record:
    """One cell on small heads."""
    return run("interpreter:gfx942", backend, block, cache, batch, **{"geometry": SMALL, **more})


@pytest.mark.parametrize("dtype", ["int8_per_token_head", "fp8_per_token_head", "int4_per_token_head"])
@pytest.mark.parametrize("batch", ["decode", "verify"])
def test_codes_with_their_own_scales_are_read_back(run: Run, dtype: str, batch: str) -> None:
    record = run_small(run, "TRITON_ATTN", 16, dtype, batch)
    assert record.verdict is Verdict.PASS, record.reasons
    write, forward = checks(record, "write")[0], checks(record, "forward")[0]
    # Within half a step of its scale, and not as good as exact: something was quantised.
    assert write.ok is True and write.max_abs is not None and 0.5 < write.max_abs <= 1.0
    assert forward.ok is True and forward.relative_l2 is not None and 0 < forward.relative_l2 < 0.01
    (accuracy,) = checks(record, "accuracy")
    assert accuracy.ok is None and accuracy.relative_l2 is not None and accuracy.relative_l2 > forward.relative_l2


@pytest.mark.parametrize(
    "geometry",
    [
        WINDOWED,
        Geometry(4, 2, 64, sinks=True),
        CAPPED,
        Geometry(4, 2, 64, causal=False),
        Geometry(3, 1, 80),
        Geometry(16, 1, 64),
        Geometry(2, 2, 256),
    ],
    ids=["window", "sinks", "soft-cap", "non-causal", "gqa3-h80", "gqa16", "h256"],
)
@pytest.mark.parametrize("dtype", ["auto", "fp8"])
def test_triton_attn_is_right_on_them(run: Run, geometry: Geometry, dtype: str) -> None:
    record = run_small(run, "TRITON_ATTN", 16, dtype, "verify", geometry=geometry)
    assert record.verdict is Verdict.PASS and not record.flags, record.reasons


@pytest.mark.parametrize("block", [272, 544, 1056])
def test_blocks_of_hybrid_models(run: Run, block: int) -> None:
    for backend in ("TRITON_ATTN", "ROCM_ATTN"):
        record = run_small(run, backend, block, "fp8", "verify")
        assert record.verdict is Verdict.PASS, (backend, record.reasons)


@pytest.mark.parametrize("batch", ["decode", "verify"])
def test_rocm_attn_reads_blocks_that_a_window_left_behind(run: Run, batch: str) -> None:
    """Their keys are masked, but their values are multiplied by zero: NaN there is NaN in the output."""
    record = run_small(run, "ROCM_ATTN", 64, "auto", batch, geometry=WINDOWED)
    assert record.verdict is Verdict.PASS and Flag.NAN_UNSAFE in record.flags
    by_cache = {check.cache: check.ok for check in checks(record, "forward")}
    assert by_cache == {"nan": None, "zeroed": True, "stale": True}


@pytest.mark.parametrize("batch", ["decode", "verify"])
def test_rocm_attn_ignores_a_soft_cap(run: Run, batch: str) -> None:
    record = run_small(run, "ROCM_ATTN", 64, "auto", batch, geometry=CAPPED)
    assert record.verdict is Verdict.WRONG
    assert all(check.ok is False for check in checks(record, "forward"))


@pytest.mark.parametrize("dtype", ["auto", "fp8"])
def test_rows_whose_first_tile_is_masked_keep_their_small_weights(run: Run, dtype: str) -> None:
    """Known to fail in float16: the maximum starts again at 0, and P of logits far below it is lost."""
    window = Geometry(4, 2, 64, sliding_window=38)
    half = run_small(run, "TRITON_ATTN", 16, dtype, "chunked_prefill", geometry=window, dtype="float16")
    assert half.verdict is Verdict.WRONG and "16 of 212 rows are off" in half.reasons[0]
    assert run_small(run, "TRITON_ATTN", 16, dtype, "chunked_prefill", geometry=window).verdict is Verdict.PASS


def test_accuracy_is_that_of_the_cache(run: Run) -> None:
    exact = run_small(run, "TRITON_ATTN", 16, "auto", "verify")
    coarse = run_small(run, "TRITON_ATTN", 16, "fp8", "verify")
    errors = [checks(record, "accuracy")[0].relative_l2 or 0.0 for record in (exact, coarse)]
    assert errors[0] == pytest.approx(checks(exact, "forward")[0].relative_l2)
    assert errors[1] > 5 * errors[0]
    for record in (exact, coarse):
        forward = checks(record, "forward")[0]
        assert forward.plain_error is not None and forward.relative_l2 is not None
        assert 0.3 < forward.relative_l2 / forward.plain_error < 3.0


AITER = os.environ.get("CAPMATRIX_TEST_AITER", "")


@pytest.mark.skipif(not AITER, reason="CAPMATRIX_TEST_AITER names no AITER checkout")
def test_e5m2_is_an_error_of_vllm_over_aiters_kernel(run: Run) -> None:
    with Pool(options={"aiter": AITER}, retry_alone=False) as other:
        cell = run("interpreter:gfx950", "ROCM_AITER_UNIFIED_ATTN", 64, "fp8_e5m2", "decode", geometry=SMALL).cell
        record = other.run(cell)
    assert record.verdict is Verdict.ERROR and record.failure is not None
    assert record.failure.type == "AssertionError"
    assert record.failure.frame.startswith("vllm/model_executor/layers/attention/attention.py")
