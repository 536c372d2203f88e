"""What parts of a script a plan needs."""

from __future__ import annotations

from .plan import Plan, manager_block

#: FP8 KV cache dtypes and the type that each asks for.
FP8 = {
    "fp8": "current_platform.fp8_dtype()",
    "fp8_e4m3": "current_platform.fp8_dtype()",
    "fp8_e5m2": "torch.float8_e5m2",
}


def has_context(plan: Plan) -> bool:
    """Whether any request has tokens in the cache before the call."""
    return any(r.query_len < r.seq_len for r in plan.batch.requests)


def has_drafter_model(plan: Plan) -> bool:
    """Whether the configuration names a drafter of the cell's geometry."""
    return plan.cell.method in ("eagle", "eagle3") and plan.cell.num_speculative_tokens > 0


def has_scales(plan: Plan) -> bool:
    """Whether the layer gets scales other than 1."""
    return plan.cell.scales == "non_unit" and plan.cell.kv_cache_dtype in FP8


def window_left(plan: Plan) -> bool:
    """Whether a sliding window has left whole blocks of the batch behind, which vLLM then evicts."""
    window = plan.cell.geometry.sliding_window
    block = manager_block(plan.record)
    return bool(window) and any(r.seq_len - r.query_len - (window or 0) + 1 >= block for r in plan.batch.requests)
