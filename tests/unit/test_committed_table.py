"""A table that is committed: what changes it and what does not, sections of a page, and ``report --check``."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest
from samples import HEADER, cell, environment, record, seed_run

from capmatrix import cli
from capmatrix.cell import Environment, Flag, Record, Verdict
from capmatrix.commands import written
from capmatrix.errors import InputError
from capmatrix.paths import matrices_dir
from capmatrix.report import markdown, terminal
from capmatrix.report.steady import steady
from capmatrix.store import RunWriter


def write_run(path: Path, records: list[Record], environments: dict[str, Environment]) -> Path:
    with RunWriter(path, HEADER) as writer:
        for each in environments.values():
            writer.environment(each)
        for one in records:
            writer.record(one)
    return path


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    records, environments, _ = seed_run()
    return write_run(tmp_path / "run.jsonl", records, environments)


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_records_is_no_difference(seed: int) -> None:
    records, environments, header = seed_run()
    shuffled, others = list(records), list(environments.values())
    random.Random(seed).shuffle(shuffled)
    random.Random(seed).shuffle(others)
    assert shuffled != records
    again = {one.id: one for one in others}
    assert markdown.render(shuffled, again, header) == markdown.render(records, environments, header)
    assert terminal.render(shuffled, again, header) == terminal.render(records, environments, header)


def test_the_same_on_another_day_and_another_machine_is_no_difference() -> None:
    records, environments, header = seed_run()
    later = [
        msgspec.structs.replace(r, environment=f"{r.environment}-2", started_at="2027-01-01T00:00:00Z", durations={})
        for r in records
    ]
    elsewhere = {
        f"{name}-2": msgspec.structs.replace(e, id=f"{name}-2", hardware={"cpu": "another", "cores": 64})
        for name, e in environments.items()
    }
    header_later = {**header, "started_at": "2027-01-01T00:00:00Z"}
    assert markdown.render(later, elsewhere, header_later) == markdown.render(records, environments, header)


def test_a_gpu_and_a_version_are_differences() -> None:
    records, environments, header = seed_run()
    name = next(iter(environments))
    for change in ({"hardware": {"vendor": "amd", "arch": "gfx942", "name": "MI308X"}}, {"versions": {"vllm": "0.33"}}):
        changed = {**environments, name: msgspec.structs.replace(environments[name], **change)}
        assert markdown.render(records, changed, header) != markdown.render(records, environments, header)


def test_environments_that_say_the_same_are_one_row() -> None:
    one = environment("offline:gfx942")
    other = msgspec.structs.replace(one, id="resumed", hardware={"cpu": "another"})
    drawn = markdown.render([record()], {one.id: one, other.id: other})
    assert drawn.count("| `offline:gfx942` |") == 1


def test_reasons_have_no_places_and_no_moments() -> None:
    """Two cells that fail alike share a footnote, whatever the worker was called."""
    told = "cannot read /home/{0}/venv/lib/python3.11/site-packages/vllm/attention/layer.py (0x7f00aa{0}), pid {0}"
    records = [
        record(cell(block_size=16 * n), Verdict.ERROR, reasons=(told.format(f"{n}000"),), claims=()) for n in (1, 2, 3)
    ]
    drawn = markdown.render(records, {})
    assert "<summary>1 footnote</summary>" in drawn
    assert "`cannot read .../vllm/attention/layer.py (0x...), pid ...`" in drawn


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ("no GPU: neither /dev/kfd nor /dev/nvidia* exists", "no GPU: neither /dev/kfd nor /dev/nvidia* exists"),
        ("16/16 heads, see https://example.com/a/b and a/b/c", "16/16 heads, see https://example.com/a/b and a/b/c"),
        ("/tmp/pytest-of-me/x/file.py:3: bad", ".../file.py:3: bad"),
        ("at 2026-11-30T08:46:14.123Z it died", "at ... it died"),
        ("Required: 131072, Hardware limit: 65536, row 0x3", "Required: 131072, Hardware limit: 65536, row 0x3"),
    ],
)
def test_steady_text(told: str, kept: str) -> None:
    assert steady(told) == kept
    assert steady(kept) == kept


def test_a_footnote_more_leaves_other_tables_alone() -> None:
    """The table of gfx950 is the same though one of gfx942, drawn before it, got a footnote more."""
    records, environments, header = seed_run()
    first = next(i for i, r in enumerate(records) if r.cell.target == "offline:gfx942" and r.verdict is Verdict.PASS)
    changed = list(records)
    reason = {"reasons": ("seen once",), "flags": (*records[first].flags, Flag.NAN_UNSAFE)}
    changed[first] = msgspec.structs.replace(records[first], **reason)
    one, other = (markdown.render(r, environments, header) for r in (records, changed))
    assert one != other
    assert one.split("\n### ")[2] == other.split("\n### ")[2]


def test_check_of_a_whole_file(run_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "table.md"
    words = ["report", str(run_file), "-o", str(table)]
    assert cli.main([*words, "--check"]) == 2
    assert "no such file" in capsys.readouterr().err
    assert cli.main(words) == 0
    assert cli.main([*words, "--check"]) == 0
    assert capsys.readouterr().out == f"{table}: up to date\n"
    text = table.read_text(encoding="utf-8")
    table.write_text(text.replace("❌ wrong", "✅ pass", 1), encoding="utf-8")
    assert cli.main([*words, "--check"]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith(f"{table}: stale: 1 lines would go, 1 would come")
    minus, plus = out[2:]
    assert minus.startswith("- | `TRITON_ATTN` |") and "✅ pass (interpreted)" in minus and "❌ wrong" not in minus
    assert plus.startswith("+ | `TRITON_ATTN` |") and "❌ wrong (interpreted)" in plus
    assert "✅ pass" in table.read_text(encoding="utf-8")  # nothing was written


@pytest.mark.parametrize("form", ["md", "mkdocs", "html", "json"])
def test_check_of_every_format(run_file: Path, tmp_path: Path, form: str) -> None:
    words = ["report", str(run_file), "--format", form, "-o", str(tmp_path / "x")]
    assert (cli.main(words), cli.main([*words, "--check"])) == (0, 0)
    with (tmp_path / "x").open("a") as stream:
        stream.write("more\n")
    assert cli.main([*words, "--check"]) == 1


PAGE = f"# By hand\n\nBefore.\n\n{written.BEGIN}\nthe former table\n{written.END}\n\nAfter.\n"


@pytest.mark.parametrize("form", ["md", "mkdocs"])
def test_a_section_of_a_page(run_file: Path, tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "README.md"
    page.write_text(PAGE, encoding="utf-8")
    words = ["report", str(run_file), "--format", form, "-o", str(page)]
    assert cli.main([*words, "--check"]) == 1
    assert page.read_text(encoding="utf-8") == PAGE
    assert cli.main(words) == 0
    text = page.read_text(encoding="utf-8")
    before, rest = text.split(written.BEGIN + "\n")
    inside, after = rest.split(written.END)
    assert (before, after) == ("# By hand\n\nBefore.\n\n", "\n\nAfter.\n")
    assert "ROCM_ATTN" in inside and "Attention support" not in inside and "former" not in inside
    assert (cli.main(words), cli.main([*words, "--check"])) == (0, 0)
    assert page.read_text(encoding="utf-8") == text
    page.write_text(text.replace("Before.", "Anything else."), encoding="utf-8")
    assert cli.main([*words, "--check"]) == 0
    capsys.readouterr()


def test_a_published_table_is_checked_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = matrices_dir() / "published" / "vllm-47882-minimax-m3-eagle3.toml"
    page = tmp_path / "page.md"
    page.write_text(PAGE, encoding="utf-8")
    words = ["report", str(table), "-o", str(page)]
    assert [cli.main([*words, "--check"]), cli.main(words), cli.main([*words, "--check"])] == [1, 0, 0]
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# By hand") and "843.506" in text and text.endswith("After.\n")
    assert cli.main(["report", str(table), "--format", "mkdocs"]) == 2
    assert "md or json" in capsys.readouterr().err


@pytest.mark.parametrize(
    "page",
    [
        f"{written.BEGIN}\n",
        f"{written.END}\n",
        f"{written.END}\n{written.BEGIN}\n",
        f"{written.BEGIN}\n{written.END}\n{written.BEGIN}\n{written.END}\n",
    ],
)
def test_markers_that_do_not_pair(
    run_file: Path, tmp_path: Path, page: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "page.md"
    file.write_text(page, encoding="utf-8")
    assert cli.main(["report", str(run_file), "-o", str(file)]) == 2
    assert f"{file}:" in capsys.readouterr().err
    assert file.read_text(encoding="utf-8") == page


def test_a_record_cannot_end_a_section(tmp_path: Path) -> None:
    evil = f"x\n{written.END}\n{written.BEGIN}\ny"
    run = write_run(tmp_path / "run.jsonl", [record(cell(drafter=evil), Verdict.ERROR, reasons=(evil,))], {})
    page = tmp_path / "page.md"
    page.write_text(PAGE, encoding="utf-8")
    for form in ("md", "mkdocs", "md"):
        assert cli.main(["report", str(run), "--format", form, "-o", str(page)]) == 0
    assert page.read_text(encoding="utf-8").endswith(f"\n{written.END}\n\nAfter.\n")


def test_check_needs_a_file(run_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(run_file), "--check"]) == 2
    assert "-o" in capsys.readouterr().err
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    assert cli.main(["report", str(run_file), "-o", str(tmp_path / "binary"), "--check"]) == 2
    assert "not a text file" in capsys.readouterr().err
    with pytest.raises(InputError, match="name it with -o"):
        written.put("x", "-", check=True)


def test_a_difference_is_short_and_printable() -> None:
    old = "".join(f"line {i} {'x' * 400}\n" for i in range(100))
    shown = written.difference(old, old.replace("x\n", "\x1b[31m\n"), "a\x1bb.md")
    lines = shown.splitlines()
    assert lines[0].startswith("a\N{REPLACEMENT CHARACTER}b.md: stale: 100 lines would go, 100 would come")
    assert len(lines) == written.SHOWN + 2 and lines[-1].startswith("... and ")
    assert "\x1b" not in shown and max(map(len, lines)) <= written.WIDTH


@pytest.mark.parametrize(
    ("old", "new", "shown"),
    [
        ("a\nb\nc\n", "a\nc\n", ["line 2:", "- b"]),
        ("a\nc\n", "a\nb\nc\n", ["line 2:", "+ b"]),
        ("a\nb\n", "a\nx\ny\n", ["line 2:", "- b", "+ x", "+ y"]),
        ("same 1 same\n", "same 2 same\n", ["line 1:", "- same 1 same", "+ same 2 same"]),
        (
            f"begin {'a' * 99}1{'b' * 99} end\n",
            f"begin {'a' * 99}22{'b' * 99} end\n",
            [
                "line 1:",
                f"- begin {'a' * 22} ... {'a' * 24}1{'b' * 24} ...",
                f"+ begin {'a' * 22} ... {'a' * 24}22{'b' * 24} ...",
            ],
        ),
    ],
)
def test_differences(old: str, new: str, shown: list[str]) -> None:
    assert written.difference(old, new, "x").splitlines()[1:] == shown
