"""Runs that end early: resuming, Ctrl-C once and twice, processes killed from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from plugin_project import CELL, PATIENCE, Project, eventually, preset

from capmatrix.cell import Verdict
from capmatrix.store import read

XDIST = pytest.mark.parametrize("more", [(), ("-n", "2")], ids=["alone", "xdist"])


def cells(*backends: str) -> set[str]:
    return {CELL.format(backend, block, "decode") for backend in backends for block in (16, 128)}


def hang(project: Project, *more: str) -> subprocess.Popen[str]:
    """A run that has done two cells and hangs in the rest."""
    file = project.matrix("TRITON_ATTN", "ULTRAQUANT", "ROCM_SEGMENTED_ATTN")
    process = project.start(file, "--run-file", "run.jsonl", *more)
    eventually(lambda: any("ULTRAQUANT" in cell for cell in project.ran()))
    eventually(lambda: sum("TRITON_ATTN" in cell for cell in project.ran()) == 2 and len(recorded(project)) >= 2)
    return process


def recorded(project: Project) -> set[str]:
    path = project.path / "run.jsonl"
    return {r.cell_id for r in read(path).records} if path.exists() else set()


def finish(project: Project) -> pytest.RunResult:
    """Resume the hung run; its hanging cells now time out."""
    return project.run("matrices/small.toml", "--resume", "--run-file", "run.jsonl", "--limit-run", "0.5")


@XDIST
def test_resume_does_exactly_the_rest(project: Project, more: tuple[str, ...]) -> None:
    file = project.matrix("TRITON_ATTN", "ROCM_ATTN", batches=("decode", "verify"))
    project.run(file, "--run-file", "run.jsonl", "-k", "TRITON_ATTN or b128", *more)
    first = project.ran()
    assert len(first) == 6
    result = project.run(file, "--run-file", "run.jsonl", "--resume", *more)
    assert sorted(project.ran()[6:]) == sorted(
        f"offline:gfx942-ROCM_ATTN-b16-auto-minimax-m3-eagle3-tp4-heads16.16-h128-bf16-{b}"
        for b in ("decode", "verify.q3")
    )
    # The session still speaks of the whole run: what failed before fails it.
    result.assert_outcomes(passed=6, failed=2)
    assert result.ret == 1
    run = read(project.path / "run.jsonl", lenient=False)
    assert len(run.records) == 8 and run.started == []
    third = project.run(file, "--run-file", "run.jsonl", "--resume", *more)
    third.assert_outcomes(passed=6, failed=2)
    assert len(project.ran()) == 8
    assert "starting" not in third.stdout.str()


def test_resume_finds_the_newest_run_with_its_options(project: Project) -> None:
    more = preset("p", "TRITON_ATTN", 16)
    file = project.matrix("TRITON_ATTN", "ROCM_ATTN", batches=("decode", "verify"), more=more)
    project.run(file, "--preset", "p", "-k", "decode", target="offline:gfx950")
    result = project.run(file, "--resume", target=None)
    result.assert_outcomes(passed=2)
    assert [c.partition("-")[0] for c in project.ran()] == ["offline:gfx950"] * 2
    assert len(project.run_files()) == 1


@XDIST
def test_ctrl_c_ends_in_good_order(project: Project, more: tuple[str, ...]) -> None:
    process = hang(project, *more)
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
    assert "KeyboardInterrupt" in out and "INTERNALERROR" not in out
    assert "--resume --run-file" in out
    before = recorded(project)
    assert before >= cells("TRITON_ATTN") and not before & cells("ULTRAQUANT")
    assert read(project.path / "run.jsonl", lenient=False).summary is None
    done = len(project.ran())
    result = finish(project)
    assert result.ret == 1
    assert set(project.ran()[done:]) == (cells("TRITON_ATTN", "ULTRAQUANT", "ROCM_SEGMENTED_ATTN") - before)
    run = read(project.path / "run.jsonl", lenient=False)
    assert {r.cell_id for r in run.records} == cells("TRITON_ATTN", "ULTRAQUANT", "ROCM_SEGMENTED_ATTN")
    again = [r for r in run.records if r.verdict is Verdict.TIMEOUT]
    assert {r.cell_id for r in again} == cells("ULTRAQUANT") and max(r.attempt for r in again) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_controller_alone(project: Project, number: signal.Signals) -> None:
    process = hang(project, "-n", "2")
    os.kill(process.pid, number)
    out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2 and "INTERNALERROR" not in out
    assert recorded(project) >= cells("TRITON_ATTN")


@XDIST
def test_ctrl_c_twice_leaves_at_once(project: Project, more: tuple[str, ...]) -> None:
    project.pytester.makeconftest(
        """
        import pathlib, time, pytest

        @pytest.hookimpl(tryfirst=True)
        def pytest_sessionfinish(session):
            if not hasattr(session.config, "workerinput"):
                pathlib.Path("ending").touch()
                time.sleep(1000)
        """
    )
    process = hang(project, *more)
    os.killpg(process.pid, signal.SIGINT)
    eventually((project.path / "ending").exists)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    eventually(lambda: not project.processes())
    assert recorded(project) >= cells("TRITON_ATTN")
    (project.path / "conftest.py").unlink()
    assert finish(project).ret == 1
    assert recorded(project) == cells("TRITON_ATTN", "ULTRAQUANT", "ROCM_SEGMENTED_ATTN")


@XDIST
def test_pytest_killed(project: Project, more: tuple[str, ...]) -> None:
    process = hang(project, *more)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=PATIENCE)
    eventually(lambda: not project.processes())
    project.remove_session_dirs()
    assert finish(project).ret == 1
    assert recorded(project) == cells("TRITON_ATTN", "ULTRAQUANT", "ROCM_SEGMENTED_ATTN")


@pytest.mark.slow
def test_a_killed_node_loses_nothing_but_its_cell(project: Project) -> None:
    file = project.matrix("TRITON_ATTN", "ULTRAQUANT", "ROCM_ATTN", batches=("decode",))
    process = project.start(file, "--run-file", "run.jsonl", "-n", "1", "--limit-run", "4")
    eventually(lambda: any("ULTRAQUANT" in cell for cell in project.ran()))
    nodes = [pid for pid in project.processes() if pid != process.pid and os.getsid(pid) == process.pid]
    assert len(nodes) == 1
    os.kill(nodes[0], signal.SIGKILL)
    out, _ = process.communicate(timeout=PATIENCE)
    run = read(project.path / "run.jsonl", lenient=False)
    assert {r.cell_id for r in run.records} == cells("TRITON_ATTN", "ULTRAQUANT", "ROCM_ATTN"), out
    assert [r.attempt for r in run.records if r.verdict is Verdict.TIMEOUT] == [2, 1]
    assert process.returncode == 1


def test_two_runs_on_one_file(project: Project) -> None:
    process = hang(project)
    result = project.run("matrices/small.toml", "--resume", "--run-file", "run.jsonl")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *another run is writing this file*"])
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=PATIENCE)


def test_a_truncated_last_line_is_no_obstacle(project: Project) -> None:
    file = project.matrix("TRITON_ATTN")
    project.run(file, "--run-file", "run.jsonl")
    path = project.path / "run.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    last = max(i for i, line in enumerate(lines) if b'"kind":"record"' in line)
    path.write_bytes(b"".join(lines[:last]) + lines[last][:100])
    result = project.run(file, "--run-file", "run.jsonl", "--resume")
    result.assert_outcomes(passed=2)
    assert len(project.ran()) == 3
    result.stdout.fnmatch_lines(["*run.jsonl: line *not a line of JSON*"])


@XDIST
def test_a_run_file_that_cannot_grow_is_infrastructure(project: Project, more: tuple[str, ...]) -> None:
    file = project.matrix("TRITON_ATTN", "FLEX_ATTENTION", blocks=tuple(range(16, 544, 16)))
    words = [sys.executable, "-m", "pytest", *project.arguments(file, "--run-file", "run.jsonl", *more)]
    limit = "resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))"
    code = f"import os, resource, sys; {limit}; os.execv(sys.argv[1], sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=project.path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 3, done.stdout
    assert "the cell was not run: run.jsonl: " in done.stdout.replace(f"{project.path}/", "")
    assert "records cannot be written" in done.stdout and "INTERNALERROR" not in done.stdout
    assert len(project.ran()) < 66  # it stops: nothing that ran would be kept
    before = recorded(project)
    assert 0 < len(before) < 66
    assert project.run(file, "--resume", "--run-file", "run.jsonl").ret == 0
    assert len(recorded(project)) == 66
