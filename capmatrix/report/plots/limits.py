"""What a GPU can do at best, as data with sources. What is not here is not known here, and is not drawn."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ... import archs
from ...cell import Environment


@dataclass(frozen=True)
class Product:
    """One GPU: bytes a second of its memory, dense bf16 matrix operations a second; None where not known here."""

    name: str
    bandwidth: float | None
    bf16: float | None
    source: str


#: Found by its name in what the driver calls the GPU. Data sheets state peaks; nothing reaches them.
PRODUCTS: tuple[Product, ...] = (
    Product("MI300X", 5.3e12, 1307.4e12, "AMD Instinct MI300X data sheet: 5.3 TB/s; bfloat16 1307.4 TFLOPS"),
    Product("MI325X", 6.0e12, 1307.4e12, "AMD Instinct MI325X data sheet: 6 TB/s; bfloat16 1307.4 TFLOPS"),
    Product("MI355X", 8.0e12, 2.5e15, "AMD Instinct MI355X product page: 8 TB/s; bfloat16 2.5 PFLOPS, dense"),
    Product("MI350X", 8.0e12, None, "AMD Instinct MI350 series: 8 TB/s"),
    Product("H200", 4.8e12, 989e12, "NVIDIA H200 (SXM) data sheet: 4.8 TB/s; bfloat16 1,979 TFLOPS, half of it dense"),
)

#: Registers of a lane that a kernel can address. LLVM: getAddressableNumVGPRs, 512 with FeatureGFX90AInsts, else 256.
VGPRS: dict[str, int] = {"gfx90a": 512, "gfx942": 512, "gfx950": 512, "gfx1100": 256, "gfx1201": 256}

#: By CUDA compute capability: registers a thread, shared memory bytes a block. CUDA C++ Programming Guide, table
#: "Technical Specifications per Compute Capability".
NVIDIA: dict[str, tuple[int, int]] = {"8.0": (255, 163 * 1024), "9.0": (255, 227 * 1024)}


@dataclass(frozen=True)
class Resources:
    """What one kernel may have: registers of a lane, LDS (shared memory) bytes of a workgroup; None: not known."""

    registers: int | None
    lds_bytes: int | None
    source: str


def product(environment: Environment | None) -> Product | None:
    """The GPU that an environment names, whose data sheet is known here."""
    name = str(environment.hardware.get("name", "")) if environment else ""
    return next((p for p in PRODUCTS if re.search(rf"(?<![A-Za-z0-9]){p.name}(?![A-Za-z0-9])", name)), None)


def resources(architecture: str, environment: Environment | None) -> Resources:
    """What a kernel may have on an AMD architecture, or else on the NVIDIA GPU of an environment."""
    if architecture in archs.ARCHS:
        arch = archs.get(architecture)
        said = f"{arch.sources['lds_bytes']}; LLVM: getAddressableNumVGPRs"
        return Resources(VGPRS.get(architecture), arch.lds_bytes, said)
    hardware: Mapping[str, Any] = environment.hardware if environment else {}
    registers, shared = NVIDIA.get(str(hardware.get("compute_capability", "")), (None, None))
    return Resources(registers, shared, "CUDA C++ Programming Guide" if registers else "")
