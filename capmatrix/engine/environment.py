"""What a worker server runs on, for its run file: versions, commits, hardware, identity, switches."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
from collections.abc import Mapping
from typing import Any

import msgspec

from .. import archs, codec
from ..cell import Environment
from ..targets import Target
from . import Unavailable


def collect(target: Target, switches: Mapping[str, str], extensions: tuple[str, ...]) -> Environment:
    """The environment of this process, after vLLM's import."""
    import torch
    import triton
    import vllm

    from .. import __version__
    from . import aiter_loader

    on_device = target.kind == "device"
    versions = {
        "capmatrix": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "triton": triton.__version__,
        "vllm": vllm.__version__,
    }
    if on_device:
        from . import device_facts

        versions |= device_facts.versions()
    commits: dict[str, str] = {}
    seen = hardware() | (device_facts.hardware() if on_device else {"gpu": "none used"})
    if target.emulated:
        told = emulated(seen, versions, commits)
        seen, extensions = told[0], (*extensions, told[1])
    aiter = aiter_loader.describe()
    if aiter.get("version"):
        versions["aiter"] = aiter["version"]
    if aiter.get("commit"):
        commits["aiter"] = aiter["commit"]
    vllm_commit = getattr(vllm, "__commit__", "") or _vllm_commit()
    if vllm_commit:
        commits["vllm"] = vllm_commit
    unnamed = Environment(
        id="",
        target=target.name,
        versions=versions,
        commits=commits,
        hardware=seen,
        identity=_device_identity(target) if on_device else _identity(target),
        switches=dict(sorted(switches.items())),
        extensions=extensions,
    )
    digest = hashlib.sha256(codec.encode(unnamed)).hexdigest()[:12]
    return msgspec.structs.replace(unnamed, id=digest)


def emulated(seen: Mapping[str, Any], versions: dict[str, str], commits: dict[str, str]) -> tuple[dict[str, Any], str]:
    """What is said of an emulated GPU: its hardware facts and a line for people; the emulator's version is added."""
    from . import emulator

    found = emulator.here()
    if found is None:
        raise Unavailable("this process does not run under ROCm's emulator")
    version, commit = emulator.installed_version(found)
    versions[found.name] = version or "unknown"
    if commit:
        commits[found.name] = commit
    told = emulator.undisguised(seen, found)
    how = ", ".join(str(v) for k, v in told["emulator"].items() if k in ("mode", "exec_mode", "config"))
    return told, f"{found.name} {versions[found.name]}: the GPU is emulated ({how})"


def _vllm_commit() -> str:
    try:
        version = importlib.import_module("vllm._version")
    except ImportError:
        return ""
    return str(getattr(version, "__commit_id__", None) or getattr(version, "commit_id", None) or "")


def hardware() -> dict[str, Any]:
    """This machine: CPU model and cores, memory in bytes."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count() or 0,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def _device_identity(target: Target) -> dict[str, Any]:
    """What vLLM was told it runs on: the machine's own GPU, or the architecture that it stands for."""
    import torch

    if target.arch:
        return _identity(target) | {"platform": "rocm (an NVIDIA GPU posing)"}
    return {"platform": "rocm" if torch.version.hip is not None else "cuda"}


def _identity(target: Target) -> dict[str, Any]:
    arch = archs.get(target.arch)
    return {
        "platform": "rocm (virtual)",
        "arch": arch.name,
        "compute_units": arch.compute_units,
        "lds_bytes": arch.lds_bytes,
        "wave_size": arch.wave_size,
        "fp8_format": arch.fp8_format,
    }
