"""Caches of codes with a float32 scale beside each token and head: ``int8``, ``fp8`` and ``int4_per_token_head``.

vLLM 0.32's TRITON_ATTN keeps, for each slot and head, [K codes | scale | V codes | scale]
(``TritonAttentionImpl._ensure_scale_caches``). INT4 packs two codes in a byte, keeps the zero point in the four
lowest bits of the scale, and turns K and V by a randomised Hadamard transform first
(``vllm/v1/attention/ops/int4_per_token_head.py``); its numbers are read, and judged, in the turned basis.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

_MODES = {"int8_per_token_head": "int8", "fp8_per_token_head": "fp8", "int4_per_token_head": "int4"}

#: A scale is computed in float32 from a maximum, and a code's tie may fall either way there.
_SLACK = 1.0 + 2.0**-10


class Read(NamedTuple):
    """Dequantised K or V (tokens, heads, size) in float64, and the scales (tokens, heads)."""

    values: torch.Tensor
    scales: torch.Tensor


def mode(layer: Any) -> str:
    """``int8``, ``fp8``, ``int4``, or empty where the cache is of another kind."""
    return _MODES.get(layer.kv_cache_dtype, "") if hasattr(layer.impl, "_pth_key_value_caches") else ""


def is_packed(layer: Any) -> bool:
    """Whether this module reads the layer's cache."""
    return bool(mode(layer))


def whole_slots(cache: torch.Tensor) -> tuple[torch.Tensor]:
    """The cache (blocks, heads, block, content) as (blocks, block, heads, content): codes and scales of a slot."""
    return (cache.transpose(1, 2),)


def prepare(layer: Any) -> None:
    """Have vLLM make its views of the scales, which it does on first use and fills with 1."""
    if is_packed(layer):
        layer.impl._pth_key_value_caches(layer.kv_cache)


def read(layer: Any, slots: torch.Tensor) -> tuple[Read, Read]:
    """K and V at flat token ``slots`` (n,)."""
    caches = layer.impl._pth_key_value_caches(layer.kv_cache)
    scales = layer.impl._k_scale_cache, layer.impl._v_scale_cache
    size = layer.head_size // 2 if mode(layer) == "int4" else layer.head_size
    found = []
    for cache, scale in zip(caches, scales, strict=True):
        block = cache.shape[1]
        raw = cache.view(torch.uint8)[slots // block, slots % block][..., :size].contiguous()
        found.append(_dequantised(raw, scale[slots // block, slots % block], cache.dtype, mode(layer)))
    return found[0], found[1]


def _dequantised(raw: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype, kind: str) -> Read:
    if kind != "int4":
        return Read(raw.view(dtype).double() * scale.double()[..., None], scale)
    bits = scale.contiguous().view(torch.int32)
    zero, scale = (bits & 0xF).double(), (bits & -16).view(torch.float32)
    codes = torch.stack((raw & 0xF, raw >> 4), dim=-1).flatten(-2).double()
    return Read((codes - zero[..., None]) * scale.double()[..., None], scale)


def turned(layer: Any, x: torch.Tensor) -> torch.Tensor:
    """``x`` (..., size) in the basis that the cache is kept in; an orthonormal change."""
    if mode(layer) != "int4":
        return x
    rht, norm = _rht(x.shape[-1])
    return rht(x.double()) / norm**0.5


def turned_back(layer: Any, x: torch.Tensor) -> torch.Tensor:
    """The inverse of ``turned``."""
    if mode(layer) != "int4":
        return x
    rht, norm = _rht(x.shape[-1])
    return rht(x.double(), inverse=True) / norm**0.5


def _rht(size: int) -> Any:
    from vllm.utils.math_utils import largest_power_of_2_divisor
    from vllm.v1.attention.ops.int4_per_token_head import single_rht

    return single_rht, largest_power_of_2_divisor(size)


def stored_scale(layer: Any) -> float:
    """What a number of the cache is to be multiplied by to be in ``turned``'s orthonormal basis."""
    return float(_rht(layer.head_size)[1]) ** -0.5 if mode(layer) == "int4" else 1.0


def write_error(layer: Any, found: Read, inputs: torch.Tensor, dtype: torch.dtype) -> tuple[float, str]:
    """Largest error of the stored values in half-steps of their own scale, and what else is wrong.

    ``inputs`` (tokens, heads, size) as the model computed them. A scale must use the codes' range: not so small
    that the largest value is cut, nor more than twice too large.
    """
    kind = mode(layer)
    wanted = turned(layer, inputs.double()) / stored_scale(layer)
    scale = found.scales.double()
    if kind == "fp8":
        info = torch.finfo(dtype)
        code = (wanted / scale[..., None]).abs()
        exponent = torch.frexp(code.clamp_min(float(info.smallest_normal)))[1] - 1
        half = torch.ldexp(torch.full_like(code, float(info.eps) / 2), exponent) * scale[..., None]
        needed, largest = wanted.abs().amax(-1), float(info.max)
    else:
        half = scale[..., None] / 2
        needed, largest = wanted.abs().amax(-1), 127.0
        if kind == "int4":
            needed, largest = wanted.amax(-1) - wanted.amin(-1), 15.0
            # Turning rounds to the model's type before the codes are made.
            half = half + float(torch.finfo(inputs.dtype).eps) * wanted.abs()
    error = ((found.values - wanted).abs() / (half * _SLACK)).nan_to_num(nan=float("inf"))
    use = needed / (scale * largest)
    low, high = float(use.nan_to_num(nan=0.0).min()), float(use.nan_to_num(nan=float("inf")).max())
    trouble = "" if low >= 0.49 and high <= 1.0 + 2.0**-6 else f"scales use {low:.3g} to {high:.3g} of the codes' range"
    return float(error.max()), trouble
