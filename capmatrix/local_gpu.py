"""The architecture of this machine's AMD GPUs, as the kernel driver names it; needs no ROCm and no package."""

from __future__ import annotations

import re
from pathlib import Path

#: One directory a node of the amdgpu driver's topology; CPUs have a version of 0.
TOPOLOGY = Path("/sys/class/kfd/kfd/topology/nodes")


def architectures(topology: Path = TOPOLOGY) -> tuple[str, ...]:
    """``gfx950`` and the like, each once, in order of the nodes; empty where there is no such GPU."""
    found = []
    for file in sorted(topology.glob("*/properties"), key=lambda f: (len(f.parent.name), f.parent.name)):
        try:
            match = re.search(r"^gfx_target_version (\d+)$", file.read_text(), re.MULTILINE)
        except OSError:
            continue
        version = int(match[1]) if match is not None else 0
        if version:
            found.append(name(version))
    return tuple(dict.fromkeys(found))


def name(version: int) -> str:
    """The driver's number (major * 10000 + minor * 100 + stepping) as a name; minor and stepping are hexadecimal."""
    major, rest = divmod(version, 10000)
    minor, stepping = divmod(rest, 100)
    return f"gfx{major}{minor:x}{stepping:x}"
