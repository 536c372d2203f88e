"""ROCM_ATTN without a causal mask but with a sliding window: rows are limited to the left only.

``_fwd_kernel`` keeps a row from keys further back than its window (``offs_m - (start_n + offs_n) < SLIDING_WINDOW``)
and from none ahead; TRITON_ATTN and the dense kernels limit both sides. Shows where a request has more new tokens than
the window.

Needs PyTorch, Triton and vLLM, nothing of capmatrix. On a GPU: python window_one_sided.py. On a CPU:
TRITON_INTERPRET=1.
"""

from __future__ import annotations

import plain

WINDOW = 8


def main() -> None:
    """Compare one request of 24 new tokens with a window on both sides, and on one."""
    torch, device = plain.start()
    torch.manual_seed(0)
    q, k, v = (torch.randn(24, 2, 64, device=device) for _ in range(3))
    out = plain.rocm(q, k, v, plain.rocm_caches(k, v, 64), length=24, window=WINDOW, causal=False)
    for name, right in (("both sides", WINDOW - 1), ("the left alone", None)):
        want = plain.attention(q, k, v, causal=False, left=WINDOW - 1, right=right)
        print(f"relative error against a window of {WINDOW} to {name}: {plain.error(out, want):.2g}")
    out = plain.rocm(q, k, v, plain.rocm_caches(k, v, 64), length=24, window=WINDOW)
    print(f"with a causal mask: {plain.error(out, plain.attention(q, k, v, left=WINDOW - 1)):.2g}")


if __name__ == "__main__":
    main()
