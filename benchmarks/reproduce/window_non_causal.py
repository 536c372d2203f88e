"""TRITON_ATTN without a causal mask but with a sliding window: values ahead are cut off by the first row of a tile.

``kernel_unified_attention`` masks the scores by each row's own window, but zeroes V by the window of the first row of
the tile (``dist = context_len + qpos_lo - seq_offset``), on both sides. Later rows keep the weight of keys ahead and
lose their values. Shows where a window is shorter than the request's new tokens.

Needs PyTorch, Triton and vLLM, nothing of capmatrix: python window_non_causal.py [--device cuda|cpu].
"""

from __future__ import annotations

import argparse

import plain

WINDOW = 8


def main(options: argparse.Namespace) -> bool:
    """Compare one request of 24 new tokens with a reference."""
    import torch

    torch.manual_seed(0)
    q, k, v = (torch.randn(24, 2, 64, device=options.device) for _ in range(3))
    out = plain.unified(q, k, v, causal=False, window=WINDOW)
    want = plain.attention(q, k, v, causal=False, left=WINDOW - 1, right=WINDOW - 1)
    both = plain.error(out, want)
    by_row = (out.double() - want).norm(dim=(1, 2)) / want.norm(dim=(1, 2))
    print("relative error by row:", " ".join(f"{float(x):.1g}" for x in by_row))
    out = plain.unified(q, k, v, causal=True, window=WINDOW)
    causal = plain.error(out, plain.attention(q, k, v, left=WINDOW - 1))
    text = f"relative error {both:.2g} without a causal mask, window {WINDOW}; {causal:.2g} with one"
    return plain.verdict(both, causal, text)


if __name__ == "__main__":
    plain.run(main)
