"""ROCM_ATTN with a sliding window reads blocks that are out of every row's reach: NaN there is NaN in the output.

vLLM replaces such blocks of a request by the null block, which holds whatever was written there. ``_fwd_kernel`` and
``kernel_paged_attention_2d`` go over the whole context, mask the scores, and multiply the values by zero.

Needs PyTorch, Triton and vLLM, nothing of capmatrix. On a GPU: python evicted_blocks.py. On a CPU: TRITON_INTERPRET=1.
"""

from __future__ import annotations

import plain

BLOCK, WINDOW = 64, 32


def main() -> None:
    """A context of which the first block is out of reach, and holds zeros, large values, NaN."""
    torch, device = plain.start()
    torch.manual_seed(0)
    length, heads, size = 150, 2, 64
    k, v = (torch.randn(length, heads, size, device=device) for _ in range(2))
    for name, new in (("decode", 1), ("verify of 3", 3)):
        q = torch.randn(new, heads, size, device=device)
        want = plain.attention(q, k, v, left=WINDOW - 1)
        for held in (0.0, 1e5, float("nan")):
            caches = plain.rocm_caches(k, v, BLOCK)
            for cache in caches:
                cache[0] = held
            out = plain.rocm(q, k[-new:], v[-new:], caches, length=length, window=WINDOW)
            print(f"{name}, {held:g} in the evicted block: relative error {plain.error(out, want):.2g}")


if __name__ == "__main__":
    main()
