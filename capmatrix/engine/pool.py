"""What unused slots of the KV pool hold before a batch: zeros, finite garbage, or NaN in the cache's own code."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from . import cache_view, packed

#: One byte that is NaN in each FP8 format; e4m3fnuz and e5m2fnuz have only the one.
_NAN_BYTE = {
    torch.float8_e4m3fn: 0x7F,
    torch.float8_e4m3fnuz: 0x80,
    torch.float8_e5m2: 0x7F,
    torch.float8_e5m2fnuz: 0x80,
}


#: Bytes of a storage that are filled and watched at its start and at its end; smaller ones are as a whole.
WATCHED = 1 << 26


class Snapshot(NamedTuple):
    """What parts of a storage held: (first byte, bytes) of each part that is watched."""

    parts: tuple[tuple[int, torch.Tensor], ...]


def fill(layer: Any, what: str) -> Snapshot:
    """Fill the storage behind the layer's cache, all of it but for very large ones; returns what it holds now.

    That is every slot of the layer, the padding of its pages, and the blocks that other groups of layers would own.
    ``what``: ``zeroed``, ``stale`` (large finite values of both signs) or ``nan``.
    """
    cache = layer.kv_cache
    packed.prepare(layer)
    storage = torch.empty(0, dtype=torch.uint8, device=cache.device).set_(cache.untyped_storage())
    parts = []
    for start, end in _watched(storage.numel()):
        part = storage[start:end]
        if what == "zeroed":
            part.zero_()
        elif what == "nan":
            _fill_nan(layer, cache, part)
        else:
            _fill_stale(layer, cache, part)
        parts.append((start, part.clone()))
    return Snapshot(tuple(parts))


def _watched(size: int) -> list[tuple[int, int]]:
    # Whole elements, whatever their size.
    tail = (size - WATCHED) // 16 * 16
    return [(0, size)] if size <= 2 * WATCHED else [(0, WATCHED), (tail, size)]


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
