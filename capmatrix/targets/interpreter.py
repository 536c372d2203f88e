"""``interpreter:<arch>``: no GPU; kernels run in Triton's interpreter on CPU tensors and their numbers are judged."""

from __future__ import annotations

from ..vocabulary import ARCHITECTURES
from ._stack import missing


def names() -> tuple[str, ...]:
    """One target an architecture.

    It decides which backends there are (ROCM_SEGMENTED_ATTN on gfx1100 and gfx1201 alone), what they do (gfx1100's
    queries stay unquantised), and the FP8 format (e4m3fnuz on gfx942, OCP e4m3fn elsewhere).
    """
    return tuple(f"interpreter:{arch}" for arch in ARCHITECTURES)


def availability(name: str) -> tuple[bool, str]:
    """Available wherever vLLM, torch and triton are installed."""
    reason = missing("torch", "triton", "vllm")
    return not reason, reason


def environment(arch: str) -> dict[str, str]:
    """Triton reads TRITON_INTERPRET when kernels are declared; Dynamo cannot trace interpreted ones."""
    return {"TRITON_INTERPRET": "1", "TORCHDYNAMO_DISABLE": "1"}


def prepare(arch: str) -> tuple[str, ...]:
    """Extend the interpreter to bf16 and FP8; returns what was changed, in words."""
    from triton.runtime import driver

    from ..archs import get
    from ..engine import interpreter_float, interpreter_route
    from ..engine.virtual_driver import VirtualAmdDriver

    # Kernels ask the active driver for its target while choosing their constants.
    driver.set_active(VirtualAmdDriver(get(arch)))
    interpreter_route.install()
    return (f"virtual AMD driver for {arch}", interpreter_float.install())
