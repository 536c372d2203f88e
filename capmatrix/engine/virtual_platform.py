"""vLLM's own ROCm platform, answering for an architecture that this machine does not have.

Only what would touch hardware is answered here, from ``archs``; selection, priorities, FP8 format,
configuration checks and graph support stay vLLM's. ``device_type`` and ``dispatch_key`` are the
CPU's, so that ``torch.ops.vllm.*`` run on CPU tensors.
"""

from __future__ import annotations

from typing import Any

from vllm.platforms.rocm import RocmPlatform

from . import shims
from .virtual_arch import arch_of_this_process


class VirtualRocmPlatform(RocmPlatform):
    """``RocmPlatform`` for the architecture that ``bootstrap`` chose."""

    device_type = "cpu"
    dispatch_key = "CPU"

    @classmethod
    def num_compute_units(cls, device_id: int = 0) -> int:
        """Compute units of the architecture (kernels size their grids with it)."""
        shims.note("platform.num_compute_units")
        return arch_of_this_process().compute_units

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        """Pinned memory needs a driver; there is none."""
        return False

    @classmethod
    def set_device(cls, device: Any) -> None:
        """There is no device to set."""

    @classmethod
    def device_count(cls) -> int:
        """One virtual GPU."""
        return 1

    @classmethod
    def get_current_memory_usage(cls, device: Any = None) -> float:
        """Nothing is allocated on a device."""
        return 0.0
