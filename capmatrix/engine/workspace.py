"""vLLM's scratch workspace, as its worker makes it before it builds metadata.

TRITON_MLA reserves it for the largest batch that the configuration admits: several gigabytes with many heads,
of which a cell's batch touches a little. On a CPU it is mapped without being reserved, so that only what is
touched counts.
"""

from __future__ import annotations

import contextlib
import mmap
import sys

import torch
from vllm.v1.worker import workspace

#: Address space to map, in bytes: above 128 heads, 9 tokens each of 256 requests, 64 splits of 513 float32.
_MAPPED = 1 << 36

#: Linux's flag, which Python names since 3.13.
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


def start(device: torch.device) -> None:
    """A fresh workspace on ``device``; a set-up of ours is a worker of its own."""
    workspace.reset_workspace_manager()
    workspace.init_workspace_manager(device)
    if device.type == "cpu" and sys.platform == "linux":
        manager = workspace.current_workspace_manager()
        # Where the system refuses, vLLM allocates what it asks for.
        with contextlib.suppress(OSError, ValueError):
            flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _NORESERVE
            mapped = torch.frombuffer(mmap.mmap(-1, _MAPPED, flags=flags), dtype=torch.uint8)
            manager._current_workspaces = [mapped] * len(manager._current_workspaces)
