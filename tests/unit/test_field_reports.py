"""The table of reports, the presets that try them and the expectations that cite it stay in step."""

from __future__ import annotations

import re
from pathlib import Path

from capmatrix import matrix, paths
from capmatrix.expect import expectation_file

ROOT = Path(__file__).resolve().parents[2]
TABLE = (ROOT / "docs" / "field-reports.md").read_text(encoding="utf-8")
RESULTS = ("reproduced", "predicted", "fixed", "not decided", "not predicted", "out of reach")


def anchors(text: str) -> set[str]:
    """Anchors of a page: explicit ones, and those of its headings."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    made = {re.sub(r"[^a-z0-9 _-]", "", h.lower()).replace(" ", "-") for h in headings}
    return made | set(re.findall(r'<a id="([a-z0-9_-]+)">', text))


def test_every_preset_is_a_report_of_the_table() -> None:
    presets = set(matrix.load(paths.matrices_dir() / "field-reports.toml").presets)
    assert presets <= anchors(TABLE)


def test_every_report_has_one_of_the_results() -> None:
    rows = [line for line in TABLE.splitlines() if line.startswith('| <a id="')]
    assert len(rows) > 90
    for row in rows:
        number, _, result, facts = (part.strip() for part in row.strip("|").split(" | "))
        assert result.startswith(RESULTS), number
        assert facts, number


def test_links_of_expectations_into_the_documents_lead_somewhere() -> None:
    expected = expectation_file.load([paths.matrices_dir() / "expectations"])
    for one in expected.entries:
        page, _, anchor = one.link.partition("#")
        if page.startswith("docs/"):
            text = (ROOT / page).read_text(encoding="utf-8")
            assert not anchor or anchor in anchors(text), one.where
