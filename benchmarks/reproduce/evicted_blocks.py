"""ROCM_ATTN with a sliding window reads blocks that are out of every row's reach: NaN there is NaN in the output.

vLLM replaces such blocks of a request by the null block, which holds whatever was written there. ``_fwd_kernel`` and
``kernel_paged_attention_2d`` go over the whole context, mask the scores, and multiply the values by zero.

Needs PyTorch, Triton and vLLM, nothing of capmatrix: python evicted_blocks.py [--device cuda|cpu].
"""

from __future__ import annotations

import argparse

import plain

BLOCK, WINDOW = 64, 32


def main(options: argparse.Namespace) -> bool:
    """A context of which the first block is out of reach, and holds zeros, large values, NaN."""
    import torch

    torch.manual_seed(0)
    length, heads, size, device = 150, 2, 64, options.device
    k, v = (torch.randn(length, heads, size, device=device) for _ in range(2))
    found: dict[tuple[str, float], float] = {}
    for name, new in (("decode", 1), ("verify of 3", 3)):
        q = torch.randn(new, heads, size, device=device)
        want = plain.attention(q, k, v, left=WINDOW - 1)
        for held in (0.0, 1e5, float("nan")):
            caches = plain.rocm_caches(k, v, BLOCK)
            for cache in caches:
                cache[0] = held
            out = plain.rocm(q, k[-new:], v[-new:], caches, length=length, window=WINDOW)
            found[name, held] = error = plain.error(out, want)
            print(f"{name}, {held:g} in the evicted block: relative error {error:.2g}")
    nan = plain.worst(error for (_, held), error in found.items() if held != held)
    finite = plain.worst(error for (_, held), error in found.items() if held == held)
    text = f"relative error {nan:.2g} with NaN in a block out of reach, at most {finite:.2g} with finite values"
    return plain.verdict(nan, finite, text)


if __name__ == "__main__":
    plain.run(main)
