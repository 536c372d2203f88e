"""bfloat16 and fp8 in Triton's interpreter (TRITON_INTERPRET=1), which by itself computes them as integers.

Triton's interpreter keeps bf16 as uint16 and fp8 as uint8 and hands them to numpy, so that an addition adds codes; its
own conversion rounds up from the midpoint and does not know e4m3fnuz and e5m2fnuz. ``install()`` gives these types
storage that numpy computes with (``ml_dtypes``) and replaces the operations whose meaning differs from what Triton's
AMD compiler makes of them:

* casts: ``float_codes.convert`` (nearest even, saturation, FNUZ; sources named there);
* bf16 add, subtract, multiply, divide: in fp32, rounded to bf16 after each operation. No fusing of a multiply and an
  add that the source does not ask for, although the GPU's compiler may fuse (enable_fp_fusion);
* ``tl.fma``: one rounding; ``tl.sqrt`` and division: correctly rounded; exp, log and so on: numpy's, within an ulp or
  so, where the GPU's are approximate; denormals are never flushed;
* ``tl.minimum``/``tl.maximum``/``tl.clamp``: drop a NaN unless ``propagate_nan`` asks to keep it;
* ``tl.sum`` in bf16 or fp16: pairs are added and rounded, as a tree; fp32 and fp64 as numpy adds them. The
  order is not the hardware's;
* ``tl.dot``: every operand exactly in fp32, products and sums in fp32 (fp16 output rounded once at the end),
  ``max_num_imprecise_acc`` and ``input_precision`` ignored. The order is not the hardware's;
* libdevice: the functions that numpy has, in fp32 and fp64 (``interpreter_libdevice``);
* fp8 arithmetic and comparisons, which AMD's compiler refuses, are computed in fp32 and rounded;
* fp8e4b15 and ``tl.dot_scaled`` (absent from the interpreter) stay as they are.

Nothing but this process is changed, and nothing of vLLM is imported.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

from . import Unavailable, interpreter_launch, interpreter_libdevice, interpreter_memory
from . import float_codes as codes

VERSION = 2
"""Raised whenever a result of an interpreted kernel may change."""

KNOWN_TRITON = ("3.6", "3.7")

_REQUIRED = {
    "TensorHandle": (),
    "InterpreterBuilder": (
        *("binary_op", "cast_impl", "create_fp_to_fp", "create_fma", "create_fabs", "create_dot", "create_clampf"),
        *("create_minnumf", "create_maxnumf", "create_load", "create_masked_load", "create_store"),
        *("create_masked_store", "create_atomic_rmw"),
    ),
    "ReduceScanOpInterface": ("to_tensor",),
    "ReduceOps": ("sum", "apply_impl"),
    "GridExecutor": ("__call__", "_restore_args_dev"),
    "interpreter_builder": ("options",),
    "interpreter_semantic": ("broadcast_impl_value",),
    "_interpreter": ("load", "store"),
    "_get_np_dtype": (),
    "_patch_lang": (),
    "_patch_lang_core": (),
}
_FP8_ARITHMETIC = {np.add, np.subtract, np.multiply, np.divide, np.fmod, np.minimum, np.maximum, np.fmin, np.fmax}


class InterpreterUnsupported(Unavailable):
    """The installed Triton's interpreter is not one that this extension knows."""


def install() -> str:
    """Extend Triton's interpreter in this process; a second call changes nothing.

    Call it with TRITON_INTERPRET=1 set, before a kernel runs. Returns a description for the environment record.
    Raises InterpreterUnsupported, naming the versions known, if Triton lacks what is to be replaced.
    """
    import triton

    tl: Any = triton.language
    interpreter = _interpreter_module(triton.__version__)
    description = (
        f"capmatrix interpreter extension {VERSION} (bf16 and fp8 arithmetic; "
        f"triton {triton.__version__}, numpy {np.__version__}, ml_dtypes {ml_dtypes.__version__})"
    )
    if getattr(interpreter, "_capmatrix_extension", None) is None:
        _install_types(interpreter, tl)
        _install_casts(interpreter)
        _install_arithmetic(interpreter, tl)
        _install_reductions(interpreter, tl)
        interpreter_memory.install(interpreter)
        interpreter_launch.install(interpreter, tl)
        interpreter_libdevice.install(interpreter, tl)
        interpreter._capmatrix_extension = VERSION
    return description


