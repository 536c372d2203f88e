"""``emulator:<arch>``: an AMD GPU that ROCm's own emulator, rocjitsu, simulates for this process.

The process is an unmodified ROCm one, started as ``rocjitsu --config ... -- pytest ...``; the target exists so
that what ran there has a rung, an id and a place in a table of its own, and is never taken for the GPU it shows.
"""

from __future__ import annotations

from ..engine import emulator as room
from ..vocabulary import ARCHITECTURES
from . import device
from ._stack import missing

_HOW = "start the run as `rocjitsu --config CONFIG.json -- pytest ...` (docs/emulator.md)"


def names() -> tuple[str, ...]:
    """One target an architecture."""
    return tuple(f"emulator:{arch}" for arch in ARCHITECTURES)


def availability(name: str) -> tuple[bool, str]:
    """Whether this process runs under the emulator, with that architecture; where not, why. Imports no torch."""
    found = room.here()
    if found is None:
        return False, f"this process does not run under ROCm's emulator; {_HOW}"
    if found.name != room.NAME:
        return False, f"{found.library} rewrites code for a GPU of another architecture; {_HOW}"
    if not found.loaded:
        return False, f"{found.library} is asked for but not loaded, so that nothing is emulated; {_HOW}"
    arch = room.architecture(found)
    if name != f"emulator:{arch}":
        known = f"use emulator:{arch}" if f"emulator:{arch}" in names() else f"known are {', '.join(ARCHITECTURES)}"
        return False, f"{found.name} emulates {arch or 'an unknown architecture'} for this process; {known}"
    reason = missing("torch", "triton", "vllm")
    if reason:
        return False, reason
    build = device.torch_build()
    if build != "hip":
        kind = {"cuda": "CUDA"}.get(build, "the CPU alone")
        return False, f"{found.name} emulates an AMD GPU, but the installed torch is built for {kind}"
    return True, ""


def available() -> list[str]:
    """The target of the emulated GPU; empty where there is none."""
    return [name for name in names() if availability(name)[0]]


def refusal() -> str:
    """Why target ``device`` is not to be had in this process; empty where its GPU is a real one."""
    found = room.here()
    if found is None:
        return ""
    arch = room.architecture(found) or "<arch>"
    return f"the GPU that this process sees is not real: {found.name} stands before it; use target emulator:{arch}"


def environment(arch: str) -> dict[str, str]:
    """As on a real GPU."""
    return device.environment("")


def prepare(arch: str) -> tuple[str, ...]:
    """As on a real GPU, under its own identity."""
    return device.prepare("")
