"""The command line: what each command prints, exit statuses, messages, and what it imports."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from samples import HEADER, seed_run

from capmatrix import __version__, cli
from capmatrix.paths import matrices_dir
from capmatrix.store import RunWriter

ROOT = Path(__file__).resolve().parents[2]
ENV = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120"}


def command(*words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "capmatrix", *words]
    return subprocess.run(line, check=False, cwd=cwd, env=ENV, capture_output=True, text=True, timeout=120)


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    records, environments, header = seed_run()
    path = tmp_path / "run.jsonl"
    with RunWriter(path, header) as writer:
        for environment in environments.values():
            writer.environment(environment)
        for record in records:
            writer.record(record)
    return path


def one_error(capsys: pytest.CaptureFixture[str], *parts: str) -> None:
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("capmatrix: error: ") and "Traceback" not in err
    for part in parts:
        assert part in err


def test_version_and_module(capsys: pytest.CaptureFixture[str]) -> None:
    done = command("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"capmatrix {__version__}\n", "")


def test_help_documents_the_exit_statuses() -> None:
    done = command("--help")
    assert done.returncode == 0
    for text in ("run", "cells", "show", "report", "explain", "doctor", "0 as expected", "3 infrastructure"):
        assert text in done.stdout


def test_wrong_use_of_the_command_line() -> None:
    for words in ((), ("nothing",), ("cells", "--count", "--none"), ("run", "-n", "many"), ("show",)):
        done = command(*words)
        assert done.returncode == 2 and done.stdout == "" and done.stderr.startswith("usage: capmatrix")


def test_cells_lists_and_counts(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["eagle3-llama", "--preset", "seed", "--target", "offline:gfx942"]
    assert cli.main(["cells", *words]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert cli.main(["cells", "--count", *words]) == 0
    assert int(capsys.readouterr().out) == len(listed) == len(set(listed)) > 20
    assert all(line.startswith("offline:gfx942-") for line in listed)
    assert cli.main(["cells", "--count", *words, "--target", "offline:gfx950"]) == 0
    assert int(capsys.readouterr().out) == 2 * len(listed)


def test_a_matrix_by_path_or_by_its_shipped_name(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    counts = set()
    for name in ("smoke", "smoke.toml", str(matrices_dir() / "smoke.toml")):
        assert cli.main(["cells", "--count", name]) == 0
        counts.add(capsys.readouterr().out)
    assert len(counts) == 1
    assert cli.main(["cells", "smokey"]) == 2
    one_error(capsys, "smokey", "did you mean 'smoke'?", "eagle3-llama")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["cells", "smoke", "--target", "offline:gfx943"], ["offline:gfx943", "did you mean 'offline:gfx942'?"]),
        (["cells", "eagle3-llama", "--preset", "sead"], ["did you mean 'seed'?"]),
        (["show", "absent.jsonl"], ["absent.jsonl", "cannot read"]),
        (["report", ".", "--format", "md"], ["a run file is needed"]),
        (["explain", "x", "absent.jsonl"], ["absent.jsonl"]),
        (["run", "absent.toml"], ["absent.toml"]),
    ],
)
def test_wrong_input_is_one_message(capsys: pytest.CaptureFixture[str], words: list[str], parts: list[str]) -> None:
    assert cli.main(words) == 2
    one_error(capsys, *parts)


def test_wrong_output_is_one_message(run_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(run_file), "-o", str(run_file / "x.md")]) == 2
    one_error(capsys, "cannot write", "-o")


def test_show(run_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", str(run_file)]) == 0
    out, err = capsys.readouterr()
    assert "ROCM_AITER_UNIFIED_ATTN" in out and "preset seed" in out and "\x1b" not in out and err == ""


def test_show_merges_runs(run_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = run_file.read_text().splitlines(keepends=True)
    half = tmp_path / "half.jsonl"
    half.write_text("".join(lines[:20]))
    rest = tmp_path / "rest.jsonl"
    rest.write_text(lines[0] + "".join(line for line in lines if '"environment"' in line[:30]) + "".join(lines[20:]))
    cli.main(["report", "--format", "json", str(half), str(rest)])
    merged = json.loads(capsys.readouterr().out)
    cli.main(["report", "--format", "json", str(run_file)])
    assert merged["records"] == json.loads(capsys.readouterr().out)["records"]


def test_a_damaged_run_is_shown_and_said(run_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with run_file.open("ab") as stream:
        stream.write(b'{"kind": "rec')
    assert cli.main(["show", str(run_file)]) == 0
    out, err = capsys.readouterr()
    assert "ROCM_ATTN" in out
    assert err.startswith(f"capmatrix: {run_file}: line ") and len(err.splitlines()) == 1


def test_reports(run_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from html.parser import HTMLParser

    assert cli.main(["report", str(run_file)]) == 0
    markdown = capsys.readouterr().out
    assert "|" in markdown and "ROCM_ATTN" in markdown
    written = tmp_path / "report.html"
    assert cli.main(["report", str(run_file), "--format", "html", "-o", str(written)]) == 0
    assert capsys.readouterr().out == ""
    text = written.read_text()
    HTMLParser().feed(text)
    assert text.startswith("<!doctype html>") and "ROCM_ATTN" in text
    assert cli.main(["report", str(run_file), "--format", "json", "-o", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert len(data["records"]) == HEADER.get("cells", len(seed_run()[0])) and data["header"]["preset"] == "seed"


def test_explain(run_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cell = seed_run()[0][5].cell_id
    assert cli.main(["explain", cell, str(run_file)]) == 0
    by_id = capsys.readouterr().out
    assert by_id.startswith(cell)
    assert cli.main(["explain", f"matrices/eagle3-llama.toml::{cell}", str(run_file)]) == 0
    assert capsys.readouterr().out == by_id
    assert cli.main(["explain", "ROCM_ATTN b128", str(run_file)]) == 2
    one_error(capsys, "cells match")


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"]) == 0
    out = capsys.readouterr().out
    for name in ("offline:gfx942", "interpreter:gfx950", "device", "workers"):
        assert name in out


def test_a_reader_that_leaves_is_no_error() -> None:
    line = (
        f"{sys.executable} -m capmatrix cells rocm-attention --target offline:gfx942 | head -1; echo ${{PIPESTATUS[0]}}"
    )
    done = subprocess.run(
        ["bash", "-c", line], check=False, cwd=ROOT, env=ENV, capture_output=True, text=True, timeout=120
    )
    assert done.stderr == ""
    assert done.stdout.splitlines()[1] == "0" and done.stdout.startswith("offline:gfx942-")


@pytest.mark.parametrize(
    "words", [["--help"], ["show", "RUN"], ["report", "RUN"], ["report", "RUN", "--format", "html"]]
)
def test_reading_imports_little(run_file: Path, words: list[str]) -> None:
    """Half a second is for these: neither the stack, nor pytest, nor what only a run needs."""
    code = (
        "import sys\n"
        "from capmatrix.cli import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "heavy = ['torch', 'vllm', 'triton', 'aiter', 'numpy', 'pytest', 'xdist', 'rich', 'multiprocessing',"
        " 'capmatrix.matrix', 'capmatrix.workers.pool']\n"
        "print(*[name for name in heavy if name in sys.modules], file=sys.stderr)\n"
    )
    line = [sys.executable, "-c", code, *(str(run_file) if word == "RUN" else word for word in words)]
    done = subprocess.run(line, check=False, env=ENV, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stderr.strip() == "", done.stderr


def arguments(*words: str) -> argparse.Namespace:
    return cli._parser().parse_args(["run", *words])


def test_run_hands_its_options_to_pytest() -> None:
    given = arguments(
        "smoke", "--preset", "p", "--target", "device", "--target", "offline:gfx942", "-n", "3", "-k", "b128 and fp8",
        "--force=kernel_block", "--run-file", "r.jsonl", "--resume", "--aiter", "a", "--limit-compile", "5",
    )  # fmt: skip
    words = cli.pytest_arguments(given, ["-x"])
    assert words[0].endswith("matrices/smoke.toml") and words[-1] == "-x"
    text = " ".join(words)
    for part in (
        "-n 3",
        "--preset p",
        "--target device --target offline:gfx942",
        "-k b128 and fp8",
        "--force=kernel_block",
        "--run-file r.jsonl",
        "--resume",
        "--aiter a",
        "--limit-compile 5",
    ):
        assert part in text
    assert "-n" not in cli.pytest_arguments(arguments("smoke", "-n", "0"), [])


def test_run_of_a_matrix_outside_the_project_keeps_to_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = cli.pytest_arguments(arguments("smoke"), [])
    assert words[words.index("--rootdir") + 1] == str(matrices_dir())
    monkeypatch.chdir(ROOT)
    assert "--rootdir" not in cli.pytest_arguments(arguments("smoke"), [])


@pytest.mark.parametrize(("status", "wanted"), [(0, 0), (1, 1), (2, 130), (3, 3), (4, 2), (5, 1)])
def test_run_maps_pytests_exit_status(monkeypatch: pytest.MonkeyPatch, status: int, wanted: int) -> None:
    called: list[list[str]] = []
    monkeypatch.setattr(pytest, "main", lambda words: called.append(words) or status)
    assert cli.main(["run", "smoke", "-n", "0", "--", "-x", "--maxfail=2"]) == wanted
    assert called[0][-2:] == ["-x", "--maxfail=2"]


def test_run_says_what_is_wrong_with_a_matrix_once(tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text('[axes]\nbackend = ["ROCM_ATN"]\n')
    done = command("run", "m.toml", cwd=tmp_path)
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.strip()]
    assert "m.toml:2" in line and "did you mean 'ROCM_ATTN'?" in line
