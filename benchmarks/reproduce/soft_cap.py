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
    length, block, heads, size = 150, 64, 2, 64
    q = torch.randn(1, heads, size, device=device) * CAP
    k, v = (torch.randn(length, heads, size, device=device) for _ in range(2))
    blocks = -(-length // block)
    key_cache = torch.zeros(blocks, heads, size // 4, block, 4, device=device)
    value_cache = torch.zeros(blocks, heads, size, block, device=device)
    for i in range(length):
        key_cache[i // block, :, :, i % block] = k[i].view(heads, size // 4, 4)
        value_cache[i // block, :, :, i % block] = v[i]
    out = torch.empty_like(q)
    one = torch.ones(1, device=device)
    plain.without_native_paged_attention()
    chunked_prefill_paged_decode(
        q, k[-1:], v[-1:], out, "auto", key_cache, value_cache,
        torch.arange(blocks, dtype=torch.int32, device=device)[None],
        torch.tensor([0, 1], dtype=torch.int32, device=device),
        torch.tensor([length], dtype=torch.int32, device=device),
        length, 1, one, one, sm_scale=size**-0.5,
    )  # fmt: skip
    for name, cap in (("no cap", None), (f"a cap of {CAP}", CAP)):
        error = plain.error(out, plain.attention(q, k, v, cap=cap))
        print(f"relative error against attention with {name}: {error:.2g}")
    takes = [name for name in inspect.signature(chunked_prefill_paged_decode).parameters if "cap" in name]
    print(f"parameters of chunked_prefill_paged_decode that could carry a cap: {takes or 'none'}")


if __name__ == "__main__":
    main()
