"""ROCM_ATTN's kernels know no logits soft cap: a model that has one gets uncapped attention.

Needs PyTorch, Triton and vLLM, nothing of capmatrix: python soft_cap.py [--device cuda|cpu].
"""

from __future__ import annotations

import argparse
import inspect

import plain

CAP = 30.0


def main(options: argparse.Namespace) -> bool:
    """Compare one decode over paged K and V with a capped and an uncapped reference."""
    import torch
    from vllm.v1.attention.ops.chunked_prefill_paged_decode import chunked_prefill_paged_decode

    torch.manual_seed(0)
    length, heads, size, device = 150, 2, 64, options.device
    q = torch.randn(1, heads, size, device=device) * CAP
    k, v = (torch.randn(length, heads, size, device=device) for _ in range(2))
    out = plain.rocm(q, k[-1:], v[-1:], plain.rocm_caches(k, v, 64), length=length)
    capped, uncapped = (plain.error(out, plain.attention(q, k, v, cap=cap)) for cap in (CAP, None))
    takes = [name for name in inspect.signature(chunked_prefill_paged_decode).parameters if "cap" in name]
    print(f"parameters of chunked_prefill_paged_decode that could carry a cap: {takes or 'none'}")
    text = f"relative error {capped:.2g} against attention with a cap of {CAP:g}, {uncapped:.2g} against none"
    return plain.verdict(capped, uncapped, text)


if __name__ == "__main__":
    plain.run(main)
