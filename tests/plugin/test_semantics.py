"""Verdicts as pytest outcomes, what a failure shows, and how a run as a whole ends."""

from __future__ import annotations

import pytest
from plugin_project import CELL, Project, preset

from capmatrix.cell import Verdict


def test_outcomes_by_declaration(project: Project) -> None:
    file = project.matrix("TRITON_ATTN", "ROCM_ATTN", "ROCM_AITER_FA", "ROCM_AITER_UNIFIED_ATTN", "ROCM_SEGMENTED_ATTN")
    result = project.run(file, "-rs")
    # TRITON_ATTN twice and ROCM_ATTN at block 16; ROCM_ATTN at 128 and ROCM_SEGMENTED_ATTN twice are over-advertised.
    result.assert_outcomes(passed=3, failed=3, skipped=4)
    assert result.ret == 1
    text = result.stdout.str()
    assert "rejected: block size not supported" in text
    assert "unverified: native operator has no code here" in text
    assert text.count("over-advertised: the backend declares this cell") == 3


def test_forced_cells(project: Project) -> None:
    file = project.matrix("ROCM_AITER_FA")
    result = project.run(file, "--force", "validation", "-rxX")
    result.assert_outcomes(skipped=2, xpassed=1, xfailed=1)
    assert result.ret == 0
    text = result.stdout.str()
    assert "under-advertised: the backend rejects this cell and it passes" in text
    assert "forced (validation), error in forward: paged_attention_v1 fails" in text


def test_nan_unsafe_passes_with_a_warning(project: Project) -> None:
    result = project.run(project.matrix("FLEX_ATTENTION"))
    result.assert_outcomes(passed=2, warnings=2)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*CellWarning: nan_unsafe: right with zeroed*"])


