"""The findings' table and the reproductions stay in step, and each finding says where it was seen."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "benchmarks" / "reproduce"
TEXT = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in re.findall(r"^\| \d+ \|.*$", TEXT, re.M)]


def test_each_finding_has_a_section_of_its_own() -> None:
    assert len(ROWS) >= 7
    sections = re.findall(r"^## (\d+)\. ", TEXT, re.MULTILINE)
    assert [row[0] for row in ROWS] == sections


def test_each_finding_has_a_reproduction_and_each_reproduction_a_finding() -> None:
    named = {script for row in ROWS for script in re.findall(r"`(\w+\.py)`", row[4])}
    assert all(re.search(r"`\w+\.py`", row[4]) for row in ROWS)
    assert named == {path.name for path in SCRIPTS.glob("*.py")} - {"plain.py"}


def test_each_finding_says_where_it_was_seen() -> None:
    for row in ROWS:
        assert "not confirmed on a GPU" in row[5] or "no AMD GPU" in row[5], row[0]


def test_reproductions_need_nothing_of_capmatrix() -> None:
    for path in SCRIPTS.glob("*.py"):
        assert not re.search(r"^\s*(import|from) (capmatrix|tests)", path.read_text(encoding="utf-8"), re.MULTILINE), (
            path
        )


#: ``plain.verdict`` of a case and its control, and what it says first.
VERDICTS = [
    ((0.5, 0.001), "REPRODUCED case:"),
    ((float("nan"), 0.001), "REPRODUCED case:"),
    ((0.05, 0.001), "not reproduced case:"),
    ((0.5, 0.05), "not reproduced case:"),
    ((0.5, float("nan")), "not reproduced case:"),
]


@pytest.mark.parametrize(("figures", "said"), VERDICTS)
def test_a_case_is_reproduced_only_where_its_control_is_right(figures: tuple[float, float], said: str) -> None:
    done = reproduction("case", f"plain.verdict(*map(float, {list(map(str, figures))!r}), 'text')")
    assert done.stdout.startswith(said), done.stderr
    assert ("the control is off" in done.stdout) == (not figures[1] < 0.02)


def test_the_worst_of_errors_is_nan_where_there_is_one() -> None:
    done = reproduction("case", "print(plain.worst([1.0, float('nan'), 2.0]), plain.worst([1.0, 3.0, 2.0]))")
    assert done.stdout.split() == ["nan", "3.0"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("", "the installed one, if any (RuntimeError: ROCm version file not found)"),
        ("none", "none is no AITER checkout: it has no aiter/ops/triton"),
    ],
)
def test_without_a_usable_aiter_it_is_said_what_to_give(given: str, says: str, tmp_path: Path) -> None:
    package = tmp_path / "aiter"
    package.mkdir()
    (package / "__init__.py").write_text('raise RuntimeError("ROCm version file not found")\n', encoding="utf-8")
    done = reproduction("case", f"sys.path.insert(0, {str(tmp_path)!r}); plain.use_aiter({given!r} or None)")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.endswith(f"{says}: give the path of an AITER checkout, as in python case.py AITER")


def test_each_reproduction_says_its_exit_status_and_takes_a_device() -> None:
    for path in SCRIPTS.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert path.name == "plain.py" or "plain.run(main" in text, path
        assert path.name == "plain.py" or "[--device cuda|cpu]" in text, path
    done = subprocess.run(
        [sys.executable, SCRIPTS / "soft_cap.py", "--help"], capture_output=True, text=True, check=True
    )
    assert "--device {cuda,cpu}" in done.stdout
    assert "0 reproduced, 1 not reproduced, 2 wrong use, 3 could not run" in done.stdout


def reproduction(name: str, code: str) -> subprocess.CompletedProcess[str]:
    """``code`` run with ``plain`` imported, as a script called ``name``."""
    code = f"import sys; sys.path.insert(0, {str(SCRIPTS)!r}); sys.argv = [{name!r}]; import plain; {code}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
