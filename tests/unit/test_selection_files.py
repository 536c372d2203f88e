"""``capmatrix derive`` and the files it writes: the seed's table as committed, ages, mistakes."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
import samples

from capmatrix import cli
from capmatrix.codec import encode
from capmatrix.errors import InputError
from capmatrix.guard import ages
from capmatrix.selection import defaults, published, workloads
from capmatrix.selection.defaults import Row
from capmatrix.toml import tomlfile, tomlwrite

GOLDEN = Path(__file__).parent / "golden"
SEED = "vllm-47882-minimax-m3-eagle3"
FORMS = ("toml", "json", "md", "py")


def derive(*words: str) -> int:
    return cli.main(["derive", *words])


def seed_words() -> list[str]:
    return ["--published", SEED, "--arch", "any"]


@pytest.mark.parametrize("form", FORMS)
def test_the_seeds_table_is_the_committed_one(form: str, tmp_path: Path) -> None:
    file = tmp_path / f"seed-defaults.{form}"
    assert derive(*seed_words(), "-o", str(file)) == 0
    golden = GOLDEN / f"seed-defaults.{form}"
    assert file.read_text(encoding="utf-8") == golden.read_text(encoding="utf-8"), (
        f"capmatrix derive {' '.join(seed_words())} -o {golden}"
    )


def test_several_outputs_at_once_are_of_one_table(tmp_path: Path) -> None:
    files = [tmp_path / f"a.{form}" for form in FORMS]
    assert derive(*seed_words(), *(word for f in files for word in ("-o", str(f)))) == 0
    assert defaults.load(files[0]) == defaults.load(files[1])


def test_a_published_table_may_stand_among_the_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert derive(str(published.find(SEED)), "--arch", "any", "--policy", "fastest") == 0
    assert 'backend = "ROCM_AITER_UNIFIED_ATTN"\nreason' in capsys.readouterr().out


def run_file(path: Path) -> Path:
    records, environments, header = samples.seed_run()
    lines = [encode({"kind": "run", "header": header, "version": 1})]
    lines += [encode({"kind": "environment", "environment": e}) for e in environments.values()]
    lines += [encode({"kind": "record", "record": r}) for r in records]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def test_a_run_gives_provisional_rows(tmp_path: Path) -> None:
    run = run_file(tmp_path / "a.jsonl")
    out = tmp_path / "a.json"
    assert derive(str(run), "-o", str(out)) == 0
    table = defaults.load(out)
    assert {row.architecture for row in table.row} == {"gfx942", "gfx950"}
    assert len(table.row) == 8
    for row in table.row:
        assert row.provisional or not row.backend
        assert {o.backend for o in row.other} | {row.backend} >= set(samples.BACKENDS)
    assert [r.name for r in table.runs] == ["a"]
    assert "48 records: device: unavailable" in table.left_out


def test_the_folder_and_the_order_of_runs_change_nothing(tmp_path: Path) -> None:
    first, second = tmp_path / "one", tmp_path / "two"
    texts = []
    for folder in (first, second):
        folder.mkdir()
        run_file(folder / "a.jsonl")
        (folder / "b.jsonl").write_bytes((folder / "a.jsonl").read_bytes().replace(b"0.061", b"0.062"))
        names = [str(folder / "a.jsonl"), str(folder / "b.jsonl")]
        out = folder / "out.toml"
        assert derive(*(names if folder == first else reversed(names)), "-o", str(out)) == 0
        texts.append(out.read_bytes())
    assert texts[0] == texts[1]


def test_report_reads_a_derived_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(GOLDEN / "seed-defaults.toml")]) == 0
    assert capsys.readouterr().out == (GOLDEN / "seed-defaults.md").read_text(encoding="utf-8")
    assert cli.main(["report", str(GOLDEN / "seed-defaults.json")]) == 0
    assert capsys.readouterr().out == (GOLDEN / "seed-defaults.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arch", "says"),
    [
        ("", "GPU not stated (matched with --arch any). --arch any takes"),
        ("gfx942", "GPU not stated (matched with --arch any). --arch any takes"),
    ],
)
def test_an_empty_table_says_why(arch: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert derive("--published", SEED, *(["--arch", arch] if arch else [])) == 0
    shown = capsys.readouterr()
    assert "[[row]]" not in shown.out
    assert "capmatrix: the table is empty: " in shown.err and says in shown.err
    assert derive(*seed_words()) == 0
    assert "empty" not in capsys.readouterr().err


def test_an_empty_table_names_the_architecture_of_its_evidence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.jsonl"
    lines = [
        encode({"kind": "run", "header": {}, "version": 1}),
        encode({"kind": "environment", "environment": samples.environment("offline:gfx942")}),
        encode({"kind": "record", "record": samples.record()}),
    ]
    file.write_bytes(b"\n".join(lines) + b"\n")
    assert derive(str(file), "--arch", "gfx950") == 0
    said = capsys.readouterr().err
    assert "the table is empty: 1 record: gfx942: not the architecture asked for. --arch any takes every" in said
    assert derive(str(file)) == 0
    assert "empty" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "give at least one run"),
        (["--published", SEED, "--arch", "gfx9420"], "did you mean 'gfx942'"),
        (["--published", SEED, "--workload", "sead"], "did you mean 'seed'"),
        (["--published", SEED, "-o", "x.yaml"], "the suffix says the format"),
        (["--published", SEED, "--max-age", "soon"], "not an age"),
        (["--published", SEED, "--max-age", "9d", "--as-of", "today"], "not a date"),
        (["--published", SEED, "--previous", "none.toml"], "no such file"),
        (["--published", "nothing"], "no such published file"),
        (["none.jsonl"], "cannot read the run file"),
    ],
)
def test_mistakes(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert derive(*words) == 2
    assert says in capsys.readouterr().err


def test_the_previous_table_is_named_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*seed_words(), "--policy", "fastest", "--previous", str(GOLDEN / "seed-defaults.toml")]
    assert derive(*words, "-o", str(tmp_path / "a.json")) == 0
    table = defaults.load(tmp_path / "a.json")
    assert table.previous == "seed-defaults.toml"
    assert (table.row[0].backend, "kept" in table.row[0].marks) == ("TRITON_ATTN", True)


# -- ages ----------------------------------------------------------------------------------------


def row(**changes: object) -> Row:
    base: dict[str, object] = {
        "architecture": "gfx942", "drafter": "d", "role": "drafter", "block_size": 16, "kv_cache_dtype": "auto",
        "dtype": "bfloat16", "backend": "TRITON_ATTN", "reason": "", "policy": "lightest",
    }  # fmt: skip
    return Row(**{**base, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("dated", "day", "stale"),
    [
        ("2026-07-07", date(2026, 10, 5), False),
        ("2026-07-07", date(2026, 10, 6), True),
        ("2026-12", date(2027, 3, 31), False),
        ("2026-12", date(2027, 4, 1), True),
        ("", date(2026, 7, 7), True),
    ],
)
def test_an_age_counts_from_the_newest_evidence(dated: str, day: date, stale: bool) -> None:
    assert bool(ages.stale(row(dated_to=dated), max_age_days=90, today=day)) is stale


@pytest.mark.parametrize(
    ("had", "now", "stale"),
    [
        ("0.32.0", "0.32.0", False),
        ("0.32.0", "0.32.0+cpu", False),
        ("0.32.0", "0.33.0", True),
        ("0.9.2", "0.10.0", True),
        ("0.33.0rc1", "0.33.0", True),
        ("0.33.0", "0.32.0", False),
        ("0.32.0 (abcdef012345)", "0.32.0", False),
        ("", "0.33.0", False),
    ],
)
def test_a_newer_vllm_makes_stale(had: str, now: str, stale: bool) -> None:
    assert bool(ages.stale(row(versions={"vllm": had} if had else {}), vllm=now)) is stale


def test_stale_rows_are_marked_and_struck_out(tmp_path: Path) -> None:
    out = tmp_path / "a.md"
    assert derive(*seed_words(), "--max-age", "12w", "--as-of", "2026-11-30", "-o", str(out)) == 0
    text = out.read_text(encoding="utf-8")
    assert "~~`TRITON_ATTN`~~" in text
    assert "146 days old" in text


def test_marking_again_forgets_the_old_mark() -> None:
    table = defaults.Defaults("lightest", 5.0, row=(row(marks=("stale",), stale="old", dated_to="2026-07-07"),))
    assert ages.mark(table, max_age_days=1, today=date(2026, 7, 8)).row[0].marks == ()
    assert ages.mark(table, max_age_days=1, today=date(2026, 7, 9)).row[0].marks == ("stale",)


# -- the parts -----------------------------------------------------------------------------------


def test_toml_is_written_as_it_is_read() -> None:
    data = {
        "text": 'quote " and \\ and \n tab \t \x7f é',
        "flag": True,
        "number": 3,
        "share": 0.1,
        "list": ["a" * 70, "b" * 70],
        "empty": [],
        "table": {"a b": 1, "c": {"d": 2}},
        "rows": [{"x": 1, "y": {"z": 2}}, {"x": 2, "more": [{"q": 1}]}],
        "none": None,
    }
    found = tomlfile.parse(tomlwrite.dumps(data).encode(), "a.toml").data
    assert found == {k: v for k, v in data.items() if v is not None}


def test_a_workload_may_come_from_a_file(tmp_path: Path) -> None:
    name, known = workloads.choose("seed")
    assert (name, known["seed"].concurrency) == ("seed", 256)
    file = tmp_path / "own.toml"
    text = (workloads.paths.matrices_dir() / "smoke.toml").read_text(encoding="utf-8")
    file.write_text(
        text.replace("#:schema", "#") + "\n[workload.own]\nconcurrency = 3\ninput = 4\noutput = 5\n", "utf-8"
    )
    name, known = workloads.choose(f"{file}:own")
    assert (name, known["own"].concurrency) == ("own", 3)
    with pytest.raises(InputError):
        workloads.choose("own")
