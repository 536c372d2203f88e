"""AITER's unified attention, where a tile is a block, reads behind a sequence's end: NaN there is NaN in the output.

``kernel_unified_attention_2d`` masks the loads of K and V only where ``TILE_SIZE != BLOCK_SIZE``. Otherwise the scores
behind the end are masked, and the values there multiplied by zero. What is there is what the block held before.

Needs PyTorch, Triton and AITER, nothing of capmatrix or vLLM: python aiter_block_tail.py [--device cuda|cpu] [AITER],
with the path of an AITER checkout where AITER is not installed for ROCm.
"""

from __future__ import annotations

import argparse

import plain

BLOCK = 64


def main(options: argparse.Namespace) -> bool:
    """One decode over 150 tokens in blocks of 64, with zeros, large values and NaN behind the last."""
    import torch

    plain.use_aiter(options.aiter)
    torch.manual_seed(0)
    length, heads, size, device = 150, 2, 64, options.device
    q = torch.randn(1, heads, size, device=device)
    k, v = (torch.randn(length, heads, size, device=device) for _ in range(2))
    found: dict[tuple[int, str], float] = {}
    for tile in (BLOCK, BLOCK // 2):
        for held in (0.0, 1e5, float("nan")):
            out = plain.aiter_unified(q, k, v, block=BLOCK, tile=tile, behind=held)
            found[tile, f"{held:g}"] = error = plain.error(out, plain.attention(q, k, v))
            print(f"block {BLOCK}, tile {tile}, {held:g} behind the end: relative error {error:.2g}")
    nan = found.pop((BLOCK, "nan"))
    rest = plain.worst(found.values())
    text = (
        f"relative error {nan:.2g} with NaN behind the end and tiles of {BLOCK}, a block; at most {rest:.2g} with "
        f"finite values, and with NaN and tiles of {BLOCK // 2}"
    )
    return plain.verdict(nan, rest, text)


if __name__ == "__main__":
    plain.run(main, aiter="a checkout, where AITER is not installed")
