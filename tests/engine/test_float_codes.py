"""Every code of bf16 and of the four fp8 formats, and every midpoint between two, against torch and ml_dtypes.

A third reference, ``nearest``, is written from the definition: the representable values, in float64, and the distance.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

ml_dtypes = pytest.importorskip("ml_dtypes")
torch = pytest.importorskip("torch")

from capmatrix.engine import float_codes  # noqa: E402
from capmatrix.engine.float_codes import BFLOAT16, FP8, convert, decode, encode  # noqa: E402

F16, F32, F64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
pytestmark = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
FORMATS = pytest.mark.parametrize("fmt", FP8, ids=[f.name for f in FP8])
ALL = np.arange(256, dtype=np.uint8)
ALL16 = np.arange(65536, dtype=np.uint16)


def torch_values(fmt):
    """The 256 values of an fp8 format as torch decodes them, float64."""
    return torch.from_numpy(ALL.copy()).view(getattr(torch, fmt.name)).to(torch.float32).numpy().astype(np.float64)


def positive_grid(fmt):
    """The finite values from zero up and their codes."""
    values = torch_values(fmt)[:128]
    finite = np.isfinite(values)
    return values[finite], ALL[:128][finite]


def nearest(values, fmt, rounding="rtne"):
    """Codes by definition: nearest (ties to the even code) or truncated, saturated, NaN and infinity as documented."""
    grid, grid_codes = positive_grid(fmt)
    values = np.asarray(values, np.float64)
    magnitude = np.abs(values)
    clipped = np.where(np.isnan(values), 0, np.minimum(magnitude, grid[-1]))
    below = np.searchsorted(grid, clipped, side="right") - 1
    above = np.minimum(below + 1, len(grid) - 1)
    down, up = clipped - grid[below], grid[above] - clipped
    take_up = (up < down) | ((up == down) & (grid_codes[below] % 2 == 1))
    codes = grid_codes[np.where(take_up & (rounding == "rtne"), above, below)].astype(np.uint8)
    if fmt.fnuz:
        codes = np.where(np.signbit(values) & (codes != 0), codes | 0x80, codes)
        codes = np.where(np.isfinite(values), codes, 0x80)
    else:
        if rounding == "rtz" and fmt.name == "float8_e5m2":
            codes = np.where(np.isinf(values), 0x7C, codes)
        codes = np.where(np.isnan(values), fmt.nan_code, codes)
        codes = codes | (np.signbit(values).astype(np.uint8) << 7)
    return codes.astype(np.uint8)


def dense(fmt):
    """fp32 around every value of the format and every midpoint of two, both signs, with the edges of fp32 itself."""
    grid, _ = positive_grid(fmt)
    points = np.concatenate([grid, (grid[1:] + grid[:-1]) / 2, [grid[-1] * 17 / 16, grid[-1] * 9 / 8, grid[-1] * 2]])
    points = points.astype(np.float32)
    steps = points.view(np.uint32)[:, None].astype(np.int64) + np.arange(-4, 5)
    around = np.maximum(steps, 0).astype(np.uint32).view(np.float32).reshape(-1)
    tiny = np.float32([0, 1e-45, 1.1754942e-38, 1.17549435e-38, 1e-30])
    huge = np.float32([65504, 65536, 1e30, np.finfo(np.float32).max, np.inf, np.nan])
    both = np.concatenate([around, tiny, huge])
    return np.concatenate([both, -both])


def same(left, right):
    """Equal values, NaN equal to NaN, and zeros of the same sign."""
    left, right = np.asarray(left, np.float64), np.asarray(right, np.float64)
    nan = np.isnan(left)
    return (
        np.array_equal(nan, np.isnan(right))
        and np.array_equal(left[~nan], right[~nan])
        and np.array_equal(np.signbit(left[~nan]), np.signbit(right[~nan]))
    )


@FORMATS
@pytest.mark.parametrize("target", [F16, BFLOAT16, F32, F64], ids=str)
def test_every_fp8_code_decodes_as_torch_and_ml_dtypes_do(fmt, target):
    ours = decode(ALL.view(fmt.dtype), target)
    assert ours.dtype == target
    assert same(ours.astype(F32), torch_values(fmt))
    assert same(ours.astype(F32), ALL.view(fmt.dtype).astype(F32))


@FORMATS
@pytest.mark.parametrize("source", [F16, BFLOAT16, F32, F64], ids=str)
def test_every_fp8_code_survives_the_round_trip(fmt, source):
    values = decode(ALL.view(fmt.dtype), source)
    kept = np.isfinite(values.astype(F32))
    codes = encode(values, fmt.dtype).view(np.uint8)
    assert np.array_equal(codes[kept], ALL[kept])
    assert np.isnan(decode(codes.view(fmt.dtype))[np.isnan(values.astype(F32))]).all()


@FORMATS
@pytest.mark.parametrize("rounding", ["rtne", "rtz"])
def test_fp32_around_every_value_and_midpoint(fmt, rounding):
    values = dense(fmt)
    assert np.array_equal(encode(values, fmt.dtype, rounding).view(np.uint8), nearest(values, fmt, rounding))


@FORMATS
def test_fp32_in_range_as_torch_and_ml_dtypes_round_it(fmt):
    values = dense(fmt)
    values = values[np.abs(values) <= fmt.largest]
    ours = encode(values, fmt.dtype).view(np.uint8)
    theirs = torch.from_numpy(values).to(getattr(torch, fmt.name)).view(torch.uint8).numpy()
    assert np.array_equal(ours, theirs)
    assert np.array_equal(ours, values.astype(fmt.dtype).view(np.uint8))


@FORMATS
@pytest.mark.parametrize("rounding", ["rtne", "rtz"])
@pytest.mark.parametrize("source", [F16, BFLOAT16], ids=str)
def test_every_16_bit_float_to_fp8(fmt, source, rounding):
    values = ALL16.view(source)
    wide = values.astype(F32)
    ours = encode(values, fmt.dtype, rounding).view(np.uint8)
    assert np.array_equal(ours, nearest(wide, fmt, rounding))


@FORMATS
def test_fp64_is_rounded_once(fmt):
    grid, _ = positive_grid(fmt)
    midpoints = (grid[1:] + grid[:-1]) / 2
    values = np.concatenate([np.nextafter(midpoints, 0), midpoints, np.nextafter(midpoints, np.inf), [1e300, 1e-300]])
    values = np.concatenate([values, -values])
    assert np.array_equal(encode(values, fmt.dtype).view(np.uint8), nearest(values, fmt))


def test_saturation_infinity_nan_and_zero():
    values = np.float32([1e9, -1e9, np.inf, -np.inf, np.nan, -0.0, -1e-9])
    codes = {f.name: encode(values, f.dtype).view(np.uint8).tolist() for f in FP8}
    assert codes["float8_e4m3fn"] == [0x7E, 0xFE, 0x7E, 0xFE, 0x7F, 0x80, 0x80]
    assert codes["float8_e5m2"] == [0x7B, 0xFB, 0x7B, 0xFB, 0x7E, 0x80, 0x80]
    assert codes["float8_e4m3fnuz"] == [0x7F, 0xFF, 0x80, 0x80, 0x80, 0, 0]
    assert codes["float8_e5m2fnuz"] == [0x7F, 0xFF, 0x80, 0x80, 0x80, 0, 0]


@pytest.mark.parametrize("source", FP8, ids=[f.name for f in FP8])
@pytest.mark.parametrize("target", FP8, ids=[f.name for f in FP8])
def test_fp8_to_fp8(source, target):
    values = torch_values(source)
    numbers = ~np.isnan(values)
    codes = convert(ALL.view(source.dtype), target.dtype)
    expected = ALL if source == target else nearest(values, target)
    assert np.array_equal(codes.view(np.uint8)[numbers], expected[numbers])
    assert np.isnan(codes.astype(F32)[~numbers]).all()


def test_every_bf16_to_fp32_and_back():
    values = convert(ALL16.view(BFLOAT16), F32)
    assert np.array_equal(values.view(np.uint32), ALL16.astype(np.uint32) << 16)
    numbers = ~np.isnan(values)
    back = convert(values, BFLOAT16)
    assert np.array_equal(back.view(np.uint16)[numbers], ALL16[numbers])
    assert np.isnan(back.astype(F32)[~numbers]).all()


def test_fp32_to_bf16_around_every_midpoint():
    low = np.array([0, 1, 0x7FFE, 0x7FFF, 0x8000, 0x8001, 0xFFFE, 0xFFFF], np.uint32)
    values = ((ALL16.astype(np.uint32)[:, None] << 16) | low).reshape(-1).view(np.float32)
    numbers = ~np.isnan(values)
    ours = convert(values, BFLOAT16)
    theirs = torch.from_numpy(values).to(torch.bfloat16).view(torch.uint16).numpy()
    assert np.array_equal(ours.view(np.uint16)[numbers], theirs[numbers])
    assert np.isnan(ours.astype(F32)[~numbers]).all()
    down = convert(values, BFLOAT16, "rtz").view(np.uint16)
    assert np.array_equal(down, values.view(np.uint32) >> 16)


def test_fp64_to_bf16_is_rounded_once():
    # A little over half an ulp, less than fp32 can hold: in two steps it becomes a tie and rounds down to even.
    value = np.float64(1 + 2.0**-8 + 2.0**-40)
    assert value.astype(F32).astype(BFLOAT16) == 1
    assert convert(np.array([value, -value]), BFLOAT16).astype(F64).tolist() == [1 + 2.0**-7, -1 - 2.0**-7]
    assert convert(np.array([1e300, -1e300, np.nan, 1e-300]), BFLOAT16).astype(F32)[:2].tolist() == [np.inf, -np.inf]


def test_truncation_to_fp16_and_fp32():
    values = np.float32([1 + 2.0**-11 + 2.0**-20, -1 - 2.0**-10 - 2.0**-11, 65519, 1e9, -1e9, np.inf, 6e-8, -3e-8, 0.1])
    expected = [1, -1 - 2.0**-10, 65504, 65504, -65504, np.inf, 2.0**-24, 0, 0.0999755859375]
    assert convert(values, F16, "rtz").astype(F64).tolist() == expected
    wide = np.float64([1 + 2.0**-24 + 2.0**-25, 1e39, -1e39, -np.inf, 1e-60])
    largest = float(np.finfo(np.float32).max)
    assert convert(wide, F32, "rtz").astype(F64).tolist() == [1, largest, -largest, -np.inf, 0]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64, np.bool_])
def test_integers_to_bf16_and_fp8(dtype):
    info = np.array([0, 1], bool) if dtype == np.bool_ else np.arange(-300, 300).astype(dtype)
    reference = torch.from_numpy(info.astype(np.float32)).to(torch.bfloat16).to(torch.float32).numpy()
    assert same(convert(info, BFLOAT16).astype(F32), reference)
    for fmt in FP8:
        assert np.array_equal(convert(info, fmt.dtype).view(np.uint8), nearest(info.astype(np.float32), fmt))


def test_bf16_to_integers_truncates():
    values = convert(np.float32([-3.75, -0.5, 0, 0.99, 2.5, 1000]), BFLOAT16)
    assert convert(values, np.dtype(np.int32)).tolist() == [-3, 0, 0, 0, 2, 1000]
    assert convert(values, np.dtype(np.int8)).tolist()[:5] == [-3, 0, 0, 0, 2]


def test_shapes_strides_and_scalars_are_kept():
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    for fmt in FP8:
        broadcast = np.broadcast_to(np.float32(3), (5, 2))
        for view in (values, values.T, values[::2, 1:, ::-1], broadcast, values[0, 0, 0:1]):
            codes = encode(view, fmt.dtype)
            assert codes.shape == view.shape
            assert np.array_equal(codes.view(np.uint8), nearest(view, fmt))
            assert decode(codes[..., ::-1]).shape == view.shape
    assert convert(np.float32(2.5).reshape(()), FP8[0].dtype).shape == ()


def exact_round(value, dtype):
    """The float of ``dtype`` nearest to a Fraction, ties to even."""
    guess = np.array([float(value)]).astype(dtype)
    candidates = [np.nextafter(guess, dtype.type(-np.inf))[0], guess[0], np.nextafter(guess, dtype.type(np.inf))[0]]
    bits = np.dtype(f"uint{8 * dtype.itemsize}")
    return min(candidates, key=lambda c: (abs(Fraction(float(c)) - value), int(np.array([c]).view(bits)[0]) & 1))


@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
def test_fused_multiply_add_rounds_once(dtype):
    random = np.random.default_rng(7)
    digits = 24 if dtype == F32 else 11
    x = (1 + random.integers(0, 2 ** (digits - 1), 3000) / 2 ** (digits - 1)).astype(dtype)
    y = (1 + random.integers(0, 2 ** (digits - 1), 3000) / 2 ** (digits - 1)).astype(dtype)
    z = (random.choice([-1, 1], 3000) * x.astype(F64) * y * 2.0 ** random.integers(-12, 12, 3000)).astype(dtype)
    # Sums that the fp64 in between rounds to a tie of the result.
    x[:2], y[:2], z[:2] = 1 + 2.0 ** (1 - digits), 1 + 2.0 ** (1 - digits), [2.0**-30 if dtype == F32 else 2.0**-14, 1]
    x[2], y[2], z[2] = dtype.type(2.0**-14), dtype.type(-(2.0**-14)), dtype.type(1)
    ours = float_codes.fused_multiply_add(x, y, z)
    expected = [
        exact_round(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)), dtype)
        for a, b, c in zip(x, y, z, strict=True)
    ]
    assert np.array_equal(ours, np.array(expected, dtype))


def test_fused_multiply_add_does_not_round_twice_through_fp64():
    tie_x, tie_y = np.float32([1 + 2.0**-12]), np.float32([1 - 2.0**-12])
    # (1 + 2^-12)(1 - 2^-12) = 1 - 2^-24, a representable value; adding 2^-100 must not move it, nor must -2^-100.
    for addend in (2.0**-100, -(2.0**-100), 0.0):
        assert float_codes.fused_multiply_add(tie_x, tie_y, np.float32([addend]))[0] == np.float32(1 - 2.0**-24)
    # (1 + 2^-12)^2 = 1 + 2^-11 + 2^-24: exactly between two fp32, so the sign of what is added decides.
    up, down = (float_codes.fused_multiply_add(tie_x, tie_x, np.float32([a]))[0] for a in (2.0**-100, -(2.0**-100)))
    assert (float(up), float(down)) == (1 + 2.0**-11 + 2.0**-23, 1 + 2.0**-11)


def test_fused_multiply_add_in_bf16_and_of_infinities():
    operands = [1.5, 1e30, np.inf, 3], [1.25, 1e30, 0, 0], [1, 1, 1, np.inf]
    x, y, z = (convert(np.float32(values), BFLOAT16) for values in operands)
    results = float_codes.fused_multiply_add(x, y, z).astype(F32)
    assert same(results, [2.875, np.inf, np.nan, np.inf])
