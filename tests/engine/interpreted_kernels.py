"""Kernels that test_interpreter_float.py runs in processes of their own, with TRITON_INTERPRET=1.

``python interpreted_kernels.py OUT.json extended|plain`` runs every case and writes {case: result or "error: ..."}; a
result is what the case returns: numbers, lists of them, or text. NaN and infinities are written as JSON extensions.
The cases take their inputs from ``inputs()``, which the tests use as well.
"""

from __future__ import annotations

import json
import sys
import warnings

import numpy as np
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

BF16 = torch.bfloat16
FP8 = {
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e4m3fnuz": torch.float8_e4m3fnuz,
    "float8_e5m2": torch.float8_e5m2,
    "float8_e5m2fnuz": torch.float8_e5m2fnuz,
}
CASES = {}


def case(function):
    """Register a case under its name."""
    CASES[function.__name__] = function
    return function


def inputs(n=256, seed=0):
    """Two fp32 tensors [n] of varied magnitude and sign, within every format's range."""
    generator = torch.Generator().manual_seed(seed)
    a, b = torch.randn(2, n, generator=generator) * torch.exp2(
        torch.randint(-4, 5, (2, n), generator=generator).float()
    )
    return a, b


def bits(tensor):
    """A tensor's codes as integers."""
    sizes = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(sizes[tensor.element_size()]).tolist()


