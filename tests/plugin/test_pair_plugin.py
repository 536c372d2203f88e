"""Pair files under pytest: collection, words, run file, table and resumption."""

from __future__ import annotations

import pytest
from plugin_project import PATIENCE, PLUGINS, Project

PAIRS = """\
[pair.seed]
description = "The seed."
target_model = "minimax-m3"
target_backend = "TRITON_ATTN"
drafter = "minimax-m3-eagle3"
drafter_backend = {backends}
tp = 4
block_size = 128
"""

ID = "offline:gfx942-pair-minimax-m3:TRITON_ATTN+minimax-m3-eagle3:{}-b128-auto-tp4-k2-bf16"


def written(project: Project, *backends: str) -> str:
    path = project.path / "matrices" / "together.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(PAIRS.format(backends=list(backends)).replace("'", '"'))
    return "matrices/together.toml"


def run(project: Project, *words: str) -> pytest.RunResult:
    words = (*PLUGINS, *words, "--target", "offline:gfx942", "--capmatrix-engine", "pair_tiny_engine:open_session")
    return project.pytester.runpytest_subprocess(*words, timeout=PATIENCE)


def test_pairs_are_items_and_records(project: Project) -> None:
    file = written(project, "auto", "ROCM_AITER_FA")
    result = run(project, file)
    assert result.ret == 0
    result.assert_outcomes(passed=1, skipped=1)
    found = project.read()
    assert [(r.pair_id, r.verdict.value) for r in found.pairs] == [
        (ID.format("auto"), "pass"),
        (ID.format("ROCM_AITER_FA"), "rejected"),
    ]
    assert found.records == [] and found.summary is not None and found.summary["cells"] == 2
    assert found.environments
    result.stdout.fnmatch_lines(["*Pairs: 1 pass, 1 rejected*", "*No common block size for 128*"])
    assert "Pairs: 1 pass, 1 rejected" in project.run_files()[0].with_suffix(".md").read_text()


def test_a_directory_has_its_pair_files_too(project: Project) -> None:
    written(project, "auto")
    project.matrix("TRITON_ATTN", blocks=(16,))
    result = run(project, "matrices", "--collect-only", "-q")
    names = [line.partition("::")[2] for line in result.outlines if ".toml::" in line]
    assert ID.format("auto") in names
    assert any("-TRITON_ATTN-b16-" in name for name in names)


def test_a_preset_and_a_keyword_choose_pairs(project: Project) -> None:
    file = written(project, "auto", "ROCM_AITER_FA")
    result = run(project, file, "--preset", "seed", "-k", "eagle3:ROCM_AITER_FA", "--collect-only", "-q")
    names = [line.partition("::")[2] for line in result.outlines if ".toml::" in line]
    assert names == [ID.format("ROCM_AITER_FA")]


def test_a_wrong_pair_fails_with_what_to_do_next(project: Project) -> None:
    result = run(project, written(project, "ROCM_ATTN"))
    assert result.ret == 1
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*wrong at build: drafter ROCM_ATTN, decode: off by 3*", "*rerun*pytest*--target*"])


def test_a_finished_pair_is_not_run_again(project: Project) -> None:
    file = written(project, "auto", "ROCM_AITER_FA")
    run(project, file)
    again = run(project, file, "--resume")
    again.assert_outcomes(passed=1, skipped=1)
    assert sum(line.startswith("pair ") for line in project.log()) == 2


def test_pairs_spread_over_nodes(project: Project) -> None:
    result = run(project, written(project, "auto", "ROCM_AITER_FA", "TRITON_ATTN"), "-n", "2")
    result.assert_outcomes(passed=2, skipped=1)
    assert len(project.read().pairs) == 3


def test_a_mistake_is_one_message(project: Project) -> None:
    file = written(project, "auto")
    path = project.path / file
    path.write_text(path.read_text().replace("minimax-m3-eagle3", "minimax-m3-eagel3"))
    result = run(project, file)
    assert result.ret == 4
    text = "\n".join(result.errlines + result.outlines)
    assert "did you mean 'minimax-m3-eagle3'" in text and "Traceback" not in text


EXPECTED = """\
[[expect]]
verdict = "{verdict}"
target_model = "minimax-m3"
drafter_backend = "{backend}"
reason = "known"
link = "vllm-project/vllm#1"
"""


def test_a_committed_expectation_decides(project: Project) -> None:
    """A known failure is green; a pass that nobody expects and a refusal in its place are red."""
    file = written(project, "ROCM_ATTN", "TRITON_ATTN", "ROCM_AITER_FA")
    folder = project.path / "matrices" / "expectations"
    folder.mkdir()
    entries = folder / "together.toml"
    entries.write_text(EXPECTED.format(verdict="wrong", backend="ROCM_ATTN"))
    result = run(project, file)
    assert result.ret == 0
    result.assert_outcomes(xfailed=1, passed=1, skipped=1)
    text = "".join(EXPECTED.format(verdict="wrong", backend=name) for name in ("TRITON_ATTN", "ROCM_AITER_FA"))
    entries.write_text(text)
    result = run(project, file)
    assert result.ret == 1
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines_random(
        ["*unexpected pass, expected wrong (known*", "*unexpected rejected, expected wrong (known*"]
    )


def test_an_unexpected_pair_is_repeated_alone(project: Project) -> None:
    result = run(project, written(project, "ROCM_ATTN"), "--rerun-unexpected")
    result.assert_outcomes(failed=1)
    (found,) = project.read().pairs
    assert [v.value for v in found.repeats] == ["wrong"] * 3
    assert found.attempt == 3 and "the same 2 times more" in found.reasons[-1]
