"""Reading a run must need neither torch nor vLLM: what each module pulls in, and the import contracts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "capmatrix"
HEAVY = ("torch", "vllm", "triton", "aiter")
#: The rooms that may import them.
HEAVY_ROOMS = ("capmatrix.engine", "capmatrix.targets")

_PROBE = """
import importlib, sys
for name in sys.argv[2:]:
    importlib.import_module(name)
    for heavy in sys.argv[1].split(","):
        if heavy in sys.modules:
            sys.exit(f"{name} imports {heavy}")
"""


def modules() -> list[str]:
    """Every module of the package but ``__main__``, dotted, sorted."""
    names = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[-1] != "__main__":
            names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return names


def core_modules() -> list[str]:
    """The modules outside the heavy rooms, and the heavy rooms' own front doors."""
    inside = tuple(f"{room}." for room in HEAVY_ROOMS)
    return [name for name in modules() if not name.startswith(inside)]


def imported_by(names: list[str], heavy: tuple[str, ...] = HEAVY) -> str:
    """What a fresh interpreter says of importing ``names``: empty, or the first that pulls in a heavy package."""
    command = [sys.executable, "-c", _PROBE, ",".join(heavy), *names]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=env, check=False, capture_output=True, text=True, timeout=120)
    return done.stderr.strip() if done.returncode else ""


def test_the_core_imports_neither_torch_nor_vllm() -> None:
    assert imported_by(core_modules()) == ""


def test_the_probe_sees_an_import() -> None:
    assert imported_by(["capmatrix", "json"], heavy=("json",)) == "json imports json"


def test_the_core_has_modules() -> None:
    assert {"capmatrix", "capmatrix.cell", "capmatrix.engine", "capmatrix.targets"} <= set(core_modules())


def test_import_contracts_hold() -> None:
    pytest.importorskip("importlinter", reason="import-linter is not installed")
    code = "import sys; from importlinter.cli import lint_imports_command as run; sys.exit(run())"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    command = [sys.executable, "-c", code, "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, env=env, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout
