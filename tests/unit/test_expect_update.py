"""``capmatrix expect``: entries from runs, and files brought up to date without losing what people wrote."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from samples import cell, environment, record

from capmatrix import cli, codec
from capmatrix.cell import Environment, Record, Verdict
from capmatrix.expect import expectation_file
from capmatrix.expect.observe import observe
from capmatrix.outcome import Kind, outcome
from capmatrix.runlines import EnvironmentLine, RecordLine, RunLine
from capmatrix.toml import tomlfile

BLOCKS = (16, 64, 128)
BATCHES = ("decode", "verify")
TARGETS = ("offline:gfx942", "offline:gfx950", "interpreter:gfx950")


def product(**axes: Iterable[Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{}]
    for name, values in axes.items():
        found = [{**one, name: value} for one in found for value in values]
    return found


GRID = product(target=TARGETS, kv_cache_dtype=("auto", "fp8"), block_size=BLOCKS, batch=BATCHES)


def failing(changes: dict[str, Any]) -> bool:
    """The failure of these tests: big blocks with fp8, whatever the batch and target."""
    return changes["kv_cache_dtype"] == "fp8" and changes["block_size"] > 16


def records(grid: list[dict[str, Any]] = GRID, fails: Any = failing, verdict: Verdict = Verdict.WRONG) -> list[Record]:
    made = []
    for changes in grid:
        bad = fails(changes)
        reasons = (f"relative L2 0.{changes['block_size']} over the bound",) if bad else ()
        made.append(record(cell(**changes), verdict if bad else Verdict.PASS, reasons=reasons))
    return made


def run_file(path: Path, made: list[Record], versions: dict[str, str] | None = None, **header: Any) -> str:
    environments: dict[str, Environment] = {}
    for one in made:
        found = environment(one.cell.target)
        if versions:
            found = msgspec.structs.replace(found, versions={**found.versions, **versions})
        environments[one.environment] = found
    lines = [RunLine({"matrix": "smoke", **header}), *map(EnvironmentLine, environments.values())]
    path.write_bytes(b"\n".join(codec.encode(line) for line in [*lines, *map(RecordLine, made)]) + b"\n")
    return str(path)


class Work:
    """A folder with runs and one expectation file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = path / "expectations" / "m.toml"
        self.count = 0

    def run(self, made: list[Record], **versions: str) -> str:
        self.count += 1
        return run_file(self.path / f"{self.count}.jsonl", made, versions)

    def expect(self, *words: str) -> int:
        return cli.main(["expect", *words, "-o", str(self.file)])

    def write(self, text: str) -> None:
        self.file.parent.mkdir(exist_ok=True)
        self.file.write_text(text)

    @property
    def data(self) -> dict[str, Any]:
        return tomlfile.load(self.file).data

    @property
    def entries(self) -> list[dict[str, Any]]:
        return [*self.data.get("expect", []), *self.data.get("flaky", [])]

    def unexpected(self, run: str) -> list[str]:
        """Cells of a run that the file does not explain, as the plugin would say."""
        from capmatrix.store import read

        expected = expectation_file.load([self.file])
        found = read(run)
        kinds = {
            r.cell_id: outcome(r, expected.find(r, found.environments.get(r.environment))).kind for r in found.records
        }
        return [name for name, kind in kinds.items() if kind is Kind.FAILED]


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return Work(tmp_path)


def test_entries_are_merged_over_axes_and_state_no_more_than_needed(work: Work) -> None:
    run = work.run(records())
    assert work.expect(run) == 0
    (entry,) = work.entries
    assert entry == {
        "verdict": "wrong",
        "backend": "ROCM_ATTN",
        "block_size": [64, 128],
        "kv_cache_dtype": "fp8",
        "drafter": "minimax-m3-eagle3",
        "tp": 4,
        "reason": "relative L2 0.64 over the bound",
        "link": "unreported",
    }
    assert work.data["scope"] == {
        "dtype": "bfloat16", "execution": "eager", "runner": "v2", "scales": "non_unit", "switches": "default",
    }  # fmt: skip
    assert work.file.read_text().startswith("#:schema ../schema/expectations.schema.json\n")
    assert work.unexpected(run) == []


@pytest.mark.parametrize(
    ("fails", "wanted"),
    [
        (lambda c: c["target"] == "interpreter:gfx950" and c["batch"] == "decode", {"target": "interpreter:gfx950"}),
        (lambda c: c["target"].startswith("offline"), {"target": "offline"}),
        (lambda c: c["target"].endswith("gfx950"), {"arch": "gfx950"}),
        (lambda c: c["target"] != "offline:gfx950", {"target": ["interpreter:gfx950", "offline:gfx942"]}),
    ],
)
def test_conditions_on_places(work: Work, fails: Any, wanted: dict[str, Any]) -> None:
    run = work.run(records(fails=fails))
    assert work.expect(run) == 0
    (entry,) = work.entries
    assert {k: v for k, v in entry.items() if k in ("target", "arch")} == wanted
    assert work.unexpected(run) == []


