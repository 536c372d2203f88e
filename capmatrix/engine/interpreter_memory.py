"""Loads and stores of large tensors in Triton's interpreter, by numpy instead of element by element.

Triton's own loops take about 10 ns an element to load and 24 ns to store, most of a kernel that reads a KV cache in
tiles of 128 by 128. Here the addressed memory is viewed as one array and indexed. The same addresses are touched and
the same bytes move: an element that is masked off is never read or written, and where an address is stored to twice,
the later element of the tensor wins. Small tensors and misaligned pointers keep Triton's loops.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_SMALL = 128
_UNSIGNED = {1: "|u1", 2: "<u2", 4: "<u4", 8: "<u8"}


class _Memory:
    """Raw memory for ``np.asarray``, by numpy's array interface."""

    def __init__(self, address: int, elements: int, itemsize: int) -> None:
        self.__array_interface__ = {
            "data": (address, False),
            "shape": (elements,),
            "typestr": _UNSIGNED[itemsize],
            "version": 3,
        }


def _view(pointers: Array, itemsize: int) -> tuple[Array, Array] | None:
    """(memory as unsigned integers of ``itemsize``, index of each pointer in it); None if a pointer is misaligned.

    ``pointers`` are uint64 addresses of any shape, at least one.
    """
    first = pointers.min()
    offsets = pointers - first
    if itemsize > 1:
        if (np.bitwise_or.reduce(offsets, axis=None) | first) & np.uint64(itemsize - 1):
            return None
        offsets >>= np.uint64(itemsize.bit_length() - 1)
    index = offsets.view(np.int64)
    return np.asarray(_Memory(int(first), int(index.max()) + 1, itemsize)), index


def load(native: Any, pointers: Array, mask: Array | None, other: Array | None, dtype: np.dtype[Any]) -> Array:
    """The elements of type ``dtype`` at ``pointers`` (uint64 addresses), in their shape.

    ``mask`` (None: all) and ``other`` (None: zeros, where masked off) have that shape too. ``native`` is Triton's
    module of loops.
    """
    if pointers.size > _SMALL:
        if mask is None or mask.all():
            found = _view(pointers, dtype.itemsize)
            if found is not None:
                memory, index = found
                return memory.take(index).view(dtype)
        elif not mask.any():
            return np.zeros(pointers.shape, dtype) if other is None else np.array(other)
        else:
            active = pointers[mask]
            found = _view(active, dtype.itemsize)
            if found is not None:
                memory, index = found
                out = np.zeros(pointers.shape, dtype) if other is None else np.array(other)
                out.view(memory.dtype)[mask] = memory.take(index)
                return out
    if mask is None:
        mask = np.ones(pointers.shape, dtype=bool)
    if other is None:
        other = np.zeros(pointers.shape, dtype)
    return native.load(pointers, mask, other, dtype)  # type: ignore[no-any-return]


def store(native: Any, pointers: Array, values: Array, mask: Array | None) -> None:
    """Store ``values`` at ``pointers`` (uint64 addresses of the same shape) where ``mask`` (None: everywhere)."""
    if pointers.size > _SMALL and pointers.shape == values.shape:
        where, what = pointers.reshape(-1), values.reshape(-1)
        if mask is not None and not mask.all():
            active = mask.reshape(-1)
            where, what = where[active], what[active]
        if not where.size:
            return
        found = _view(where, values.dtype.itemsize)
        if found is not None:
            memory, index = found
            memory[index] = np.ascontiguousarray(what).view(memory.dtype)
            return
    native.store(pointers, values, np.ones(pointers.shape, dtype=bool) if mask is None else mask)


def install(interpreter: Any) -> None:
    """Use these in the builder of ``interpreter`` (the module triton.runtime.interpreter)."""
    builder, handle, native = interpreter.InterpreterBuilder, interpreter.TensorHandle, interpreter._interpreter

    def masked_load(
        self: Any, ptrs: Any, mask: Any, other: Any, cache_modifier: Any, eviction_policy: Any, is_volatile: Any
    ) -> Any:
        element = ptrs.get_element_ty()
        dtype = interpreter._get_np_dtype(element)
        mask = None if mask is None else np.broadcast_to(_data(mask), ptrs.data.shape)
        other = None if other is None else np.broadcast_to(other.data, ptrs.data.shape)
        return handle(load(native, ptrs.data, mask, other, dtype), element)

    def unmasked_load(self: Any, ptr: Any, cache_modifier: Any, eviction_policy: Any, is_volatile: Any) -> Any:
        return self.create_masked_load(ptr, None, None, cache_modifier, eviction_policy, is_volatile)

    def masked_store(self: Any, ptrs: Any, value: Any, mask: Any, cache_modifier: Any, eviction_policy: Any) -> None:
        store(native, ptrs.data, value.data, None if mask is None else np.broadcast_to(_data(mask), ptrs.data.shape))

    def unmasked_store(self: Any, ptr: Any, val: Any, cache_modifier: Any, eviction_policy: Any) -> None:
        self.create_masked_store(ptr, val, None, cache_modifier, eviction_policy)

    builder.create_masked_load, builder.create_load = masked_load, unmasked_load
    builder.create_masked_store, builder.create_store = masked_store, unmasked_store


def _data(mask: Any) -> Array:
    """A mask is a handle from a kernel, an array from a block pointer or a tensor descriptor."""
    data: Array = getattr(mask, "data", mask) if not isinstance(mask, np.ndarray) else mask
    return data if data.dtype == np.bool_ else data.astype(bool)
