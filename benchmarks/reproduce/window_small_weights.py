"""A sliding window and logits far below zero: rows whose first tile is all masked lose their weights.

A row whose tile is masked as a whole has the maximum -inf, which ``softmax_step`` replaces by 0 and keeps. The running
maximum of such a row can never be below 0 again, so P = exp(S - 0). In float16 it falls below the smallest numbers
from about S = -10 on, and is 0 from -17 on. AITER's ``kernel_unified_attention_2d`` does the same, and with an FP8
query its P are FP8: they are 0 from about -7 on.

Needs PyTorch, Triton and vLLM, nothing of capmatrix. On a GPU: python window_small_weights.py. On a CPU:
TRITON_INTERPRET=1.
"""

from __future__ import annotations

import plain

WINDOW = 38


def main() -> None:
    """Shift all logits of a row by a constant, which must change nothing."""
    torch, device = plain.start()
    torch.manual_seed(0)
    new, length, size = 33, 130, 64
    q, k, v = (torch.randn(n, 2, size, device=device) for n in (new, length, length))
    print(f"relative error of the worst row, window {WINDOW}, by mean logit:")
    for shift in (0.0, 4.0, 8.0, 12.0, 16.0, 20.0):
        mean = (shift * size**-0.5) ** 0.5
        here = [x.half() for x in (q - mean, k + mean, v)]
        out = plain.unified(*here, causal=True, window=WINDOW)
        want = plain.attention(*here, left=WINDOW - 1)
        by_row = (out.double() - want).norm(dim=-1) / want.norm(dim=-1)
        rows = int((by_row > 0.01).sum())
        print(f"  {-shift:4.0f}: {float(by_row.max()):.2g} ({rows} of {by_row.numel()} rows off by more than 1 %)")


if __name__ == "__main__":
    main()
