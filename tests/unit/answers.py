"""Answers recorded of vllm 0.32.0 with AITER 0.1.7 on gfx950: MiniMax-M3's EAGLE3 drafter, block 128, fp8."""

from __future__ import annotations

from typing import Any

import msgspec

from capmatrix.guard.questions import Answer, Tried

_PACKED = ("kv_cache_dtype not supported",)
TRIED = (
    Tried("ROCM_ATTN"),
    Tried("ROCM_AITER_UNIFIED_ATTN"),
    Tried("TRITON_ATTN"),
    Tried("TURBOQUANT", _PACKED),
    Tried("ULTRAQUANT", _PACKED),
)
#: The V2 runner with the target's backend unset.
V2_UNSET = Answer("ROCM_ATTN", "priority", TRIED, "", "v2", "v2", "EagleSpeculator")
#: The V2 runner with the target's set to TRITON_ATTN.
V2_INHERITS = Answer("TRITON_ATTN", "inherited", TRIED, "TRITON_ATTN", "v2", "v2", "EagleSpeculator")
#: The V1 runner, whatever the target's.
V1 = Answer("ROCM_ATTN", "priority", TRIED, "", "v1", "v2", "EagleProposer")
#: The V2 runner's speculator of independent draft models, asked for ROCM_ATTN beside a TRITON_ATTN target.
IGNORED = Answer(
    "TRITON_ATTN", "inherited", TRIED, "TRITON_ATTN", "v2", "v2", "StandaloneARSpeculator", ignored="ROCM_ATTN"
)
#: A block that nothing supports.
NOTHING = Answer("", "priority", TRIED, "", "v2", "v2", "", "select", "No valid attention backend found for rocm")


def selects(backend: str, **changes: Any) -> Answer:
    """The V2 runner's answer with another backend."""
    return msgspec.structs.replace(V2_UNSET, backend=backend, **changes)
