"""The exit statuses of ``capmatrix run``: 0 as expected, 1 not so or nothing learnt, 2 wrong use, 3 infrastructure."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from plugin_project import PATIENCE, Project, eventually, preset


def command(project: Project, *words: str, target: str = "offline:gfx942") -> list[str]:
    run = [sys.executable, "-m", "capmatrix", "run", *words, "--target", target, "-n", "0"]
    return [*run, "--", "-p", "xdist", "--capmatrix-engine", project.engine]


def run(project: Project, *words: str, target: str = "offline:gfx942") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(project, *words, target=target),
        cwd=project.path, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip


def expect(project: Project, backend: str, verdict: str) -> None:
    folder = Path(project.path) / "matrices" / "expectations"
    folder.mkdir(exist_ok=True)
    entry = f'[[expect]]\nverdict = "{verdict}"\nbackend = "{backend}"\nreason = "r"\nlink = "unreported"\n'
    (folder / "e.toml").write_text(entry)


def test_0_as_expected(project: Project) -> None:
    assert run(project, project.matrix("TRITON_ATTN", "ROCM_AITER_FA")).returncode == 0
    file = project.matrix("TRITON_ATTN", "ROCM_SEGMENTED_ATTN")
    expect(project, "ROCM_SEGMENTED_ATTN", "error")
    done = run(project, file)
    assert done.returncode == 0 and "2 xfailed" in done.stdout


def test_1_cells_contradict(project: Project) -> None:
    file = project.matrix("TRITON_ATTN", "ROCM_SEGMENTED_ATTN")
    assert run(project, file).returncode == 1  # declared, and fails
    expect(project, "TRITON_ATTN", "wrong")
    done = run(project, file, "-k", "TRITON_ATTN")
    assert done.returncode == 1 and "unexpected pass" in done.stdout


@pytest.mark.parametrize(
    ("backend", "words", "target", "says"),
    [
        ("ROCM_AITER_FA", (), "offline:gfx942", "(2 rejected)"),
        ("ROCM_AITER_UNIFIED_ATTN", (), "offline:gfx942", "(2 unverified)"),
        ("TRITON_ATTN", (), "device", "(2 unavailable)"),
        ("TRITON_ATTN", ("-k", "no_such_cell"), "offline:gfx942", "(no cell was run)"),
    ],
)
def test_1_nothing_learnt(project: Project, backend: str, words: tuple[str, ...], target: str, says: str) -> None:
    done = run(project, project.matrix(backend), *words, target=target)
    assert done.returncode == 1
    assert f"FAILED: no cell got a verdict above the declared rung {says}" in done.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("nowhere",), "no such matrix file"),
        (("matrices/small.toml", "--preset", "sead"), "did you mean 'seed'?"),
        (("matrices/small.toml", "--target", "offline:gfx1"), "unknown target"),
        (("matrices/small.toml", "--expectations", "nowhere"), "no such file or folder"),
        (("matrices/small.toml", "--resume"), "nothing to resume"),
        (("matrices/small.toml", "--limit-run", "soon"), "not a number of seconds"),
        (("matrices/small.toml", "--force", "all"), "invalid choice"),
        (("matrices/small.toml", "--nonsense"), "unrecognized arguments"),
    ],
)
def test_2_wrong_use(project: Project, words: tuple[str, ...], says: str) -> None:
    project.matrix("TRITON_ATTN", more=preset("seed", "TRITON_ATTN"))
    done = run(project, *words)
    assert done.returncode == 2
    assert says in done.stderr and "Traceback" not in done.stderr + done.stdout
    assert project.run_files() == []


def test_3_infrastructure(project: Project) -> None:
    done = run(project, project.matrix("TRITON_ATTN"), target="offline:gfx90a")
    assert done.returncode == 3
    assert "the worker server of offline:gfx90a could not start" in done.stdout


def test_130_interrupted(project: Project) -> None:
    words = command(project, project.matrix("ULTRAQUANT"))
    process = subprocess.Popen(
        words, cwd=project.path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    eventually(project.ran)
    os.kill(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130 and "--resume --run-file" in out
