"""AMD architectures: every figure has a source, and the figures are those the sources state."""

from __future__ import annotations

import re

import pytest

from capmatrix import archs, vocabulary
from capmatrix.errors import InputError

KIB, GIB = 1024, 1024**3


def test_every_architecture_of_the_vocabulary_is_described() -> None:
    assert tuple(archs.ARCHS) == vocabulary.ARCHITECTURES
    assert all(name == arch.name for name, arch in archs.ARCHS.items())


@pytest.mark.parametrize("arch", archs.ARCHS.values(), ids=lambda arch: arch.name)
def test_every_figure_has_a_source(arch: archs.Arch) -> None:
    assert set(arch.sources) == set(arch.__struct_fields__) - {"name", "sources"}
    for field, source in arch.sources.items():
        assert re.match(r"(ROCm|LLVM|Triton|vLLM): \S", source), (field, source)


@pytest.mark.parametrize("arch", archs.ARCHS.values(), ids=lambda arch: arch.name)
def test_sources_state_the_figures(arch: archs.Arch) -> None:
    """Where a source repeats a figure, it is the same figure, and it speaks of the first product."""
    assert f"{arch.products[0]}, {arch.compute_units} compute units" in arch.sources["compute_units"]
    assert f"{arch.products[0]}, {arch.total_memory_bytes // GIB} GiB" in arch.sources["total_memory_bytes"]
    assert f"AddressableLocalMemorySize{arch.lds_bytes}" in arch.sources["lds_bytes"]
    assert f"warp_size {arch.wave_size}" in arch.sources["wave_size"]
    assert arch.cdna is ("CDNA" in arch.sources["cdna"])
    assert arch.fp8_instructions is ("no FP8ConversionInsts" not in arch.sources["fp8_instructions"])
    assert arch.wave_size == (64 if arch.cdna else 32)


@pytest.mark.parametrize(
    ("name", "wave", "lds", "units", "fp8", "memory"),
    [
        ("gfx942", 64, 64 * KIB, 304, "fnuz", 192 * GIB),
        ("gfx950", 64, 160 * KIB, 256, "ocp", 288 * GIB),
        ("gfx90a", 64, 64 * KIB, 104, "ocp", 64 * GIB),
        ("gfx1100", 32, 64 * KIB, 96, "ocp", 48 * GIB),
        ("gfx1201", 32, 64 * KIB, 64, "ocp", 32 * GIB),
    ],
)
def test_figures(name: str, wave: int, lds: int, units: int, fp8: str, memory: int) -> None:
    arch = archs.get(name)
    assert (arch.wave_size, arch.lds_bytes, arch.compute_units) == (wave, lds, units)
    assert (arch.fp8_format, arch.total_memory_bytes) == (fp8, memory)


def test_products_belong_to_one_architecture() -> None:
    products = [product for arch in archs.ARCHS.values() for product in arch.products]
    assert len(products) == len(set(products))
    assert {"MI300X", "MI325X", "MI308X"} <= set(archs.get("gfx942").products)


def test_unknown_architecture_names_the_nearest() -> None:
    with pytest.raises(InputError, match=r"unknown architecture \(got 'gfx94'\); did you mean 'gfx942'") as caught:
        archs.get("gfx94")
    assert caught.value.allowed == list(archs.ARCHS)
