"""Kernels that stand for a silent fallback: not the kernel that a backend is there for."""

from __future__ import annotations

#: backend -> kernel -> why it is a fallback, with the gate's source.
_FALLBACKS: dict[str, dict[str, str]] = {
    "ROCM_ATTN": {
        "kernel_paged_attention_2d": "Triton decode instead of native HIP paged attention: outside the gate of "
        "use_rocm_custom_paged_attention (vllm/platforms/rocm.py) or without its layout",
    },
}


def fallback(backend: str, kernels: tuple[str, ...], has_decode: bool) -> str:
    """Why the route is a fallback of ``backend``, or the empty string.

    ``has_decode`` says whether the batch has requests of one token: only their rows does the kernel write.
    """
    if not has_decode:
        return ""
    for kernel, reason in _FALLBACKS.get(backend, {}).items():
        if kernel in kernels:
            return reason
    return ""
