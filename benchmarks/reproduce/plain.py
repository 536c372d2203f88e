"""What the reproductions share: a way to import vLLM's Triton kernels, on a GPU or interpreted, and plain attention."""

from __future__ import annotations

import os
import sys
import types
from typing import Any


def start() -> tuple[Any, str]:
    """torch, and the device to use; with TRITON_INTERPRET=1 vLLM is told that a CPU can run Triton."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        import triton.backends

        class Compiler:
            """Compiles for nothing."""

            @staticmethod
            def supports_target(target: object) -> bool:
                """Whether this compiler is for ``target``."""
                return False

        class Driver:
            """Drives nothing."""

            @staticmethod
            def is_active() -> bool:
                """Whether this driver's hardware is here."""
                return True

        triton.backends.backends["cpu"] = triton.backends.Backend(Compiler, Driver)
    import torch

    return torch, "cuda" if torch.cuda.is_available() else "cpu"


def without_native_paged_attention() -> None:
    """Have vLLM take its Triton kernel for decode, as it does at block 64 and more on ROCm."""
    try:
        import vllm.platforms.rocm as rocm
    except Exception:  # no ROCm here: all that is asked of the module is this
        rocm = types.ModuleType("vllm.platforms.rocm")
        sys.modules["vllm.platforms.rocm"] = rocm
    rocm.use_rocm_custom_paged_attention = lambda *args: False  # type: ignore[attr-defined]


def attention(
    q: Any, k: Any, v: Any, *, cap: float | None = None, causal: bool = True, left: int | None = None,
    right: int | None = None,
) -> Any:  # fmt: skip
    """Attention in float64: q (new, heads, size), k and v (length, heads, size), up to ``left`` back, ``right`` on."""
    import torch

    q, k, v = q.double(), k.double(), v.double()
    logits = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
    if cap:
        logits = cap * torch.tanh(logits / cap)
    position = torch.arange(k.shape[0] - q.shape[0], k.shape[0], device=q.device)[:, None]
    ahead = torch.arange(k.shape[0], device=q.device)[None] - position
    hidden = (ahead > 0) if causal else torch.zeros_like(ahead, dtype=torch.bool)
    if left is not None:
        hidden = hidden | (ahead < -left)
    if right is not None:
        hidden = hidden | (ahead > right)
    weight = torch.softmax(logits.masked_fill(hidden, float("-inf")), -1)
    return torch.einsum("hqk,khd->qhd", weight, v)


def error(got: Any, want: Any) -> float:
    """Relative norm of the error."""
    return float((got.double() - want).norm() / want.norm())


def unified(q: Any, k: Any, v: Any, *, causal: bool, window: int) -> Any:
    """vLLM's ``unified_attention`` over one request whose K and V lie in blocks of 16; ``window`` tokens."""
    import torch
    from vllm.v1.attention.ops.triton_unified_attention import unified_attention

    length, heads, size = k.shape
    blocks = -(-length // 16)
    caches = []
    for x in (k, v):
        cache = torch.zeros(blocks * 16, heads, size, dtype=x.dtype, device=x.device)
        cache[:length] = x
        caches.append(cache.view(blocks, 16, heads, size))
    out = torch.empty_like(q)
    unified_attention(
        q, *caches, out,
        cu_seqlens_q=torch.tensor([0, q.shape[0]], dtype=torch.int32, device=q.device),
        max_seqlen_q=q.shape[0],
        seqused_k=torch.tensor([length], dtype=torch.int32, device=q.device),
        max_seqlen_k=length,
        softmax_scale=size**-0.5,
        causal=causal,
        window_size=(window - 1, 0),
        block_table=torch.arange(blocks, dtype=torch.int32, device=q.device)[None],
        softcap=0,
        q_descale=None, k_descale=None, v_descale=None,
    )  # fmt: skip
    return out


def rocm(
    q: Any, k: Any, v: Any, caches: tuple[Any, Any], *, length: int, table: list[int] | None = None, window: int = 0,
    causal: bool = True, kv_cache_dtype: str = "auto",
) -> Any:  # fmt: skip
    """vLLM's ``chunked_prefill_paged_decode`` for one request: q, k, v of its new tokens, ``caches`` for its context.

    ``length`` counts context and new tokens; ``table`` names the blocks in order, all of the caches unless said.
    """
    import torch
    from vllm.v1.attention.ops.chunked_prefill_paged_decode import chunked_prefill_paged_decode

    without_native_paged_attention()
    out, one, new = torch.empty_like(q), torch.ones(1, device=q.device), q.shape[0]
    chunked_prefill_paged_decode(
        q, k, v, out, kv_cache_dtype, *caches,
        torch.tensor([table or range(caches[0].shape[0])], dtype=torch.int32, device=q.device),
        torch.tensor([0, new], dtype=torch.int32, device=q.device),
        torch.tensor([length], dtype=torch.int32, device=q.device),
        length, new, one, one, sliding_window=window, sm_scale=q.shape[-1] ** -0.5, causal=causal,
    )  # fmt: skip
    return out


def rocm_caches(k: Any, v: Any, block: int) -> tuple[Any, Any]:
    """K and V (length, heads, size) in blocks as ROCM_ATTN has them, (.., size / 4, block, 4) and (.., size, block)."""
    import torch

    length, heads, size = k.shape
    blocks = -(-length // block)
    key_cache = torch.zeros(blocks, heads, size // 4, block, 4, dtype=k.dtype, device=k.device)
    value_cache = torch.zeros(blocks, heads, size, block, dtype=v.dtype, device=v.device)
    for i in range(length):
        key_cache[i // block, :, :, i % block] = k[i].view(heads, size // 4, 4)
        value_cache[i // block, :, :, i % block] = v[i]
    return key_cache, value_cache
