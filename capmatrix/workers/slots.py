"""How many workers a machine carries: one a GPU, else as many as cores and memory allow. Imports no torch."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Mapping
from pathlib import Path

from ..errors import CapmatrixError

#: What one worker needs to begin with, in bytes.
WORKER_BYTES = 3 << 29

_MOST = 1024


class Slot:
    """A slot held by this process until released or the process ends."""

    def __init__(self, index: int, fd: int) -> None:
        self.index = index
        self._fd = fd

    def release(self) -> None:
        """Lets another process have it."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def claim(folder: Path) -> Slot:
    """The lowest slot of a session folder that no process holds."""
    for index in range(_MOST):
        fd = os.open(folder / f"slot-{index}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return Slot(index, fd)
        except BlockingIOError:
            os.close(fd)
    raise CapmatrixError(f"all {_MOST} worker slots of {folder} are taken")


def count() -> int:
    """Worker slots of this machine: its visible GPUs, else min(cores, memory / 1.5 GiB), at least 1."""
    gpus = len(devices())
    return gpus or max(1, min(_cores(), _memory() // WORKER_BYTES))


def device_environment(slot: int) -> dict[str, str]:
    """Environment that shows a worker only its slot's GPU; empty where there is none."""
    kind, tokens = _visible(os.environ, Path("/"))
    if not tokens:
        return {}
    token = tokens[slot % len(tokens)]
    if kind == "nvidia":
        return {"CUDA_VISIBLE_DEVICES": token}
    # vLLM's ROCm platform insists that the two agree where both are set.
    return {"HIP_VISIBLE_DEVICES": token, "CUDA_VISIBLE_DEVICES": token}


def devices(environment: Mapping[str, str] | None = None, root: Path = Path("/")) -> list[str]:
    """Visible GPUs, as the runtime's own visibility variable would name them.

    AMD's are those of the kernel driver's topology with an accessible render node, filtered by
    ROCR_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES (or CUDA_VISIBLE_DEVICES, which HIP reads too); NVIDIA's
    are /dev/nvidia<n>, filtered by CUDA_VISIBLE_DEVICES.
    """
    return _visible(os.environ if environment is None else environment, root)[1]


def _visible(environment: Mapping[str, str], root: Path) -> tuple[str, list[str]]:
    amd = _amd(root)
    if amd:
        left = _filter(amd, environment.get("ROCR_VISIBLE_DEVICES"))
        left = [str(i) for i in range(len(left))]
        hip = environment.get("HIP_VISIBLE_DEVICES") or environment.get("CUDA_VISIBLE_DEVICES")
        return "amd", _filter(left, hip)
    return "nvidia", _filter(_nvidia(root), environment.get("CUDA_VISIBLE_DEVICES"))


def _filter(present: list[str], chosen: str | None) -> list[str]:
    """What a visibility variable leaves: as the runtimes do, a list ends at its first invalid entry."""
    if chosen is None:
        return present
    left: list[str] = []
    for token in (t.strip() for t in chosen.split(",")):
        known = token in present or token.upper().startswith(("GPU-", "MIG-"))
        if not known or token in left:
            break
        left.append(token)
    return left


def _amd(root: Path) -> list[str]:
    found: list[str] = []
    nodes = root / "sys/class/kfd/kfd/topology/nodes"
    with contextlib.suppress(OSError):
        for node in sorted(nodes.iterdir(), key=lambda p: int(p.name) if p.name.isdigit() else -1):
            with contextlib.suppress(OSError, ValueError):
                if int((node / "gpu_id").read_text()) == 0:
                    continue  # a CPU
                minor = re.search(r"^drm_render_minor (\d+)", (node / "properties").read_text(), re.MULTILINE)
                # A container is shown all nodes of its host, and only some of their devices.
                if minor is None or os.access(root / f"dev/dri/renderD{minor.group(1)}", os.R_OK | os.W_OK):
                    found.append(str(len(found)))
    return found


def _nvidia(root: Path) -> list[str]:
    with contextlib.suppress(OSError):
        numbers = [n[6:] for n in os.listdir(root / "dev") if re.fullmatch(r"nvidia\d+", n)]
        return [str(i) for i in range(len(numbers))]
    return []


def _cores(root: Path = Path("/")) -> int:
    cores = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):
        quota, period = (root / "sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def _memory(root: Path = Path("/")) -> int:
    """Available memory in bytes: the machine's, or what the control group leaves."""
    available = WORKER_BYTES
    with contextlib.suppress(OSError, ValueError):
        found = re.search(r"^MemAvailable:\s+(\d+) kB", (root / "proc/meminfo").read_text(), re.MULTILINE)
        available = int(found.group(1)) * 1024 if found else available
    for most, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        with contextlib.suppress(OSError, ValueError):
            group = root / "sys/fs/cgroup"
            available = min(available, int((group / most).read_text()) - int((group / used).read_text()))
    return max(0, available)
