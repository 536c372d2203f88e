"""What ``torch.cuda`` and ``torch.accelerator`` must answer where there is no GPU.

vLLM and AITER ask for the current device and its properties while choosing kernels, and for
pinned host memory. Each answer is noted in the record (``shims``).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from ..archs import Arch, get
from .shims import answering, note


def properties(arch: Arch) -> SimpleNamespace:
    """``torch.cuda.get_device_properties`` of the architecture; memory in bytes."""
    major, minor = int(arch.name[3:-2]), int(arch.name[-2], 16)
    return SimpleNamespace(
        name=f"virtual {arch.name}",
        gcnArchName=arch.name,
        multi_processor_count=arch.compute_units,
        total_memory=arch.total_memory_bytes,
        major=major,
        minor=minor,
        warp_size=arch.wave_size,
        shared_memory_per_block=arch.lds_bytes,
        is_integrated=0,
    )


def install(arch_name: str) -> None:
    """Answer for ``arch_name`` in this process."""
    device = properties(get(arch_name))
    cuda: dict[str, Any] = {
        "current_device": 0,
        "device_count": 1,
        "get_device_properties": lambda: device,
        "get_device_capability": lambda: (device.major, device.minor),
        "get_device_name": device.name,
        "is_current_stream_capturing": False,
        "synchronize": None,
        "empty_cache": None,
        "current_stream": lambda: SimpleNamespace(cuda_stream=0, synchronize=lambda: None),
    }
    for name, answer in cuda.items():
        setattr(torch.cuda, name, answering(f"torch.cuda.{name}", answer))
    torch.cuda.Event = _Event  # type: ignore[misc,assignment]
    accelerator: dict[str, Any] = {
        "empty_cache": None,
        "synchronize": None,
        "current_device_index": 0,
        "set_device_index": None,
        "reset_peak_memory_stats": None,
        "max_memory_allocated": 0,
        "memory_reserved": 0,
        "memory_allocated": 0,
    }
    for name, answer in accelerator.items():
        for module in (torch.accelerator, getattr(torch.accelerator, "memory", None)):
            if module is not None and hasattr(module, name):
                setattr(module, name, answering(f"torch.accelerator.{name}", answer))
    _without_pinned_memory()


class _Event:
    """``torch.cuda.Event`` where everything is done by the time it is asked for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        note("torch.cuda.Event")

    def record(self, stream: Any = None) -> None:
        """Nothing is pending."""

    def wait(self, stream: Any = None) -> None:
        """Nothing is pending."""

    def synchronize(self) -> None:
        """Nothing is pending."""

    def query(self) -> bool:
        """It has happened."""
        return True


def _without_pinned_memory() -> None:
    """Host tensors are allocated unpinned: pinning needs a driver and changes no result."""
    for name in ("zeros", "empty", "ones", "full", "tensor", "empty_like", "zeros_like"):
        original = getattr(torch, name)

        def unpinned(*args: Any, __original: Any = original, **kwargs: Any) -> Any:
            if kwargs.pop("pin_memory", False):
                answering("pinned memory", None)()
            return __original(*args, **kwargs)

        setattr(torch, name, unpinned)
    torch.Tensor.pin_memory = lambda self, *args: self  # type: ignore[method-assign,assignment]
