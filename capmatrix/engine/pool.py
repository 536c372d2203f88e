"""What unused slots of the KV pool hold before a batch: zeros, finite garbage, or NaN in the cache's own code."""

from __future__ import annotations

from typing import Any

import torch

from . import cache_view, packed

#: One byte that is NaN in each FP8 format; e4m3fnuz and e5m2fnuz have only the one.
_NAN_BYTE = {
    torch.float8_e4m3fn: 0x7F,
    torch.float8_e4m3fnuz: 0x80,
    torch.float8_e5m2: 0x7F,
    torch.float8_e5m2fnuz: 0x80,
}


def fill(layer: Any, what: str) -> torch.Tensor:
    """Fill the whole storage behind the layer's cache; returns a copy of its bytes.

    ``what``: ``zeroed``, ``stale`` (large finite values of both signs) or ``nan``.
    """
    cache = layer.kv_cache
    packed.prepare(layer)
    storage = torch.empty(0, dtype=torch.uint8, device=cache.device).set_(cache.untyped_storage())
    if what == "zeroed":
        storage.zero_()
    elif what == "nan":
        _fill_nan(layer, cache, storage)
    else:
        _fill_stale(layer, cache, storage)
    return storage.clone()


def _elements(cache: torch.Tensor, storage: torch.Tensor) -> torch.Tensor:
    whole = storage.numel() // cache.element_size() * cache.element_size()
    return storage[:whole].view(cache.dtype)


def _fp8(layer: Any) -> torch.dtype:
    return cache_view.requested_dtype(layer.kv_cache_dtype, layer.dtype)


def _fill_nan(layer: Any, cache: torch.Tensor, storage: torch.Tensor) -> None:
    if cache.dtype.is_floating_point and cache.element_size() > 1:
        _elements(cache, storage).fill_(float("nan"))
    elif cache.element_size() == 1 and layer.kv_cache_dtype.startswith("fp8") and not packed.is_packed(layer):
        storage.fill_(_NAN_BYTE[_fp8(layer)])
    else:
        # Integer codes have no NaN; the packed scales beside them do, and all bytes set is NaN there.
        storage.fill_(0xFF)


def _fill_stale(layer: Any, cache: torch.Tensor, storage: torch.Tensor) -> None:
    if cache.dtype.is_floating_point and cache.element_size() > 1:
        values = _elements(cache, storage)
        values.fill_(3.0e4 if cache.dtype == torch.float16 else 1.0e5)
        values[1::2] *= -1
    else:
        # +max and -max of every FP8 format in turn: 0x7E and 0xFE (0x7B and 0xFB for e5m2 are smaller but finite).
        storage.fill_(0x7B)
        storage[1::2] = 0xFB
