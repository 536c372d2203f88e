"""FLEX_ATTENTION on the interpreter targets: the kernel that Inductor renders runs, and its numbers are judged."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

import msgspec  # noqa: E402
from engine_helpers import checks, kernel  # noqa: E402
from faults.flexes import BY_PYTORCH  # noqa: E402

from capmatrix.cell import Cell, Flag, Geometry, Phase, Record, Rung, Verdict  # noqa: E402
from capmatrix.engine import bands, inductor  # noqa: E402
from capmatrix.workers.pool import Pool  # noqa: E402

Run = Callable[..., Record]

KERNEL = "triton_tem_fused_flex_attention_0"
TARGETS = ["interpreter:gfx942", "interpreter:gfx950"]
#: Two query heads to a KV head.
SMALL = Geometry(4, 2, 64)


def judged(record: Record) -> None:
    """The cell passes by numbers of the kernel's own: off by what rounding leaves, and not by nothing."""
    assert (record.verdict, record.rung) == (Verdict.PASS, Rung.INTERPRETED), record.reasons
    ran = kernel(record, KERNEL)
    assert (ran.kind, ran.phase, ran.detail) == ("triton", "forward", "interpreted")
    # A first call, one again, zeroed and stale slots, and needles.
    assert ran.calls == 5
    finite = [check for check in checks(record, "forward") if check.cache != "nan"]
    assert [check.cache for check in finite] == ["zeroed", "stale"]
    for check in finite:
        assert check.ok is True and check.unwritten_count == 0
        assert check.relative_l2 is not None and check.bound is not None
        assert 0 < check.relative_l2 < check.bound < 0.05
    assert checks(record, "needles")[0].ok is True
    assert all(check.ok is True for part in ("write", "guard", "repeat") for check in checks(record, part))
    # A tile of keys has slots that nobody owns: p is 0 there, and 0 times NaN is NaN.
    assert Flag.NAN_UNSAFE in record.flags


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("batch", ["decode", "verify", "prefill"])
def test_the_kernels_numbers_are_right(run: Run, target: str, batch: str) -> None:
    record = run(target, "FLEX_ATTENTION", 16, "auto", batch)
    judged(record)
    # The grid is groups of 16 query rows, sequences (one, packed), heads.
    rows = {"decode": 3, "verify": 9, "prefill": 47}[batch]
    assert kernel(record, KERNEL).grid == (-(-rows // 16), 1, 4)


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize("block_size", [32, 64, 128])
def test_blocks_are_tiles(run: Run, block_size: int) -> None:
    judged(run("interpreter:gfx942", "FLEX_ATTENTION", block_size, "auto", "verify", geometry=SMALL))


@pytest.mark.slow
@pytest.mark.engine
def test_a_window_and_half_precision(run: Run) -> None:
    windowed = Geometry(4, 2, 64, sliding_window=32)
    record = run("interpreter:gfx950", "FLEX_ATTENTION", 16, "auto", "verify", geometry=windowed, dtype="float16")
    judged(record)
    error = checks(record, "forward")[-1].relative_l2
    assert error is not None and error < 0.001


@pytest.mark.engine
def test_a_quantised_cache_is_rejected(run: Run) -> None:
    record = run("interpreter:gfx942", "FLEX_ATTENTION", 16, "fp8", "decode")
    assert (record.verdict, record.rung, record.phase) == (Verdict.REJECTED, Rung.DECLARED, Phase.SELECT)
    assert record.reasons == ("kv_cache_dtype not supported",)


@pytest.mark.slow
@pytest.mark.engine
def test_a_windows_mask_compiles_too(run: Run) -> None:
    windowed = Geometry(4, 2, 64, sliding_window=32)
    record = run("offline:gfx942", "FLEX_ATTENTION", 16, "auto", "verify", geometry=windowed)
    assert (record.verdict, record.rung) == (Verdict.PASS, Rung.COMPILED), record.reasons
    assert (kernel(record, KERNEL).vgprs or 0) > 0


def cell(target: str) -> Cell:
    """A verify of short sequences at block 64."""
    return msgspec.structs.replace(BY_PYTORCH.cell("auto", 64), target=target)


@pytest.mark.slow
@pytest.mark.engine
def test_it_is_the_kernel_that_is_compiled_for_the_architecture(engines: Callable[[str], Pool]) -> None:
    pool = engines("flex_sources")
    (interpreted,) = pool.run(cell("interpreter:gfx942")).reasons
    (compiled,) = pool.run(cell("offline:gfx942")).reasons
    assert interpreted == compiled
    # What ROCm's heuristics alone give, and the tiles that vLLM asks for.
    for line in ("BLOCK_M : tl.constexpr = 16", "BLOCK_N : tl.constexpr = 64", "waves_per_eu : tl.constexpr"):
        assert line in interpreted


@pytest.mark.slow
@pytest.mark.engine
def test_what_pytorch_computes_stays_unverified(engines: Callable[[str], Pool]) -> None:
    record = engines("faults.engine").run(cell("interpreter:gfx942"))
    assert record.verdict is Verdict.UNVERIFIED, record.reasons
    assert record.reasons[0].startswith("unverified: torch: PyTorch computed the attention")
    assert checks(record, "needles")[0].ok is True


def test_what_the_compiler_raises_is_not_wrapped() -> None:
    def backend(graph: object, inputs: object) -> object:
        raise MemoryError("no LDS left")

    with pytest.raises(MemoryError, match=r"^no LDS left$"), inductor.traced():
        torch.compile(torch.sin, backend=backend)(torch.ones(2))


def test_a_buffer_of_generated_code_has_bands() -> None:
    bands.made()
    buffer = bands.empty("a buffer", (2, 3, 4), (4, 8, 1), torch.bfloat16)
    assert (buffer.shape, buffer.stride()) == ((2, 3, 4), (4, 8, 1))
    assert bool(buffer.isnan().all())
    buffer.fill_(1.0)
    (banded,) = bands.made()
    assert not bands.bands_changed(banded) and bands.made() == []
    assert int((bands.raw(banded.whole) != 0xFF).any(-1).sum()) == buffer.numel()
    for offset in (-1, 24):
        # One element before the first, and one behind the last.
        near = buffer.as_strided((1,), (1,), buffer.storage_offset() + offset)
        before = near.clone()
        near.fill_(2.0)
        assert bands.bands_changed(banded)
        bands.raw(near).copy_(bands.raw(before))
        assert not bands.bands_changed(banded)
    assert bands.empty("nothing", (0,), (1,), torch.float32).numel() == 0


def test_a_gpu_build_of_pytorch_is_not_asked_for_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo saves a GPU's random state first; stand-ins count one GPU, and there is none."""

    def no_driver(*args: object) -> object:
        raise RuntimeError("Found no driver")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state", no_driver)
    torch._dynamo.reset()
    with inductor.traced():
        assert torch.compile(torch.cos, backend="eager")(torch.zeros(2)).tolist() == [1, 1]
    assert torch.cuda.is_available()
