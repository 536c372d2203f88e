"""ROCM_SEGMENTED_ATTN where there is no GPU: its kernels run only if its query is on one.

``can_use_segmented_attention`` decides between the backend's own kernels and vLLM's unified attention, and asks for
``q.is_cuda`` last. On CPU tensors every cell would speak of unified attention alone. The question is answered as on the
GPU; all else that vLLM asks is asked of the tensors as they are.
"""

from __future__ import annotations

from typing import Any

from .shims import note


class _OnGpu:
    """A tensor that says it is on a GPU; what it holds and how it lies is the tensor's own."""

    is_cuda = True

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tensor, name)


def ask_as_on_the_virtual_gpu() -> None:
    """Have vLLM's gate take a CPU tensor for one on the GPU."""
    from vllm.v1.attention.ops import segmented_attention

    gate = segmented_attention.can_use_segmented_attention

    def asked(q: Any, *rest: Any) -> bool:
        note("q.is_cuda (segmented_attention)")
        return bool(gate(_OnGpu(q), *rest))

    segmented_attention.can_use_segmented_attention = asked
