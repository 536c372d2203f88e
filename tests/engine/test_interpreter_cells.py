"""Interpreter targets: vLLM's kernels run on values, and their numbers are judged against float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from engine_helpers import checks, kernel

from capmatrix.cell import Flag, Record, Rung, Verdict

pytestmark = pytest.mark.engine

Run = Callable[..., Record]


@pytest.mark.parametrize("target", ["interpreter:gfx942", "interpreter:gfx950"])
@pytest.mark.parametrize("batch", ["decode", "verify", "prefill"])
@pytest.mark.parametrize("dtype", ["auto", "fp8"])
def test_triton_attn_is_right(run: Run, target: str, batch: str, dtype: str) -> None:
    record = run(target, "TRITON_ATTN", 16, dtype, batch)
    assert (record.verdict, record.rung) == (Verdict.PASS, Rung.INTERPRETED), record.reasons
    (forward,) = checks(record, "forward")
    assert forward.cache == "nan" and forward.nan_count == 0 and forward.unwritten_count == 0
    # Measured before: 0.0017 to 0.0021 in bf16; an error of zero would mean that nothing was compared.
    assert forward.relative_l2 is not None and 0 < forward.relative_l2 < 0.005
    assert forward.bound is not None and forward.relative_l2 < forward.bound < 0.05
    (needles,) = checks(record, "needles")
    assert needles.ok is True
    assert all(c.ok is True for c in checks(record, "write") + checks(record, "guard"))


@pytest.mark.parametrize("batch", ["decode", "verify", "chunked_prefill", "mixed", "boundary", "padded"])
def test_rocm_attns_triton_path_is_right(run: Run, batch: str) -> None:
    record = run("interpreter:gfx942", "ROCM_ATTN", 64, "fp8", batch)
    assert record.verdict is Verdict.PASS, record.reasons
    assert (Flag.FALLBACK in record.flags) == (batch in ("decode", "mixed", "boundary", "padded"))


def test_rows_of_a_native_operator_are_not_judged(run: Run) -> None:
    record = run("interpreter:gfx942", "ROCM_ATTN", 16, "auto", "decode")
    assert record.verdict is Verdict.UNVERIFIED
    assert checks(record, "forward")[0].ok is None
    assert kernel(record, "_rocm_C.paged_attention").kind == "native"
    assert all(c.ok is True for c in checks(record, "write"))


def test_native_rows_leave_the_others_judged(run: Run) -> None:
    record = run("interpreter:gfx942", "ROCM_ATTN", 16, "auto", "mixed")
    assert record.verdict is Verdict.UNVERIFIED
    forward = checks(record, "forward")[0]
    assert forward.ok is True and forward.relative_l2 is not None and forward.relative_l2 > 0


def test_e5m2_is_stored_as_e4m3_by_triton_attn(run: Run) -> None:
    record = run("interpreter:gfx942", "TRITON_ATTN", 64, "fp8_e5m2", "decode")
    assert record.verdict is Verdict.WRONG
    assert record.reasons == ("write: the cache holds float8_e4m3fnuz, not the float8_e5m2 that was asked for",)
    assert all(c.ok is True for c in checks(record, "forward") + checks(record, "needles"))


def test_e5m2_is_read_wrong_by_rocm_attn(run: Run) -> None:
    record = run("interpreter:gfx942", "ROCM_ATTN", 64, "fp8_e5m2", "decode")
    assert record.verdict is Verdict.WRONG
    forward = checks(record, "forward")[0]
    assert forward.ok is False and forward.relative_l2 is not None and forward.relative_l2 > 0.3


def test_the_interpreters_extension_is_named(run: Run, pool: object) -> None:
    record = run("interpreter:gfx950", "TRITON_ATTN", 16, "auto", "decode")
    environment = pool.environments[record.environment]  # type: ignore[attr-defined]
    assert any("interpreter extension" in change for change in environment.extensions)


def test_half_precision_models_are_judged_too(run: Run) -> None:
    record = run("interpreter:gfx950", "TRITON_ATTN", 16, "auto", "verify", dtype="float16")
    assert record.verdict is Verdict.PASS, record.reasons
    forward = checks(record, "forward")[0]
    assert forward.relative_l2 is not None and 0 < forward.relative_l2 < 0.001
