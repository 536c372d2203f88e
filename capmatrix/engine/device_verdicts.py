"""What a failure on a real GPU means: a fault of the GPU, or something that only an NVIDIA GPU says."""

from __future__ import annotations

from typing import Any

import torch

from ..cell import Phase, Verdict
from ..workers import gpu_faults
from . import device_boot, failures


def of_exception(error: Exception, phase: Phase, *, posing: bool) -> tuple[Verdict, tuple[str, ...]] | None:
    """Verdict and reasons of what the GPU, its driver or its compiler raised; None for any other exception.

    A fault is a crash although the process lives: its GPU context is lost. ``posing``: the GPU is not of the
    vendor whose architecture it is used for, so that limits of its compiler and resources prove nothing.
    """
    fault = gpu_faults.classify(f"{type(error).__name__}: {error}")
    if fault is not None and fault.poisons:
        return Verdict.CRASH, (f"{fault.sentence} (in {phase.value})",)
    if isinstance(error, torch.OutOfMemoryError) or (fault is not None and fault.kind == "out of memory"):
        return Verdict.ERROR, (f"GPU out of memory in {phase.value}: {failures.first_line(error)}",)
    if posing and limit_of_this_gpu(error):
        return Verdict.UNVERIFIED, (f"unverified: NVIDIA: {failures.first_line(error)}",)
    return None


def foreign(backend: str) -> str:
    """Why the platform of a GPU under its own identity has no such backend; empty where it may."""
    from vllm.platforms import current_platform

    if current_platform.is_rocm() or not backend.startswith("ROCM_"):
        return ""
    return f"{backend} is a backend of vLLM's ROCm platform; device:<arch> runs its portable path on an NVIDIA GPU"


def limit_of_this_gpu(error: BaseException) -> bool:
    """Whether Triton could not compile the kernel for, or fit it on, the GPU at hand."""
    from triton.compiler.errors import CompilationError
    from triton.runtime.errors import OutOfResources, PTXASError

    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, (CompilationError, OutOfResources, PTXASError)) or "PassManager::run failed" in str(seen):
            return True
        seen = seen.__cause__
    return False


def after(verdict: Verdict, findings: dict[str, Any]) -> tuple[Verdict, bool]:
    """The verdict, and whether this process's GPU context is lost, after a cell that did not pass.

    A tiny allocation and kernel tell. Where they fail what came before is a crash, whatever it looked like.
    """
    sick = device_boot.healthy()
    if not sick:
        # A crash that the GPU survived (an exception of its driver) still costs the worker: nobody knows what is left.
        return verdict, verdict is Verdict.CRASH
    reasons = tuple(findings.get("reasons", ()))
    findings["reasons"] = (*reasons, f"afterwards the GPU fails a tiny kernel in this process: {sick}")
    return Verdict.CRASH, True