def test_only_allowed_properties_become_conditions(work: Work, capsys: pytest.CaptureFixture[str]) -> None:
    run = work.run(records(fails=lambda c: c["target"] == "offline:gfx942" and c["block_size"] == 64))
    assert work.expect(run, "--properties", "arch,vllm") == 0
    (entry,) = work.entries
    assert entry["arch"] == "gfx942" and "target" not in entry
    work.file.unlink()
    assert work.expect(run, "--properties", "vllm") == 1  # nothing that may count tells them apart: said, not guessed
    assert work.entries == []
    assert "wrong, and pass elsewhere (target offline:gfx942 and offline:gfx950)" in capsys.readouterr().err


def test_versions_become_ranges_that_tell_runs_apart(work: Work) -> None:
    grid = product(target=TARGETS[:1], kv_cache_dtype=("fp8",), block_size=BLOCKS, batch=BATCHES)
    runs = [
        work.run(records(grid, fails=lambda c, v=version: v in ("0.31.0", "0.32.0") and failing(c)), vllm=version)
        for version in ("0.30.0", "0.31.0", "0.32.0", "0.33.0")
    ]
    assert work.expect(*runs) == 0
    (entry,) = work.entries
    assert entry["vllm"] == ">=0.31.0,<0.33.0"
    assert [work.unexpected(run) for run in runs] == [[], [], [], []]
    # One run more, in which it fails again.
    again = work.run(records(grid), vllm="0.34.0")
    assert work.unexpected(again) != []
    assert work.expect(*runs, again) == 0
    assert [work.unexpected(run) for run in (*runs, again)] == [[], [], [], [], []]
    assert sorted(e["vllm"] for e in work.entries) == [">=0.31.0,<0.33.0", ">=0.34.0"]


def test_check_writes_nothing(work: Work, capsys: pytest.CaptureFixture[str]) -> None:
    run = work.run(records())
    assert work.expect(run, "--check") == 1
    assert not work.file.exists()
    assert "not up to date: 1 added" in capsys.readouterr().err
    work.expect(run)
    before = work.file.read_text()
    assert work.expect(run, "--check") == 0
    assert work.expect(run) == 0 and work.file.read_text() == before


WRITTEN = """\
# Kept.
description = "mine"
properties = ["arch", "vllm"]

[[expect]]
verdict = "wrong"
backend = "ROCM_ATTN"
block_size = [64, 128, 256]
kv_cache_dtype = "fp8"
reason = "a person wrote this"
link = "vllm-project/vllm#1"

[[expect]]
verdict = "crash"
backend = "TRITON_ATTN"
reason = "of another backend"
link = "vllm-project/vllm#2"
"""


def test_what_a_run_confirms_or_does_not_have_stays(work: Work) -> None:
    work.write(WRITTEN)
    assert work.expect(work.run(records())) == 0
    assert work.file.read_text() == WRITTEN


def test_a_fixed_block_leaves_the_list_and_the_reason_stays(work: Work) -> None:
    work.write(WRITTEN)
    run = work.run(records(fails=lambda c: failing(c) and c["block_size"] != 64))
    assert work.expect(run) == 0
    assert work.file.read_text() == WRITTEN.replace("[64, 128, 256]", "[128, 256]")


def test_what_all_cells_contradict_goes(work: Work, capsys: pytest.CaptureFixture[str]) -> None:
    work.write(WRITTEN.replace(", 256]", "]"))
    run = work.run(records(fails=lambda c: False))
    assert work.expect(run) == 0
    (entry,) = work.entries
    assert entry["backend"] == "TRITON_ATTN"
    assert "- " in capsys.readouterr().err


def test_a_part_of_the_cells_takes_no_entry_away(work: Work) -> None:
    """One batch of one block passes: the entry stays for what was not seen, and the exception is said."""
    work.write(WRITTEN)
    grid = product(target=TARGETS[:1], kv_cache_dtype=("fp8",), block_size=(64,), batch=("decode", "verify"))
    run = work.run(records(grid, fails=lambda c: c["batch"] == "verify"))
    assert work.expect(run) == 0
    first, _, exception = work.entries
    assert first["block_size"] == [64, 128, 256]
    assert exception["verdict"] == "pass" and exception["batch"] == "decode"
    assert work.unexpected(run) == []


