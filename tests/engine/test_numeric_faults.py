"""Seeded faults: each breaks a real kernel, is proven to matter on its input, and is caught there."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

import msgspec  # noqa: E402
from faults import patching  # noqa: E402
from faults.catalogue import FAULTS, PROBES  # noqa: E402
from faults.fault import ENOUGH, Fault  # noqa: E402
from faults.patching import Edit, PatternGone, edited  # noqa: E402

from capmatrix import codec  # noqa: E402
from capmatrix.cell import Cell, Flag, Record, Verdict  # noqa: E402
from capmatrix.workers.pool import Pool  # noqa: E402

#: An AITER checkout, whose kernels are broken too where there is one.
AITER = os.environ.get("CAPMATRIX_TEST_AITER", "")

#: Which checks show a fault of each part.
SHOWN_BY = {"forward": {"forward", "needles"}, "query": {"query"}, "write": {"write"}, "guard": {"guard"}}

#: Beyond what a test should take: a pool of four gigabytes. The detection benchmark has it.
_TOO_BIG = {"unified-offset-of-31-bits"}


def pairs() -> list[tuple[Fault, str]]:
    """Every fault with every KV dtype it is tried in, by target so that servers are not started twice."""
    found = [(fault, dtype) for fault in FAULTS.values() for dtype in fault.kv_cache_dtypes]
    return sorted(found, key=lambda pair: (pair[0].target, pair[0].aiter))


def named(pair: tuple[Fault, str]) -> str:
    """A test's name."""
    return f"{pair[0].name}-{pair[1]}"


@pytest.fixture(scope="module")
def run_faulty(engines: Callable[..., Pool]) -> Callable[[Cell], Record]:
    """Runs a cell in a worker whose engine seeds the fault that the cell's ``drafter`` names."""
    return engines("faults.engine", {"aiter": AITER}).run


def test_there_are_enough_of_them() -> None:
    assert len({fault.name for fault in FAULTS.values() if not fault.aiter}) >= 40
    assert len(FAULTS) + len(PROBES) == len({*FAULTS, *PROBES})


@pytest.mark.parametrize("pair", pairs(), ids=named)
def test_the_input_is_sensitive(pair: tuple[Fault, str]) -> None:
    fault, dtype = pair
    assert fault.sensitivity(fault.cell(dtype)) >= ENOUGH


@pytest.mark.slow
@pytest.mark.parametrize("block", [64, 128, 272, 544])
def test_there_is_a_sensitive_input_at_every_block(block: int) -> None:
    for fault, dtype in pairs():
        if fault.runs_at(block):
            assert fault.sensitivity(fault.sensitive_cell(dtype, block)) >= ENOUGH, (fault.name, dtype)


#: What the faults are about, by a part of their names: none may get lost.
ABOUT = (
    "mask-ahead", "mask-behind", "last-block-dropped", "last-tile-dropped", "first-block-twice", "scale-doubled",
    "k-scale-ignored", "v-scale-ignored", "wrong-gqa-head", "wrong-kv-head", "head-stride-off", "rows-unwritten",
    "rows-identical", "stale-slot", "window-too-long", "window-too-short", "no-max-subtraction", "causal-mask-dropped",
    "not-causal", "query-start-off", "table-rows-swapped", "one-wrong-entry", "block-id-of-16-bits",
    "offset-of-31-bits", "e4m3fn-read-as-fnuz", "fnuz-read-as-e4m3fn", "e4m3-read-as-e5m2", "stored-as-e5m2",
    "sinks-ignored", "soft-cap-ignored", "merge-outputs-unweighted", "merge-sums-unweighted", "padded-row-gets-in",
    "slot-off", "into-another-block", "past-the-end", "last-token-skipped", "token-scales-too-small", "rope-dropped",
    "segment-twice", "segment-left-out", "merge-unweighted",
)  # fmt: skip


@pytest.mark.parametrize("about", ABOUT)
def test_there_is_a_fault_of_each_kind(about: str) -> None:
    assert any(about in name for name in FAULTS)


#: Kernels that write or read a cache, with the KV dtypes that they have code for.
KERNELS = {
    "kernel_unified_attention, 2D": {"auto", "fp8", "int8_per_token_head", "fp8_per_token_head"},
    "kernel_unified_attention, 3D": {"auto", "fp8"},
    "reduce_segments": {"auto", "fp8"},
    "kernel_paged_attention_2d": {"auto", "fp8"},
    "_fwd_kernel": {"auto", "fp8"},
    "reshape_and_cache_kernel_flash": {"auto", "fp8"},
    "_reshape_cache_per_token_head": {"int8_per_token_head", "fp8_per_token_head"},
    "_attn_packed": {"int4_per_token_head"},
    "_reshape_cache_int4_kernel": {"int4_per_token_head"},
    "flex_attention mask": {"auto"},
    "flex_attention template": {"auto"},
    "latent _fwd_grouped_kernel_stage1": {"auto", "fp8"},
    "latent _fwd_kernel_stage1": {"auto", "fp8"},
    "latent _fwd_kernel_stage2": {"auto", "fp8"},
    "_segmented_attention_stage": {"auto", "fp8"},
    "_segmented_attention_reduce": {"auto", "fp8"},
    "AITER kernel_unified_attention_2d": {"auto", "fp8"},
    "AITER kernel_unified_attention_3d": {"auto", "fp8"},
    "AITER reduce_segments": {"auto", "fp8"},
}


