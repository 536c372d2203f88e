"""Each finding's reproduction still reproduces it, by the interpreter, in a process without capmatrix."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.slow]

SCRIPTS = Path(__file__).resolve().parents[2] / "benchmarks" / "reproduce"
AITER = os.environ.get("CAPMATRIX_TEST_AITER", "")

#: Those that can do nothing without an AITER checkout, and those that try its kernel too where there is one.
NEEDS_AITER, TAKES_AITER = {"aiter_block_tail"}, {"aiter_block_tail", "window_small_weights"}


@pytest.mark.parametrize("name", sorted(path.stem for path in SCRIPTS.glob("*.py") if path.stem != "plain"))
def test_the_finding_is_reproduced(name: str, tmp_path: Path) -> None:
    if name in NEEDS_AITER and not AITER:
        pytest.skip("no AITER checkout: CAPMATRIX_TEST_AITER is not set")
    more = [AITER] if AITER and name in TAKES_AITER else []
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / f"{name}.py"), "--device", "cpu", *more],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    lines = 2 if AITER and name in TAKES_AITER - NEEDS_AITER else 1
    assert len(re.findall(rf"^REPRODUCED {name}: ", done.stdout, re.MULTILINE)) == lines
    assert "not reproduced" not in done.stdout
