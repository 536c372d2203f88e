"""The targets ``device`` and ``device:<arch>`` where there is no GPU: what they say, and what is shown of them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from samples import cell, environment, record

from capmatrix import rungs, summary, targets
from capmatrix.cell import Rung
from capmatrix.errors import InputError
from capmatrix.targets import device


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A machine to be described: ``gpu`` and what ``torch`` was built for."""
    it = SimpleNamespace(gpu="CUDA", torch="cuda")
    monkeypatch.setattr(device, "gpus_seen", lambda: it.gpu)
    monkeypatch.setattr(device, "torch_build", lambda: it.torch)
    monkeypatch.setattr(device, "missing", lambda *modules: "")
    return it


def test_an_nvidia_gpu_has_both_identities(machine: SimpleNamespace) -> None:
    assert device.available() == ["device", "device:gfx950"]
    assert targets.here() == ["device", "device:gfx950"]


def test_an_amd_gpu_has_its_own_alone(machine: SimpleNamespace) -> None:
    machine.gpu, machine.torch = "ROCm", "hip"
    assert device.available() == ["device"]
    assert "AMD's own" in targets.availability("device:gfx950")[1]


@pytest.mark.parametrize(
    ("gpu", "torch", "text"),
    [
        ("", "cuda", "no GPU: neither /dev/kfd nor /dev/nvidia* exists"),
        ("CUDA", "", "a CUDA GPU is there, but the installed torch is built for the CPU alone"),
        ("ROCm", "cuda", "a ROCm GPU is there, but the installed torch is built for cuda"),
    ],
)
def test_unavailable_with_its_reason(machine: SimpleNamespace, gpu: str, torch: str, text: str) -> None:
    machine.gpu, machine.torch = gpu, torch
    assert targets.availability("device") == (False, text)
    assert targets.here()[0] != "device"


def test_torch_build_is_read_without_importing_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(device, "find_spec", lambda name: spec)
    for text, build in (
        ("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n", "cuda"),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '7.1.25424'\n", "hip"),
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", ""),
    ):
        (tmp_path / "version.py").write_text(text)
        device.torch_build.cache_clear()
        assert device.torch_build() == build
    device.torch_build.cache_clear()


def test_names_are_parsed_and_executed() -> None:
    parsed = targets.parse("device:gfx950")
    assert (parsed.kind, parsed.arch, parsed.name) == ("device", "gfx950", "device:gfx950")
    assert rungs.reachable("device:gfx950") is Rung.EXECUTED
    with pytest.raises(InputError):
        targets.parse("device:gfx942")


def test_a_posing_gpu_never_enters_the_architectures_column() -> None:
    env = environment(
        "device:gfx950", hardware={"vendor": "nvidia", "name": "NVIDIA H200"}, identity={"arch": "gfx950"}
    )
    place = summary.place(record(cell(target="device:gfx950")), env)
    assert place == summary.Place("NVIDIA H200 with a ROCm gfx950 identity", "")


def test_a_posing_target_without_its_environment_speaks_for_no_architecture() -> None:
    assert summary.place(record(cell(target="device:gfx950")), None).architecture == ""


def test_a_cuda_run_is_nobodys_column() -> None:
    env = environment("device", hardware={"vendor": "nvidia", "name": "NVIDIA H200"}, identity={"platform": "cuda"})
    assert summary.place(record(cell(target="device")), env) == summary.Place("NVIDIA H200", "")
