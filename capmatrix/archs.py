"""AMD GPU architectures: the figures that a target without the hardware needs, each with its source.

Products of one architecture differ in compute units and memory; the figures here are those of the
first product named. Sources are named in short:

* ROCm: "GPU hardware specifications", docs/reference/gpu-arch-specs.rst of the ROCm documentation,
  https://rocm.docs.amd.com/en/latest/reference/gpu-arch-specs.html
* LLVM: llvm/lib/Target/AMDGPU/AMDGPU.td of llvm/llvm-project, the features of the ISA version.
* Triton: triton/backends/amd/compiler.py, HIPOptions.
* vLLM: vllm/platforms/rocm.py (0.32.0).
"""

from __future__ import annotations

import msgspec

from .errors import InputError

KIB = 1024
GIB = 1024**3


class Arch(msgspec.Struct, frozen=True):
    """One architecture.

    ``wave_size`` in lanes, as Triton launches it; ``lds_bytes`` what one workgroup may use;
    ``compute_units`` and ``total_memory_bytes`` of one device of ``products[0]`` as the runtime shows it
    (one die of a two-die card). ``fp8_format`` is what vLLM stores for ``fp8``: ``fnuz`` (bias 8) or
    ``ocp`` (bias 7); ``fp8_instructions`` says whether the hardware converts it itself. ``sources`` has
    an entry for every other field but ``name``.
    """

    name: str
    wave_size: int
    lds_bytes: int
    compute_units: int
    fp8_format: str
    fp8_instructions: bool
    cdna: bool
    total_memory_bytes: int
    products: tuple[str, ...]
    sources: dict[str, str]


_FNUZ = "vLLM: RocmPlatform.is_fp8_fnuz, 'gfx94' only"
_OCP = "vLLM: RocmPlatform.fp8_dtype, float8_e4m3fn wherever is_fp8_fnuz is False"
_WAVE_64 = "Triton: HIPOptions, warp_size 64 below gfx10; ROCm: wavefront size 64"
_WAVE_32 = "Triton: HIPOptions, warp_size 32 from gfx10; ROCm: wavefront size 32 or 64"


def _table(product: str, figure: str) -> str:
    return f"ROCm: {product}, {figure}"


