"""Runs compared to committed expectations: what is green, what is red, and how a flake gets its name."""

from __future__ import annotations

import pytest
from plugin_project import CELL, Project

from capmatrix import cli
from capmatrix.cell import Verdict
from capmatrix.pytest_plugin import alone

XDIST = pytest.mark.parametrize("more", [(), ("-n", "2")], ids=["alone", "xdist"])

WRONG = """\
[[expect]]
verdict = "{verdict}"
backend = "{backend}"
block_size = 128
reason = "the kernel reads past the block"
link = "vllm-project/vllm#1"
"""


def expectations(project: Project, text: str, name: str = "e") -> None:
    folder = project.path / "matrices" / "expectations"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.toml").write_text(text)


@XDIST
def test_a_run_as_expected_exits_0(project: Project, more: tuple[str, ...]) -> None:
    file = project.matrix("TRITON_ATTN", "ROCM_ATTN")
    assert project.run(file, *more).ret == 1
    expectations(project, WRONG.format(verdict="wrong", backend="ROCM_ATTN"))
    result = project.run(file, *more, "-rx")
    result.assert_outcomes(passed=3, xfailed=1)
    assert result.ret == 0
    text = result.stdout.str()
    assert "wrong as expected (the kernel reads past the block, vllm-project/vllm#1, " in text
    assert "matrices/expectations/e.toml:1): relative L2 0.55" in text


@XDIST
def test_an_unexpected_pass_and_another_failure_are_red(project: Project, more: tuple[str, ...]) -> None:
    file = project.matrix("TRITON_ATTN", "ROCM_ATTN", blocks=(128,))
    expectations(project, WRONG.format(verdict="wrong", backend="TRITON_ATTN"))
    expectations(project, WRONG.format(verdict="crash", backend="ROCM_ATTN"), "f")
    result = project.run(file, *more)
    result.assert_outcomes(failed=2)
    assert result.ret == 1
    text = result.stdout.str()
    assert "unexpected pass, expected wrong (the kernel reads past the block" in text
    assert "unexpected wrong, expected crash (the kernel reads past the block" in text


def test_other_expectations_and_none(project: Project) -> None:
    file = project.matrix("ROCM_ATTN")
    expectations(project, WRONG.format(verdict="wrong", backend="ROCM_ATTN"))
    assert project.run(file, "--expectations", "none").ret == 1
    (project.path / "mine.toml").write_text(WRONG.format(verdict="crash", backend="ROCM_ATTN"))
    result = project.run(file, "--expectations", "mine.toml")
    assert result.ret == 1 and "expected crash" in result.stdout.str()
    assert project.run(file, "--expectations", "matrices/expectations").ret == 0


@pytest.mark.parametrize("more", [(), ("-n", "2"), ("--collect-only",)], ids=["alone", "xdist", "collect-only"])
def test_mistakes_are_one_message(project: Project, more: tuple[str, ...]) -> None:
    file = project.matrix("ROCM_ATTN")
    one = WRONG.format(verdict="wrong", backend="ROCM_ATTN")
    expectations(project, one + one.replace("block_size = 128", 'batch = "decode"').replace("wrong", "error"))
    result = project.run(file, *more)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [x for x in result.errlines if x.strip()]
    assert "matrices/expectations/e.toml:7: expect[1]: ambiguous: " in line
    assert project.run_files() == [] and project.log() == []
    missing = project.run(file, *more, "--expectations", "nowhere.toml")
    assert missing.ret == pytest.ExitCode.USAGE_ERROR
    missing.stderr.fnmatch_lines(["ERROR: --expectations: no such file or folder*nowhere.toml*"])


def test_expectations_are_no_matrices(project: Project) -> None:
    project.matrix("TRITON_ATTN")
    expectations(project, WRONG.format(verdict="wrong", backend="ROCM_ATTN"))
    result = project.run("--collect-only", "-q")
    assert [x.partition("::")[0] for x in result.outlines if "::" in x] == ["matrices/small.toml"] * 2


@XDIST
def test_what_expect_writes_makes_the_run_green(project: Project, more: tuple[str, ...]) -> None:
    file = project.matrix("TRITON_ATTN", "ROCM_ATTN", "ROCM_SEGMENTED_ATTN", "ROCM_AITER_FA")
    words = (file, "--force", "validation", *more)
    assert project.run(*words, "--run-file", "run.jsonl").ret == 1
    assert cli.main(["expect", "run.jsonl"]) == 0
    assert cli.main(["expect", "run.jsonl", "--check"]) == 0
    result = project.run(*words)
    # The forced cell at block 16 passes although it is not declared: expected by now, so that losing it would be red.
    result.assert_outcomes(passed=7, xfailed=7, skipped=2)
    assert result.ret == 0


