"""Which GPU a time was taken on: the one that the worker is shown, however it is named."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from capmatrix.engine import device_facts
from capmatrix.workers import slots

NVIDIA = ["GPU-2df0192c-aaaa-bbbb-cccc-000000000001", "GPU-e0b66d18-aaaa-bbbb-cccc-000000000002"]
#: As MI300X of one machine have them: the same but for the first byte and the end.
AMD = ["ccff74a1-0000-1000-80e0-c6d49f5b0d86", "ccff74a1-0000-1000-8097-03f9b4bc331b"]


def driver(monkeypatch: pytest.MonkeyPatch, hip: str | None, shown: list[str]) -> None:
    """A machine of two GPUs, of which the process is ``shown`` some."""
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(version=SimpleNamespace(hip=hip)))
    monkeypatch.setattr(slots, "devices", lambda: shown)
    found: Any = ModuleType("library")
    found.nvmlInit = found.nvmlShutdown = found.amdsmi_init = found.amdsmi_shut_down = lambda: None
    found.nvmlDeviceGetCount = lambda: 2
    found.nvmlDeviceGetHandleByIndex = lambda index: index
    found.nvmlDeviceGetUUID = lambda handle: NVIDIA[handle].encode()
    found.nvmlDeviceGetHandleByUUID = lambda name: {"MIG-7": "partition of 1"}[name]
    found.nvmlDeviceGetDeviceHandleFromMigDeviceHandle = lambda handle: int(handle[-1])
    found.amdsmi_get_processor_handles = lambda: [0, 1]
    found.amdsmi_get_gpu_device_uuid = lambda handle: AMD[handle]
    for name in ("pynvml", "amdsmi"):
        monkeypatch.setitem(sys.modules, name, found)


@pytest.mark.parametrize(
    ("shown", "gpu"),
    [
        (["0", "1"], 0),
        (["1"], 1),
        ([NVIDIA[1]], 1),
        (["GPU-e0b66"], 1),
        (["gpu-2df0"], 0),
        (["MIG-7"], 1),
        ([], 0),
    ],
)
def test_an_nvidia_gpu_is_the_one_that_is_shown(monkeypatch: pytest.MonkeyPatch, shown: list[str], gpu: int) -> None:
    driver(monkeypatch, None, shown)
    assert device_facts.gpu_id() == NVIDIA[gpu][:12]


def test_a_gpu_that_is_not_there_has_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    driver(monkeypatch, None, ["GPU-ffff"])
    assert device_facts.gpu_id() == ""


def test_amd_gpus_of_one_kind_have_names_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    for index in ("0", "1"):
        driver(monkeypatch, "7.0", [index])
        names.append(device_facts.gpu_id())
    assert names == ["c6d49f5b0d86", "03f9b4bc331b"]