def _interpreter_module(version: str) -> Any:
    """Triton's interpreter module, once everything that is to be replaced is seen to be there."""
    known = f"it knows Triton {' and '.join(KNOWN_TRITON)}"
    try:
        from triton.runtime import interpreter
    except ImportError as error:
        message = f"Triton {version} has no interpreter that can be extended ({error}); {known}"
        raise InterpreterUnsupported(message) from error
    module: ModuleType = interpreter
    missing = [
        f"{name}.{attribute}" if attribute else name
        for name, attributes in _REQUIRED.items()
        for attribute in (None, *attributes)
        if not hasattr(module, name) or (attribute and not hasattr(getattr(module, name), attribute))
    ]
    if missing or not version.startswith(tuple(f"{v}." for v in KNOWN_TRITON)):
        lacks = f" (missing: {', '.join(missing)})" if missing else ""
        raise InterpreterUnsupported(
            f"capmatrix's extension of Triton's interpreter does not know Triton {version}{lacks}; {known}"
        )
    return module


def _install_types(interpreter: Any, tl: Any) -> None:
    """Storage types, constants and IR types of bf16 and fp8."""
    storage = {
        tl.bfloat16: codes.BFLOAT16,
        tl.float8e4nv: codes.FP8[0].dtype,
        tl.float8e4b8: codes.FP8[1].dtype,
        tl.float8e5: codes.FP8[2].dtype,
        tl.float8e5b16: codes.FP8[3].dtype,
    }
    plain_np_dtype = interpreter._get_np_dtype
    cached: dict[str, np.dtype[Any]] = {tt_dtype.name: dtype for tt_dtype, dtype in storage.items()}
    pointer = np.dtype(np.uint64)

    def np_dtype(tt_dtype: Any) -> np.dtype[Any]:
        scalar = tt_dtype.scalar
        if scalar.is_ptr():
            return pointer
        known = cached.get(scalar.name)
        if known is None:
            known = cached[scalar.name] = plain_np_dtype(scalar)
        return known

    interpreter._get_np_dtype = np_dtype
    builder, handle = interpreter.InterpreterBuilder, interpreter.TensorHandle
    for tt_dtype, dtype in storage.items():
        # Triton 3.6 asks for a constant of any of these types by name, 3.7 makes those of fp8 from fp32.
        getter = functools.partial(_constant, handle, tt_dtype, dtype)
        setattr(builder, f"get_{tt_dtype.name}", lambda self, value, getter=getter: getter(value))

    plain_patch_core = interpreter._patch_lang_core
    ir_types = {"fp8e4b8": tl.float8e4b8, "fp8e5b16": tl.float8e5b16}

    def patch_lang_core(lang: Any, scope: Any) -> None:
        plain_patch_core(lang, scope)
        plain_to_ir = lang.dtype.to_ir

        def to_ir(self: Any, builder: Any) -> Any:
            return ir_types[self.name] if self.name in ir_types else plain_to_ir(self, builder)

        scope.set_attr(lang.dtype, "to_ir", to_ir)

    interpreter._patch_lang_core = patch_lang_core


def _constant(handle: Any, tt_dtype: Any, dtype: np.dtype[Any], value: float) -> Any:
    return handle(codes.convert(np.array([value], dtype=np.float32), dtype), tt_dtype)


