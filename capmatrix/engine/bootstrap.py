"""Turn a fresh process into a worker server for one target: environment, stand-ins, then vLLM.

The order matters: vLLM fixes the platform, the architecture and the switches while it is imported.
This is the only place that changes the environment or ``sys.modules``.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from .. import targets
from . import Unavailable
from .platform_plugin import ARCH_VARIABLE, POSING_VARIABLE

#: Ranges of versions whose seams ``adapter`` knows, as ``packaging`` specifiers.
SUPPORTED_VLLM = ">=0.32,<0.33"


def boot(
    target: targets.Target, switches: Mapping[str, str], aiter: str = "", triton_cache: str = ""
) -> tuple[str, ...]:
    """Prepare this process and import vLLM; returns what was changed, in words.

    ``triton_cache`` is a folder for compiled kernels, empty for Triton's own.
    Raises Unavailable with the reason where the target cannot run here.
    """
    available, reason = targets.availability(target.name)
    if not available:
        raise Unavailable(reason)
    kind = targets.KINDS[target.kind]
    os.environ.update(switches)
    os.environ.update(_quiet())
    if triton_cache:
        os.environ["TRITON_CACHE_DIR"] = triton_cache
    os.environ[ARCH_VARIABLE] = target.arch
    os.environ.update(kind.environment(target.arch))
    if target.kind == "device":
        return _boot_device(target, aiter)
    _standins_importable()
    _require_entry_point()

    import torch  # noqa: F401

    _tell_vllm_that_triton_works()
    changed = kind.prepare(target.arch)
    from . import aiter_loader, native_ops, segmented, torch_shims

    torch_shims.install(target.arch)
    changed += aiter_loader.load(aiter)
    _import_vllm()
    native_ops.register()
    segmented.ask_as_on_the_virtual_gpu()
    return (f"virtual ROCm platform for {target.arch}", *changed)


def _boot_device(target: targets.Target, aiter: str) -> tuple[str, ...]:
    """A real GPU, under its own identity or (``device:<arch>``) under that of an AMD architecture."""
    posing = bool(target.arch)
    if posing:
        os.environ[POSING_VARIABLE] = "1"
        _standins_importable()
        _require_entry_point()

    import torch

    changed = targets.KINDS[target.kind].prepare(target.arch)
    from . import aiter_loader, device_boot

    rocm = posing or torch.version.hip is not None
    # AITER is for ROCm alone; what vLLM would make of it on CUDA is no question of ours.
    changed += aiter_loader.load(aiter) if rocm else ()
    _import_vllm(rocm)
    return (*changed, *device_boot.after_import(target.arch))


def _quiet() -> dict[str, str]:
    return {
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        # One worker a core: more threads only fight over it, and results stay reproducible.
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }


def _standins_importable() -> None:
    folder = str(Path(__file__).parent / "standins")
    sys.path.insert(0, folder)
    inherited = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = folder + (os.pathsep + inherited if inherited else "")


def _require_entry_point() -> None:
    names = {e.value for e in importlib.metadata.entry_points(group="vllm.platform_plugins")}
    if "capmatrix.engine.platform_plugin:register" not in names:
        raise Unavailable(
            "capmatrix's platform plugin is not registered: install the package (pip install --no-deps -e .), "
            "a bare PYTHONPATH is not enough"
        )


def _tell_vllm_that_triton_works() -> None:
    """A CPU build of vLLM disables Triton unless Triton lists a ``cpu`` backend while vLLM is imported."""
    from triton.backends import Backend, backends
    from triton.backends.driver import DriverBase

    class CpuCompiler:
        """Never compiles: another backend supports every target we use."""

        @staticmethod
        def supports_target(target: object) -> bool:
            """No target is ours."""
            return False

    class CpuDriver(DriverBase):
        """Counted by vLLM as one active driver; Triton's active driver is set apart."""

        @staticmethod
        def is_active() -> bool:
            """Not for Triton's own choice."""
            return False

    CpuDriver.__abstractmethods__ = frozenset()
    backends["cpu"] = Backend(CpuCompiler, CpuDriver)  # type: ignore[arg-type]


def _import_vllm(rocm: bool = True) -> None:
    try:
        vllm = importlib.import_module("vllm")
        from packaging.specifiers import SpecifierSet
        from packaging.version import Version
    except ImportError as error:
        raise Unavailable(f"vLLM cannot be imported: {error}") from error
    version = Version(vllm.__version__)
    if not SpecifierSet(SUPPORTED_VLLM).contains(version.base_version, prereleases=True):
        raise Unavailable(f"vLLM {version} is installed; this version of capmatrix knows {SUPPORTED_VLLM}")
    from vllm.platforms import current_platform
    from vllm.triton_utils import HAS_TRITON

    if not (current_platform.is_rocm() if rocm else current_platform.is_cuda()):
        wanted = "ROCm" if rocm else "CUDA"
        raise Unavailable(f"vLLM chose the platform {type(current_platform).__name__}, not {wanted}")
    if not HAS_TRITON:
        raise Unavailable("vLLM disabled Triton in this process")
