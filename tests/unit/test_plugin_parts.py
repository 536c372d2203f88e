"""The plugin's pure parts: arguments, status lines, run file names, exit statuses, failure texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from samples import cell, failure, record, rich_record

from capmatrix.cell import Verdict
from capmatrix.errors import InputError
from capmatrix.outcome import outcome
from capmatrix.pytest_plugin import arguments, ending, guard_items, runfile
from capmatrix.pytest_plugin.facts import Facts, facts_of, label
from capmatrix.pytest_plugin.failure import describe
from capmatrix.pytest_plugin.options import add_options
from capmatrix.pytest_plugin.progress import Progress, duration
from capmatrix.store import RunWriter

AXES = '[axes]\nbackend = ["ROCM_ATTN"]\n'


def files(directory: Path, *words: str) -> list[str]:
    return [f.relative_to(directory).as_posix() for f in arguments.matrix_files(words, directory)]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in {
        "matrices/a.toml": AXES,
        "matrices/sub/b.toml": 'axes.backend = ["ROCM_ATTN"]\n',
        "matrices/drafters/c.toml": 'key = "x"\n',
        "matrices/d.toml": "[axes]\nx = 1\n",
        "matrices/e.txt": AXES,
        "mine/f.toml": "[axes]\nx = 1\n",
        "pyproject.toml": "[tool]\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_files_and_directories_that_are_matrices(tree: Path) -> None:
    shipped = ["matrices/a.toml", "matrices/sub/b.toml"]
    assert files(tree, "matrices") == files(tree, ".") == files(tree, "matrices", ".") == shipped
    assert files(tree, "matrices/sub") == ["matrices/sub/b.toml"]
    assert files(tree, "matrices/a.toml::some-cell", "matrices/a.toml") == ["matrices/a.toml"]
    assert files(tree, "mine/f.toml") == ["mine/f.toml"]  # named: an [axes] table is enough
    assert files(tree, "mine") == files(tree, "pyproject.toml") == files(tree, "matrices/e.txt") == []
    assert files(tree, "matrices/drafters/c.toml", "absent.toml", "absent") == []


def test_a_toml_argument_is_meant_for_us_even_if_it_is_not_there(tree: Path) -> None:
    assert arguments.mentions_matrix(["absent.toml"], tree)
    assert arguments.mentions_matrix(["matrices"], tree)
    assert not arguments.mentions_matrix(["mine", "tests"], tree)


def test_every_option_with_a_value_is_known_to_the_first_look() -> None:
    """Before they are registered, pytest takes their values for paths."""
    seen: list[str] = []

    class Group:
        def addoption(self, name: str, **how: Any) -> None:
            if how.get("action") != "store_true":
                seen.append(name)

    class Parser:
        def getgroup(self, *_: str) -> Group:
            return Group()

    add_options(Parser())  # type: ignore[arg-type]
    guard_items.add_options(Parser())  # type: ignore[arg-type]
    assert sorted(seen) == sorted(arguments._VALUED)


def facts(**changes: Any) -> Facts:
    made = facts_of(record(), outcome(record()), resumed=False)
    made.update(changes)  # type: ignore[typeddict-item]
    return made


def test_status_lines_count_and_estimate() -> None:
    now = [100.0]
    lines: list[tuple[str, dict[str, bool]]] = []
    progress = Progress(lambda text, **markup: lines.append((text, markup)), clock=lambda: now[0])
    progress.begin(12)
    progress.starting("offline:gfx942", "offline:gfx942")
    progress.starting("offline:gfx942", "offline:gfx942")
    assert [text for text, _ in lines] == ["starting offline:gfx942 (imports vLLM, about 10 s)"]
    progress.finished(facts(resumed=True))
    progress.finished(facts(resumed=True))
    now[0] += 30.0
    progress.finished(facts(seconds=20.0, kind="failed", verdict="wrong"))
    now[0] += 10.0
    progress.finished(facts())
    texts = [text for text, _ in lines[1:]]
    label = "offline:gfx942 ROCM_ATTN b128 fp8 minimax-m3-eagle3 tp4 decode"
    # Nine cells left at 20 s each, then eight at 15 s: neither cells that were there nor the server's start count.
    assert texts[0] == f"[ 3/12] wrong       compiled      20.0s  {label}  (3:00 left)"
    assert texts[1].endswith("(2:00 left)") and texts[1].startswith("[ 4/12] pass ")
    assert lines[1][1] == {"red": True} and lines[2][1] == {"green": True}


def test_cells_that_differ_in_execution_have_different_lines() -> None:
    lines = [label(cell(execution=execution)) for execution in ("eager", "piecewise", "full")]
    assert [line.rpartition(" ")[2] for line in lines] == ["decode", "piecewise", "full"]


def test_the_last_line_estimates_nothing() -> None:
    lines: list[str] = []
    progress = Progress(lambda text, **_: lines.append(text))
    progress.begin(1)
    progress.finished(facts())
    assert lines[0].endswith(" decode")


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (61.6, "1:02"), (3599.6, "1:00:00"), (7384, "2:03:04")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("pytest_status", "tally", "status"),
    [
        (0, {"told": 3}, 0),
        (1, {"told": 3}, 1),
        (0, {"told": 0}, 1),
        (5, {}, 1),
        (1, {"told": 3, "trouble": 1}, 3),
        (2, {"told": 3, "interrupted": True}, 2),
        (2, {"told": 3}, 2),
        (3, {"told": 3}, 3),
        (4, {"told": 3}, 4),
    ],
)
def test_exit_status(pytest_status: int, tally: dict[str, Any], status: int) -> None:
    assert ending.Tally(**tally).exit_status(pytest_status) == status


def test_stopping_for_maxfail_is_a_failure() -> None:
    tally = ending.Tally(told=1)
    tally.add(facts(kind="failed", verdict="error"))
    assert tally.exit_status(2) == 1


def test_the_newest_run_of_the_same_matrix(tmp_path: Path) -> None:
    a, b = tmp_path / "matrices" / "a.toml", tmp_path / "matrices" / "b.toml"
    with pytest.raises(InputError, match="nothing to resume: no run of a in"):
        runfile.newest(tmp_path, [a], None)
    for name, matrix, preset in (("1", a, "p"), ("2", a, None), ("3", b, None)):
        path = tmp_path / "runs" / f"{name}.jsonl"
        RunWriter(path, runfile.header([matrix], tmp_path, preset, ["device"], None, 1)).close()
    (tmp_path / "runs" / "4.jsonl").write_text("garbage\n")
    (tmp_path / "runs" / "5.jsonl").write_text('{"kind": "run", "header": []}\n')
    assert runfile.newest(tmp_path, [a], None).name == "2.jsonl"
    assert runfile.newest(tmp_path, [a], "p").name == "1.jsonl"
    assert runfile.newest(tmp_path, [b], None).name == "3.jsonl"


def test_new_run_files_do_not_collide(tmp_path: Path) -> None:
    paths = set()
    for _ in range(4):
        path = runfile.new_path(tmp_path, [tmp_path / "a.toml"])
        path.parent.mkdir(exist_ok=True)
        path.touch()
        paths.add(path)
        assert path.parent == tmp_path / "runs" and path.suffix == ".jsonl" and "a" in path.stem
    assert len(paths) == 4


def test_a_run_is_named_after_its_matrix_or_their_directory(tmp_path: Path) -> None:
    one, two = tmp_path / "matrices" / "a.toml", tmp_path / "matrices" / "b.toml"
    assert runfile.stem([one]) == "a" and runfile.stem([one, two]) == "matrices"


def test_a_failure_text_holds_what_is_needed_and_no_control_characters() -> None:
    rec = record(
        verdict=Verdict.CRASH,
        reasons=("worker died of SIGSEGV", "after\x1b[2J 3 cells"),
        failure=failure("SIGSEGV", "x" * 5000),
    )
    text = describe(rec, outcome(rec), ["pytest", "m.toml::a b"], "runs/r.jsonl")
    assert "rerun     pytest 'm.toml::a b'" in text
    assert f"explain   capmatrix explain {rec.cell_id} runs/r.jsonl" in text
    assert "reason    after\N{REPLACEMENT CHARACTER}[2J 3 cells" in text and "\x1b" not in text
    assert "  at      vllm/model_executor/layers/attention/attention.py:412 in forward" in text
    assert max(map(len, text.splitlines())) < 800


def test_a_wrong_result_shows_the_checks_that_failed() -> None:
    rec = rich_record()
    text = describe(rec, outcome(rec), ["pytest"], "")
    checks = [line for line in text.splitlines() if line.startswith("check ")]
    assert len(checks) == 2
    wanted = "check     forward, unused slots zeroed; relative L2 0.55; bound 0.0042; "
    wanted += "worst row 3 at 0.81 times its bound; requests 1 and 2"
    assert checks[0] == wanted
    assert "512 NaN, 0 unwritten" in checks[1]
    assert "explain" not in text
