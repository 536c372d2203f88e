"""ROCM_ATTN's kernels know no logits soft cap: a model that has one gets uncapped attention.

Needs PyTorch, Triton and vLLM, nothing of capmatrix. On a GPU: python soft_cap.py. On a CPU: TRITON_INTERPRET=1.
"""

from __future__ import annotations

import inspect

import plain

CAP = 30.0


def main() -> None:
    """Compare one decode over paged K and V with a capped and an uncapped reference."""
    torch, device = plain.start()
    from vllm.v1.attention.ops.chunked_prefill_paged_decode import chunked_prefill_paged_decode

    torch.manual_seed(0)
    length, heads, size = 150, 2, 64
    q = torch.randn(1, heads, size, device=device) * CAP
    k, v = (torch.randn(length, heads, size, device=device) for _ in range(2))
    out = plain.rocm(q, k[-1:], v[-1:], plain.rocm_caches(k, v, 64), length=length)
    for name, cap in (("no cap", None), (f"a cap of {CAP}", CAP)):
        error = plain.error(out, plain.attention(q, k, v, cap=cap))
        print(f"relative error against attention with {name}: {error:.2g}")
    takes = [name for name in inspect.signature(chunked_prefill_paged_decode).parameters if "cap" in name]
    print(f"parameters of chunked_prefill_paged_decode that could carry a cap: {takes or 'none'}")


if __name__ == "__main__":
    main()
