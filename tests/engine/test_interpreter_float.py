"""bf16 and fp8 in Triton's interpreter with the extension, against torch and float64; and plain Triton's errors."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("ml_dtypes")

import interpreted_kernels as kernels  # noqa: E402
from test_float_codes import nearest  # noqa: E402

from capmatrix.engine import Unavailable  # noqa: E402
from capmatrix.engine.float_codes import FP8, decode  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")]

ROOT = Path(__file__).parents[2]
BF16 = torch.bfloat16
FORMATS = pytest.mark.parametrize("fmt", FP8, ids=[f.name for f in FP8])


def start(mode, folder):
    """A process that runs every case; (process, file of its results)."""
    out = folder / f"{mode}.json"
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    command = [sys.executable, kernels.__file__, str(out), mode]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True), out


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """{"extended": {case: result}, "plain": ...}; both processes at once."""
    folder = tmp_path_factory.mktemp("interpreted")
    started = {mode: start(mode, folder) for mode in ("extended", "plain")}
    found = {}
    for mode, (process, out) in started.items():
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        found[mode] = json.loads(out.read_text())
    return found


@pytest.fixture
def extended(results):
    return results["extended"]


def codes16(values):
    """Unsigned 16-bit codes of a case that gave them signed."""
    return np.array(values, dtype=np.int64).astype(np.uint16)


def of_torch(tensor):
    return np.array(kernels.bits(tensor), dtype=np.int64)


def assert_same_floats(ours, reference):
    """bf16 tensors alike in every bit, but that a NaN is only a NaN."""
    ours = torch.from_numpy(codes16(ours).astype(np.int16)).view(BF16)
    nan = torch.isnan(reference)
    assert torch.equal(torch.isnan(ours), nan)
    assert torch.equal(ours[~nan].view(torch.int16), reference[~nan].view(torch.int16))


def test_every_case_runs(extended):
    assert {k: v for k, v in extended.items() if isinstance(v, str)} == {}


def test_install_describes_itself_and_may_be_called_twice(extended):
    first, second = extended["installed"]
    assert first == second
    import triton

    assert f"triton {triton.__version__}" in first
    assert "ml_dtypes" in first


@pytest.mark.parametrize("version", ["3.5.1", "3.8.0", "4.0.0"])
def test_an_unknown_triton_is_refused_naming_those_known(version, monkeypatch):
    import triton

    from capmatrix.engine import interpreter_float

    monkeypatch.setattr(triton, "__version__", version)
    with pytest.raises(Unavailable, match=rf"{version}.*knows Triton 3\.6 and 3\.7"):
        interpreter_float.install()


def test_missing_internals_are_named(monkeypatch):
    from triton.runtime import interpreter

    from capmatrix.engine import interpreter_float

    monkeypatch.delattr(interpreter.InterpreterBuilder, "create_dot")
    monkeypatch.delattr(interpreter, "_patch_lang")
    with pytest.raises(Unavailable, match=r"missing: InterpreterBuilder\.create_dot, _patch_lang"):
        interpreter_float.install()


def test_fp32_to_bf16(extended):
    grid = kernels.bf16_grid()
    assert_same_floats(extended["fp32_to_bf16"], grid.to(BF16))
    truncated = codes16(extended["fp32_to_bf16_truncated"])
    assert np.array_equal(truncated, grid.numpy().view(np.uint32) >> 16)


def test_bf16_to_other_floats(extended):
    every = torch.arange(65536).to(torch.uint16)
    assert np.array_equal(np.array(extended["bf16_to_fp32"]).astype(np.uint32), np.arange(65536, dtype=np.uint32) << 16)
    half = torch.from_numpy(codes16(extended["bf16_to_fp16"]).astype(np.int16)).view(torch.float16)
    assert torch.equal(torch.nan_to_num(half, 7), torch.nan_to_num(every.view(BF16).to(torch.float16), 7))
    assert_same_floats(extended["fp16_to_bf16"], every.view(torch.float16).to(torch.float32).to(BF16))


def test_fp64_to_bf16_is_rounded_once(extended):
    assert codes16(extended["fp64_to_bf16"]).tolist() == [0x3F81, 0x3DCD]


def test_integers_and_bf16(extended):
    to_bf16, to_int, from_bool = extended["integers_and_bf16"]
    whole = torch.tensor([-129, -1, 0, 1, 127, 257, 1000, 2**24 + 1])
    assert_same_floats(to_bf16, whole.to(torch.float32).to(BF16))
    assert to_int == [-3, 0, 0, 0, 2, 100, -7, 8]
    assert_same_floats(from_bool, torch.tensor([1, 0], dtype=BF16))


@FORMATS
def test_every_fp8_code_decoded(fmt, extended):
    codes = torch.arange(256).to(torch.uint8).view(kernels.FP8[fmt.name])
    for ours, dtype in zip(extended[f"{fmt.name}_decoded"], (torch.float32, torch.float16, BF16), strict=True):
        size = {4: torch.int32, 2: torch.int16}[dtype.itemsize]
        values = torch.tensor(ours, dtype=size).view(dtype).to(torch.float32)
        assert torch.equal(torch.nan_to_num(values, 0.3), torch.nan_to_num(codes.to(torch.float32), 0.3))


@FORMATS
def test_floats_to_fp8(fmt, extended):
    every = torch.arange(65536).to(torch.uint16)
    for source, values in (
        ("fp32", kernels.bf16_grid()),
        ("fp16", every.view(torch.float16)),
        ("bf16", every.view(BF16)),
    ):
        expected = nearest(values.to(torch.float32).numpy(), fmt)
        assert np.array_equal(np.array(extended[f"{source}_to_{fmt.name}"], np.uint8), expected), source
    truncated = np.array(extended[f"fp32_to_{fmt.name}_truncated"], np.uint8)
    assert np.array_equal(truncated, nearest(kernels.bf16_grid().numpy(), fmt, "rtz"))


@FORMATS
def test_fp8_to_fp8(fmt, extended):
    values = decode(np.arange(256, dtype=np.uint8).view(fmt.dtype))
    numbers = ~np.isnan(values)
    for ours, target in zip(extended[f"{fmt.name}_to_fp8"], [f for f in FP8 if f != fmt], strict=True):
        assert np.array_equal(np.array(ours, np.uint8)[numbers], nearest(values, target)[numbers])


@FORMATS
def test_bitcasts_keep_every_byte(fmt, extended):
    assert extended[f"{fmt.name}_bytes"] == list(range(256))


@pytest.mark.parametrize("name", ["bf16", *kernels.FP8])
def test_loads_and_stores(name, extended):
    dtype = kernels.FP8.get(name, BF16)
    result = extended["memory_bf16" if name == "bf16" else f"{name}_memory"]
    for size, ours in zip((64, 256), result, strict=True):
        x = kernels.inputs(size)[0].to(dtype).to(torch.float32)
        first, second = x.clone(), x.clone()
        first[size - 9 :], second[size - 9 :] = 1.5, 0
        second[1::2] = 2.0
        expected = torch.cat([first, second, x[3:4], torch.tensor([0.75])]).to(dtype)
        assert np.array_equal(ours, of_torch(expected))


@pytest.mark.parametrize("name", ["bf16", *kernels.FP8])
def test_constants(name, extended):
    dtype = kernels.FP8.get(name, BF16)
    result = extended["constants_bf16" if name == "bf16" else f"{name}_constants"]
    expected = torch.tensor([0.1] * 8 + [0.0] * 8 + [-3.0] * 2 + [0.1] * 6 + [-math.inf] * 8)
    if name == "bf16":
        assert np.array_equal(result, of_torch(expected.to(dtype)))
    else:
        fmt = next(f for f in FP8 if f.name == name)
        assert np.array_equal(result, nearest(expected.numpy(), fmt))


@pytest.mark.parametrize("case", ["dot_bf16", "dot_mixed_fp8", *(f"{name}_dot" for name in kernels.FP8)])
def test_dot_has_exact_products_and_fp32_sums(case, extended):
    mixed = (kernels.FP8["float8_e4m3fn"], kernels.FP8["float8_e5m2"])
    left, right = {"dot_bf16": (BF16, BF16), "dot_mixed_fp8": mixed}.get(case) or [kernels.FP8[case[:-4]]] * 2
    a, b = kernels.dot_inputs()
    a, b = a.to(left).double(), b.to(right).double()
    error = (torch.tensor(extended[case]).double() - (a @ b + 1)).abs()
    assert (error <= (a.abs() @ b.abs() + 1) * (a.shape[1] + 1) * 2.0**-24).all()


def test_dot_of_nan_and_zero_is_nan(extended):
    out = torch.tensor(extended["dot_of_nan_and_zero"])
    assert torch.isnan(out[:, 3]).all()
    assert (out[:, [c for c in range(16) if c != 3]] == 1).all()


def test_dot_into_fp16_rounds_once(extended):
    # 2048 + 31 ones: adding one after another in fp16 would stay at 2048.
    assert set(np.array(extended["dot_fp16_out"]).flatten()) == {2080.0}


def test_dot_of_int8_is_exact(extended):
    assert set(extended["dot_int8"]) == {-128 * 127 * 64}


def test_bf16_arithmetic_is_rounded_after_each_operation(extended):
    a, b = (t.to(BF16) for t in kernels.inputs())
    x, y = a.float(), b.float()
    scaled = (x * 3).to(BF16).float() + torch.tensor(0.1).to(BF16).float()
    rows = [x + y, x - y, x * y, x / y, -x, x.abs(), torch.maximum(x, y), (x.double() * y + x).float(), scaled]
    rows += [(x < y).float() + 1, torch.maximum(x, y), x.clamp(-0.5, 0.5)]
    for index, (ours, expected) in enumerate(zip(extended["arithmetic_bf16"], rows, strict=True)):
        assert np.array_equal(ours, of_torch(expected.to(BF16))), index


@FORMATS
def test_fp8_addition_and_absolute_value(fmt, extended):
    dtype = kernels.FP8[fmt.name]
    a, b = (t.to(dtype).to(torch.float32).numpy() for t in kernels.inputs())
    assert np.array_equal(extended[f"{fmt.name}_arithmetic"], nearest(a + b, fmt))
    assert extended[f"{fmt.name}_absolute"] == [c & 0x7F for c in range(256)]


def comparisons(x, y):
    return sum(
        weight * np.array(truth, dtype=np.int64)
        for weight, truth in ((1, x < y), (2, x <= y), (4, x == y), (8, x != y), (16, x >= y), (32, x > y))
    )


@FORMATS
def test_fp8_comparisons(fmt, extended):
    values = decode(np.arange(256, dtype=np.uint8).view(fmt.dtype))
    assert np.array_equal(extended[f"{fmt.name}_compared"], comparisons(values, values[::-1]))


def test_bf16_comparisons(extended):
    values = np.array([0.0, -0.0, 1, -1, np.nan, np.inf, -np.inf, 2])
    assert np.array_equal(extended["compare_bf16"], comparisons(np.tile(values, 8), np.repeat(values, 8)))


@pytest.mark.parametrize("case", ["extremes_fp32", "extremes_bf16"])
def test_minimum_maximum_and_clamp_drop_nan_unless_asked(case, extended):
    nan = math.nan
    expected = [
        [1, 1, nan, 2],
        [1, 1, nan, -3],
        [nan, nan, nan, 2],
        [nan, nan, nan, -3],
        [-1, 1, -1, 1],
        [nan, 1, nan, 1],
    ]
    assert np.array_equal(extended[case], expected, equal_nan=True)


@pytest.mark.parametrize("case", ["reduced_bf16", *(f"{name}_reduced" for name in kernels.FP8)])
def test_reductions(case, extended):
    dtype = BF16 if case == "reduced_bf16" else kernels.FP8[case[: -len("_reduced")]]
    x = kernels.inputs(256 if dtype == BF16 else 16)[0].to(dtype).to(torch.float32)
    values, (largest, smallest) = extended[case]
    unit = {BF16: 2.0**-8, torch.float8_e4m3fn: 2.0**-4, torch.float8_e4m3fnuz: 2.0**-4}.get(dtype, 2.0**-3)
    bound = ((1 + unit) ** math.log2(x.numel()) - 1) * x.abs().sum().item()
    assert abs(values[0] - x.double().sum().item()) <= bound
    assert values[0] == torch.tensor(values[0]).to(dtype).to(torch.float32).item()
    assert values[1:3] == [x.max().item(), x.min().item()]
    running = torch.tensor(values[3:], dtype=torch.float64)
    assert (running - x.double().cumsum(0)).abs().max() <= 256 * 2.0**-24 * x.abs().sum()
    assert (largest, smallest) == (x.argmax().item(), x.argmin().item())


def test_reductions_over_either_axis_and_all(extended):
    x = kernels.inputs(128)[0].to(BF16).reshape(8, 16).float()
    out = torch.tensor(extended["rows_bf16"])
    bound = 8 * 2.0**-8
    assert ((out[:8] - x.sum(1)).abs() <= bound * x.abs().sum(1)).all()
    assert torch.equal(out[8:16], x.amax(1))
    assert ((out[16:32] - x.sum(0)).abs() <= bound * x.abs().sum(0)).all()
    assert abs(out[32] - x.sum()) <= bound * x.abs().sum()
    # A NaN counts only where nothing else does.
    assert torch.equal(out[33:41], x.masked_fill(x <= 0, math.inf).amin(1))
    assert torch.equal(out[41:], x.masked_fill(x >= 0, -math.inf).amax(1))


def test_sums_do_not_stall_at_256(extended):
    assert extended["sums_of_ones"] == [4096, 4096]


def test_reductions_and_scans_with_a_function_of_the_kernel(extended):
    x = torch.tensor([1.0, -2, 0.5, 3, 1.5, 1, 1, 2])
    assert extended["custom_reduction_bf16"] == [x.prod().item(), *x.cumprod(0).tolist()]


def test_unary_functions_of_bf16_values(extended):
    x = kernels.inputs()[0].to(BF16).double()
    ours = torch.tensor(extended["unary_of_bf16"]).double()
    expected = torch.stack([x.exp(), x.exp2(), x.abs().log(), x.abs().sqrt(), x.sigmoid()])
    # Eight ulps, or as much of one: log cancels near one.
    assert ((ours - expected).abs() <= 8 * 2.0**-24 * expected.abs().clamp(min=2.0**-3)).all()


@pytest.mark.parametrize(("case", "dtype"), [("atomic_bf16", BF16), ("atomic_fp16", torch.float16)])
def test_atomic_addition_to_repeated_addresses(case, dtype, extended):
    x = kernels.inputs(32)[0].to(dtype)
    totals, before = torch.ones(4, dtype=dtype), torch.zeros(32, dtype=dtype)
    for index in range(32):
        if index % 8 != 7:
            before[index] = totals[index % 4]
            totals[index % 4] += x[index]
    assert extended[case] == [totals.tolist(), before.tolist()]


def test_block_pointers_pad_with_nan_and_descriptors_with_zero(extended):
    x = kernels.inputs()[0].to(BF16).float().reshape(16, 16)
    padded, zeroed = torch.tensor(extended["block_pointer_bf16"]), torch.tensor(extended["descriptor_bf16"])
    assert torch.equal(padded[:12], x[:12])
    assert torch.isnan(padded[12:]).all()
    assert torch.equal(zeroed, torch.cat([x[:12], torch.zeros(4, 16)]))


def test_views(extended):
    x = list(map(float, range(16)))
    crossed = [v for pair in zip(x[:8], x[8:], strict=True) for v in pair]
    assert extended["views_bf16"] == [crossed, x, x[::-1], x[::-1]]


def test_masked_addresses_are_untouched_and_the_last_store_wins(extended):
    out = extended["addresses"]
    assert out[:500] == list(range(500))
    assert out[500:512] == [-7] * 12
    assert out[512:768] == list(range(1, 512, 2))
    assert out[768:] == [-7] * 256


def test_misaligned_pointers(extended):
    loaded, stored = extended["misaligned"]
    before = (np.arange(1025) % 251).astype(np.uint8)
    expected = before[1:].copy().view(np.int32)
    assert loaded == expected.tolist()
    assert stored == [0, *(expected + 1).view(np.uint8).tolist()]


def test_libdevice_is_rounded_once(extended):
    x, y = (t.double() for t in kernels.inputs(16))
    scalar = y[0].abs().rsqrt().float().double()
    wanted = [x.tanh(), x.exp2(), torch.atan2(x, y), x.abs().float().double() ** 0.75, torch.hypot(x, scalar)]
    assert torch.tensor(extended["libdevice_fp32"]).tolist() == torch.stack(wanted).float().tolist()


def test_libdevice_beyond_the_interpreter_is_named(extended):
    assert extended["libdevice_beyond"] == [
        "LibdeviceMissing: libdevice.popc of int32 in Triton's interpreter",
        "LibdeviceMissing: libdevice.tanh of bf16 in Triton's interpreter",
    ]


def test_integers_wrap_as_without_the_overflow_check(extended):
    assert extended["integer_overflow_wraps"] == [-(2**31) + 6 + 5]


def test_device_functions(extended):
    x = np.arange(16.0)
    assert extended["nested_device_functions"] == [*(4 * x), *(4 * x + 6)]


def test_the_language_is_left_as_it_was(extended):
    assert extended["language_is_left_as_it_was"] == [True, True, []]


WRONG_WITHOUT = [
    *("fp32_to_bf16", "arithmetic_bf16", "compare_bf16", "reduced_bf16", "dot_bf16", "atomic_bf16", "constants_bf16"),
    *("integers_and_bf16", "fp64_to_bf16", "sums_of_ones", "custom_reduction_bf16", "extremes_fp32", "extremes_bf16"),
    *("block_pointer_bf16", "rows_bf16"),
    *(f"{source}_to_{name}" for source in ("fp32", "fp16", "bf16") for name in kernels.FP8),
    *(f"{name}_{what}" for name in kernels.FP8 for what in ("decoded", "arithmetic", "compared", "reduced")),
    *(f"{name}_{what}" for name in ("float8_e4m3fnuz", "float8_e5m2fnuz") for what in ("memory", "dot", "bytes")),
]


@pytest.mark.parametrize("case", WRONG_WITHOUT)
def test_plain_triton_is_wrong_or_fails(case, results):
    """So that the tests above can fail, and the extension is still needed."""
    assert results["plain"][case] != results["extended"][case]


UNCHANGED = ["unary_of_bf16", "dot_int8", "atomic_fp32", "descriptor_bf16", "misaligned", "addresses"]


@pytest.mark.parametrize("case", [*UNCHANGED, "integer_overflow_wraps", "nested_device_functions"])
def test_what_plain_triton_has_right_is_unchanged(case, results):
    assert results["plain"][case] == results["extended"][case]
