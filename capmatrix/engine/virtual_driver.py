"""A Triton driver for an AMD GPU that is not there: it compiles for the architecture and launches nothing.

Triton itself compiles a true code object with its bundled LLVM and checks the LDS limit
(``OutOfResources``) as it would on the GPU; the launcher notes the kernel and its grid in the route.
"""

from __future__ import annotations

from typing import Any

import torch
from triton.backends.amd.driver import ty_to_cpp
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase

from ..archs import Arch
from . import compile_watch, route
from .code_object import resources

#: Work-items of the largest workgroup the hardware runs (LLVM AMDGPU: max_flat_workgroup_size).
_MAX_THREADS = 1024


class VirtualUtils:
    """The part of a Triton driver that asks the device: properties and loading a binary."""

    def __init__(self, arch: Arch) -> None:
        self.arch = arch
        self.loaded: dict[int, dict[str, Any]] = {}

    def get_device_properties(self, device: int) -> dict[str, Any]:
        """Limits that Triton checks against; bytes and counts."""
        return {
            "max_shared_mem": self.arch.lds_bytes,
            "max_num_regs": 512,
            "multiprocessor_count": self.arch.compute_units,
            "warpSize": self.arch.wave_size,
            "arch": self.arch.name,
            "sm_clock_rate": 0,
            "mem_clock_rate": 0,
            "mem_bus_width": 0,
        }

    def load_binary(self, name: str, code: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        """A handle for ``code``; remembers its resource figures under the handle."""
        handle = len(self.loaded) + 1
        figures = resources(code)
        # Triton allots LDS at launch ("dynamic"), so the code object alone understates it.
        figures["lds_bytes"] = max(shared, figures.get("lds_bytes", 0))
        self.loaded[handle] = {"name": name, "compile_s": compile_watch.taken(name), **figures}
        return handle, handle, figures.get("vgprs", 0), figures.get("vgpr_spills", 0), _MAX_THREADS


def _launcher(utils: VirtualUtils) -> type:
    class VirtualLauncher:
        """Notes the launch in the route instead of launching."""

        def __init__(self, src: Any, metadata: Any) -> None:
            self.warps = getattr(metadata, "num_warps", None)
            self.stages = getattr(metadata, "num_stages", None)

        def __call__(self, x: int, y: int, z: int, stream: int, function: int, *rest: Any) -> None:
            figures = dict(utils.loaded[function])
            route.launched(
                figures.pop("name"),
                "triton",
                key=function,
                grid=(x, y, z),
                num_warps=self.warps,
                num_stages=self.stages,
                **figures,
            )

    return VirtualLauncher


class VirtualAmdDriver(DriverBase):
    """Triton's active driver in an offline worker."""

    def __init__(self, arch: Arch) -> None:
        self.arch = arch
        self.utils = VirtualUtils(arch)
        self.launcher_cls = _launcher(self.utils)

    @staticmethod
    def is_active() -> bool:
        """Never chosen by Triton itself; only set by hand."""
        return False

    def map_python_to_cpp_type(self, ty: str) -> str:
        """As Triton's AMD backend maps it."""
        return str(ty_to_cpp(ty))

    def get_current_target(self) -> GPUTarget:
        """The architecture and its wave size in lanes."""
        return GPUTarget("hip", self.arch.name, self.arch.wave_size)

    def get_active_torch_device(self) -> torch.device:
        """Tensors live on the CPU."""
        return torch.device("cpu")

    def get_benchmarker(self) -> Any:
        """Nothing can be timed here; an autotuner that asks gets equal times and so its first config."""
        return lambda kernel_call, quantiles, **kwargs: [0.0] * len(quantiles)

    def get_current_device(self) -> int:
        """The one virtual device."""
        return 0

    def set_current_device(self, device: int) -> None:
        """There is one device."""

    def get_current_stream(self, device: int = 0) -> int:
        """The null stream."""
        return 0

    def get_device_interface(self) -> Any:
        """Triton asks only for stream helpers of it."""
        return torch.cuda
