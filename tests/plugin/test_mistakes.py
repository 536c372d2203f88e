"""Wrong input is one message and pytest's usage error; nothing is started or written."""

from __future__ import annotations

from pathlib import Path

import pytest
from plugin_project import Project, preset


def one_error(project: Project, result: pytest.RunResult, *parts: str) -> None:
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    errors = [line for line in result.errlines if line.strip()]
    assert len(errors) == 1, errors
    assert errors[0].startswith("ERROR: ")
    for part in parts:
        assert part in errors[0]
    assert "Traceback" not in result.stdout.str()
    assert project.run_files() == [] and project.log() == [] and not list(Path(project.path).glob(".*.lock"))


@pytest.mark.parametrize("more", [(), ("-n", "2"), ("--collect-only",)], ids=["alone", "xdist", "collect-only"])
def test_an_unknown_backend(project: Project, more: tuple[str, ...]) -> None:
    file = project.matrix("ROCM_ATN")
    one_error(project, project.run(file, *more), f"{file}:2", "ROCM_ATN", "did you mean 'ROCM_ATTN'?")


def test_broken_toml(project: Project) -> None:
    file = project.matrix("ROCM_ATTN", more="[preset\n")
    one_error(project, project.run(file), f"{file}:7")


def test_not_utf8(project: Project) -> None:
    file = project.matrix("ROCM_ATTN")
    path = project.path / file
    path.write_bytes(path.read_bytes() + b"# \xff\n")
    one_error(project, project.run(file), file)


def test_an_unknown_target(project: Project) -> None:
    result = project.run(project.matrix("ROCM_ATTN"), target="offline:gfx943")
    one_error(project, result, "offline:gfx943", "did you mean 'offline:gfx942'?")


def test_an_unknown_preset(project: Project) -> None:
    file = project.matrix("ROCM_ATTN", more=preset("seed", "ROCM_ATTN"))
    one_error(project, project.run(file, "--preset", "sead"), "sead", "seed")
    one_error(project, project.run("matrices", "--preset", "sead"), "sead")


def test_nothing_to_resume(project: Project) -> None:
    file = project.matrix("ROCM_ATTN")
    one_error(project, project.run(file, "--resume"), "nothing to resume")
    one_error(project, project.run(file, "--resume", "--run-file", "no.jsonl"), "no.jsonl", "no such run")


def test_a_run_file_that_exists(project: Project) -> None:
    file = project.matrix("ROCM_ATTN")
    (project.path / "mine.jsonl").write_text("precious\n")
    one_error(project, project.run(file, "--run-file", "mine.jsonl"), "mine.jsonl", "--resume")
    assert (project.path / "mine.jsonl").read_text() == "precious\n"


def test_an_aiter_that_is_not_there(project: Project) -> None:
    one_error(project, project.run(project.matrix("ROCM_ATTN"), "--aiter", "nowhere"), "--aiter", "nowhere")


def test_a_bad_limit(project: Project) -> None:
    result = project.run(project.matrix("ROCM_ATTN"), "--limit-run", "soon")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--limit-run*'soon' is not a number of seconds above 0*"])


def test_a_file_that_is_not_there(project: Project) -> None:
    one_error(project, project.run("matrices/absent.toml"), "file or directory not found")