def test_each_kernel_is_broken_with_each_kv_dtype() -> None:
    found: dict[str, set[str]] = {}
    for fault, dtype in pairs():
        found.setdefault(fault.kernel, set()).add(dtype)
    assert found == KERNELS


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize("pair", pairs(), ids=named)
def test_the_fault_is_caught(pair: tuple[Fault, str], run_faulty: Callable[[Cell], Record]) -> None:
    fault, dtype = pair
    if fault.name in _TOO_BIG:
        pytest.skip("its pool is too big for a test: see benchmarks/detection.py")
    if fault.aiter and not AITER:
        pytest.skip("no AITER checkout: CAPMATRIX_TEST_AITER is not set")
    record = run_faulty(fault.cell(dtype))
    assert record.verdict is Verdict.WRONG, (record.verdict, record.reasons)
    shown = {check.part for check in record.checks if check.ok is False}
    assert shown & SHOWN_BY[fault.part], (shown, record.reasons)


def unbroken() -> list[Cell]:
    """The cells that the faults are seeded in, each once."""
    cells = {}
    for fault, dtype in pairs():
        if fault.pool_blocks is None and not fault.aiter:
            cell = msgspec.structs.replace(fault.cell(dtype), drafter="none")
            cells[codec.encode(cell)] = cell
    return list(cells.values())


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize("cell", unbroken(), ids=codec.cell_id)
def test_without_a_fault_the_same_cell_passes(cell: Cell, run_faulty: Callable[[Cell], Record]) -> None:
    record = run_faulty(cell)
    assert record.verdict is Verdict.PASS, record.reasons


@pytest.mark.engine
@pytest.mark.parametrize(
    ("name", "verdict", "shown"),
    [
        ("warm-call-differs", Verdict.WRONG, {"repeat"}),
        ("cold-call-differs", Verdict.WRONG, {"forward", "repeat"}),
        ("query-changed", Verdict.WRONG, {"guard"}),
        ("seq-lens-changed", Verdict.WRONG, {"guard"}),
        ("writes-behind-output", Verdict.WRONG, {"guard"}),
        ("unmasked-tail", Verdict.PASS, set()),
    ],
)
def test_what_else_a_kernel_does_is_told(
    name: str, verdict: Verdict, shown: set[str], run_faulty: Callable[[Cell], Record]
) -> None:
    record = run_faulty(PROBES[name].cell("auto"))
    assert record.verdict is verdict, record.reasons
    assert shown <= {check.part for check in record.checks if check.ok is False}
    assert (Flag.NAN_UNSAFE in record.flags) == (name == "unmasked-tail")


def example(x: int) -> int:
    """Something to break."""
    return x + 1


class Thing:
    """Something with a method to break."""

    def twice(self, x: int) -> int:
        """Something else to break."""
        return x * 2


def test_an_edit_is_in_place_within_and_undone_after(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patching, "imported_too", example, raising=False)
    one = Edit(__name__, "example", "x + 1", "x + 2")
    two = Edit(__name__, "Thing.twice", "x * 2", "x * 3")
    with edited((one, two)):
        assert (example(1), patching.imported_too(1), Thing().twice(1)) == (3, 3, 3)  # type: ignore[attr-defined]
    assert (example(1), patching.imported_too(1), Thing().twice(1)) == (2, 2, 2)  # type: ignore[attr-defined]
    assert "twice" not in globals()


def test_a_module_first_imported_within_an_edit_is_mended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM imports int4's kernels on first use: a fault in a helper of theirs stayed with them."""
    late = ModuleType("imported_late")
    with edited((Edit(__name__, "example", "x + 1", "x + 2"),)):
        late.example = example  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, late.__name__, late)
        assert late.example(1) == 3
    assert late.example is example and late.example(1) == 2


def test_an_edit_that_finds_nothing_is_an_error() -> None:
    gone = Edit(__name__, "example", "x + 7", "")
    with pytest.raises(PatternGone, match=r"example has no 'x \+ 7'"), edited((gone,)):
        pass
    assert example(1) == 2
