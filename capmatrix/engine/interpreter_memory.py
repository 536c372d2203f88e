"""Memory operations of Triton's interpreter: loads and stores of large tensors by numpy, atomic addition in bf16.

Triton's own loops take about 10 ns an element to load and 24 ns to store, a fifth of a kernel that reads a KV cache in
tiles of 128 by 128. Here the addressed memory is viewed as one array and indexed. The same addresses are touched and
the same bytes move: an element that is masked off is never read or written, and where an address is stored to twice,
the later element of the tensor wins. Small tensors and misaligned pointers keep Triton's loops.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .float_codes import BFLOAT16, Array

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
        other = None if other is None else np.broadcast_to(other.data, ptrs.data.shape)
        return handle(load(native, ptrs.data, _mask(mask, ptrs.data.shape), other, dtype), element)

    def unmasked_load(self: Any, ptr: Any, cache_modifier: Any, eviction_policy: Any, is_volatile: Any) -> Any:
        return self.create_masked_load(ptr, None, None, cache_modifier, eviction_policy, is_volatile)

    def masked_store(self: Any, ptrs: Any, value: Any, mask: Any, cache_modifier: Any, eviction_policy: Any) -> None:
        store(native, ptrs.data, value.data, _mask(mask, ptrs.data.shape))

    def unmasked_store(self: Any, ptr: Any, val: Any, cache_modifier: Any, eviction_policy: Any) -> None:
        self.create_masked_store(ptr, val, None, cache_modifier, eviction_policy)

    builder.create_masked_load, builder.create_load = masked_load, unmasked_load
    builder.create_masked_store, builder.create_store = masked_store, unmasked_store
    _install_atomics(interpreter)


def _mask(mask: Any, shape: tuple[int, ...]) -> Array | None:
    """A mask is a handle from a kernel, but an array from a block pointer or a tensor descriptor."""
    if mask is None:
        return None
    data = mask if isinstance(mask, np.ndarray) else mask.data
    return np.broadcast_to(data if data.dtype == np.bool_ else data.astype(bool), shape)


def _install_atomics(interpreter: Any) -> None:
    """Atomic addition in fp16 and bf16: element after element, in the order of the tensor, rounded after each."""
    builder, handle = interpreter.InterpreterBuilder, interpreter.TensorHandle
    plain_rmw = builder.create_atomic_rmw
    fadd = interpreter._ir.ATOMIC_OP.FADD

    def atomic_rmw(self: Any, rmw_op: Any, ptr: Any, val: Any, mask: Any, sem: Any, scope: Any) -> Any:
        dtype = val.data.dtype
        if dtype not in (BFLOAT16, np.float16) or rmw_op != fadd:
            return plain_rmw(self, rmw_op, ptr, val, mask, sem, scope)
        native = interpreter._interpreter
        old = np.zeros(val.data.shape, dtype)
        active = np.broadcast_to(mask.data, val.data.shape)
        pointers = np.broadcast_to(ptr.data, val.data.shape)
        one = np.ones(1, dtype=bool)
        for index in np.ndindex(val.data.shape):
            if active[index]:
                where = np.array([pointers[index]], dtype=np.uint64)
                before = native.load(where, one, np.zeros(1, dtype), dtype)
                native.store(where, before + val.data[index], one)
                old[index] = before[0]
        return handle(old, val.dtype.scalar)

    builder.create_atomic_rmw = atomic_rmw
