"""ruff and mypy have nothing to say of the repository."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> str:
    """What ``python -m <arguments>`` prints in the repository; empty when it exits with 0."""
    env = {**os.environ, "NO_COLOR": "1", "MYPYPATH": ""}
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    return done.stdout + done.stderr if done.returncode else ""


def test_ruff() -> None:
    pytest.importorskip("ruff", reason="ruff is not installed")
    assert run("ruff", "check", "--quiet", "--output-format", "concise", ".") == ""


@pytest.mark.slow
def test_mypy() -> None:
    pytest.importorskip("mypy", reason="mypy is not installed")
    assert run("mypy", "--no-error-summary") == ""
