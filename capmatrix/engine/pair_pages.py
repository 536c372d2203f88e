"""Whether the layers of a shared pool keep to their own pages: a block lies on no other block of any layer.

vLLM overlays the groups of a hybrid pool: block b of one group and block b of another are the same bytes, which is
right because a block id belongs to one group at a time. Bytes of block b under another block corrupt another request.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from ..cell import Check


class Span(NamedTuple):
    """Where one tensor of a layer lies in the allocation, in units: ``shape`` and ``stride`` by axis, blocks first."""

    layer: str
    group: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    blocks: int


def check(trail: Any) -> Check:
    """Tag every unit of the allocation with the block that owns it, layer by layer and group by group."""
    caches = {name: _tensors(cache) for name, cache in trail.caches.items()}
    groups = [group.layer_names for group in trail.kv_cache_config.kv_cache_groups]
    found = [
        (name, index, tensor) for index, names in enumerate(groups) for name in names for tensor in caches.get(name, ())
    ]
    if not found:
        return Check("pages", None, detail="no pages")
    blocks = int(trail.kv_cache_config.num_blocks)
    unit = math.gcd(*(_unit(tensor) for _, _, tensor in found))
    spans = [_span(name, index, tensor, unit, blocks) for name, index, tensor in found]
    size = max(tensor.untyped_storage().nbytes() for _, _, tensor in found) // unit + 1
    return overlaps(spans, size, len(groups))


def overlaps(spans: list[Span], size: int, groups: int) -> Check:
    """The check itself, over an allocation of ``size`` units."""
    seen = torch.zeros(size, dtype=torch.int32)  # on the host: outlines alone are compared
    for group in range(groups):
        mine = torch.zeros_like(seen)
        for span in (s for s in spans if s.group == group):
            window = torch.as_strided(mine, span.shape, span.stride, span.offset)
            if bool(window.any()):
                return Check("pages", False, detail=f"{span.layer} lies on another layer of its own group")
            block = torch.arange(span.shape[0], dtype=torch.int32) // max(1, span.shape[0] // span.blocks) + 1
            window.copy_(block.view(-1, *([1] * (len(span.shape) - 1))).expand(span.shape))
        both = (mine != 0) & (seen != 0)
        if bool((both & (mine != seen)).any()):
            where = int((both & (mine != seen)).nonzero()[0])
            text = f"block {int(mine[where]) - 1} of group {group} lies on block {int(seen[where]) - 1} of another"
            return Check("pages", False, detail=text)
        seen = torch.maximum(seen, mine)
    return Check("pages", True, detail=f"blocks of {groups} group{'s' if groups > 1 else ''} keep to their own pages")


def _tensors(cache: Any) -> list[torch.Tensor]:
    return [tensor for tensor in (cache if isinstance(cache, (list, tuple)) else (cache,)) if tensor.numel()]


def _run(tensor: torch.Tensor) -> int:
    """How many last axes, after the first, are one contiguous run."""
    axes, length = 0, 1
    for axis in range(tensor.dim() - 1, 0, -1):
        if tensor.shape[axis] != 1 and tensor.stride(axis) != length:
            break
        length *= tensor.shape[axis]
        axes += 1
    return axes


def _bytes_of(tensor: torch.Tensor) -> tuple[list[int], list[int], int, int]:
    """Shape and strides in bytes of the outer axes, bytes of the inner run, offset in bytes."""
    size, inner = tensor.element_size(), _run(tensor)
    outer = tensor.dim() - inner
    length = math.prod(tensor.shape[outer:]) * size
    strides = [stride * size for stride in tensor.stride()[:outer]]
    return list(tensor.shape[:outer]), strides, length, tensor.storage_offset() * size


def _unit(tensor: torch.Tensor) -> int:
    """The largest number of bytes in which the tensor's outline can be counted."""
    shape, strides, length, offset = _bytes_of(tensor)
    used = [stride for extent, stride in zip(shape, strides, strict=True) if extent > 1]
    return math.gcd(length, offset, *used)


def _span(name: str, group: int, tensor: torch.Tensor, unit: int, blocks: int) -> Span:
    shape, strides, length, offset = _bytes_of(tensor)
    counted = [stride // unit for stride in strides]
    return Span(name, group, (*shape, length // unit), (*counted, 1), offset // unit, blocks)