def _install_casts(interpreter: Any) -> None:
    """Casts by the stored type: a comparison's handle holds booleans whatever type it is labelled with."""
    builder, handle = interpreter.InterpreterBuilder, interpreter.TensorHandle
    rtz = interpreter._ir.ROUNDING_MODE.RTZ
    plain_fp_to_fp = builder.create_fp_to_fp

    def cast_impl(self: Any, src: Any, dst_type: Any) -> Any:
        target = dst_type.scalar
        return handle(codes.convert(src.data, interpreter._get_np_dtype(target)), target)

    def fp_to_fp(self: Any, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
        target = dst_type.scalar
        if src.dtype.scalar.is_fp8e4b15() or target.is_fp8e4b15():
            return plain_fp_to_fp(self, src, dst_type, rounding_mode)
        rounding = "rtz" if rounding_mode == rtz else "rtne"
        return handle(codes.convert(src.data, interpreter._get_np_dtype(target), rounding), target)

    builder.cast_impl = cast_impl
    builder.create_fp_to_fp = fp_to_fp


def _install_arithmetic(interpreter: Any, tl: Any) -> None:
    builder, handle = interpreter.InterpreterBuilder, interpreter.TensorHandle
    plain_binary = builder.binary_op

    def binary_op(self: Any, lhs: Any, rhs: Any, op: Any) -> Any:
        a, b = lhs.data, rhs.data
        if a.dtype in codes.SMALL and op in _FP8_ARITHMETIC:
            return handle(codes.encode(op(codes.decode(a), codes.decode(b)), a.dtype), lhs.dtype.scalar)
        out = op(a, b)
        if out.dtype == np.bool_:
            return handle(out, tl.int1)
        if out.dtype != a.dtype:
            return plain_binary(self, lhs, rhs, op)
        return handle(out, lhs.dtype.scalar)

    def min_num(self: Any, lhs: Any, rhs: Any) -> Any:
        return self.binary_op(lhs, rhs, np.fmin)

    def max_num(self: Any, lhs: Any, rhs: Any) -> Any:
        return self.binary_op(lhs, rhs, np.fmax)

    def clamp(self: Any, arg: Any, lo: Any, hi: Any, propagate_nans: Any) -> Any:
        keep = propagate_nans == tl.PropagateNan.ALL
        bounded = self.binary_op(arg, lo, np.maximum if keep else np.fmax)
        return self.binary_op(bounded, hi, np.minimum if keep else np.fmin)

    def absolute(self: Any, arg: Any) -> Any:
        fmt = codes.BY_DTYPE.get(arg.data.dtype)
        if fmt is not None:
            return handle((arg.data.view(np.uint8) & np.uint8(0x7F)).view(fmt.dtype), arg.dtype.scalar)
        return handle(np.abs(arg.data), arg.dtype.scalar)

    def fma(self: Any, x: Any, y: Any, z: Any) -> Any:
        if codes.is_float(z.data.dtype):
            return handle(codes.fused_multiply_add(x.data, y.data, z.data), z.dtype.scalar)
        return handle(x.data * y.data + z.data, z.dtype.scalar)

    def dot(self: Any, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
        accumulator = d.data
        # The sum of int8 products is exact in fp64, whose product numpy takes from BLAS.
        exact = np.float32 if accumulator.dtype in (np.float32, np.float16) else np.float64
        lhs, rhs = codes.convert(a.data, np.dtype(exact)), codes.convert(b.data, np.dtype(exact))
        product = np.matmul(lhs, rhs)
        if accumulator.dtype.kind == "i":
            return handle(product.astype(np.int64).astype(accumulator.dtype) + accumulator, d.dtype.scalar)
        product += accumulator
        return handle(product.astype(accumulator.dtype, copy=False), d.dtype.scalar)

    builder.binary_op = binary_op
    builder.create_minnumf, builder.create_maxnumf = min_num, max_num
    builder.create_clampf = clamp
    builder.create_fabs = absolute
    builder.create_fma = fma
    builder.create_dot = dot


def _install_reductions(interpreter: Any, tl: Any) -> None:
    ops = interpreter.ReduceOps
    plain_apply, plain_sum = ops.apply_impl, ops.sum
    standard = tl.standard

    def tree_sum(self: Any, input: Any) -> Any:
        data = input.handle.data
        if data.dtype not in codes.SMALL and data.dtype not in (codes.BFLOAT16, np.float16):
            return plain_sum(self, input)
        axis = self.axis
        total = _tree_sum(np.moveaxis(data, axis, 0) if axis is not None else data.reshape(-1))
        if self.keep_dims:
            total = np.expand_dims(total, axis if axis is not None else tuple(range(data.ndim)))
        return self.to_tensor(total, input.dtype)

    def apply_impl(self: Any, input: Any) -> Any:
        first = input[0]
        if self.combine_fn in (standard._elementwise_max, standard._elementwise_min):
            # As nanmax and nanmin: a NaN counts only where nothing else does; without their copies and warnings.
            op = np.fmax if self.combine_fn == standard._elementwise_max else np.fmin
            data = first.handle.data
            if data.dtype in codes.SMALL:
                data = codes.decode(data)
            return self.to_tensor(op.reduce(data, axis=self.axis, keepdims=self.keep_dims), first.dtype)
        return plain_apply(self, input)

    def to_tensor(self: Any, ret: Any, dtype: Any) -> Any:
        array = codes.convert(np.atleast_1d(ret), interpreter._get_np_dtype(dtype))
        shaped = bool(getattr(ret, "shape", ()))
        return tl.core.tensor(
            interpreter.TensorHandle(array, dtype.scalar),
            tl.block_type(dtype, list(array.shape)) if shaped else dtype,
        )

    ops.sum = tree_sum
    ops.apply_impl = apply_impl
    interpreter.ReduceScanOpInterface.to_tensor = to_tensor


def _tree_sum(values: codes.Array) -> codes.Array:
    """Sum over the first axis, halving it: each addition in fp32, rounded to the type of ``values``."""
    dtype = values.dtype
    while values.shape[0] > 1:
        half, odd = divmod(values.shape[0], 2)
        pairs = codes.convert(values[:half], np.dtype(np.float32)) + codes.convert(
            values[half : 2 * half], np.dtype(np.float32)
        )
        rounded = codes.convert(pairs, dtype)
        values = np.concatenate([rounded, values[2 * half :]]) if odd else rounded
    return values[0]
