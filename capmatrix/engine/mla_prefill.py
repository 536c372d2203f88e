"""The prefill backend of latent attention: which one vLLM picks, and flash-attn where it is not installed.

On ROCm vLLM tries AITER's and then upstream flash-attn, and refuses to build the layer without one, even for
batches that never prefill. ROCm images ship flash-attn; where this machine has neither ROCm nor flash-attn
its one function is counted as there: a native operator, whose rows are unverified.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import torch
from vllm.platforms import current_platform
from vllm.v1.attention.backends.mla.prefill import flash_attn
from vllm.v1.attention.backends.mla.prefill.base import MLADimensions
from vllm.v1.attention.backends.mla.prefill.selector import MLAPrefillSelectorConfig

from ..cell import Cell, Claim
from . import mla_inputs, native_ops, route, shims

#: The function of upstream flash-attn that vLLM calls on ROCm, as the route names it.
FLASH_ATTN = "flash_attn.flash_attn_varlen_func"


def claim(cell: Cell) -> Claim:
    """Which prefill backend vLLM picks for the cell with what is installed, or why none is valid."""
    m = mla_inputs.widths(cell.geometry)
    dimensions = MLADimensions(
        qk_nope_head_dim=m.qk_nope_head_dim, qk_rope_head_dim=m.qk_rope_head_dim, v_head_dim=m.v_head_dim
    )
    asked = MLAPrefillSelectorConfig(dtype=getattr(torch, cell.dtype), mla_dimensions=dimensions)
    try:
        chosen = current_platform.get_mla_prefill_backend_cls(asked).get_name()
    except ValueError as error:
        return Claim("mla_prefill", False, str(error), {"selected": None})
    return Claim("mla_prefill", True, f"prefill runs on {chosen}", {"selected": chosen})


@contextlib.contextmanager
def flash_attn_counted_as_installed() -> Iterator[None]:
    """Within, vLLM finds flash-attn installed. Where it is, or where ROCm is, nothing is changed."""
    if torch.version.hip is not None or find_spec("flash_attn") is not None:
        yield
        return
    # Metadata builders clone the prefill backend later, when nobody asks for its availability.
    flash_attn.flash_attn_varlen_func = _without_code
    asked = flash_attn.is_flash_attn_varlen_func_available
    flash_attn.is_flash_attn_varlen_func_available = shims.answering("flash-attn counted as installed", True)
    try:
        yield
    finally:
        flash_attn.is_flash_attn_varlen_func_available = asked


def _without_code(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, return_attn_probs: bool = False, **rest: Any
) -> Any:
    """Output (tokens, heads, size) and log-sum-exps (heads, tokens), all NaN."""
    route.launched(FLASH_ATTN, "native")
    out = q.new_full((*q.shape[:2], v.shape[-1]), float("nan"))
    native_ops.claim(out)
    if not return_attn_probs:
        return out
    return out, torch.full((q.shape[1], q.shape[0]), float("nan"), device=q.device), None
