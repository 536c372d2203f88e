"""Published comparisons: what ships, what loads, what is refused, and how one is printed back."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from capmatrix import cli, paths
from capmatrix.errors import InputError
from capmatrix.report import published as report
from capmatrix.schema import matrices as schema
from capmatrix.selection import published

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(published.default_dir().glob("*.toml"))
SEED = "vllm-47882-minimax-m3-eagle3"

GOOD = """
title = "A"
source = "x/y#1"
date = "2026-07"
stack = "s"
hardware = "MI300X"
arch = "gfx942"
role = "target"
baseline = "ROCM_ATTN"
[workload]
concurrency = 4
[[result]]
backend = "ROCM_ATTN"
status = "pass"
mean_tpot_ms = 20.0
[[result]]
backend = "TRITON_ATTN"
status = "pass"
mean_tpot_ms = 10.0
concurrency = 4
"""


def load(text: str, tmp_path: Path) -> published.Published:
    file = tmp_path / "file.toml"
    file.write_text(text, encoding="utf-8")
    return published.load(file)


# -- what ships ----------------------------------------------------------------------------------


def test_the_seed_and_about_eight_more_ship() -> None:
    assert SEED in [f.stem for f in FILES]
    assert len(FILES) >= 9


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_shipped_file_loads_and_names_its_source(path: Path) -> None:
    table = published.load(path)
    assert table.source and table.url and table.results
    assert (table.arch == published.UNKNOWN) == ("stated" in table.hardware)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_shipped_file_validates(path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    made = schema.published_schema()
    kind = jsonschema.validators.validator_for(made)
    kind.check_schema(made)
    kind(made).validate(tomllib.loads(path.read_text(encoding="utf-8")))


def test_the_committed_schema_is_the_one_the_code_makes() -> None:
    committed = (paths.matrices_dir() / "schema" / "published.schema.json").read_text(encoding="utf-8")
    assert committed == schema.files()["published.schema.json"], "run: python -m capmatrix.schema"
    assert set(json.loads(committed)["properties"]) == set(published.KEYS)
    assert set(json.loads(committed)["properties"]["result"]["items"]["properties"]) == set(published.RESULT_KEYS)


def test_every_shipped_file_is_listed_in_the_documentation() -> None:
    text = (ROOT / "docs" / "published-evidence.md").read_text(encoding="utf-8")
    assert [f.stem for f in FILES if f"`{f.stem}`" not in text] == []


def test_load_all_reads_every_file() -> None:
    assert [table.name for table in published.load_all()] == [f.stem for f in FILES]


# -- the seed, printed back ----------------------------------------------------------------------


def test_the_seed_is_printed_back_in_its_form(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(published.find(SEED))]) == 0
    out = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in out.splitlines() if line.startswith("|")]
    assert rows[0] == [
        "Drafter backend", "Status", "Output tok/s/GPU", "Total tok/s/GPU", "Mean TPOT ms", "P99 TPOT ms", "Acceptance",
        "Improvement vs ROCM_ATTN",
    ]  # fmt: skip
    assert rows[2:] == [
        ["ROCM_ATTN", "pass", "247.045", "2328.647", "253.811", "392.013", "68.84%", "baseline"],
        ["TRITON_ATTN", "pass", "843.506", "7950.873", "71.576", "108.118", "67.91%", "+241.44%"],
        ["ROCM_AITER_FA", "does not support block size 128", "n/a", "n/a", "n/a", "n/a", "n/a", "n/a"],
        ["ROCM_AITER_UNIFIED_ATTN", "pass", "858.428", "8091.533", "70.158", "107.299", "67.89%", "+247.48%"],
    ]  # fmt: skip


def test_the_command_and_the_notes_are_printed() -> None:
    text = report.draw(published.load(published.find(SEED)))
    assert "--kv-cache-dtype fp8" in text
    assert "GPU not stated" in text
    assert "ratios count" in text


# -- comparing -----------------------------------------------------------------------------------


def test_improvement_of_a_time_is_of_the_rate(tmp_path: Path) -> None:
    table = load(GOOD, tmp_path)
    assert published.deciding_metric(table.results) == "mean_tpot_ms"
    assert published.improvement_percent("mean_tpot_ms", 10.0, 20.0) == 100.0
    assert published.improvement_percent("output_tok_s", 10.0, 20.0) == -50.0
    assert "+100.00%" in report.draw(table)


def test_the_deciding_figure_is_one_that_every_passing_result_has(tmp_path: Path) -> None:
    text = GOOD.replace("mean_tpot_ms = 20.0", "mean_tpot_ms = 20.0\noutput_tok_s = 5")
    assert published.deciding_metric(load(text, tmp_path).results) == "mean_tpot_ms"
    other = GOOD.replace("mean_tpot_ms = 10.0", "output_tok_s = 5")
    assert published.deciding_metric(load(other, tmp_path).results) == ""


def test_a_result_has_the_shared_load_and_its_own(tmp_path: Path) -> None:
    text = GOOD.replace("concurrency = 4\n[[result]]", "concurrency = 4\ninput = 8\n[[result]]").replace(
        "mean_tpot_ms = 10.0\nconcurrency = 4", "mean_tpot_ms = 10.0\nconcurrency = 9"
    )
    loads = [r.load for r in load(text, tmp_path).results]
    assert [(one.concurrency, one.input) for one in loads] == [(4, 8), (9, 8)]


def test_results_of_different_loads_stand_in_tables_of_their_own(tmp_path: Path) -> None:
    text = GOOD.replace("mean_tpot_ms = 10.0\nconcurrency = 4", "mean_tpot_ms = 10.0\nconcurrency = 9")
    drawn = report.draw(load(text, tmp_path))
    assert drawn.count("| Backend |") == 2
    assert "+100.00%" not in drawn


# -- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('arch = "gfx942"', 'arch = "gfx9000"', r"file\.toml:7: arch: unknown value"),
        ('role = "target"', 'role = "draft"', "did you mean 'drafter'"),
        ('date = "2026-07"', 'date = "July"', "must be a date"),
        ('source = "x/y#1"', "", "source: is missing"),
        ('baseline = "ROCM_ATTN"', 'baseline = "FLEX_ATTENTION"', "no passing result has this backend"),
        ("mean_tpot_ms = 20.0", "mean_tpot_ms = -1", "out of range"),
        ("mean_tpot_ms = 20.0", 'mean_tpot_ms = "20"', "must be a number"),
        ("mean_tpot_ms = 20.0", "p99_ttft_ms = 20", "needs a figure to compare by"),
        ("mean_tpot_ms = 20.0", "mean_tpot_ms = 20.0\ntpot = 2", "unknown key"),
        ('status = "pass"\nmean_tpot_ms = 20.0', 'status = "error"', "is missing: what happened"),
        ("mean_tpot_ms = 20.0", 'mean_tpot_ms = 20.0\nreason = "x"', "needs no reason"),
        ('backend = "TRITON_ATTN"', 'backend = "TRITON_ATN"', "did you mean 'TRITON_ATTN'"),
        ('stack = "s"', 'stack = "s"\ndrafter = "nobody"', "no such drafter family"),
        ('stack = "s"', 'stack = "s"\nurl = "http://x"', "must be an https address"),
        ('stack = "s"', 'stack = "s"\nblock_size = 0', "out of range"),
        ('stack = "s"', 'stack = "s"\ncompare = "p99_tpot_ms"', "unknown value"),
    ],
)
def test_a_mistake_is_an_input_error_at_its_line(old: str, new: str, says: str, tmp_path: Path) -> None:
    assert old in GOOD
    with pytest.raises(InputError, match=re.escape(says) if "toml" not in says else says) as caught:
        load(GOOD.replace(old, new), tmp_path)
    assert "file.toml" in str(caught.value)


def test_find_says_what_ships() -> None:
    assert published.find(SEED) == published.find(f"{SEED}.toml")
    with pytest.raises(InputError, match=SEED):
        published.find("nothing")


@pytest.mark.parametrize("name", ["matrices/smoke.toml", "pyproject.toml"])
def test_report_refuses_other_toml(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(ROOT / name)]) == 2
    assert "neither a published table" in capsys.readouterr().err


def test_a_hostile_file_is_shown_harmlessly(tmp_path: Path) -> None:
    text = GOOD.replace('title = "A"', 'title = "`<b>| [31m"').replace(
        'status = "pass"\nmean_tpot_ms = 10.0', 'status = "error"\nreason = "a | b\\n<script>"'
    )
    drawn = report.draw(load(text, tmp_path))
    assert all(line.count("|") in (0, 4, 5) for line in drawn.splitlines() if line.startswith("|")), drawn
    with pytest.raises(InputError, match="control characters"):
        load(text.replace("[31m", "\\u001b[31m"), tmp_path)


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file.toml"
    file.write_text(GOOD, encoding="utf-8")
    assert cli.main(["report", str(file), "--format", "json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert [r["backend"] for r in found["results"]] == ["ROCM_ATTN", "TRITON_ATTN"]
