"""Slots: one a visible GPU, else what cores and memory allow."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from capmatrix.workers import slots


def amd(root: Path, *, gpus: int, rendered: set[int] | None = None) -> Path:
    """A file system of a machine with a CPU node and so many AMD GPUs, of which some have a render node here."""
    for node in range(gpus + 1):
        folder = root / f"sys/class/kfd/kfd/topology/nodes/{node}"
        folder.mkdir(parents=True)
        (folder / "gpu_id").write_text("0\n" if node == 0 else f"{1000 + node}\n")
        (folder / "properties").write_text(f"simd_count 0\ndrm_render_minor {127 + node}\n")
    (root / "dev/dri").mkdir(parents=True)
    for minor in rendered if rendered is not None else {128 + i for i in range(gpus)}:
        (root / f"dev/dri/renderD{minor}").touch()
    return root


@pytest.mark.parametrize(
    ("environment", "left"),
    [
        ({}, ["0", "1", "2", "3"]),
        ({"HIP_VISIBLE_DEVICES": "2,0"}, ["2", "0"]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, ["1"]),
        ({"HIP_VISIBLE_DEVICES": "3", "CUDA_VISIBLE_DEVICES": "3"}, ["3"]),
        ({"ROCR_VISIBLE_DEVICES": "2,3"}, ["0", "1"]),
        ({"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "1,2"}, ["1"]),
        ({"HIP_VISIBLE_DEVICES": "-1"}, []),
        ({"HIP_VISIBLE_DEVICES": "0,0"}, ["0"]),
        ({"HIP_VISIBLE_DEVICES": "1,nonsense,2"}, ["1"]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-aabb"}, ["0"]),
        ({"ROCR_VISIBLE_DEVICES": ""}, []),
    ],
)
def test_visible_amd_gpus(environment: dict[str, str], left: list[str], tmp_path: Path) -> None:
    """The runtime's filters apply in its order; a list ends at its first invalid entry."""
    assert slots.devices(environment, amd(tmp_path, gpus=4)) == left


def test_container_with_some_gpus(tmp_path: Path) -> None:
    """Of a host's GPUs only those whose device is here count."""
    assert slots.devices({}, amd(tmp_path, gpus=8, rendered={130, 131})) == ["0", "1"]


def test_nvidia(tmp_path: Path) -> None:
    """NVIDIA GPUs are counted by their devices, control devices are not."""
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()
    assert slots.devices({}, tmp_path) == ["0", "1"]
    assert slots.devices({"CUDA_VISIBLE_DEVICES": "1"}, tmp_path) == ["1"]
    assert slots.devices({"HIP_VISIBLE_DEVICES": "1"}, tmp_path) == ["0", "1"]


def test_no_gpu(tmp_path: Path) -> None:
    """A machine with none has none."""
    assert slots.devices({}, tmp_path) == []


@pytest.mark.parametrize(
    ("gpus", "cores", "gib", "expected"), [(4, 2, 8.0, 4), (0, 8, 64.0, 8), (0, 8, 4.6, 3), (0, 8, 0.5, 1)]
)
def test_count(gpus: int, cores: int, gib: float, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs, or cores and memory, whichever is less, and never none."""
    monkeypatch.setattr(slots, "devices", lambda: ["0"] * gpus)
    monkeypatch.setattr(slots, "_cores", lambda: cores)
    monkeypatch.setattr(slots, "_memory", lambda: int(gib * (1 << 30)))
    assert slots.count() == expected


def test_control_group_bounds(tmp_path: Path) -> None:
    """A container's share of cores and memory counts, not its host's."""
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 99 kB\nMemAvailable:   67108864 kB\n")
    assert slots._memory(tmp_path) == 64 << 30
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("0\n")
    assert slots._memory(tmp_path) == 64 << 30
    (group / "memory.max").write_text(f"{4 << 30}\n")
    (group / "memory.current").write_text(f"{1 << 30}\n")
    assert slots._memory(tmp_path) == 3 << 30
    (group / "cpu.max").write_text("100000 100000\n")
    assert slots._cores(tmp_path) == 1
    (group / "cpu.max").write_text("max 100000\n")
    assert slots._cores(tmp_path) == len(os.sched_getaffinity(0))


def test_slot_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot shows its GPU in the variables of its vendor, and wraps round."""
    monkeypatch.setattr(slots, "_visible", lambda *_: ("amd", ["2", "5"]))
    assert slots.device_environment(1) == {"HIP_VISIBLE_DEVICES": "5", "CUDA_VISIBLE_DEVICES": "5"}
    assert slots.device_environment(2)["HIP_VISIBLE_DEVICES"] == "2"
    monkeypatch.setattr(slots, "_visible", lambda *_: ("nvidia", ["7"]))
    assert slots.device_environment(0) == {"CUDA_VISIBLE_DEVICES": "7"}
    monkeypatch.setattr(slots, "_visible", lambda *_: ("nvidia", []))
    assert slots.device_environment(0) == {}


def test_claimed_slots_are_exclusive(tmp_path: Path) -> None:
    """The lowest free slot is taken, and free again when released."""
    first, second = slots.claim(tmp_path), slots.claim(tmp_path)
    assert (first.index, second.index) == (0, 1)
    first.release()
    first.release()
    assert slots.claim(tmp_path).index == 0
