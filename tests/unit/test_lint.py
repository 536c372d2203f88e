"""ruff and mypy have nothing to say of the repository."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def check(*arguments: str) -> None:
    """Fail with what ``python -m <arguments>`` prints in the repository, unless it exits with 0."""
    env = {**os.environ, "NO_COLOR": "1", "MYPYPATH": ""}
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=env, check=False, capture_output=True, text=True, timeout=300)
    if done.returncode:
        pytest.fail(f"{' '.join(arguments)}\n{done.stdout}{done.stderr}", pytrace=False)


def test_ruff() -> None:
    pytest.importorskip("ruff", reason="ruff is not installed")
    check("ruff", "check", "--quiet", "--output-format", "concise", ".")


@pytest.mark.slow
def test_mypy() -> None:
    pytest.importorskip("mypy", reason="mypy is not installed")
    check("mypy", "--no-error-summary", "--no-incremental")
