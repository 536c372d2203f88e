"""The findings' table and the reproductions stay in step, and each finding says where it was seen."""

from __future__ import annotations

import re
from pathlib import Path

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
