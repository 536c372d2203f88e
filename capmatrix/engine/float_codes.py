"""bfloat16 and the four fp8 formats as numpy arrays: exact decoding, and the rounding that Triton's AMD compiler gives.

The storage types are those of ``ml_dtypes``, so that an array of codes and an array of values are the same array.
Arrays keep their shape throughout; every function takes any shape and returns the same one.

Semantics of a cast to fp8, as Triton's AMD backend compiles it. Source: ``downcastToFp8_RTNE_oneValue`` and
``Fp32_to_Fp8E5M2_RTNE_SW`` in ``third_party/amd/lib/TritonAMDGPUToLLVM/ElementwiseOpToLLVM.cpp`` (in later versions
``ConvertFpCastOpToLLVM.cpp``). The LLVM IR that Triton 3.7.1 emits for gfx90a, gfx942, gfx950 and gfx1201, evaluated
for every fp16 and bf16 and for 2.4 million fp32, gives the same codes where software converts, but for the exceptions
named below:

* rounding is to nearest, ties to even, subnormals included;
* a finite value out of range saturates to the largest finite value (448, 240, 57344, 57344); where the hardware
  converts, the kernel sets ``FP16_OVFL`` in the MODE register for the same effect;
* infinity saturates in the OCP formats (e4m3fn, e5m2) and becomes NaN in the FNUZ formats, whose only NaN is 0x80;
* NaN stays NaN; negative zero, and negative values that round to zero, become 0x00 in the FNUZ formats.

``rtz`` drops the bits below (AMD compiles it for e5m2, fp16 and bf16 only): e5m2 keeps infinity, since it goes through
``v_cvt_pkrtz_f16_f32``; bf16 is the upper half of the fp32, whatever its payload.

A cast fp32 to bf16 rounds to nearest even and gives the quiet NaN 0x7FC0 with the sign kept (gfx942 writes 0x7FFF,
gfx950 the quieted payload: only the payload differs).

Exceptions, not modelled: fp16 between 464 and 480 becomes NaN in e4m3fn where software converts (gfx90a, gfx942; it
saturates here and on gfx950); fp32 reaches the FNUZ formats through fp16 on gfx90a and RDNA, so it is rounded twice and
beyond 65520 becomes NaN (FNUZ is native to gfx942, where one instruction converts).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_F16, _F32, _F64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)


@dataclass(frozen=True)
class Fp8:
    """One fp8 format. ``name`` as torch and ml_dtypes spell it, ``triton`` as Triton's ``tl.dtype.name``."""

    name: str
    triton: str
    dtype: np.dtype[Any]
    largest: float
    nan_code: int
    fnuz: bool


