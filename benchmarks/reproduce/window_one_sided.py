"""ROCM_ATTN without a causal mask but with a sliding window: rows are limited to the left only.

``_fwd_kernel`` keeps a row from keys further back than its window (``offs_m - (start_n + offs_n) < SLIDING_WINDOW``)
and from none ahead; TRITON_ATTN and the dense kernels limit both sides. Shows where a request has more new tokens than
the window.

Needs PyTorch, Triton and vLLM, nothing of capmatrix: python window_one_sided.py [--device cuda|cpu].
"""

from __future__ import annotations

import argparse

import plain

WINDOW = 8


def main(options: argparse.Namespace) -> bool:
    """Compare one request of 24 new tokens with a window on both sides, and on one."""
    import torch

    torch.manual_seed(0)
    q, k, v = (torch.randn(24, 2, 64, device=options.device) for _ in range(3))
    out = plain.rocm(q, k, v, plain.rocm_caches(k, v, 64), length=24, window=WINDOW, causal=False)
    both, left = (
        plain.error(out, plain.attention(q, k, v, causal=False, left=WINDOW - 1, right=right))
        for right in (WINDOW - 1, None)
    )
    out = plain.rocm(q, k, v, plain.rocm_caches(k, v, 64), length=24, window=WINDOW)
    causal = plain.error(out, plain.attention(q, k, v, left=WINDOW - 1))
    print(f"relative error with a causal mask, window {WINDOW}: {causal:.2g}")
    text = f"relative error {both:.2g} of a window of {WINDOW} to both sides, {left:.2g} of one to the left alone"
    return plain.verdict(both, plain.worst((left, causal)), text)


if __name__ == "__main__":
    plain.run(main)