def test_a_new_version_bounds_an_entry_where_both_were_run(work: Work) -> None:
    work.write(WRITTEN)
    old = work.run(records(), vllm="0.32.0")
    new = work.run(records(fails=lambda c: False), vllm="0.33.0")
    assert work.expect(old, new) == 0
    first, _ = work.entries
    assert first["vllm"] == "<0.33.0" and first["reason"] == "a person wrote this"
    assert work.unexpected(old) == work.unexpected(new) == []


def test_another_block_of_the_same_cause_joins_the_entry(work: Work) -> None:
    text = WRITTEN.replace("[64, 128, 256]", "64")
    work.write(text)
    assert work.expect(work.run(records())) == 0
    assert work.file.read_text() == text.replace("block_size = 64", "block_size = [64, 128]")


def test_another_verdict_gets_an_entry_of_its_own(work: Work) -> None:
    work.write(WRITTEN)
    run = work.run(records(verdict=Verdict.TIMEOUT))
    assert work.expect(run) == 0
    assert [e["verdict"] for e in work.entries] == ["wrong", "crash", "timeout"]
    assert work.unexpected(run) == []


def test_entries_that_would_be_ambiguous_list_their_cells(work: Work) -> None:
    work.write(WRITTEN.replace('kv_cache_dtype = "fp8"', 'batch = "decode"').replace("[64, 128, 256]", "64"))
    grid = product(target=TARGETS[:1], kv_cache_dtype=("auto", "fp8"), block_size=BLOCKS, batch=BATCHES)
    run = work.run(records(grid, fails=lambda c: c["kv_cache_dtype"] == "fp8", verdict=Verdict.ERROR))
    assert work.expect(run) == 0
    assert work.unexpected(run) == []
    assert expectation_file.load([work.file])


def test_a_flake_is_listed(work: Work) -> None:
    made = records(GRID[:2], fails=lambda c: False)
    flake = msgspec.structs.replace(
        made[0], verdict=Verdict.CRASH, repeats=(Verdict.CRASH, Verdict.PASS, Verdict.PASS), attempt=3
    )
    run = work.run([flake, made[1]])
    assert work.expect(run, "--link", "vllm-project/vllm#3", "--reason", "a race") == 0
    (entry,) = work.entries
    assert entry["verdicts"] == ["pass", "crash"] and entry["link"] == "vllm-project/vllm#3"
    assert entry["reason"] == "a race"
    assert work.unexpected(run) == [] and work.expect(run, "--check") == 0


def test_two_runs_that_differ_make_a_flake(work: Work) -> None:
    first, second = records(GRID[:2], fails=lambda c: False), records(GRID[:2], fails=lambda c: c["batch"] == "decode")
    one, two = work.run(first), work.run(second)
    assert work.expect(one, two) == 0
    (entry,) = work.entries
    assert entry["verdicts"] == ["pass", "wrong"]
    assert work.unexpected(one) == work.unexpected(two) == []


def test_untold_cells_say_nothing() -> None:
    made = records(GRID[:3], fails=lambda c: True, verdict=Verdict.UNVERIFIED)
    assert observe([(made, {})]) == []


def test_other_files_of_the_folder_count(work: Work) -> None:
    work.write(WRITTEN)
    other = work.file.with_name("other.toml")
    work.file.rename(other)
    assert work.expect(work.run(records())) == 0
    assert work.entries == []


def test_the_default_file_is_beside_the_matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrices").mkdir()
    (tmp_path / "matrices" / "m.toml").write_text("[axes]\n")
    run = run_file(tmp_path / "r.jsonl", records(), files=["matrices/m.toml"])
    assert cli.main(["expect", run]) == 0
    assert (tmp_path / "matrices" / "expectations" / "m.toml").exists()
    nameless = run_file(tmp_path / "s.jsonl", records())
    assert cli.main(["expect", nameless]) == 2


def test_to_standard_output(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.toml").write_text("[axes]\n")
    run = run_file(tmp_path / "r.jsonl", records(), files=["m.toml"])
    assert cli.main(["expect", run, "-o", "-"]) == 0
    text = capsys.readouterr().out
    assert tomlfile.parse(text.encode(), "x").data["expect"][0]["verdict"] == "wrong"
    assert not (tmp_path / "expectations").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("--link", "somewhere"),
        ("--reason", "x" * 3000),
        ("--properties", "python"),
        ("-o", "/proc/nowhere/x.toml"),
        ("-o", "."),
    ],
)
def test_wrong_use(work: Work, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    run = work.run(records())
    assert cli.main(["expect", run, "-o", str(work.file), *words]) == 2
    error = capsys.readouterr().err
    assert error.count("capmatrix: error: ") == 1 and "Traceback" not in error
    work.write(WRITTEN)
    assert cli.main(["expect", run, "-o", str(work.file), "--properties", "arch"]) == 2
    assert work.file.read_text() == WRITTEN
