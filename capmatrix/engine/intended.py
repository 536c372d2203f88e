"""Kernels that stand for a silent fallback: not the kernel that a backend is there for."""

from __future__ import annotations

from typing import NamedTuple


class _Fallback(NamedTuple):
    """Why a kernel is a fallback, with the gate's source; ``decode_only``: it writes one-token requests alone."""

    why: str
    decode_only: bool = False


#: backend -> kernel -> what it is a fallback for.
_FALLBACKS: dict[str, dict[str, _Fallback]] = {
    "ROCM_ATTN": {
        "kernel_paged_attention_2d": _Fallback(
            "Triton decode instead of native HIP paged attention: outside the gate of "
            "use_rocm_custom_paged_attention (vllm/platforms/rocm.py) or without its layout",
            decode_only=True,
        ),
    },
    "ROCM_SEGMENTED_ATTN": {
        "kernel_unified_attention": _Fallback(
            "unified Triton attention instead of segmented: outside the gate of segmented_attention "
            "(vllm/v1/attention/ops/segmented_attention.py), by a soft cap for one",
        ),
    },
}


def fallback(backend: str, kernels: tuple[str, ...], has_decode: bool) -> str:
    """Why the route is a fallback of ``backend``, or the empty string.

    ``has_decode`` says whether the batch has requests of one token.
    """
    for kernel, found in _FALLBACKS.get(backend, {}).items():
        if kernel in kernels and (has_decode or not found.decode_only):
            return found.why
    return ""
