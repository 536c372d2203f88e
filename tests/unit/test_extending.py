"""CONTRIBUTING.md's recipes, each followed in a copy of the source: a backend, an architecture, a target."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

MATRIX = """
name = "own"
description = "A matrix of one's own."
[axes]
backend = ["{backend}"]
block_size = [16]
kv_cache_dtype = ["auto"]
drafter = ["eagle3-llama3.1-8b"]
batch = ["decode"]
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A checkout's package and matrices, to edit."""
    shutil.copytree(ROOT / "capmatrix", tmp_path / "capmatrix", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "matrices", tmp_path / "matrices", ignore=shutil.ignore_patterns("results"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def edit(file: Path, old: str, new: str) -> None:
    """Replace the one place where ``old`` stands."""
    text = file.read_text()
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {file.name}"
    file.write_text(text.replace(old, new))


def cells(copy: Path, target: str, backend: str = "TRITON_ATTN") -> subprocess.CompletedProcess[str]:
    """``capmatrix cells`` of a matrix of one cell, by the edited copy."""
    (copy / "own.toml").write_text(MATRIX.format(backend=backend))
    return subprocess.run(
        [sys.executable, "-m", "capmatrix", "cells", "own.toml", "--target", target],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy)},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_adding_a_backend(copy: Path) -> None:
    before = cells(copy, "offline:gfx942", "ROCM_NEW_ATTN")
    assert before.returncode == 2 and "ROCM_NEW_ATTN" in before.stderr
    edit(
        copy / "capmatrix" / "vocabulary.py",
        '    "ROCM_SEGMENTED_ATTN",\n',
        '    "ROCM_SEGMENTED_ATTN",\n    "ROCM_NEW_ATTN",\n',
    )
    after = cells(copy, "offline:gfx942", "ROCM_NEW_ATTN")
    assert after.returncode == 0, after.stderr
    assert after.stdout.startswith("offline:gfx942-ROCM_NEW_ATTN-b16-auto-eagle3-llama3.1-8b-")


def test_adding_an_architecture(copy: Path) -> None:
    before = cells(copy, "offline:gfx1200")
    assert before.returncode == 2 and "gfx1201" in before.stderr
    edit(copy / "capmatrix" / "vocabulary.py", '"gfx1201")', '"gfx1201", "gfx1200")')
    with (copy / "capmatrix" / "archs.py").open("a") as archs:
        archs.write('\nARCHS["gfx1200"] = msgspec.structs.replace(ARCHS["gfx1201"], name="gfx1200")\n')
    after = cells(copy, "offline:gfx1200")
    assert after.returncode == 0, after.stderr
    assert after.stdout.startswith("offline:gfx1200-TRITON_ATTN-b16-")


def test_adding_a_target(copy: Path) -> None:
    before = cells(copy, "simulated:gfx942")
    assert before.returncode == 2 and "simulated:gfx942" in before.stderr
    folder = copy / "capmatrix" / "targets"
    text = (folder / "offline.py").read_text().replace('f"offline:{arch}"', 'f"simulated:{arch}"')
    (folder / "simulated.py").write_text(text)
    edit(
        folder / "__init__.py",
        "import device, emulator, interpreter, offline",
        "import device, emulator, interpreter, offline, simulated",
    )
    edit(folder / "__init__.py", '"emulator": emulator}', '"emulator": emulator, "simulated": simulated}')
    after = cells(copy, "simulated:gfx942")
    assert after.returncode == 0, after.stderr
    assert after.stdout.startswith("simulated:gfx942-TRITON_ATTN-b16-")
