"""What kernels do that their budget must know, by kernel name, from the kernels' sources."""

from __future__ import annotations

#: Kernels that read a request's new tokens as the model computed them where it has several, not from the cache.
#: Only matters where the cache is quantised.
_UNQUANTISED: dict[str, str] = {
    "_fwd_kernel": "vllm/v1/attention/ops/prefix_prefill.py: the second loop loads K and V, not the caches",
    "_fwd_kernel_alibi": "vllm/v1/attention/ops/prefix_prefill.py",
}

#: Kernels that round P as it leaves the exponential, at most times a power of two, so that exp(0) stays exact.
_TOP_EXACT: dict[str, str] = {
    "kernel_unified_attention": "vllm/v1/attention/ops/triton_unified_attention.py",
    "kernel_unified_attention_2d": "aiter/ops/triton/_triton_kernels/attention/unified_attention.py",
    "kernel_unified_attention_3d": "aiter/ops/triton/_triton_kernels/attention/unified_attention.py",
    "_fwd_kernel": "vllm/v1/attention/ops/prefix_prefill.py",
    "kernel_paged_attention_2d": "vllm/v1/attention/ops/chunked_prefill_paged_decode.py",
    "_fwd_grouped_kernel_stage1": "vllm/v1/attention/ops/triton_decode_attention.py",
    "_segmented_attention_stage": "vllm/v1/attention/ops/segmented_attention.py",
    "triton_tem_fused_flex_attention_0": "torch/_inductor/kernel/flex/templates/flex_attention.py.jinja",
}

#: What runs beside the kernels above and rounds no P.
_NO_P = ("reduce_segments", "_fwd_kernel_stage2", "_segmented_attention_reduce")

#: Kernels that round each product of Q and K to the model's type before they add it up.
_PRODUCTS_ROUNDED: dict[str, str] = {
    "_fwd_kernel_stage1": "vllm/v1/attention/ops/triton_decode_attention.py: tl.sum(q * k), for one head a latent",
}

#: Kernels that keep partial results in the model's type, with the keys of a part.
_PARTIAL: dict[str, int] = {
    "_rocm_C.paged_attention": 256,
    # vllm/models/minimax_m3/common/ops/sparse_attn.py: a block of its own for each part of a small batch.
    "_gqa_sparse_decode_kernel": 128,
}


def new_tokens_unquantised(kernels: tuple[str, ...], query_len: int) -> bool:
    """Whether a request with ``query_len`` new tokens had them read as computed."""
    return query_len > 1 and any(name in _UNQUANTISED for name in kernels)


def top_exact(kernels: tuple[str, ...]) -> bool:
    """Whether the largest weight of each row is known to be rounded by none of the attention's ``kernels``."""
    attention = [name for name in kernels if name not in _NO_P]
    return bool(attention) and all(name in _TOP_EXACT for name in attention)


def products_rounded(kernels: tuple[str, ...]) -> bool:
    """Whether each product of Q and K is rounded to the type that they come in."""
    return any(name in _PRODUCTS_ROUNDED for name in kernels)


def partial_keys(kernels: tuple[str, ...]) -> int | None:
    """The keys of a partial result that is kept rounded; None where partial results are in float32."""
    return next((_PARTIAL[name] for name in kernels if name in _PARTIAL), None)
