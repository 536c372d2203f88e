"""Cells over xdist's nodes."""

from __future__ import annotations

from plugin_project import PLUGINS, Project


def test_every_cell_once(project: Project) -> None:
    file = project.matrix("TRITON_ATTN", "ROCM_ATTN", "ROCM_AITER_FA", "FLEX_ATTENTION", batches=("decode", "verify"))
    result = project.run(file, "-n", "2", "--target", "offline:gfx950")
    result.assert_outcomes(passed=20, failed=4, skipped=8, warnings=8)
    assert len(project.ran()) == len(set(project.ran())) == 32
    run = project.read()
    assert {r.cell_id for r in run.records} == set(project.ran())
    assert run.header["cells"] == 32 and run.summary is not None and run.summary["told"] == 24
    assert set(run.environments) == {"tiny-offline:gfx942", "tiny-offline:gfx950"}
    lines = [line for line in result.outlines if line.startswith("[") and "/32] " in line]
    assert [int(line[1:3]) for line in lines] == list(range(1, 33))
    starts = [line for line in result.outlines if line.startswith("starting ")]
    assert sorted(starts) == ["starting offline:gfx942", "starting offline:gfx950"]
    assert sum(line.startswith("open ") for line in project.log()) == 2  # one server a target, shared by the nodes


def test_auto_asks_for_slots(project: Project) -> None:
    from capmatrix.workers import slots

    result = project.run(project.matrix("TRITON_ATTN"), "-n", "auto")
    result.assert_outcomes(passed=2)
    nodes = f"{slots.count()} workers [[]2 items[]]"
    assert slots.count() == 1 or any(line.startswith(nodes[:2]) for line in result.outlines)


def test_auto_is_xdists_own_without_matrices(project: Project) -> None:
    project.pytester.makepyfile("def test_it(): pass")
    result = project.pytester.runpytest_subprocess(*PLUGINS, "-n", "auto", "--maxprocesses", "2")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["2 workers [[]1 item[]]"])


def test_maxfail_stops(project: Project) -> None:
    file = project.matrix("ROCM_SEGMENTED_ATTN", "TRITON_ATTN", "ROCM_ATTN", batches=("decode", "verify"))
    result = project.run(file, "-n", "2", "--maxfail", "1")
    assert result.ret == 1
    assert len(project.ran()) < 12


def test_tests_and_cells_side_by_side(project: Project) -> None:
    project.matrix("TRITON_ATTN")
    project.pytester.makepyfile("import pytest\n@pytest.mark.parametrize('n', range(5))\ndef test_it(n): pass")
    result = project.run(".", "-n", "2")
    result.assert_outcomes(passed=7)
    assert result.ret == 0


def test_a_folder_that_comes_meanwhile_moves_no_node(project: Project) -> None:
    """A word of the command line that is a path by then moves pytest's root folder: the second node sees it."""
    file = project.matrix("TRITON_ATTN", "ROCM_ATTN", batches=("decode", "verify"))
    elsewhere = project.path.parent / "elsewhere"
    elsewhere.mkdir()
    project.pytester.makeconftest(
        f"""
        import pathlib
        import time
        import pytest

        ELSEWHERE = pathlib.Path({str(elsewhere)!r})

        def pytest_configure(config):
            if getattr(config, "workerinput", {{}}).get("workerid") == "gw0":
                (ELSEWHERE / "first").touch()

        @pytest.hookimpl(optionalhook=True)
        def pytest_configure_node(node):
            if node.gateway.id == "gw1":
                for _ in range(6000):
                    if (ELSEWHERE / "first").exists():
                        break
                    time.sleep(0.01)
                (ELSEWHERE / "cache").mkdir()
        """
    )
    result = project.run(file, "-n", "2", "--triton-cache", str(elsewhere / "cache"))
    assert (elsewhere / "cache").is_dir()
    assert "collected different items" not in result.stdout.str()
    assert len(project.ran()) == 8 and {r.cell_id for r in project.read().records} == set(project.ran())
