"""K and V of a layer's cache as (blocks, block, heads, ...) views, by each backend's own split.

Views, never copies: writing through them marks the very bytes that a slot owns. Where scales are packed
beside the codes (per-token-head) the codes alone say little: ``packed`` reads those. A backend whose storage
packs otherwise (TurboQuant, fp8_ds_mla) has no such view.
"""

from __future__ import annotations

from typing import Any

import torch

from . import mla, packed

#: Integers of one size in bytes: all their bits are set in -1.
_SIGNED = {1: torch.int8, 2: torch.int16, 4: torch.int32}


def split(layer: Any, cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Views of ``cache`` (shaped and strided as ``layer.kv_cache``), or None where there are none.

    K and V come as (blocks, kernel block, KV heads, head size), the last axis possibly split in two.
    """
    if not _plain(layer.kv_cache_dtype):
        return None
    if mla.is_mla(layer):
        # One head; a row is the latent and the rotary part of the key, and the latent is the value as well.
        row = cache.unsqueeze(2)
        return row, row[..., : layer.kv_lora_rank]
    if cache.dim() != 4:
        return None
    name = layer.attn_backend.__name__
    heads, size = layer.num_kv_heads, layer.head_size
    if name == "RocmAttentionBackend":
        from vllm.v1.attention.ops.paged_attn import PagedAttention

        key, value = PagedAttention.split_kv_cache(cache.transpose(0, 1), heads, size)
        return key.permute(0, 3, 1, 2, 4), value.permute(0, 3, 1, 2)
    own_split = getattr(layer.impl, "_split_kv_cache", None)
    parts = own_split(cache) if own_split else cache.transpose(1, 2).split(size, dim=-1)
    key, value = parts
    if key.dim() != 4 or key.shape[2:] != (heads, size):
        return None
    return key, value


def _plain(kv_cache_dtype: str) -> bool:
    return kv_cache_dtype in ("auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2")


def requested_dtype(kv_cache_dtype: str, model_dtype: torch.dtype) -> torch.dtype:
    """The element type that the KV cache dtype asks for on this platform."""
    from vllm.platforms import current_platform

    named = {
        "auto": model_dtype,
        "float16": torch.float16,
        "bfloat16": torch.bfloat16,
        "fp8": current_platform.fp8_dtype(),
        "fp8_e4m3": current_platform.fp8_dtype(),
        "fp8_e5m2": torch.float8_e5m2,
    }
    return named[kv_cache_dtype]


def rows(view: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Elements of ``view`` at flat token ``slots`` (n,) as (n, heads * size), in the storage's own dtype."""
    block = view.shape[1]
    picked = as_bytes(view)[slots // block, slots % block].flatten(1)
    return picked.view(view.dtype)


def as_bytes(view: torch.Tensor) -> torch.Tensor:
    """One-byte elements as uint8 (FP8 types cannot be indexed); others as they are."""
    return view.view(torch.uint8) if view.element_size() == 1 else view


def owned_bytes(layer: Any, slots: torch.Tensor) -> torch.Tensor | None:
    """A mask over the bytes of the cache's whole storage: not 0 where ``slots`` live; None if unknown."""
    cache = layer.kv_cache
    storage = cache.untyped_storage()
    mask = torch.zeros(storage.nbytes(), dtype=torch.uint8, device=cache.device)
    like = _twin(mask, cache)
    views = packed.whole_slots(like) if packed.is_packed(layer) else split(layer, like)
    if views is None:
        return None
    # What a token owns beside K and V, such as an indexer's keys; (blocks, block, ...) in the same storage.
    sides = [side for side in getattr(layer, "side_caches", ()) if _together(side, cache)]
    for view in (*views, *(_twin(mask, side) for side in sides)):
        block = view.shape[1]
        whole = view.view(_SIGNED[view.element_size()])
        whole[slots // block, slots % block] = -1
    return mask


def _twin(mask: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
    """``mask``, one byte for each of the storage's, shaped and strided as ``cache`` is."""
    twin = mask.view(cache.dtype) if cache.element_size() > 1 else mask
    twin = twin[: mask.numel() // cache.element_size()]
    return torch.as_strided(twin, cache.shape, cache.stride(), cache.storage_offset())


def _together(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
