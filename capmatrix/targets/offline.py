"""``offline:<arch>``: no GPU; vLLM's dispatch runs and every Triton kernel is compiled for the architecture."""

from __future__ import annotations

from ..vocabulary import ARCHITECTURES
from ._stack import missing


def names() -> tuple[str, ...]:
    """One target an architecture."""
    return tuple(f"offline:{arch}" for arch in ARCHITECTURES)


def availability(name: str) -> tuple[bool, str]:
    """Available wherever vLLM, torch and triton are installed."""
    reason = missing("torch", "triton", "vllm")
    return not reason, reason


def environment(arch: str) -> dict[str, str]:
    """Without Dynamo: Inductor would compile PyTorch's own operators for the CPU, which says nothing."""
    return {"TORCHDYNAMO_DISABLE": "1"}


def prepare(arch: str) -> tuple[str, ...]:
    """Make the virtual AMD driver Triton's active one; returns what was changed, in words."""
    from triton.runtime import driver

    from ..archs import get
    from ..engine.virtual_driver import VirtualAmdDriver

    driver.set_active(VirtualAmdDriver(get(arch)))
    return (f"virtual AMD driver for {arch}: kernels compiled, not launched",)