@triton.jit
def cast_kernel(x, y, R: tl.constexpr, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(y + i, tl.load(x + i).to(y.dtype.element_ty, fp_downcast_rounding=R))


def cast(x, dtype, rounding=None):
    """``x`` (a power of two elements) as ``dtype`` by a kernel."""
    y = torch.zeros(x.numel(), dtype=dtype)
    cast_kernel[(1,)](x, y, rounding, B=x.numel())
    return y


def bf16_grid():
    """fp32 [2^18]: every bf16 code with 0, 0x7FFF, 0x8000 and 0x8001 below it."""
    high = torch.arange(65536, dtype=torch.int64)[:, None] << 16
    codes = (high | torch.tensor([0, 0x7FFF, 0x8000, 0x8001])).flatten()
    return torch.from_numpy(codes.numpy().astype(np.uint32)).view(torch.float32)


@case
def fp32_to_bf16():
    return bits(cast(bf16_grid(), BF16))


@case
def fp32_to_bf16_truncated():
    return bits(cast(bf16_grid(), BF16, "rtz"))


@case
def bf16_to_fp32():
    return bits(cast(torch.arange(65536).to(torch.uint16).view(BF16), torch.float32))


@case
def bf16_to_fp16():
    return bits(cast(torch.arange(65536).to(torch.uint16).view(BF16), torch.float16))


@case
def fp16_to_bf16():
    return bits(cast(torch.arange(65536).to(torch.uint16).view(torch.float16), BF16))


@case
def fp64_to_bf16():
    return bits(cast(torch.tensor([1 + 2.0**-8 + 2.0**-40, 0.1], dtype=torch.float64), BF16))


@case
def integers_and_bf16():
    whole = torch.tensor([-129, -1, 0, 1, 127, 257, 1000, 2**24 + 1], dtype=torch.int32)
    floats = torch.tensor([-3.75, -0.5, 0.0, 0.99, 2.5, 100, -7, 8], dtype=BF16)
    flags = torch.tensor([True, False])
    return [bits(cast(whole, BF16)), cast(floats, torch.int32).tolist(), bits(cast(flags, BF16))]


def _fp8_cases(name, dtype):
    codes = torch.arange(256).to(torch.uint8).view(dtype)
    return {
        f"{name}_decoded": lambda: [bits(cast(codes, t)) for t in (torch.float32, torch.float16, BF16)],
        f"fp32_to_{name}": lambda: bits(cast(bf16_grid(), dtype)),
        f"fp16_to_{name}": lambda: bits(cast(torch.arange(65536).to(torch.uint16).view(torch.float16), dtype)),
        f"bf16_to_{name}": lambda: bits(cast(torch.arange(65536).to(torch.uint16).view(BF16), dtype)),
        f"fp32_to_{name}_truncated": lambda: bits(cast(bf16_grid(), dtype, "rtz")),
        f"{name}_to_fp8": lambda: [bits(cast(codes, t)) for t in FP8.values() if t != dtype],
        f"{name}_bytes": lambda: bits(from_bytes(codes)),
        f"{name}_memory": lambda: memory(dtype),
        f"{name}_constants": lambda: constants(dtype),
        f"{name}_dot": lambda: dot(dtype, dtype),
        f"{name}_arithmetic": lambda: bits(add(*(t.to(dtype) for t in inputs()))),
        f"{name}_absolute": lambda: bits(absolute(codes)),
        f"{name}_compared": lambda: compare(codes, codes.view(torch.uint8).flip(0).view(dtype)),
        f"{name}_reduced": lambda: reduce_all(inputs(16)[0].to(dtype)),
    }


@triton.jit
def bytes_kernel(x, y, B: tl.constexpr):
    i = tl.arange(0, B)
    codes = tl.load(x + i).to(tl.uint8, bitcast=True)
    tl.store(y + i, codes.to(y.dtype.element_ty, bitcast=True))


def from_bytes(codes):
    """fp8 to bytes and back, by bitcasts."""
    y = torch.zeros_like(codes)
    bytes_kernel[(1,)](codes, y, B=codes.numel())
    return y


@triton.jit
def memory_kernel(x, y, n, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + i, mask=i < n, other=1.5)
    tl.store(y + i, v)
    tl.store(y + B + i, tl.load(x + i, mask=i < n), mask=i % 2 == 0)
    tl.store(y + 2 * B, tl.load(x + 3))
    tl.store(y + 2 * B + 1, 0.75)


def memory(dtype):
    """Masked loads with other=, masked stores, scalars; 64 and 256 elements take different paths."""
    out = []
    for size in (64, 256):
        x = inputs(size)[0].to(dtype)
        y = torch.full((2 * size + 2,), 2.0).to(dtype)
        memory_kernel[(1,)](x, y, size - 9, B=size)
        out.append(bits(y))
    return out


@triton.jit
def constants_kernel(y, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(y + i, tl.full((B,), 0.1, y.dtype.element_ty))
    tl.store(y + B + i, tl.zeros((B,), y.dtype.element_ty))
    tl.store(y + 2 * B + i, tl.where(i < 2, tl.full((B,), -3.0, y.dtype.element_ty), tl.load(y + i)))
    tl.store(y + 3 * B + i, float("-inf"))


def constants(dtype):
    y = torch.zeros(32).to(dtype)
    constants_kernel[(1,)](y, B=8)
    return bits(y)


@triton.jit
def dot_kernel(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x = tl.load(a + m[:, None] * K + k[None, :])
    y = tl.load(b + k[:, None] * N + n[None, :])
    tl.store(c + m[:, None] * N + n[None, :], tl.dot(x, y, tl.full((M, N), 1.0, tl.float32), max_num_imprecise_acc=32))


def dot(left, right, m=16, n=32, k=64):
    """a @ b + 1 in fp32, of ``dot_inputs``."""
    a, b = (t.to(d) for t, d in zip(dot_inputs(m, n, k), (left, right), strict=True))
    c = torch.zeros(m, n)
    dot_kernel[(1,)](a, b, c, M=m, N=n, K=k)
    return c.tolist()


def dot_inputs(m=16, n=32, k=64):
    """fp32 [m, k] and [k, n]."""
    generator = torch.Generator().manual_seed(3)
    return torch.randn(m, k, generator=generator), torch.randn(k, n, generator=generator)


@triton.jit
def dot_half_kernel(a, b, c, N: tl.constexpr):
    i = tl.arange(0, N)
    at = i[:, None] * N + i[None, :]
    tl.store(c + at, tl.dot(tl.load(a + at), tl.load(b + at), out_dtype=tl.float16))


@case
def dot_bf16():
    return dot(BF16, BF16)


@case
def dot_mixed_fp8():
    return dot(FP8["float8_e4m3fn"], FP8["float8_e5m2"])


@case
def dot_of_nan_and_zero():
    a, c = torch.zeros(16, 16, dtype=BF16), torch.zeros(16, 16)
    b = torch.zeros(16, 16, dtype=BF16)
    b[2, 3] = float("nan")
    dot_kernel[(1,)](a, b, c, M=16, N=16, K=16)
    return c.tolist()


@case
def dot_fp16_out():
    a, c = torch.full((32, 32), 1.0, dtype=torch.float16), torch.zeros(32, 32, dtype=torch.float16)
    a[:, 0] = 2048
    dot_half_kernel[(1,)](a, torch.ones(32, 32, dtype=torch.float16), c, N=32)
    return c.tolist()


@case
def dot_int8():
    a = torch.full((16, 64), -128, dtype=torch.int8)
    b, c = torch.full((64, 16), 127, dtype=torch.int8), torch.zeros(16, 16, dtype=torch.int32)
    int_dot_kernel[(1,)](a, b, c)
    return c.flatten().tolist()


@triton.jit
def int_dot_kernel(a, b, c):
    m, k = tl.arange(0, 16), tl.arange(0, 64)
    x = tl.load(a + m[:, None] * 64 + k[None, :])
    y = tl.load(b + k[:, None] * 16 + m[None, :])
    tl.store(c + m[:, None] * 16 + m[None, :], tl.dot(x, y))


@triton.jit
def add_kernel(x, y, o, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(o + i, tl.load(x + i) + tl.load(y + i))


def add(x, y):
    out = torch.zeros_like(x)
    add_kernel[(1,)](x, y, out, B=x.numel())
    return out


@triton.jit
def arithmetic_kernel(x, y, o, B: tl.constexpr):
    i = tl.arange(0, B)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(o + i, a + b)
    tl.store(o + B + i, a - b)
    tl.store(o + 2 * B + i, a * b)
    tl.store(o + 3 * B + i, a / b)
    tl.store(o + 4 * B + i, -a)
    tl.store(o + 5 * B + i, tl.abs(a))
    tl.store(o + 6 * B + i, tl.where(a > b, a, b))
    tl.store(o + 7 * B + i, tl.fma(a, b, a))
    tl.store(o + 8 * B + i, a * 3 + 0.1)
    tl.store(o + 9 * B + i, (a < b).to(tl.bfloat16) + (a == a))
    tl.store(o + 10 * B + i, tl.maximum(a, b))
    tl.store(o + 11 * B + i, tl.clamp(a, -0.5, 0.5))


@case
def arithmetic_bf16():
    a, b = (t.to(BF16) for t in inputs())
    out = torch.zeros(12, 256, dtype=BF16)
    arithmetic_kernel[(1,)](a, b, out, B=256)
    return bits(out)


@triton.jit
def absolute_kernel(x, o, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(o + i, tl.abs(tl.load(x + i)))


def absolute(x):
    out = torch.zeros_like(x)
    absolute_kernel[(1,)](x, out, B=x.numel())
    return out


@triton.jit
def compare_kernel(x, y, o, B: tl.constexpr):
    i = tl.arange(0, B)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(o + i, (a < b).to(tl.int32) + 2 * (a <= b) + 4 * (a == b) + 8 * (a != b) + 16 * (a >= b) + 32 * (a > b))


def compare(x, y):
    out = torch.zeros(x.numel(), dtype=torch.int32)
    compare_kernel[(1,)](x, y, out, B=x.numel())
    return out.tolist()


@case
def compare_bf16():
    values = torch.tensor([0.0, -0.0, 1, -1, float("nan"), float("inf"), -float("inf"), 2], dtype=BF16)
    return compare(values.repeat(8), values.repeat_interleave(8))


@triton.jit
def extremes_kernel(x, y, o, B: tl.constexpr):
    i = tl.arange(0, B)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(o + i, tl.maximum(a, b))
    tl.store(o + B + i, tl.minimum(a, b))
    tl.store(o + 2 * B + i, tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL))
    tl.store(o + 3 * B + i, tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL))
    tl.store(o + 4 * B + i, tl.clamp(a, -1.0, 1.0))
    tl.store(o + 5 * B + i, tl.clamp(a, -1.0, 1.0, propagate_nan=tl.PropagateNan.ALL))


def extremes(dtype):
    nan = float("nan")
    x = torch.tensor([nan, 1.0, nan, 2.0], dtype=dtype)
    y = torch.tensor([1.0, nan, nan, -3.0], dtype=dtype)
    out = torch.zeros(6, 4)
    extremes_kernel[(1,)](x, y, out, B=4)
    return out.tolist()


@case
def extremes_fp32():
    return extremes(torch.float32)


@case
def extremes_bf16():
    return extremes(BF16)


@triton.jit
def reduce_kernel(x, values, places, B: tl.constexpr):
    v = tl.load(x + tl.arange(0, B))
    tl.store(values, tl.sum(v, axis=0))
    tl.store(values + 1, tl.max(v, axis=0))
    tl.store(values + 2, tl.min(v, axis=0))
    tl.store(values + 3 + tl.arange(0, B), tl.cumsum(v.to(tl.float32), axis=0))
    tl.store(places, tl.argmax(v.to(tl.float32), axis=0))
    tl.store(places + 1, tl.argmin(v.to(tl.float32), axis=0))


def reduce_all(x):
    values, places = torch.zeros(3 + x.numel()), torch.zeros(2, dtype=torch.int32)
    reduce_kernel[(1,)](x, values, places, B=x.numel())
    return [values.tolist(), places.tolist()]


@case
def reduced_bf16():
    return reduce_all(inputs()[0].to(BF16))


@triton.jit
def rows_kernel(x, o, M: tl.constexpr, N: tl.constexpr):
    m, n = tl.arange(0, M), tl.arange(0, N)
    v = tl.load(x + m[:, None] * N + n[None, :])
    tl.store(o + m, tl.sum(v, axis=1))
    tl.store(o + M + m, tl.max(v, axis=1))
    tl.store(o + 2 * M + n, tl.sum(v, axis=0, keep_dims=True).reshape(N))
    tl.store(o + 2 * M + N, tl.sum(v))
    tl.store(o + 2 * M + N + 1 + m, tl.min(tl.where(v > 0, v, float("nan")), axis=1))
    tl.store(o + 3 * M + N + 1 + m, tl.max(tl.where(v < 0, v, float("nan")), axis=1))


@case
def rows_bf16():
    x, out = inputs(128)[0].to(BF16).reshape(8, 16), torch.zeros(49)
    rows_kernel[(1,)](x, out, M=8, N=16)
    return out.tolist()


@triton.jit
def sum_kernel(x, o, B: tl.constexpr):
    tl.store(o, tl.sum(tl.load(x + tl.arange(0, B)), axis=0))


@case
def sums_of_ones():
    out = []
    for dtype in (BF16, torch.float16):
        total = torch.zeros(1, dtype=dtype)
        sum_kernel[(1,)](torch.ones(4096, dtype=dtype), total, B=4096)
        out.append(total.item())
    return out


@triton.jit
def product(a, b):
    return a * b


@triton.jit
def custom_kernel(x, o, B: tl.constexpr):
    v = tl.load(x + tl.arange(0, B))
    tl.store(o, tl.reduce(v, 0, product))
    tl.store(o + 1 + tl.arange(0, B), tl.associative_scan(v, 0, product))


@case
def custom_reduction_bf16():
    x, out = torch.tensor([1.0, -2, 0.5, 3, 1.5, 1, 1, 2], dtype=BF16), torch.zeros(9, dtype=BF16)
    custom_kernel[(1,)](x, out, B=8)
    return out.tolist()


@triton.jit
def unary_kernel(x, o, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + i).to(tl.float32)
    tl.store(o + i, tl.exp(v))
    tl.store(o + B + i, tl.exp2(v))
    tl.store(o + 2 * B + i, tl.log(tl.abs(v)))
    tl.store(o + 3 * B + i, tl.sqrt(tl.abs(v)))
    tl.store(o + 4 * B + i, tl.sigmoid(v))


@case
def unary_of_bf16():
    out = torch.zeros(5, 256)
    unary_kernel[(1,)](inputs()[0].to(BF16), out, B=256)
    return out.tolist()


@triton.jit
def atomic_kernel(x, o, old, B: tl.constexpr):
    i = tl.arange(0, B)
    before = tl.atomic_add(o + i % 4, tl.load(x + i), mask=i % 8 != 7)
    tl.store(old + i, before)


def atomic(dtype):
    x, out, old = inputs(32)[0].to(dtype), torch.ones(4, dtype=dtype), torch.zeros(32, dtype=dtype)
    atomic_kernel[(1,)](x, out, old, B=32)
    return [out.tolist(), old.tolist()]


@case
def atomic_bf16():
    return atomic(BF16)


@case
def atomic_fp16():
    return atomic(torch.float16)


@case
def atomic_fp32():
    return atomic(torch.float32)


@triton.jit
def block_pointer_kernel(x, o, n):
    p = tl.make_block_ptr(x, (n, 16), (16, 1), (0, 0), (16, 16), (1, 0))
    v = tl.load(p, boundary_check=(0,), padding_option="nan")
    q = tl.make_block_ptr(o, (16, 16), (16, 1), (0, 0), (16, 16), (1, 0))
    tl.store(q, v.to(tl.float32))


@case
def block_pointer_bf16():
    x, out = inputs()[0].to(BF16), torch.zeros(16, 16)
    block_pointer_kernel[(1,)](x, out, 12)
    return out.tolist()


@triton.jit
def descriptor_kernel(x, o, n):
    source = tl.make_tensor_descriptor(x, [n, 16], [16, 1], [16, 16])
    target = tl.make_tensor_descriptor(o, [16, 16], [16, 1], [16, 16])
    target.store([0, 0], source.load([0, 0]).to(tl.float32))


@case
def descriptor_bf16():
    x, out = inputs()[0].to(BF16), torch.ones(16, 16)
    descriptor_kernel[(1,)](x, out, 12)
    return out.tolist()


@triton.jit
def addresses_kernel(x, o, n, B: tl.constexpr):
    i = tl.arange(0, B)
    # Far outside any buffer wherever the mask is off.
    far = tl.where(i < n, i.to(tl.int64), tl.full((B,), 1 << 40, tl.int64))
    v = tl.load(x + far, mask=i < n, other=-1)
    tl.store(o + far, v, mask=i < n)
    tl.store(o + B + i // 2, i)
    tl.store(o + far, v, mask=i < 0)


@case
def addresses():
    """Masked-off addresses are not touched; of two stores to one address the later element wins."""
    x, out = torch.arange(512, dtype=torch.int32), torch.full((1024,), -7, dtype=torch.int32)
    addresses_kernel[(1,)](x, out, 500, B=512)
    return out.tolist()


@triton.jit
def misaligned_kernel(x, o, B: tl.constexpr):
    i = tl.arange(0, B)
    odd = (x + 1).to(tl.pointer_type(tl.int32), bitcast=True)
    v = tl.load(odd + i)
    tl.store(o + i, v)
    tl.store((x + 1).to(tl.pointer_type(tl.int32), bitcast=True) + i, v + 1)


@case
def misaligned():
    x, out = (torch.arange(1025) % 251).to(torch.uint8), torch.zeros(256, dtype=torch.int32)
    misaligned_kernel[(1,)](x, out, B=256)
    return [out.tolist(), x.tolist()]


@triton.jit
def libdevice_kernel(x, y, o, B: tl.constexpr):
    i = tl.arange(0, B)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(o + i, libdevice.tanh(a))
    tl.store(o + B + i, libdevice.exp2(a))
    tl.store(o + 2 * B + i, libdevice.atan2(a, b))
    tl.store(o + 3 * B + i, libdevice.pow(libdevice.abs(a), 0.75))
    # A scalar, and a tensor with it.
    tl.store(o + 4 * B + i, libdevice.hypot(a, libdevice.rsqrt(tl.load(y).abs())))


@case
def libdevice_fp32():
    x, y = inputs(16)
    out = torch.zeros(5, 16)
    libdevice_kernel[(1,)](x, y, out, B=16)
    return out.tolist()


@triton.jit
def popcount_kernel(x, o):
    tl.store(o, libdevice.popc(tl.load(x)))


@triton.jit
def bf16_tanh_kernel(x, o):
    tl.store(o, libdevice.tanh(tl.load(x)))


@case
def libdevice_beyond():
    """What libdevice has and the interpreter has not is named."""
    found = []
    for kernel, dtype in ((popcount_kernel, torch.int32), (bf16_tanh_kernel, BF16)):
        try:
            kernel[(1,)](torch.ones(1, dtype=dtype), torch.zeros(1, dtype=dtype))
        except Exception as error:
            found.append(f"{type(error.__cause__).__name__}: {error.__cause__}")
    return found


@triton.jit
def overflow_kernel(x, o):
    tl.store(o, tl.load(x) * 2 + 5)


@case
def integer_overflow_wraps():
    out = torch.zeros(1, dtype=torch.int32)
    overflow_kernel[(1,)](torch.tensor([2**30 + 3], dtype=torch.int32), out)
    return out.tolist()


@triton.jit
def double(x):
    return x + x


@triton.jit
def quadruple(x):
    return double(double(x))


@triton.jit
def nested_kernel(x, o, B: tl.constexpr):
    i = tl.arange(0, B)
    a = tl.load(x + i)
    tl.store(o + i, quadruple(a))
    tl.static_assert(a.shape[0] == B)
    b = a[None, :] + tl.zeros((4, B), tl.float32)
    tl.store(o + B + i, tl.sum(b, axis=0) + tl.cdiv(B, 3))


@case
def nested_device_functions():
    out = torch.zeros(32)
    nested_kernel[(1,)](torch.arange(16.0), out, B=16)
    return out.tolist()


@triton.jit
def failing_kernel(x):
    tl.store(x, double(tl.load(x)))
    tl.static_assert(False, "on purpose")


@case
def language_is_left_as_it_was():
    """After a launch, a failed one too, triton.language is as before; two launches give the same."""
    names = [(m, n) for m in (tl, tl.core, tl.math, tl.tensor, tl.block_type, tl.dtype) for n in dir(m)]
    before = {(id(m), n): getattr(m, n) for m, n in names}
    first = nested_device_functions()
    try:
        failing_kernel[(1,)](torch.ones(1))
    except triton.runtime.errors.InterpreterError as error:
        message = str(error)
    second = nested_device_functions()
    changed = [n for m, n in names if getattr(m, n) is not before[id(m), n] and getattr(m, n) != before[id(m), n]]
    return [first == second, "on purpose" in message, changed]


@triton.jit
def views_kernel(x, o, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + i)
    m = tl.reshape(v, (2, B // 2))
    a, b = tl.split(tl.join(v, v * 2))
    tl.store(o + i, tl.reshape(tl.trans(m), (B,)))
    tl.store(o + B + i, b - a)
    tl.store(o + 2 * B + i, tl.gather(v, B - 1 - i, 0))
    tl.store(o + 3 * B + i, tl.flip(v, 0))


@case
def views_bf16():
    out = torch.zeros(4, 16, dtype=BF16)
    views_kernel[(1,)](torch.arange(16.0).to(BF16), out, B=16)
    return out.tolist()


for _name, _dtype in FP8.items():
    CASES.update(_fp8_cases(_name, _dtype))


@case
def memory_bf16():
    return memory(BF16)


@case
def constants_bf16():
    return constants(BF16)


def main(out, mode):
    """Run every case and write the results."""
    results = {}
    if mode == "extended":
        from capmatrix.engine.interpreter_float import install

        results["installed"] = [install(), install()]
    warnings.simplefilter("ignore")
    for name, function in CASES.items():
        try:
            results[name] = function()
        except Exception as error:
            results[name] = f"error: {type(error).__name__}: {error}"
    with open(out, "w", encoding="utf-8") as file:
        json.dump(results, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