_ALL = (
    Arch(
        name="gfx942",
        wave_size=64,
        lds_bytes=64 * KIB,
        compute_units=304,
        fp8_format="fnuz",
        fp8_instructions=True,
        cdna=True,
        total_memory_bytes=192 * GIB,
        products=("MI300X", "MI325X", "MI300A", "MI308X"),
        sources={
            "wave_size": _WAVE_64,
            "lds_bytes": "LLVM: FeatureISAVersion9_4_2, AddressableLocalMemorySize65536; ROCm: LDS 64 KiB",
            "compute_units": _table("MI300X", "304 compute units, 38 per XCD"),
            "fp8_format": _FNUZ,
            "fp8_instructions": "LLVM: FeatureISAVersion9_4_2, FP8ConversionInsts",
            "cdna": _table("MI300X", "CDNA3"),
            "total_memory_bytes": _table("MI300X", "192 GiB"),
            "products": "ROCm: MI300X, MI325X, MI300A; vLLM: _ROCM_DEVICE_ID_NAME_MAP, 0x74a2 MI308X",
        },
    ),
    Arch(
        name="gfx950",
        wave_size=64,
        lds_bytes=160 * KIB,
        compute_units=256,
        fp8_format="ocp",
        fp8_instructions=True,
        cdna=True,
        total_memory_bytes=288 * GIB,
        products=("MI355X", "MI350X"),
        sources={
            "wave_size": _WAVE_64,
            "lds_bytes": "LLVM: FeatureISAVersion9_5_Common, AddressableLocalMemorySize163840; ROCm: LDS 160 KiB",
            "compute_units": _table("MI355X", "256 compute units, 32 per XCD"),
            "fp8_format": _OCP,
            "fp8_instructions": "LLVM: FeatureISAVersion9_5_Common, FP8ConversionInsts",
            "cdna": _table("MI355X", "CDNA4"),
            "total_memory_bytes": _table("MI355X", "288 GiB"),
            "products": "ROCm: MI355X, MI350X",
        },
    ),
    Arch(
        name="gfx90a",
        wave_size=64,
        lds_bytes=64 * KIB,
        compute_units=104,
        fp8_format="ocp",
        fp8_instructions=False,
        cdna=True,
        total_memory_bytes=64 * GIB,
        products=("MI210", "MI250", "MI250X"),
        sources={
            "wave_size": _WAVE_64,
            "lds_bytes": "LLVM: FeatureISAVersion9_0_Common, AddressableLocalMemorySize65536; ROCm: LDS 64 KiB",
            "compute_units": _table("MI210", "104 compute units (MI250: 104 per GCD, MI250X: 110 per GCD)"),
            "fp8_format": _OCP,
            "fp8_instructions": "LLVM: FeatureISAVersion9_0_A, no FP8ConversionInsts",
            "cdna": _table("MI210", "CDNA2"),
            "total_memory_bytes": _table("MI210", "64 GiB (MI250 and MI250X: 128 GiB in two dies)"),
            "products": "ROCm: MI210, MI250, MI250X",
        },
    ),
    Arch(
        name="gfx1100",
        wave_size=32,
        lds_bytes=64 * KIB,
        compute_units=96,
        fp8_format="ocp",
        fp8_instructions=False,
        cdna=False,
        total_memory_bytes=48 * GIB,
        products=("Radeon PRO W7900", "Radeon RX 7900 XTX", "Radeon PRO W7800", "Radeon RX 7900 XT"),
        sources={
            "wave_size": _WAVE_32,
            "lds_bytes": "LLVM: FeatureGFX11, AddressableLocalMemorySize65536 (ROCm's 128 KiB: a pair of CUs)",
            "compute_units": _table("Radeon PRO W7900", "96 compute units"),
            "fp8_format": _OCP,
            "fp8_instructions": "LLVM: FeatureISAVersion11_Common, no FP8ConversionInsts",
            "cdna": _table("Radeon PRO W7900", "RDNA3"),
            "total_memory_bytes": _table("Radeon PRO W7900", "48 GiB"),
            "products": "ROCm: Radeon PRO W7900, RX 7900 XTX, PRO W7800, RX 7900 XT",
        },
    ),
    Arch(
        name="gfx1201",
        wave_size=32,
        lds_bytes=64 * KIB,
        compute_units=64,
        fp8_format="ocp",
        fp8_instructions=True,
        cdna=False,
        total_memory_bytes=32 * GIB,
        products=("Radeon AI PRO R9700", "Radeon RX 9070 XT", "Radeon RX 9070"),
        sources={
            "wave_size": _WAVE_32,
            "lds_bytes": "LLVM: FeatureISAVersion12, AddressableLocalMemorySize65536 (ROCm's 128 KiB: a pair of CUs)",
            "compute_units": _table("Radeon AI PRO R9700", "64 compute units"),
            "fp8_format": _OCP,
            "fp8_instructions": "LLVM: FeatureISAVersion12, FP8ConversionInsts",
            "cdna": _table("Radeon AI PRO R9700", "RDNA4"),
            "total_memory_bytes": _table("Radeon AI PRO R9700", "32 GiB"),
            "products": "ROCm: Radeon AI PRO R9700, RX 9070 XT, RX 9070",
        },
    ),
)

ARCHS: dict[str, Arch] = {arch.name: arch for arch in _ALL}


def get(name: str) -> Arch:
    """The architecture called ``name`` (``gfx942``). Raises InputError for one that is not known."""
    try:
        return ARCHS[name]
    except KeyError:
        raise InputError("unknown architecture", value=name, allowed=ARCHS) from None