@XDIST
def test_a_flake_is_named_by_repetition(project: Project, more: tuple[str, ...]) -> None:
    file = project.matrix("TRITON_ATTN_DIFFKV", "ROCM_ATTN", "TRITON_ATTN")
    result = project.run(file, "--rerun-unexpected", "--run-file", "run.jsonl", *more)
    result.assert_outcomes(passed=4, failed=2)
    assert result.ret == 1
    flake, same = CELL.format("TRITON_ATTN_DIFFKV", 16, "decode"), CELL.format("ROCM_ATTN", 128, "decode")
    assert [project.ran().count(cell) for cell in (flake, same)] == [3, 3]
    assert len(project.ran()) == 6 + 2 + 2
    text = result.stdout.str()
    assert "flaky: wrong, pass, wrong, one run after the other: relative L2 0.2" in text
    result.stdout.fnmatch_lines([f"flaky: {flake}: wrong, pass, wrong"])
    assert f"flaky: {same}" not in text and "the same 2 times more, alone" in text
    from capmatrix.store import read

    found = {r.cell_id: r for r in read(project.path / "run.jsonl", lenient=False).records}
    assert found[flake].repeats == (Verdict.WRONG, Verdict.PASS, Verdict.WRONG) and found[flake].attempt == 3
    assert found[flake].verdict is Verdict.WRONG
    assert found[same].repeats == (Verdict.WRONG,) * 3
    # Each repetition had a worker of its own.
    pids = [line.split()[1] for line in project.log() if line.endswith(flake)]
    assert len(set(pids)) == 3

    # It is listed, and then green whichever way it falls; the others are as before.
    assert cli.main(["expect", "run.jsonl"]) == 0
    for _ in range(2):
        again = project.run(file, *more)
        assert again.ret == 0
        again.assert_outcomes(**({"passed": 4, "xfailed": 2} if project.ran().count(flake) % 2 else
                                 {"passed": 5, "xfailed": 1}))  # fmt: skip


def test_resuming_repeats_what_is_not_as_expected(project: Project) -> None:
    file = project.matrix("ROCM_ATTN", "TRITON_ATTN")
    project.run(file, "--run-file", "run.jsonl")
    result = project.run(file, "--run-file", "run.jsonl", "--resume", "--rerun-unexpected")
    assert result.ret == 1
    assert project.ran()[4:] == [CELL.format("ROCM_ATTN", 128, "decode")] * 2


def test_nothing_is_repeated_unless_asked_or_surprising(project: Project) -> None:
    file = project.matrix("ROCM_ATTN", "ROCM_AITER_FA", "ROCM_AITER_UNIFIED_ATTN")
    expectations(project, WRONG.format(verdict="wrong", backend="ROCM_ATTN"))
    assert project.run(file, "--rerun-unexpected").ret == 0
    assert len(project.ran()) == len(set(project.ran()))


def test_alone_waits_for_those_together_and_keeps_new_ones_out(project: Project) -> None:
    """Three processes: one in ``together``, then one that wants to be alone, then one more for ``together``."""
    script = project.path / "locks.py"
    script.write_text(
        """
import sys, time
from pathlib import Path
from capmatrix.pytest_plugin import alone

folder, how, name = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
(folder / f"{name}.wants").touch()
with getattr(alone, how)(folder):
    with open(folder / "log", "a") as log:
        log.write(f"+{name} ")
    while not (folder / f"{name}.go").exists():
        time.sleep(0.01)
    with open(folder / "log", "a") as log:
        log.write(f"-{name} ")
"""
    )
    import subprocess
    import sys
    import time

    from plugin_project import eventually

    folder = project.path
    log = folder / "log"

    def start(how: str, name: str) -> subprocess.Popen[bytes]:
        started = subprocess.Popen([sys.executable, str(script), str(folder), how, name])
        eventually((folder / f"{name}.wants").exists)
        return started

    def entered(name: str) -> bool:
        return log.exists() and f"+{name} " in log.read_text()

    first = start("together", "a")
    eventually(lambda: entered("a"))
    second = start("together", "b")
    eventually(lambda: entered("b"))  # any number at a time
    third = start("alone", "c")
    time.sleep(0.3)
    fourth = start("together", "d")
    time.sleep(0.3)
    assert not entered("c") and not entered("d")
    for name in ("a", "b"):
        (folder / f"{name}.go").touch()
    eventually(lambda: entered("c"))
    time.sleep(0.2)
    assert not entered("d")
    for name in ("c", "d"):
        (folder / f"{name}.go").touch()
    for process in (first, second, third, fourth):
        assert process.wait(timeout=30) == 0
    words = log.read_text().split()
    assert words.index("-c") == words.index("+c") + 1 and words.index("+d") > words.index("-c")
    assert alone  # the module under test is the installed one
