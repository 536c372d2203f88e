"""ROCM_SEGMENTED_ATTN with a sliding window: rows lose their weights, look ahead, and read evicted blocks.

Three things in ``_segmented_attention_stage``. A row whose first tile is masked as a whole has the maximum -inf, which
is replaced by 0 and kept: P = exp(S - 0), which float16 does not hold where S is far below zero. Without a causal mask
a row is kept from keys further back than its window, and from none ahead. And the first tile starts at a multiple of
its size: what lies there below every row's window is read, and multiplied by zero, so NaN there is NaN in the output.

Needs PyTorch, Triton and vLLM, nothing of capmatrix: python segmented_window.py [--device cuda|cpu].
"""

from __future__ import annotations

import argparse
from typing import Any

import plain

BLOCK = 16


def main(options: argparse.Namespace) -> bool:
    """Three cases, each beside one that is right; reproduced where all three are."""
    cases = [weights(options.device), ahead(options.device), evicted(options.device)]
    # NaN is off by more than any number.
    case = min((case for case, _ in cases), key=lambda error: (error != error, error))
    control = plain.worst(control for _, control in cases)
    return plain.verdict(case, control, f"each of the three off by {case:.2g} or more, their controls by {control:.2g}")


def weights(device: str) -> tuple[float, float]:
    """The worst row's relative error in float16 at a mean logit of -16, with a window and without."""
    import torch

    torch.manual_seed(0)
    q, k, v = (torch.randn(n, 2, 64, device=device) for n in (33, 130, 130))
    mean = (16.0 * 64**-0.5) ** 0.5
    here = [x.to(torch.float16) for x in (q - mean, k + mean, v)]
    found = []
    for window in (38, 0):
        want = plain.attention(*here, left=window - 1 if window else None)
        by_row = (segmented(*here, window=window).double() - want).norm(dim=-1) / want.norm(dim=-1)
        found.append(float(by_row.max()))
        print(f"float16, mean logit -16, window {window or 'none'}: worst row off by {found[-1]:.2g}")
    return found[0], found[1]


def ahead(device: str) -> tuple[float, float]:
    """The relative error of a window to both sides, and of one to the left alone."""
    import torch

    torch.manual_seed(0)
    q, k, v = (torch.randn(24, 2, 64, device=device).to(torch.float16) for _ in range(3))
    out = segmented(q, k, v, window=8, causal=False)
    both, left = (plain.error(out, plain.attention(q, k, v, causal=False, left=7, right=right)) for right in (7, None))
    print(f"no causal mask, window 8: off by {both:.2g} of one to both sides, by {left:.2g} of one to the left alone")
    return both, left


def evicted(device: str) -> tuple[float, float]:
    """The relative error with NaN in blocks that are out of every row's reach, and with zeros or large values."""
    import torch

    torch.manual_seed(0)
    q, k, v = (torch.randn(n, 2, 64, device=device).to(torch.float16) for n in (1, 150, 150))
    want = plain.attention(q, k, v, left=31)
    found = {held: plain.error(segmented(q, k, v, window=32, held=held), want) for held in (0.0, 1e4, float("nan"))}
    for held, error in found.items():
        print(f"decode of 150 tokens, window 32, {held:g} in blocks out of reach: off by {error:.2g}")
    nan = plain.worst(error for held, error in found.items() if held != held)
    return nan, plain.worst(error for held, error in found.items() if held == held)


def segmented(q: Any, k: Any, v: Any, *, window: int, causal: bool = True, held: float | None = None) -> Any:
    """vLLM's ``run_segmented_attention`` over one request, K and V in blocks of 16; ``window`` tokens, 0 for none.

    ``held`` is what blocks hold that are further back than the first row's window.
    """
    import torch
    from vllm.v1.attention.ops.segmented_attention import run_segmented_attention

    (new, _, size), (length, heads, _) = q.shape, k.shape
    blocks = -(-length // BLOCK)
    reach = length - new - window + 1
    caches = []
    for x in (k, v):
        cache = torch.zeros(blocks * BLOCK, heads, size, dtype=x.dtype, device=x.device)
        cache[:length] = x
        if held is not None:
            cache[: reach // BLOCK * BLOCK] = held
        caches.append(cache.view(blocks, BLOCK, heads, size))
    one, out = torch.ones(1, device=q.device), torch.full_like(q, float("nan"))
    run_segmented_attention(
        q, out, *caches,
        torch.arange(blocks, dtype=torch.int32, device=q.device)[None],
        torch.tensor([0, new], dtype=torch.int32, device=q.device),
        torch.tensor([length], dtype=torch.int32, device=q.device),
        new, length, one, one, size**-0.5,
        sliding_window=window - 1 if window else -1, causal=causal,
    )  # fmt: skip
    return out


if __name__ == "__main__":
    plain.run(main)