FP8: tuple[Fp8, ...] = (
    Fp8("float8_e4m3fn", "fp8e4nv", np.dtype(ml_dtypes.float8_e4m3fn), 448.0, 0x7F, False),
    Fp8("float8_e4m3fnuz", "fp8e4b8", np.dtype(ml_dtypes.float8_e4m3fnuz), 240.0, 0x80, True),
    Fp8("float8_e5m2", "fp8e5", np.dtype(ml_dtypes.float8_e5m2), 57344.0, 0x7E, False),
    Fp8("float8_e5m2fnuz", "fp8e5b16", np.dtype(ml_dtypes.float8_e5m2fnuz), 57344.0, 0x80, True),
)
BY_DTYPE: dict[np.dtype[Any], Fp8] = {f.dtype: f for f in FP8}
SMALL: frozenset[np.dtype[Any]] = frozenset(BY_DTYPE)
"""The numpy types of the fp8 formats."""


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether ``dtype`` is a floating type of Triton: fp64, fp32, fp16, bf16 or one of the fp8 formats."""
    return dtype.kind == "f" or dtype == BFLOAT16 or dtype in SMALL


@cache
def _decode_table(fmt: Fp8, target: np.dtype[Any]) -> Array:
    """The 256 values of ``fmt`` in ``target`` (fp16, bf16, fp32 or fp64; exact in each)."""
    table = np.arange(256, dtype=np.uint8).view(fmt.dtype).astype(_F32).astype(target)
    table.flags.writeable = False
    return table


def decode(codes: Array, target: np.dtype[Any] = _F32) -> Array:
    """fp8 codes to their exact values in ``target``. ``codes`` has one of the fp8 types of ``FP8``."""
    return _decode_table(BY_DTYPE[codes.dtype], target).take(codes.view(np.uint8))


@cache
def _encode_table(fmt: Fp8, rounding: str) -> Array:
    """The fp8 code of each of the 65536 bf16 values (uint8, indexed by the bf16 code), rounded as ``rounding`` says.

    An fp8 value and a midpoint of two have at most four significant bits after the first, bf16 has seven: the last
    bit of a bf16 code can stand for "some bits below are set" without changing how the value rounds. So this table
    also rounds an fp32 value from its upper sixteen bits and that one bit.
    """
    values = np.arange(65536, dtype=np.uint16).view(BFLOAT16).astype(_F32)
    magnitude = np.abs(values)
    nan, infinite, negative = np.isnan(values), np.isinf(values), np.signbit(values)
    with np.errstate(all="ignore"):
        if rounding == "rtz":
            finite = np.arange(128, dtype=np.uint8)
            grid = finite.view(fmt.dtype).astype(_F32)
            finite = finite[np.isfinite(grid)]
            below = np.searchsorted(grid[: len(finite)], magnitude, side="right") - 1
            codes = finite[np.where(nan, 0, below)]
        else:
            codes = np.minimum(magnitude, np.float32(fmt.largest)).astype(fmt.dtype).view(np.uint8)
    if fmt.fnuz:
        codes = np.where(negative & (codes != 0), codes | np.uint8(0x80), codes)
        codes[nan | infinite] = fmt.nan_code
    else:
        if rounding == "rtz" and fmt.name == "float8_e5m2":
            codes[infinite] = 0x7C
        codes[nan] = fmt.nan_code
        codes = codes | (negative.astype(np.uint8) << np.uint8(7))
    codes = codes.astype(np.uint8)
    codes.flags.writeable = False
    return codes


def encode(values: Array, target: np.dtype[Any], rounding: str = "rtne") -> Array:
    """``values`` (fp64, fp32, fp16 or bf16) as codes of the fp8 type ``target``; ``rounding`` is rtne or rtz."""
    table = _encode_table(BY_DTYPE[target], rounding)
    if values.dtype == BFLOAT16:
        return table.take(values.view(np.uint16)).view(target)
    if values.dtype == _F64:
        values = to_odd_float32(values)
    halves = np.ascontiguousarray(values, dtype=_F32).view(np.uint16).reshape(*values.shape, 2)
    return table.take(halves[..., 1] | (halves[..., 0] != 0)).view(target)


def to_odd_float32(values: Array) -> Array:
    """fp64 to fp32 rounded to odd: truncated, the last bit set if anything was lost.

    Rounding the result to 22 bits or fewer equals rounding the fp64 once (Boldo and Melquiond, "Emulation of a FMA
    and correctly rounded sums: proved algorithms using rounding to odd", 2008), so no tie is rounded twice.
    """
    with np.errstate(all="ignore"):
        nearest = values.astype(_F32)
        inexact = nearest != values
    if not inexact.any():
        return nearest
    inexact &= ~np.isnan(values)
    truncated = truncate_float32(values, nearest)
    return np.where(inexact, (truncated.view(np.uint32) | np.uint32(1)).view(_F32), nearest)


def truncate_float32(values: Array, nearest: Array | None = None) -> Array:
    """fp64 to fp32 toward zero; a finite value out of range gives the largest finite one."""
    with np.errstate(all="ignore"):
        if nearest is None:
            nearest = values.astype(_F32)
        beyond = np.abs(nearest) > np.abs(values)
        return np.where(beyond, np.nextafter(nearest, _F32.type(0)), nearest)


def convert(values: Array, target: np.dtype[Any], rounding: str = "rtne") -> Array:
    """``values`` of any numpy or ml_dtypes type as ``target``, rounded once, the way Triton's AMD compiler casts.

    Integers reach bf16 and fp8 through fp32, as compiled; bf16 and fp8 reach integers through fp32. Casts between
    integers wrap. A float out of an integer's range has no defined result, there as here.
    """
    source = values.dtype
    if source == target:
        return values
    if source in SMALL:
        if target in SMALL:
            return encode(decode(values, BFLOAT16), target, rounding)
        return decode(values, target) if is_float(target) else convert(decode(values), target)
    if not is_float(source):
        return convert(values.astype(_F32), target) if target in SMALL or target == BFLOAT16 else values.astype(target)
    with np.errstate(all="ignore"):
        if target in SMALL:
            return encode(values, target, rounding)
        if not is_float(target):
            return values.astype(_F32).astype(target) if source == BFLOAT16 else values.astype(target)
        if rounding == "rtz" and target.itemsize < source.itemsize:
            return _truncate(values, target)
        if source == _F64 and target == BFLOAT16:
            return to_odd_float32(values).astype(BFLOAT16)
        return values.astype(target)


def _truncate(values: Array, target: np.dtype[Any]) -> Array:
    """fp64 or fp32 toward zero to fp32, fp16 or bf16; infinities stay, finite values out of range do not reach them."""
    if target == _F32:
        return truncate_float32(values)
    single = truncate_float32(values) if values.dtype == _F64 else values
    if target == BFLOAT16:
        return (np.ascontiguousarray(single).view(np.uint32) >> np.uint32(16)).astype(np.uint16).view(BFLOAT16)
    nearest = single.astype(target)
    beyond = np.abs(nearest.astype(_F32)) > np.abs(single)
    return np.where(beyond, np.nextafter(nearest, target.type(0)), nearest)


def fused_multiply_add(x: Array, y: Array, z: Array) -> Array:
    """``x * y + z`` rounded once, in the type of ``z`` (fp32, fp16 or bf16; fp64 as numpy gives it, rounded twice).

    bf16 is computed as a fused multiply-add in fp32 and then rounded, as AMD compiles it. The product of two fp32 is
    exact in fp64; the sum is rounded to odd there, so that rounding it again to fp32 or fp16 is the one rounding.
    """
    target = z.dtype
    with np.errstate(all="ignore"):
        if target == _F64:
            return x * y + z
        if target == BFLOAT16 or target in SMALL:
            single = fused_multiply_add(convert(x, _F32), convert(y, _F32), convert(z, _F32))
            return convert(single, target)
        product, addend = x.astype(_F64) * y.astype(_F64), z.astype(_F64)
        total = product + addend
        # Knuth's two-sum: the exact error of the addition.
        virtual = total - product
        error = (product - (total - virtual)) + (addend - virtual)
        bits = np.ascontiguousarray(total).view(np.int64).reshape(total.shape)
        inexact = (error != 0) & np.isfinite(error) & (bits & 1 == 0)
        toward = np.where((error > 0) == (total > 0), 1, -1)
        return np.where(inexact, bits + toward, bits).view(_F64).astype(target)
