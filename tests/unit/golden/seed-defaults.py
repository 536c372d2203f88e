"""Default attention backends by evidence, derived by capmatrix; derive it again rather than edit it.

Keys: (architecture, drafter family, role, block size, KV cache dtype, model dtype). Values: names of
``AttentionBackendEnum``. ``PROVISIONAL`` holds rows for which nothing was executed or served: no default
should change on them.
"""

from __future__ import annotations

# Policy lightest, margin 5 %.
# Published: vllm-47882-minimax-m3-eagle3.

DEFAULTS: dict[tuple[str, str, str, int, str, str], str] = {
    # served, serving throughput, unrepeated, gpu not stated: 1.74 % slower than ROCM_AITER_UNIFIED_ATTN by
    # serving throughput, which also needs aiter; within the margin of 5 %
    ("unknown", "minimax-m3-eagle3", "drafter", 128, "fp8", "auto"): "TRITON_ATTN",
}

PROVISIONAL: dict[tuple[str, str, str, int, str, str], str] = {}

# Geometry of the families, whole model: what tells a drafter apart.
FAMILIES: dict[str, dict[str, object]] = {
    "minimax-m3-eagle3": {
        "method": "eagle3",
        "num_heads": 64,
        "num_kv_heads": 64,
        "head_size": 128,
        "sliding_window": None,
        "sinks": False,
        "causal": True,
    },
}


def default_backend(
    arch: str, family: str, role: str, block_size: int, kv_cache_dtype: str, dtype: str
) -> str | None:
    """The measured default, or None where there is none: the platform's own order then holds."""
    return DEFAULTS.get((arch, family, role, block_size, kv_cache_dtype, dtype))
