"""Which files become matrices, which cells are selected, and that other projects are left alone."""

from __future__ import annotations

import pytest
from plugin_project import CELL, PLUGINS, Project, preset


def collected(result: pytest.RunResult) -> list[str]:
    return [line for line in result.outlines if ".toml::" in line]


def test_node_ids_are_cell_ids(project: Project) -> None:
    file = project.matrix("TRITON_ATTN", "ROCM_ATTN", batches=("decode", "verify"))
    result = project.run(file, "--collect-only", "-q")
    assert result.ret == 0
    wanted = [
        f"{file}::{CELL.format(backend, block, batch)}"
        for backend in ("TRITON_ATTN", "ROCM_ATTN")
        for block in (16, 128)
        for batch in ("decode", "verify.q3")
    ]
    assert collected(result) == wanted
    assert project.run_files() == [] and project.log() == []


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("ROCM_ATTN and b128", [CELL.format("ROCM_ATTN", 128, "decode")]),
        ("b16", [CELL.format(b, 16, "decode") for b in ("TRITON_ATTN", "TRITON_ATTN_DIFFKV", "ROCM_ATTN")]),
        ("TRITON_ATTN-", [CELL.format("TRITON_ATTN", b, "decode") for b in (16, 128)]),
        ("offline:gfx942-ROCM_ATTN-b16-auto", [CELL.format("ROCM_ATTN", 16, "decode")]),
    ],
)
def test_keywords_are_precise(project: Project, expression: str, wanted: list[str]) -> None:
    file = project.matrix("TRITON_ATTN", "TRITON_ATTN_DIFFKV", "ROCM_ATTN")
    result = project.run(file, "--collect-only", "-q", "-k", expression)
    assert [line.partition("::")[2] for line in collected(result)] == wanted


def test_one_cell_by_its_node_id(project: Project) -> None:
    file = project.matrix("TRITON_ATTN", "ROCM_ATTN", batches=("decode", "verify"))
    wanted = CELL.format("TRITON_ATTN", 128, "verify.q3")
    result = project.run(f"{file}::{wanted}")
    result.assert_outcomes(passed=1)
    assert project.ran() == [wanted]


def test_every_target_of_this_machine_unless_named(project: Project) -> None:
    file = project.matrix("TRITON_ATTN", blocks=(16,))
    result = project.run(file, "--collect-only", "-q", target=None)
    targets = [line.partition("::")[2].partition("-")[0] for line in collected(result)]
    assert "offline:gfx942" in targets and "interpreter:gfx950" in targets
    two = project.run(file, "--collect-only", "-q", "--target", "offline:gfx950")
    assert [line.partition("::")[2][:14] for line in collected(two)] == ["offline:gfx950", "offline:gfx942"]


def test_a_preset_is_a_part_of_the_file(project: Project) -> None:
    file = project.matrix(
        "TRITON_ATTN",
        "ROCM_ATTN",
        more=preset("one", "ROCM_ATTN", 16),
    )
    result = project.run(file, "--preset", "one", "--collect-only", "-q")
    assert [line.partition("::")[2] for line in collected(result)] == [CELL.format("ROCM_ATTN", 16, "decode")]


def test_a_directory_of_matrices(project: Project) -> None:
    project.matrix("TRITON_ATTN", blocks=(16,), name="a")
    project.matrix("ROCM_ATTN", blocks=(16,), name="b")
    (project.path / "matrices" / "other.toml").write_text('[tool]\naxes = "none"\n')
    (project.path / "elsewhere").mkdir()
    (project.path / "elsewhere" / "c.toml").write_text((project.path / "matrices" / "a.toml").read_text())
    for words in (["matrices"], ["."], []):
        result = project.run(*words, "--collect-only", "-q")
        assert [line.partition("::")[0] for line in collected(result)] == ["matrices/a.toml", "matrices/b.toml"]


def test_testpaths_make_plain_pytest_run_the_matrices(project: Project) -> None:
    project.matrix("TRITON_ATTN", blocks=(16,))
    (project.path / "pytest.ini").write_text("[pytest]\ntestpaths = matrices\n")
    project.run().assert_outcomes(passed=1)


def test_tests_and_cells_in_one_session(project: Project) -> None:
    project.matrix("TRITON_ATTN", blocks=(16,))
    project.pytester.makepyfile(test_it="def test_it(): pass")
    result = project.run(".")
    result.assert_outcomes(passed=2)
    only_tests = project.run(".", "-k", "test_it")
    only_tests.assert_outcomes(passed=1, deselected=1)
    assert only_tests.ret == 0


def test_another_project_is_left_alone(project: Project) -> None:
    """No option, no collected file, no imported module, and its own --target works."""
    project.pytester.makeconftest("def pytest_addoption(parser): parser.addoption('--target', default='mine')")
    (project.path / "pyproject.toml").write_text("[axes]\nx = 1\n[tool.pytest.ini_options]\naddopts = []\n")
    (project.path / "matrices").mkdir()
    (project.path / "matrices" / "rotation.toml").write_text("[axes]\nx = [1, 0, 0]\n")
    project.pytester.makepyfile(
        """
        import sys

        def test_it(request):
            assert request.config.getoption("--target") == "mine"
            assert not hasattr(request.config.option, "capmatrix_engine")
            heavy = ("capmatrix.pytest_plugin.session", "capmatrix.cell", "capmatrix.matrix", "msgspec", "torch")
            loaded = [name for name in heavy if name in sys.modules]
            assert loaded == [], loaded
        """
    )
    for more in ([], ["-n", "1"]):
        result = project.pytester.runpytest_subprocess(*PLUGINS, *more)
        result.assert_outcomes(passed=1)
        assert "matrices" not in result.stdout.str()


def test_another_projects_toml_argument_is_left_alone(project: Project) -> None:
    (project.path / "x.toml").write_text("[tool]\n")
    result = project.run("x.toml", "-k", "x")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: not found: *x.toml"])


def test_help_names_the_options_where_there_are_matrices(project: Project) -> None:
    project.matrix("TRITON_ATTN")
    result = project.run("--help")
    assert result.ret == 0
    text = result.stdout.str()
    assert "--run-file" in text and "--capmatrix-engine" not in text
