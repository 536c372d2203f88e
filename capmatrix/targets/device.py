"""``device``: the GPU of this machine, under its own identity; ``device:<arch>``: an NVIDIA GPU that vLLM is
told is that AMD architecture, so that the portable (Triton) paths of ROCm's backends really run.

Nothing here touches the GPU: a worker server forks its workers, and a GPU context does not survive a fork.
"""

from __future__ import annotations

import functools
import glob
import re
from importlib.util import find_spec
from pathlib import Path

from ._stack import missing

#: Architectures that an NVIDIA GPU can stand for: FP8 is OCP's there as on NVIDIA. gfx942's format
#: (e4m3fnuz) has no conversion in Triton's NVIDIA backend.
_IDENTITIES = ("gfx950",)

#: What ``torch/version.py`` must name for a GPU of each kind.
_BUILD = {"ROCm": "hip", "CUDA": "cuda"}


def names() -> tuple[str, ...]:
    """The machine's own identity, and those an NVIDIA GPU can be given."""
    return ("device", *(f"device:{arch}" for arch in _IDENTITIES))


def gpus_seen() -> str:
    """What kind of GPU the kernel shows: ``ROCm``, ``CUDA`` or the empty string; imports nothing."""
    if glob.glob("/dev/kfd") and glob.glob("/dev/dri/renderD*"):
        return "ROCm"
    if glob.glob("/dev/nvidia[0-9]*"):
        return "CUDA"
    return ""


def availability(name: str) -> tuple[bool, str]:
    """Whether this machine has the target; where not, why. Imports neither torch nor vllm."""
    from . import emulator

    unreal = emulator.refusal()
    if unreal:
        return False, unreal
    seen = gpus_seen()
    if not seen:
        return False, "no GPU: neither /dev/kfd nor /dev/nvidia* exists"
    if ":" in name and seen == "ROCm":
        return False, "the GPU of this machine is AMD's own; use target device"
    reason = missing("torch", "triton", "vllm")
    if reason:
        return False, reason
    build = torch_build()
    if build != _BUILD[seen]:
        return False, f"a {seen} GPU is there, but the installed torch is built for {build or 'the CPU alone'}"
    return True, ""


def available() -> list[str]:
    """Those of ``names()`` that this machine has."""
    return [name for name in names() if availability(name)[0]]


@functools.cache
def torch_build() -> str:
    """``cuda``, ``hip`` or the empty string, from torch's own version file, without importing torch."""
    spec = find_spec("torch")
    if spec is None or not spec.origin:
        return ""
    try:
        text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    except OSError:
        return ""
    for build in ("hip", "cuda"):
        if re.search(rf"^{build}\b[^=\n]*=\s*['\"]", text, re.MULTILINE):
            return build
    return ""


def environment(arch: str) -> dict[str, str]:
    """GPUs are counted through the driver's own library, which makes no context."""
    return {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}


def prepare(arch: str) -> tuple[str, ...]:
    """Keep whatever is imported from touching the GPU before the workers fork; returns what was changed."""
    from ..engine import device_boot

    return device_boot.prepare(arch)
