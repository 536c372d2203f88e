"""A sliding window and logits far below zero: rows whose first tile is all masked lose their weights.

A row whose tile is masked as a whole has the maximum -inf, which ``softmax_step`` replaces by 0 and keeps. The running
maximum of such a row can never be below 0 again, so P = exp(S - 0). In float16 it falls below the smallest numbers
from about S = -10 on, and is 0 from -17 on. AITER's ``kernel_unified_attention_2d`` does the same, and with an FP8
query its P are FP8: they are 0 from about -7 on.

Needs PyTorch, Triton and vLLM, nothing of capmatrix: python window_small_weights.py [--device cuda|cpu] [AITER]. With
the path of an AITER checkout its kernel is tried as well, with FP8.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import plain

WINDOW, DECIDES = 38, 16.0


def main(options: argparse.Namespace) -> bool:
    """Shift all logits of a row by a constant, which must change nothing."""
    import torch

    def vllm(q: Any, k: Any, v: Any, window: int) -> Any:
        return plain.unified(q, k, v, causal=True, window=window)

    def aiter(q: Any, k: Any, v: Any, window: int) -> Any:
        return plain.aiter_unified(q, k, v, block=64, tile=32, window=window)

    if options.aiter:
        plain.use_aiter(options.aiter)
    case, control = shifted(options.device, torch.float16, vllm)
    reproduced = plain.verdict(case, control, f"TRITON_ATTN, float16: {said(case, control)}")
    if options.aiter:
        case, control = shifted(options.device, torch.float8_e4m3fn, aiter)
        # The reference has the same FP8 inputs, but no P of 3 bits: right rows are off by 0.1 to 0.2, lost ones by 1.
        text = f"ROCM_AITER_UNIFIED_ATTN, FP8: {said(case, control)}"
        reproduced = plain.verdict(case, control, text, off=0.9, right=0.3) and reproduced
    return reproduced


def said(case: float, control: float) -> str:
    """Both figures in words."""
    return f"worst row off by {case:.2g} with a window, by {control:.2g} without, at a mean logit of {-DECIDES:g}"


def shifted(device: str, dtype: Any, call: Callable[..., Any]) -> tuple[float, float]:
    """The worst row's relative error at a mean logit of -16, with the window and without."""
    import torch

    torch.manual_seed(0)
    new, length, size = 33, 130, 64
    q, k, v = (torch.randn(n, 2, size, device=device) for n in (new, length, length))
    found = {}
    for window in (WINDOW, 0):
        for shift in (0.0, 4.0, 8.0, 12.0, DECIDES, 20.0):
            mean = (shift * size**-0.5) ** 0.5
            here = [x.to(dtype) for x in (q - mean, k + mean, v)]
            want = plain.attention(*here, left=window - 1 if window else None)
            by_row = (call(*here, window).double() - want).norm(dim=-1) / want.norm(dim=-1)
            found[window, shift] = worst = float(by_row.max())
            rows = f"{int((by_row > 0.1).sum())} of {by_row.numel()} rows off by more than 10 %"
            print(f"  window {window or 'none'}, mean logit {-shift or 0:g}: worst row {worst:.2g}, {rows}")
    return found[WINDOW, DECIDES], found[0, DECIDES]


if __name__ == "__main__":
    plain.run(main, aiter="a checkout: its kernel is tried as well, with FP8")
