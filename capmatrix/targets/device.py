"""``device``: the GPU of this machine. Execution on it is not built yet; the target says so."""

from __future__ import annotations

import glob


def names() -> tuple[str, ...]:
    """One target, whatever the GPU."""
    return ("device",)


def gpus_seen() -> str:
    """What kind of GPU the kernel shows: ``ROCm``, ``CUDA`` or the empty string; imports nothing."""
    if glob.glob("/dev/kfd") and glob.glob("/dev/dri/renderD*"):
        return "ROCm"
    if glob.glob("/dev/nvidia[0-9]*"):
        return "CUDA"
    return ""


def availability(name: str) -> tuple[bool, str]:
    """Unavailable: without a GPU because there is none, with one because this version cannot use it."""
    seen = gpus_seen()
    if not seen:
        return False, "no GPU: neither /dev/kfd nor /dev/nvidia* exists"
    return False, f"a {seen} GPU is there, but this version of capmatrix does not execute cells on one yet"


def environment(arch: str) -> dict[str, str]:
    """Nothing: no worker is started for it."""
    return {}


def prepare(arch: str) -> tuple[str, ...]:
    """Nothing: no worker is started for it."""
    return ()
