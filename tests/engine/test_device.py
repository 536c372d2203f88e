"""What a GPU's worker does around cells, as far as a machine without one can tell."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.runtime.errors import OutOfResources  # noqa: E402

from capmatrix.cell import Phase, Verdict  # noqa: E402
from capmatrix.engine import device_boot, device_verdicts, kfd, native_ops, shims  # noqa: E402

ILLEGAL = RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered")


def test_a_fault_is_a_crash_although_it_was_caught() -> None:
    verdict, reasons = device_verdicts.of_exception(ILLEGAL, Phase.FORWARD, posing=False) or (None, ())
    assert verdict is Verdict.CRASH
    assert reasons[0].startswith("GPU memory fault: Triton Error [CUDA]: an illegal memory access")
    assert reasons[0].endswith("(in forward)")


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory. Tried"), RuntimeError("Triton Error [CUDA]: out of memory")]
)
def test_out_of_memory_is_an_error_and_never_a_skip(error: Exception) -> None:
    verdict, reasons = device_verdicts.of_exception(error, Phase.BUILD, posing=True) or (None, ())
    assert verdict is Verdict.ERROR
    assert reasons[0].startswith("GPU out of memory in build")


def test_what_does_not_fit_an_nvidia_gpu_says_nothing_of_the_architecture() -> None:
    error = OutOfResources(270336, 232448, "shared memory")
    assert device_verdicts.of_exception(error, Phase.FORWARD, posing=False) is None
    verdict, reasons = device_verdicts.of_exception(error, Phase.FORWARD, posing=True) or (None, ())
    assert verdict is Verdict.UNVERIFIED
    assert reasons[0].startswith("unverified: NVIDIA: OutOfResources")


def test_other_exceptions_are_nobodys_fault_here() -> None:
    assert device_verdicts.of_exception(ValueError("block size"), Phase.BUILD, posing=True) is None


@pytest.mark.parametrize(
    ("sick", "before", "after", "spent"),
    [
        ("", Verdict.ERROR, Verdict.ERROR, False),
        ("", Verdict.WRONG, Verdict.WRONG, False),
        ("", Verdict.CRASH, Verdict.CRASH, True),
        ("AcceleratorError: CUDA error", Verdict.ERROR, Verdict.CRASH, True),
        ("AcceleratorError: CUDA error", Verdict.WRONG, Verdict.CRASH, True),
    ],
)
def test_a_tiny_kernel_tells_a_lost_context(
    monkeypatch: pytest.MonkeyPatch, sick: str, before: Verdict, after: Verdict, spent: bool
) -> None:
    monkeypatch.setattr(device_boot, "healthy", lambda: sick)
    findings = {"reasons": ("first",)}
    assert device_verdicts.after(before, findings) == (after, spent)
    assert findings["reasons"][0] == "first"
    assert (len(findings["reasons"]) == 2) is bool(sick)


def test_a_server_answers_what_is_compiled_for_and_touches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime import driver

    monkeypatch.setattr(driver, "_active", driver._active)
    monkeypatch.setattr(torch.cuda, "_lazy_init", torch.cuda._lazy_init)
    monkeypatch.setattr(triton.runtime.jit.JITFunction, "run", triton.runtime.jit.JITFunction.run)
    changed = device_boot.prepare("gfx950")
    assert driver.active.get_current_target() == GPUTarget("hip", "gfx950", 64)
    assert "waves_per_eu" in changed[0]
    with pytest.raises(RuntimeError, match="before the workers are forked"):
        torch.cuda._lazy_init()


def test_options_of_amds_compiler_are_dropped_only_where_a_kernel_does_not_declare_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []
    monkeypatch.setattr(triton.runtime.jit.JITFunction, "run", lambda self, *args, **kwargs: seen.append(kwargs))
    device_boot._drop_amd_options()
    run = triton.runtime.jit.JITFunction.run
    shims.drain()
    run(SimpleNamespace(arg_names=["x", "kpack"]), waves_per_eu=2, kpack=2, num_warps=4)
    assert seen == [{"kpack": 2, "num_warps": 4}]
    assert shims.drain() == ("launch option waves_per_eu dropped",)


@pytest.mark.parametrize(
    ("number", "name"),
    [(90402, "gfx942"), (90500, "gfx950"), (90010, "gfx90a"), (110000, "gfx1100"), (120001, "gfx1201"), (0, "")],
)
def test_architectures_by_the_kernel_drivers_number(number: int, name: str) -> None:
    assert kfd.gfx_name(f"cpu_cores_count 0\ngfx_target_version {number}\nvendor_id 4098\n") == name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rows_without_a_slot_leave_every_bit_of_the_cache_alone(dtype: torch.dtype) -> None:
    """NaN among them: moved as a number, a GPU may change its bits."""
    cache = torch.full((3, 4, 2, 8), float("nan"), dtype=dtype)
    raw = cache.view(torch.int16)
    raw[0, 0] = torch.arange(16, dtype=torch.int16).view(2, 8) + 0x7F81
    before = raw.clone()
    kept, block, offset = native_ops._placed(torch.tensor([5, -1, -1]), 4)
    stored = torch.ones(3, 2, 8, dtype=dtype)
    native_ops._put(native_ops._bytes(cache), (block, offset), kept, native_ops._bytes(stored))
    assert bool((cache[1, 1] == 1).all())
    before[1, 1] = raw[1, 1]
    assert torch.equal(raw, before)
    assert native_ops._bytes(cache).dtype is torch.int16
