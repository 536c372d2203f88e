"""The kernel driver's topology of AMD GPUs (KFD), read from sysfs, which makes no GPU context."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

_NODES = Path("/sys/class/kfd/kfd/topology/nodes")


def amd_architecture(nodes: Path = _NODES) -> str:
    """``gfx942`` and the like, of the first GPU in the kernel driver's topology; empty where there is none."""
    with contextlib.suppress(OSError):
        for node in sorted(nodes.iterdir(), key=lambda p: int(p.name) if p.name.isdigit() else -1):
            name = gfx_name((node / "properties").read_text())
            if name:
                return name
    return ""


def gfx_name(properties: str) -> str:
    """The architecture that a KFD node's ``properties`` name: gfx_target_version 90402 is gfx942.

    The number is major * 10000 + minor * 100 + stepping (linux, drivers/gpu/drm/amd/amdkfd/kfd_device.c),
    the stepping in hexadecimal in the name: 90010 is gfx90a.
    """
    found = re.search(r"^gfx_target_version\s+(\d+)", properties, re.MULTILINE)
    number = int(found.group(1)) if found else 0
    if not number:
        return ""
    return f"gfx{number // 10000}{number // 100 % 100:x}{number % 100:x}"
