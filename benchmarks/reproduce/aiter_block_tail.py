"""AITER's unified attention, where a tile is a block, reads behind a sequence's end: NaN there is NaN in the output.

``kernel_unified_attention_2d`` masks the loads of K and V only where ``TILE_SIZE != BLOCK_SIZE``. Otherwise the scores
behind the end are masked, and the values there multiplied by zero. What is there is what the block held before.

Needs PyTorch, Triton and AITER, nothing of capmatrix or vLLM. On a GPU: python aiter_block_tail.py. On a CPU:
TRITON_INTERPRET=1 python aiter_block_tail.py PATH, with the path of an AITER checkout.
"""

from __future__ import annotations

import sys
import types

import plain

BLOCK = 64


def main() -> None:
    """One decode over 150 tokens in blocks of 64, with zeros, large values and NaN behind the last."""
    torch, device = plain.start()
    if device == "cpu":  # without the parts of AITER that ask which GPU this is
        without_a_gpu(torch, sys.argv[1])
    from aiter.ops.triton._triton_kernels.attention.unified_attention import kernel_unified_attention_2d

    torch.manual_seed(0)
    length, heads, size = 150, 2, 64
    q = torch.randn(1, heads, size, device=device)
    k, v = (torch.randn(length, heads, size, device=device) for _ in range(2))
    blocks = -(-length // BLOCK)
    for tile in (BLOCK, BLOCK // 2):
        for held in (0.0, 1e5, float("nan")):
            caches = []
            for x in (k, v):
                cache = torch.full((blocks * BLOCK, heads, size), held, device=device)
                cache[:length] = x
                caches.append(cache.view(blocks, BLOCK, heads, size))
            out = torch.empty_like(q)
            strides = {
                f"stride_{n}_cache_{i}": c.stride(i) for n, c in zip("kv", caches, strict=True) for i in range(4)
            }
            kernel_unified_attention_2d[heads, 1](
                output_ptr=out, query_ptr=q, key_cache_ptr=caches[0], value_cache_ptr=caches[1], sink_ptr=None,
                block_tables_ptr=torch.arange(blocks, dtype=torch.int32, device=device)[None],
                seq_lens_ptr=torch.tensor([length], dtype=torch.int32, device=device),
                alibi_slopes_ptr=None, qq_bias_ptr=None, scale=size**-0.5, q_descale_ptr=None, k_descale_ptr=None,
                v_descale_ptr=None, out_scale_ptr=None, softcap=0.0, num_query_heads=heads, num_queries_per_kv=1,
                block_table_stride=blocks, query_stride_0=q.stride(0), query_stride_1=q.stride(1),
                output_stride_0=out.stride(0), output_stride_1=out.stride(1), qq_bias_stride_0=0, BLOCK_SIZE=BLOCK,
                TILE_SIZE=tile, HEAD_SIZE=size, HEAD_SIZE_PADDED=size, USE_ALIBI_SLOPES=False, USE_QQ_BIAS=False,
                USE_SOFTCAP=False, USE_SINKS=False, SLIDING_WINDOW=0, **strides,
                query_start_len_ptr=torch.tensor([0, 1], dtype=torch.int32, device=device),
                BLOCK_Q=16, num_seqs=1, BLOCK_M=16, ALL_DECODE=True,
            )  # fmt: skip
            error = plain.error(out, plain.attention(q, k, v))
            print(f"block {BLOCK}, tile {tile}, {held:g} behind the end: relative error {error:.2g}")


def without_a_gpu(torch: object, path: str) -> None:
    """AITER's kernels from a checkout, without its package's set-up."""
    package = types.ModuleType("aiter")
    package.__path__ = [f"{path}/aiter"]
    kinds = types.ModuleType("aiter.ops.triton.utils.types")
    kinds.e4m3_dtype = torch.float8_e4m3fn  # type: ignore[attr-defined]
    sys.modules |= {package.__name__: package, kinds.__name__: kinds}


if __name__ == "__main__":
    main()
