"""Derived tables as pytest items, and the commands over them, with an engine that answers without vLLM."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from plugin_project import PLUGINS, ROOT, eventually

from capmatrix import cli
from capmatrix.cell import Geometry
from capmatrix.guard import defaults_query
from capmatrix.guard.defaults_query import QueryError, Selector
from capmatrix.guard.questions import Question
from capmatrix.selection import defaults
from capmatrix.selection.defaults import Defaults, Other, Row

ENGINE = "asked_engine:open_session"
HERE = Path(__file__).parent
NAME = "gfx950-minimax-m3-eagle3-drafter-b128-fp8-bfloat16"
SENTENCE = "default ROCM_ATTN is 3.47x slower than TRITON_ATTN for minimax-m3-eagle3 at block 128, fp8"


def row(**changes: object) -> Row:
    fields: dict[str, object] = {
        "architecture": "gfx950",
        "drafter": "minimax-m3-eagle3",
        "role": "drafter",
        "block_size": 128,
        "kv_cache_dtype": "fp8",
        "dtype": "bfloat16",
        "backend": "TRITON_ATTN",
        "reason": "because",
        "policy": "fastest",
        "rung": "served",
        "fastest": "TRITON_ATTN",
        "dated_to": "2026-07-07",
        "other": (Other("ROCM_ATTN", "slower", times_best=3.47),),
    }
    return Row(**(fields | changes))  # type: ignore[arg-type]


@pytest.fixture
def table(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of one row in an otherwise empty project."""
    monkeypatch.setenv("TMPDIR", str(tmp_path_factory.mktemp("t")))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(HERE)]))
    monkeypatch.setenv("ASKED_LOG", str(pytester.path / "asked.log"))
    monkeypatch.delenv("ASKED_ENGINE", raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return write(pytester.path / "defaults.toml", row())


def write(path: Path, *rows: Row) -> Path:
    path.write_text(defaults.to_toml(Defaults("fastest", 5.0, row=rows)))
    return path


def run(pytester: pytest.Pytester, *words: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess(*PLUGINS, "defaults.toml", "--capmatrix-engine", ENGINE, *words, timeout=60)


def log(pytester: pytest.Pytester) -> list[str]:
    return (pytester.path / "asked.log").read_text().splitlines()


def test_a_contradicted_row_fails_and_every_choice_is_an_item(table: Path, pytester: pytest.Pytester) -> None:
    result = run(pytester)
    result.assert_outcomes(failed=1, passed=13)
    result.stdout.fnmatch_lines([f"*{NAME}*", f"slow * gfx950 v2: {SENTENCE}", "  table: TRITON_ATTN (because)"])
    result.stdout.no_fnmatch_line("*Traceback*")
    # vLLM is asked once for all.
    assert log(pytester) == ["open offline:gfx950 {} ", "ask 14"]


def test_a_row_that_agrees_passes(table: Path, pytester: pytest.Pytester) -> None:
    run(pytester, "--guard-target-backend", "TRITON_ATTN").assert_outcomes(passed=14)
    # The V1 runner does not inherit.
    result = run(pytester, "--guard-target-backend", "TRITON_ATTN", "--guard-runner", "v1", "-k", "minimax")
    result.assert_outcomes(failed=1, deselected=13)


def test_the_tolerance_of_an_item(table: Path, pytester: pytest.Pytester) -> None:
    run(pytester, "--guard-tolerance", "300%", "-k", "minimax").assert_outcomes(passed=1, deselected=13)
    run(pytester, "--guard-tolerance", "246", "-k", "minimax").assert_outcomes(failed=1, deselected=13)


def test_a_choice_without_effect_fails(table: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASKED_ENGINE", "TRITON_ATTN ignores FLEX_ATTENTION refuses ROCM_AITER_FA")
    result = run(pytester)
    result.assert_outcomes(failed=1, passed=13)
    result.stdout.fnmatch_lines(["*speculative_config.attention_backend FLEX_ATTENTION*has no effect*TRITON_ATTN*"])


def test_a_row_of_an_unknown_gpu_is_skipped_unless_one_is_named(table: Path, pytester: pytest.Pytester) -> None:
    write(table, row(architecture="unknown"))
    result = run(pytester, "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*name one with --arch*"])
    run(pytester, "--guard-arch", "gfx942").assert_outcomes(failed=1, passed=13)


def test_a_stale_row_warns(table: Path, pytester: pytest.Pytester) -> None:
    result = run(pytester, "--guard-max-age", "1d", "-k", "minimax")
    result.assert_outcomes(failed=1, deselected=13, warnings=1)
    result.stdout.fnmatch_lines(["*stale row: newest evidence of 2026-07-07*"])


def test_rows_by_node_id_and_beside_a_matrix(table: Path, pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_subprocess(
        *PLUGINS, f"defaults.toml::{NAME}", "--capmatrix-engine", ENGINE, "--guard-target-backend", "TRITON_ATTN"
    )
    result.assert_outcomes(passed=1)


def test_mistakes_are_usage_errors(table: Path, pytester: pytest.Pytester) -> None:
    for words, message in (
        (("--guard-arch", "gfx942"), "*no row of the table is of this architecture*"),
        (("--guard-switch", "VLLM_ROCM_USE_AITR=1"), "*did you mean 'VLLM_ROCM_USE_AITER'*"),
        (("--guard-target-backend", "TRITON"), "*--target-backend: unknown*"),
    ):
        result = run(pytester, *words)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([message])
    write(table, row(block_size="many"))
    assert run(pytester).ret == pytest.ExitCode.USAGE_ERROR


def test_where_vllm_cannot_be_asked_every_item_says_so(
    table: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASKED_ENGINE", "ROCM_ATTN lacks gfx950")
    result = run(pytester, "-k", "minimax")
    result.assert_outcomes(failed=1, deselected=13)
    result.stdout.fnmatch_lines(["*vLLM cannot be asked here: no such architecture here*"])


# The commands


def asked_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Selectors ask the engine without vLLM."""
    monkeypatch.setattr(defaults_query.Selector.__init__, "__defaults__", ("", ENGINE, None))


def test_the_guard_command(table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked_with(monkeypatch)
    assert cli.main(["guard", "--table", str(table)]) == 1
    out = capsys.readouterr().out
    assert SENTENCE in out and "explicit choices: 13 win, 0 are refused with reasons, 0 have no effect" in out
    assert cli.main(["guard", "--table", str(table), "--target-backend", "TRITON_ATTN"]) == 0
    assert "inherits TRITON_ATTN" in capsys.readouterr().out
    assert cli.main(["guard", "--table", str(table), "--max-age", "1d", "--ignore-stale", "--no-choices"]) == 0
    out = capsys.readouterr().out
    assert "stale rows:" in out and "explicit choices" not in out


def test_the_guard_command_fails_where_a_choice_has_no_effect(
    table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked_with(monkeypatch)
    monkeypatch.setenv("ASKED_ENGINE", "TRITON_ATTN ignores ROCM_ATTN")
    assert cli.main(["guard", "--table", str(table)]) == 1
    assert "1 have no effect" in capsys.readouterr().out
    assert cli.main(["guard", "--table", str(table), "--no-choices"]) == 0


def test_the_guard_command_checks_something(
    table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked_with(monkeypatch)
    write(table, row(architecture="unknown"))
    assert cli.main(["guard", "--table", str(table)]) == 1
    assert "nothing was checked" in capsys.readouterr().err


def test_the_default_command(
    table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], pytester: pytest.Pytester
) -> None:
    asked_with(monkeypatch)
    words = ["default", "--arch", "gfx950", "--drafter", "minimax-m3-eagle3", "--block-size", "128"]
    words += ["--kv-cache-dtype", "fp8", "--switch", "VLLM_ROCM_USE_AITER=1", "--aiter", "none"]
    assert cli.main(words) == 0
    out = capsys.readouterr().out
    assert "default: ROCM_ATTN" in out and "VLLM_ROCM_USE_AITER=1" in out and "2. TRITON_ATTN  valid" in out
    assert log(pytester)[0] == "open offline:gfx950 {'VLLM_ROCM_USE_AITER': '1'} none"
    assert cli.main([*words, "--target-backend", "TRITON_ATTN", "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["answer"]["backend"] == "TRITON_ATTN" and data["question"]["block_size"] == 128
    assert cli.main([*words, "--sinks", "--sliding-window", "64", "--non-causal", "--format", "json"]) == 0
    geometry = json.loads(capsys.readouterr().out)["question"]["geometry"]
    assert (geometry["sinks"], geometry["sliding_window"], geometry["causal"]) == (True, 64, False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--arch", "gfx95"], "did you mean 'gfx950'"),
        (["--drafter", "minimax"], "no such drafter family"),
        (["--kv-cache-dtype", "fp7"], "--kv-cache-dtype"),
        (["--target-backend", "TRITON"], "--target-backend"),
        (["--switch", "X=1"], "unknown switch"),
        (["--switch", "VLLM_ROCM_USE_AITER"], "must be NAME=VALUE"),
        (["--tp", "7"], "do not split"),
    ],
)
def test_mistakes_in_a_question(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["default", "--arch", "gfx950", "--drafter", "minimax-m3-eagle3", *words]
    assert cli.main(given) == 2
    assert message in capsys.readouterr().err


def test_the_golden_command(table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked_with(monkeypatch)
    file = str(table.parent / "golden.json")
    assert cli.main(["golden", "--update", "--file", file]) == 0
    assert "350 choices of vllm 0.32.0" in capsys.readouterr().out  # without those of an AITER, of which there is none
    assert cli.main(["golden", "--file", file, "--arch", "gfx942"]) == 0
    assert "no choice changed" in capsys.readouterr().out
    monkeypatch.setenv("ASKED_ENGINE", "TRITON_ATTN")
    assert cli.main(["golden", "--file", file, "--arch", "gfx942"]) == 1
    out = capsys.readouterr().out
    assert "target auto plain, by head size: all ROCM_ATTN -> all TRITON_ATTN\n  gfx942 no-aiter\n" in out
    assert cli.main(["golden", "--update", "--arch", "gfx942"]) == 2


# The selector


def question(**changes: object) -> Question:
    fields: dict[str, object] = {"arch": "gfx950", "geometry": Geometry(16, 16, 128)}
    return Question(**(fields | changes))  # type: ignore[arg-type]


def test_questions_are_answered_once_each_by_one_server_a_setting(table: Path, pytester: pytest.Pytester) -> None:
    switched = (("VLLM_ROCM_USE_AITER", "1"),)
    asked = [question(), question(arch="gfx942"), question(switches=switched), question()]
    with Selector("", ENGINE) as selector:
        answers = selector.ask(asked)
        assert set(answers) == set(asked) and len(answers) == 3
        assert selector.versions() == {"vllm": "0.32.0", "aiter": ""}
        selector.ask([question(block_size=1)])  # the server is still there
    assert sorted(line for line in log(pytester) if line.startswith("open")) == [
        "open offline:gfx942 {} ",
        "open offline:gfx950 {'VLLM_ROCM_USE_AITER': '1'} ",
        "open offline:gfx950 {} ",
    ]
    assert eventually(lambda: not list(Path(os.environ["TMPDIR"]).glob("capmatrix-ask-*")))


def test_answers_stand_in_the_order_of_questions_over_many_messages(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(defaults_query, "_BATCH", 3)
    asked = [question(target_backend=name, block_size=n) for n in range(1, 5) for name in ("A", "B")]
    with Selector("", ENGINE) as selector:
        assert [answer.backend for answer in selector.ask(asked).values()] == ["A", "B"] * 4


@pytest.mark.parametrize(
    ("said", "message"),
    [("X dies BAD", "(?s)died: .*the end is near|is gone"), ("X raises BAD", "failed: ValueError: not a question")],
)
def test_what_goes_wrong_in_the_worker_is_told(
    said: str, message: str, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASKED_ENGINE", said)
    with Selector("", ENGINE) as selector, pytest.raises(QueryError, match=message):
        selector.ask([question(target_backend="BAD")])
