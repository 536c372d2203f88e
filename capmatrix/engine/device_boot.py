"""Boot a worker server for a real GPU without touching it, and take the GPU in a forked worker.

A server imports everything and forks; a CUDA or HIP context made before the fork would be useless after
it. So while things are imported Triton's active driver only answers which architecture it compiles for,
and the first cell of a worker (``take``) puts the real driver in its place.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase

from .. import archs
from . import Unavailable, shims

#: Launch options of AMD's compiler alone; Triton's NVIDIA backend raises KeyError on them.
AMD_OPTIONS = ("waves_per_eu", "matrix_instr_nonkdim", "kpack")

#: vLLM's compiled modules; a copy of its Python files alone has none of them.
_COMPILED = ("vllm._C", "vllm._C_stable_libtorch", "vllm._rocm_C")


class ImportDriver(DriverBase):
    """Triton's active driver in a server: answers what is compiled for, and nothing that needs the GPU."""

    def __init__(self, compiled_for: GPUTarget) -> None:
        self.compiled_for = compiled_for

    @staticmethod
    def is_active() -> bool:
        """Never chosen by Triton itself; only set by hand."""
        return False

    def get_current_target(self) -> GPUTarget:
        """Read by AITER and others while they are imported."""
        return self.compiled_for

    def get_active_torch_device(self) -> torch.device:
        """The worker's GPU."""
        return torch.device("cuda", 0)

    def get_benchmarker(self) -> Any:
        """Nothing is timed while modules are imported."""
        return lambda kernel_call, quantiles, **kwargs: [0.0] * len(quantiles)

    def map_python_to_cpp_type(self, ty: str) -> str:
        """Only a launch asks."""
        raise RuntimeError("nothing is launched in a worker server")


_lazy_init = torch.cuda._lazy_init


def _not_yet() -> None:
    raise RuntimeError("the GPU is not to be touched before the workers are forked")


def prepare(arch: str) -> tuple[str, ...]:
    """After torch and triton, before vLLM. ``arch``: the ROCm identity of an NVIDIA GPU, or empty."""
    from triton.runtime import driver

    # What asks the GPU while it is imported fails there, and is imported again by the cell that needs it.
    torch.cuda._lazy_init = _not_yet
    driver.set_active(ImportDriver(_compiled_for(arch)))
    if not arch:
        return ()
    _drop_amd_options()
    return (f"ROCm identity {arch} on an NVIDIA GPU: {', '.join(AMD_OPTIONS)} dropped from kernel launches",)


def _compiled_for(arch: str) -> GPUTarget:
    if arch:
        return GPUTarget("hip", arch, archs.get(arch).wave_size)
    from . import device_facts, kfd

    if torch.version.hip is not None:
        name = kfd.amd_architecture()
        return GPUTarget("hip", name, 64 if name.startswith("gfx9") else 32)
    major, minor = device_facts.compute_capability()
    return GPUTarget("cuda", major * 10 + minor, 32)


def _drop_amd_options() -> None:
    from triton.runtime.jit import JITFunction

    run = JITFunction.run

    def without(self: Any, *args: Any, **kwargs: Any) -> Any:
        for name in AMD_OPTIONS:
            if name in kwargs and name not in self.arg_names:
                del kwargs[name]
                shims.note(f"launch option {name} dropped")
        return run(self, *args, **kwargs)

    JITFunction.run = without


def after_import(arch: str) -> tuple[str, ...]:
    """After vLLM: what the machine cannot give it. Returns what was changed, in words."""
    changed: tuple[str, ...] = ()
    if arch:
        _decline_native_paged_attention()
        changed = ("native HIP paged attention declined: the Triton path runs in its place",)
    if not has_compiled_operators():
        from . import native_ops

        native_ops.register("CUDA")
        changed += ("vLLM without its compiled operators: cache writes and quantisation are exact stand-ins",)
    if torch.cuda.is_initialized():
        raise Unavailable(
            "importing vLLM made a GPU context in the worker server, which its forked workers cannot use; "
            "please report the versions of vLLM and torch"
        )
    return changed


def has_compiled_operators() -> bool:
    """Whether this vLLM brings compiled operators (the stand-ins of ``bundle`` do not count)."""
    for name in _COMPILED:
        module = sys.modules.get(name)
        if module is None:
            continue
        if not getattr(module, "CAPMATRIX_STAND_IN", False):
            return True
    return False


def _decline_native_paged_attention() -> None:
    from vllm.platforms import rocm

    asked = rocm.use_rocm_custom_paged_attention

    def declined(*args: Any, **kwargs: Any) -> bool:
        answer = asked(*args, **kwargs)
        shims.note(f"use_rocm_custom_paged_attention: False ({answer} on the architecture itself)")
        return False

    rocm.use_rocm_custom_paged_attention = declined


def take() -> torch.device:
    """Make this worker's GPU context, and put Triton's real driver in place; once, before its first cell."""
    from triton.runtime import driver

    from . import device_route

    torch.cuda._lazy_init = _lazy_init
    torch.cuda.set_device(0)
    driver.reset_active()
    device_route.install()
    check = torch.ones(8, device="cuda").sum()
    torch.cuda.synchronize()
    if float(check) != 8.0:
        raise RuntimeError(f"the GPU counts 8 ones as {float(check)}")
    return torch.device("cuda", 0)


def healthy() -> str:
    """Empty where a tiny allocation, kernel and copy work in this process; else why they do not."""
    try:
        torch.cuda.synchronize()
        found = float((torch.ones(1024, device="cuda") + 1).sum())
        torch.cuda.synchronize()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    return "" if found == 2048.0 else f"a tiny kernel gave {found} where 2048 is right"
