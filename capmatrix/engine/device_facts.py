"""What a GPU machine is: vendor, name, architecture, memory, driver, ROCm or CUDA, partition mode, clocks.

Asked of the drivers' own libraries (amdsmi, NVML) and of sysfs, none of which makes a GPU context. Answers
of AMD hardware were not seen by this project; each is asked apart, so that one that is missing costs no other.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..workers import slots
from .kfd import amd_architecture


def hardware() -> dict[str, Any]:
    """Facts of the first visible GPU, with ``vendor`` (``amd`` or ``nvidia``) and ``gpus``, how many are visible."""
    import torch

    facts = _amd() if torch.version.hip is not None else _nvidia()
    return facts | {"gpus": len(slots.devices())}


def versions() -> dict[str, str]:
    """Versions of ``rocm`` or ``cuda`` and of the ``driver``, where they can be told."""
    import torch

    found = {}
    if torch.version.hip is not None:
        found["rocm"] = _rocm_release() or str(torch.version.hip)
        with contextlib.suppress(OSError):
            found["driver"] = Path("/sys/module/amdgpu/version").read_text().strip()
    elif torch.version.cuda is not None:
        found["cuda"] = str(torch.version.cuda)
        with contextlib.suppress(Exception):
            found["driver"] = _text(_nvml(lambda nvml: nvml.nvmlSystemGetDriverVersion()))
    return {k: v for k, v in found.items() if v}


def compute_capability() -> tuple[int, int]:
    """Of the first visible NVIDIA GPU. Raises what NVML raises."""
    major, minor = _nvml(lambda nvml: nvml.nvmlDeviceGetCudaComputeCapability(_handle(nvml)))
    return int(major), int(minor)


def _amd() -> dict[str, Any]:
    facts: dict[str, Any] = {"vendor": "amd", "arch": amd_architecture()}
    with contextlib.suppress(Exception):
        import amdsmi

        amdsmi.amdsmi_init()
        try:
            handle = amdsmi.amdsmi_get_processor_handles()[_first_visible()]
            asic = _asked(lambda: amdsmi.amdsmi_get_gpu_asic_info(handle)) or {}
            # One architecture has several products: MI300X, MI308X and MI325X are all gfx942.
            facts["name"] = str(asic.get("market_name", ""))
            facts["device_id"] = str(asic.get("device_id", ""))
            facts["arch"] = str(asic.get("target_graphics_version", "")) or facts["arch"]
            facts["compute_units"] = asic.get("num_compute_units")
            vram = amdsmi.AmdSmiMemoryType.VRAM
            facts["gpu_memory_bytes"] = _asked(lambda: amdsmi.amdsmi_get_gpu_memory_total(handle, vram))
            facts["compute_partition"] = _asked(lambda: amdsmi.amdsmi_get_gpu_compute_partition(handle))
            facts["memory_partition"] = _asked(lambda: amdsmi.amdsmi_get_gpu_memory_partition(handle))
            facts["power_cap"] = _asked(lambda: amdsmi.amdsmi_get_power_cap_info(handle))
        finally:
            amdsmi.amdsmi_shut_down()
    return {k: v for k, v in facts.items() if v not in (None, "")}


def _nvidia() -> dict[str, Any]:
    facts: dict[str, Any] = {"vendor": "nvidia"}

    def ask(nvml: Any) -> None:
        handle = _handle(nvml)
        facts["name"] = _text(_asked(lambda: nvml.nvmlDeviceGetName(handle)))
        capability = _asked(lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle))
        facts["compute_capability"] = ".".join(map(str, capability)) if capability else None
        facts["gpu_memory_bytes"] = _asked(lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).total))
        facts["power_cap_w"] = _asked(lambda: nvml.nvmlDeviceGetPowerManagementLimit(handle) / 1000)
        facts["partition"] = _asked(lambda: "MIG" if nvml.nvmlDeviceGetMigMode(handle)[0] else "none")

    with contextlib.suppress(Exception):
        _nvml(ask)
    return {k: v for k, v in facts.items() if v not in (None, "")}


def clocks() -> dict[str, Any]:
    """Clocks in MHz and power in W just now, where they can be told; empty otherwise."""
    facts: dict[str, Any] = {}

    def ask(nvml: Any) -> None:
        handle = _handle(nvml)
        facts["sm_mhz"] = _asked(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
        facts["memory_mhz"] = _asked(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM))
        facts["power_w"] = _asked(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000)
        facts["temperature_c"] = _asked(lambda: nvml.nvmlDeviceGetTemperature(handle, 0))

    with contextlib.suppress(Exception):
        import torch

        if torch.version.hip is None:
            _nvml(ask)
        else:
            import amdsmi

            amdsmi.amdsmi_init()
            handle = amdsmi.amdsmi_get_processor_handles()[_first_visible()]
            facts["gfx_mhz"] = _asked(lambda: amdsmi.amdsmi_get_clock_info(handle, amdsmi.AmdSmiClkType.GFX).get("clk"))
            facts["power_w"] = _asked(lambda: amdsmi.amdsmi_get_power_info(handle).get("current_socket_power"))
            amdsmi.amdsmi_shut_down()
    return {k: v for k, v in facts.items() if v is not None}


def gpu_id() -> str:
    """A part of the first visible GPU's UUID, enough to tell GPUs of a kind apart; "" where none is told.

    NVIDIA's begins with what is its own. Of an AMD one (``ccff74a1-0000-1000-80e0-c6d49f5b0d86``) only the first byte
    is before the last group: the rest says which product it is.
    """
    found: list[str] = []
    with contextlib.suppress(Exception):
        import torch

        if torch.version.hip is None:
            _nvml(lambda nvml: found.append(_text(nvml.nvmlDeviceGetUUID(_handle(nvml)))[:12]))
        else:
            import amdsmi

            amdsmi.amdsmi_init()
            try:
                handle = amdsmi.amdsmi_get_processor_handles()[_first_visible()]
                found.append(_text(amdsmi.amdsmi_get_gpu_device_uuid(handle))[-12:])
            finally:
                amdsmi.amdsmi_shut_down()
    return found[0] if found else ""


def _nvml(ask: Callable[[Any], Any]) -> Any:
    nvml = importlib.import_module("pynvml")
    nvml.nvmlInit()
    try:
        return ask(nvml)
    finally:
        nvml.nvmlShutdown()


def _handle(nvml: Any) -> Any:
    """Of the first visible GPU, which may be named by its UUID or the beginning of it; of a partition its GPU's."""
    first = (slots.devices() or ["0"])[0]
    if first.isdigit():
        return nvml.nvmlDeviceGetHandleByIndex(int(first))
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        if _text(nvml.nvmlDeviceGetUUID(handle)).upper().startswith(first.upper()):
            return handle
    return nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvml.nvmlDeviceGetHandleByUUID(first))


def _first_visible() -> int:
    first = (slots.devices() or ["0"])[0]
    return int(first) if first.isdigit() else 0


def _asked(question: Callable[[], Any]) -> Any:
    try:
        answer = question()
    except Exception:
        return None
    return {k: str(v) for k, v in answer.items()} if isinstance(answer, dict) else answer


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")


def _rocm_release() -> str:
    path = Path(os.environ.get("ROCM_PATH", "/opt/rocm")) / ".info" / "version"
    with contextlib.suppress(OSError):
        return path.read_text().strip()
    return ""
