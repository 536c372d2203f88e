"""``--kv-cache-dtype fp8_e5m2`` on ROCm: what is stored is e4m3, and ROCM_ATTN's Triton kernels read it as e5m2.

``triton_reshape_and_cache_flash``, the cache writer of TRITON_ATTN and of ROCM_ATTN at blocks other than 16 and 32,
views the cache as the platform's fp8 type whatever fp8 dtype is asked for. TRITON_ATTN reads it back the same way:
right numbers, not the type that was asked for. ROCM_ATTN's readers take ``fp8_e5m2`` at its word.
ROCM_AITER_UNIFIED_ATTN does not come so far: ``Attention.forward`` asserts that the dtype is ``fp8`` or ``fp8_e4m3``.

Needs PyTorch, Triton and vLLM, nothing of capmatrix. On a GPU: python fp8_e5m2.py. On a CPU: TRITON_INTERPRET=1.
"""

from __future__ import annotations

import inspect

import plain

BLOCK = 64


def main() -> None:
    """Write with vLLM's writer, look at the bytes, and read them with ROCM_ATTN's decode kernel."""
    torch, device = plain.start()
    from vllm.model_executor.layers.attention.attention import Attention
    from vllm.platforms import current_platform
    from vllm.v1.attention.ops import triton_reshape_and_cache_flash as writer

    if device == "cpu":  # what is asked of the GPU is answered as one with fp8 would
        writer._is_supported_kv_cache_dtype = lambda kv_cache_dtype: True
        torch.cuda.get_device_capability = lambda device=None: (9, 4)
    torch.manual_seed(0)
    length, heads, size = 150, 2, 64
    q = torch.randn(1, heads, size, device=device)
    # Numbers of e4m3, so that nothing is rounded: plain Triton's interpreter rounds otherwise than a GPU.
    k, v = ((torch.randint(4, 16, (length, heads, size), device=device) / 8) for _ in range(2))
    k, v = (x * torch.randint(0, 2, x.shape, device=device).mul(2).sub(1) for x in (k, v))
    empty = torch.zeros(-(-length // BLOCK) * BLOCK, heads, size, dtype=torch.uint8, device=device)
    caches = plain.rocm_caches(empty, empty, BLOCK)
    one = torch.ones(1, device=device)
    writer.triton_reshape_and_cache_flash(k, v, *caches, torch.arange(length, device=device), "fp8_e5m2", one, one)
    stored = caches[1].permute(0, 3, 1, 2).reshape(-1, heads, size)[:length]
    for dtype in (current_platform.fp8_dtype(), torch.float8_e5m2):
        same = (stored == v.to(dtype).view(torch.uint8)).double().mean()
        print(f"bytes of V that are its {dtype} codes: {float(same):.0%}")
    want = plain.attention(q, k, v)
    for asked in ("fp8_e5m2", "fp8"):
        out = plain.rocm(q, k[-1:], v[-1:], caches, length=length, kv_cache_dtype=asked)
        print(f"relative error of ROCM_ATTN's decode that reads this cache as {asked}: {plain.error(out, want):.2g}")
    asserted = [line.strip() for line in inspect.getsource(Attention.forward).splitlines() if '"fp8_e4m3"' in line]
    print("Attention.forward, where queries are quantised:", *asserted)


if __name__ == "__main__":
    main()
