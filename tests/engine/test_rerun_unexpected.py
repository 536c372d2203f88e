"""``--rerun-unexpected`` over the real engine: a cell that is not as a committed expectation says is tried again."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from capmatrix.cell import Verdict
from capmatrix.store import read

pytestmark = [pytest.mark.engine, pytest.mark.slow]

MATRIX = """\
[axes]
backend = "TRITON_ATTN"
block_size = [16, 64]
drafter = "eagle3-llama3.1-8b"
tp = 8
batch = "decode"
"""

EXPECTED = """\
[[expect]]
verdict = "wrong"
backend = "TRITON_ATTN"
block_size = 16
target = "interpreter"
reason = "not so: the cell passes"
link = "unreported"
"""


@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_an_unexpected_pass_is_repeated_and_stays_one(tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text(MATRIX)
    (tmp_path / "expectations").mkdir()
    (tmp_path / "expectations" / "e.toml").write_text(EXPECTED)
    words = ["run", "m.toml", "--target", "interpreter:gfx942", "--rerun-unexpected", "--run-file", "r.jsonl"]
    done = subprocess.run(
        [sys.executable, "-m", "capmatrix", *words, "-n", "0"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    found = {r.cell.block_size: r for r in read(tmp_path / "r.jsonl", lenient=False).records}
    assert {block: r.verdict for block, r in found.items()} == {16: Verdict.PASS, 64: Verdict.PASS}
    # Three times the same, each in a worker of its own: a change, not a flake. What is as expected ran once.
    assert found[16].repeats == ("pass", "pass", "pass") and found[64].repeats == ()
    assert "flake" not in done.stdout