@pytest.mark.parametrize("more", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_in_ci_the_summary_keeps_to_a_line_a_cell(
    project: Project, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    monkeypatch.setenv("CI", "true")  # pytest then shortens no line of its summary
    file = project.matrix("ROCM_SEGMENTED_ATTN", "TURBOQUANT", blocks=(128,))
    result = project.run(file, "--junit-xml", "junit.xml", *more)
    result.assert_outcomes(failed=2)
    lines = [x for x in result.outlines if x]
    summary = lines[next(i for i, x in enumerate(lines) if "short test summary" in x) + 1 : -1]
    assert len(summary) == 2 and all(x.startswith("FAILED ") for x in summary)
    over = "over-advertised: the backend declares this cell; error in forward: No common block size for 128"
    assert any(x.endswith(f"-decode - {over}") for x in summary)
    assert f'message="{over}"' in (project.path / "junit.xml").read_text()


def test_a_failure_is_compact_and_says_what_to_do(project: Project) -> None:
    file = project.matrix(
        "ROCM_SEGMENTED_ATTN",
        blocks=(128,),
        more=preset("p", "ROCM_SEGMENTED_ATTN"),
    )
    result = project.run(file, "--preset", "p")
    cell = CELL.format("ROCM_SEGMENTED_ATTN", 128, "decode")
    run = project.run_files()[0].relative_to(project.path)
    result.stdout.fnmatch_lines(
        [
            "failed    over-advertised: the backend declares this cell; error in forward: No common block size for 128",
            "verdict   error (compiled), in phase forward",
            "exception ValueError: No common block size for 128",
            "  at      vllm/v1/worker/utils.py:12 in resolve",
            f"rerun     pytest {file}::{cell} --preset p --target offline:gfx942",
            f"explain   capmatrix explain {cell} {run}",
            f"FAILED {file}::{cell}*",
        ]
    )
    assert "Traceback" not in result.stdout.str() and "collect.py" not in result.stdout.str()
    (line,) = [x for x in result.outlines if x.startswith("rerun ")]
    again = project.run(*line.split()[2:], "--run-file", "again.jsonl", target=None)
    again.assert_outcomes(failed=1)


def test_a_crash_is_a_cell_and_the_rest_runs(project: Project) -> None:
    result = project.run(project.matrix("TURBOQUANT", "TRITON_ATTN"))
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(["*SIGABRT*"])
    assert [r.verdict for r in project.read().records] == [Verdict.CRASH] * 2 + [Verdict.PASS] * 2


def test_a_hang_is_a_timeout(project: Project) -> None:
    result = project.run(project.matrix("ULTRAQUANT", "TRITON_ATTN", blocks=(16,)), "--limit-run", "0.5")
    result.assert_outcomes(passed=1, failed=1)
    assert [r.verdict for r in project.read().records] == [Verdict.TIMEOUT, Verdict.PASS]


@pytest.mark.parametrize(
    ("backends", "target", "counted"),
    [
        (["ROCM_AITER_FA"], "offline:gfx942", "2 rejected"),
        (["ROCM_AITER_UNIFIED_ATTN"], "offline:gfx942", "2 unverified"),
        (["TRITON_ATTN"], "device", "2 unavailable"),
    ],
)
@pytest.mark.parametrize("more", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_a_run_that_tells_nothing_fails(
    project: Project, backends: list[str], target: str, counted: str, more: tuple[str, ...]
) -> None:
    result = project.run(project.matrix(*backends), *more, target=target)
    result.assert_outcomes(skipped=2)
    assert result.ret == 1
    result.stdout.fnmatch_lines([f"FAILED: no cell got a verdict above the declared rung ({counted})"])


def test_a_run_without_cells_fails(project: Project) -> None:
    result = project.run(project.matrix("TRITON_ATTN"), "-k", "nothing_like_it")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["FAILED: no cell got a verdict above the declared rung (no cell was run)"])
    assert project.run_files() == []


def test_an_engine_that_does_not_open_is_infrastructure(project: Project) -> None:
    result = project.run(project.matrix("TRITON_ATTN"), target="offline:gfx90a")
    assert result.ret == 3
    text = result.stdout.str()
    assert "the cell was not run: the worker server of offline:gfx90a could not start: ImportError" in text
    assert text.count("Traceback (most recent call last)") == 1  # the server's own, once
    assert project.read().records == []


def test_the_run_ends_with_table_and_paths(project: Project) -> None:
    result = project.run(project.matrix("TRITON_ATTN", "ROCM_ATTN"))
    (path,) = project.run_files()
    result.stdout.fnmatch_lines(
        ["*support table*", "*ROCM_ATTN*", f"run file: {path}", f"Markdown: {path.with_suffix('.md')}"]
    )
    assert "ROCM_ATTN" in path.with_suffix(".md").read_text()


def test_status_lines(project: Project) -> None:
    result = project.run(project.matrix("TRITON_ATTN", "ROCM_ATTN"))
    result.stdout.fnmatch_lines(
        [
            "starting offline:gfx942",
            "[[]1/4[]] pass * compiled * offline:gfx942 TRITON_ATTN b16 auto minimax-m3-eagle3 tp4 decode * left)",
            "[[]2/4[]] pass *",
            "[[]3/4[]] pass *",
            "[[]4/4[]] wrong * ROCM_ATTN b128 auto minimax-m3-eagle3 tp4 decode",
        ],
        consecutive=True,
    )


def test_the_run_file(project: Project) -> None:
    project.run(project.matrix("TRITON_ATTN", "ROCM_ATTN"))
    run = project.read()
    assert run.header["matrix"] == "small" and run.header["targets"] == ["offline:gfx942"] and run.header["cells"] == 4
    assert run.problems == [] and run.started == []
    assert [r.cell_id for r in run.records] == project.ran()
    assert set(run.environments) == {"tiny-offline:gfx942"} == {r.environment for r in run.records}
    assert run.summary is not None
    assert run.summary["verdicts"] == {"pass": 3, "wrong": 1} and run.summary["exit"] == 1
    kinds = [
        line.partition(b'"kind":"')[2].partition(b'"')[0] for line in project.run_files()[0].read_bytes().splitlines()
    ]
    assert kinds[:4] == [b"run", b"started", b"environment", b"record"] and kinds[-1] == b"end"


def test_junit_properties(project: Project) -> None:
    project.run(project.matrix("TRITON_ATTN", blocks=(16,)), "--junitxml", "out.xml")
    text = (project.path / "out.xml").read_text()
    assert 'name="verdict" value="pass"' in text and 'name="rung" value="compiled"' in text


def test_a_folder_for_compiled_kernels_reaches_the_engine(project: Project) -> None:
    project.run(project.matrix("TRITON_ATTN", blocks=(16,)), "--triton-cache", "kernels")
    assert f"cache {project.path / 'kernels'}" in project.log()
