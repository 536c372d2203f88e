"""``--kv-cache-dtype fp8_e5m2`` on ROCm: what is stored is e4m3, and ROCM_ATTN's Triton kernels read it as e5m2.

``triton_reshape_and_cache_flash``, the cache writer of TRITON_ATTN and of ROCM_ATTN at blocks other than 16 and 32,
views the cache as the platform's fp8 type whatever fp8 dtype is asked for. TRITON_ATTN reads it back the same way:
right numbers, not the type that was asked for. ROCM_ATTN's readers take ``fp8_e5m2`` at its word.
ROCM_AITER_UNIFIED_ATTN does not come so far: ``Attention.forward`` asserts that the dtype is ``fp8`` or ``fp8_e4m3``.
On gfx11, where its queries stay as they are, it does, and views whatever was written as the platform's fp8 type.

Needs PyTorch, Triton and vLLM, nothing of capmatrix: python fp8_e5m2.py [--device cuda|cpu].
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
from pathlib import Path

import plain

BLOCK = 64


def main(options: argparse.Namespace) -> bool:
    """Write with vLLM's writer, look at the bytes, and read them with ROCM_ATTN's decode kernel."""
    import torch
    from vllm.model_executor.layers.attention.attention import Attention
    from vllm.platforms import current_platform
    from vllm.v1.attention.ops import triton_reshape_and_cache_flash as writer

    if options.device == "cpu":  # what is asked of the GPU is answered as one with fp8 would
        writer._is_supported_kv_cache_dtype = lambda kv_cache_dtype: True
        torch.cuda.get_device_capability = lambda device=None: (9, 4)
    torch.manual_seed(0)
    length, heads, size, device = 150, 2, 64, options.device
    q = torch.randn(1, heads, size, device=device)
    # Numbers of e4m3, so that nothing is rounded: plain Triton's interpreter rounds otherwise than a GPU.
    k, v = ((torch.randint(4, 16, (length, heads, size), device=device) / 8) for _ in range(2))
    k, v = (x * torch.randint(0, 2, x.shape, device=device).mul(2).sub(1) for x in (k, v))
    empty = torch.zeros(-(-length // BLOCK) * BLOCK, heads, size, dtype=torch.uint8, device=device)
    caches = plain.rocm_caches(empty, empty, BLOCK)
    one = torch.ones(1, device=device)
    writer.triton_reshape_and_cache_flash(k, v, *caches, torch.arange(length, device=device), "fp8_e5m2", one, one)
    stored = caches[1].permute(0, 3, 1, 2).reshape(-1, heads, size)[:length]
    share: dict[torch.dtype, float] = {}
    for dtype in (current_platform.fp8_dtype(), torch.float8_e5m2):
        share[dtype] = float((stored == v.to(dtype).view(torch.uint8)).double().mean())
        print(f"bytes of V that are its {dtype} codes: {share[dtype]:.0%}")
    want = plain.attention(q, k, v)
    asked, as_e4m3 = (
        plain.error(plain.rocm(q, k[-1:], v[-1:], caches, length=length, kv_cache_dtype=name), want)
        for name in ("fp8_e5m2", "fp8")
    )
    asserted = [line.strip() for line in inspect.getsource(Attention.forward).splitlines() if '"fp8_e4m3"' in line]
    print("Attention.forward, where queries are quantised:", *asserted)
    aiter = importlib.util.find_spec("vllm.v1.attention.backends.rocm_aiter_unified_attn")  # needs ROCm to be imported
    lines = Path(aiter.origin).read_text(encoding="utf-8").splitlines() if aiter and aiter.origin else []
    told = dict.fromkeys(
        line.strip() for line in lines if "supports_quant_query_input =" in line or ".view(self.fp8" in line
    )
    print("ROCM_AITER_UNIFIED_ATTN:", "; ".join(told))
    text = (
        f"asked for fp8_e5m2, {share[torch.float8_e5m2]:.0%} of the stored codes are e5m2's; ROCM_ATTN's decode reads "
        f"the cache with a relative error of {asked:.2g} as fp8_e5m2, {as_e4m3:.2g} as fp8"
    )
    return plain.verdict(asked, as_e4m3, text)


if __name__ == "__main__":
    plain.run(main)
