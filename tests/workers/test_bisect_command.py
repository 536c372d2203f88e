"""The command over real worker servers and a made-up engine: what it finds, prints, records, and leaves behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_engine import cell

from capmatrix import cli, codec
from capmatrix.cell import Verdict
from capmatrix.commands.bisect import bisect
from capmatrix.report.explain import explain
from capmatrix.runwriter import RunWriter
from capmatrix.store import read

ENGINE = "switched_engine:open_session"
SUBJECT = cell("ROCM_ATTN", block=128)
ID = codec.cell_id(SUBJECT)


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    """A run in which the cell failed."""
    from capmatrix.cell import Phase, Record, Rung

    path = tmp_path / "run.jsonl"
    with RunWriter(path, {"matrix": "m"}) as writer:
        writer.record(Record(ID, SUBJECT, Verdict.ERROR, Rung.COMPILED, Phase.FORWARD, "env"))
    return path


def call(*words: str, tmp_path: Path) -> tuple[int, Path]:
    """Exit status and the run file of a bisection."""
    out = tmp_path / "bisect.jsonl"
    arguments = cli._parser().parse_args(["bisect", *words, "--run-file", str(out)])
    arguments.engine = ENGINE
    return bisect(arguments, []), out


@pytest.mark.slow
def test_a_set_is_found_told_and_recorded(
    run_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], tag: str
) -> None:
    status, out = call(
        "ROCM_ATTN b128", "--run", str(run_file), "--switches", "--also", "block_size=16,64", tmp_path=tmp_path
    )
    told = capsys.readouterr()
    assert status == 0
    assert "Smallest set that makes it pass: VLLM_ROCM_USE_AITER=1 block_size=64\n" in told.out
    unwrapped = " ".join(told.out.split())  # where lines break depends on the length of the paths in them
    assert "VLLM_BATCH_INVARIANT=1" in unwrapped and "no worker server with these switches" in unwrapped
    assert "crash (compiled)" in told.out
    idle = told.out.partition("Without effect on this cell in vllm 0.32.0")[2]
    assert "\n  VLLM_ROCM_USE_AITER_UNIFIED_ATTENTION=1\n" in idle
    assert "\n  VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT=1\n" not in idle
    assert "each switch set starts a worker server of its own" in told.err and "[server 1/24] as it is" in told.err

    run = read(out)
    assert run.problems == [] and run.started == []
    records = {r.cell_id: r for r in run.records}
    assert records[ID].verdict is Verdict.ERROR
    (passed,) = [r for r in run.records if r.verdict is Verdict.PASS]
    assert passed.cell.block_size == 64 and dict(passed.cell.switches) == {"VLLM_ROCM_USE_AITER": "1"}
    assert {r.environment for r in run.records} <= set(run.environments)
    assert "VLLM_ROCM_USE_AITER=1" in explain(passed.cell_id, run.records, run.environments, run.header)
    assert run.summary is not None and run.summary["bisect"]["cell"] == ID
    assert len(run.summary["bisect"]["smallest"]) == 2


@pytest.mark.slow
def test_nothing_found_is_exit_status_1_and_json(
    run_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (ID, "--run", str(run_file), "--also", "block_size=16,32", "--json")
    status, _ = call(*words, tmp_path=tmp_path)
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (status, data["smallest"], data["proven"], data["servers"]) == (1, None, True, 1)


def test_a_target_that_is_not_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("device TRITON_ATTN b16- auto- -decode", "smoke", "--target", "device", "--switches")
    status, out = call(*words, tmp_path=tmp_path)
    told = capsys.readouterr()
    assert status == 1 and "could not run here" in told.out and "no such hardware here" in told.out
    assert len(read(out).records) == 1


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["x"], "say what to try"),
        (["no_such", "--switches"], "no such cell"),
        (["offline:gfx942 ROCM_ATTN b128", "smoke", "--run", "r", "--switches"], "not from both"),
        (["x", "nowhere.toml", "--switches"], "no such matrix file"),
    ],
)
def test_mistakes(words: list[str], part: str, run_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if len(words) < 3 and "nowhere.toml" not in words:
        words = [*words, "--run", str(run_file)]
        words[0] = words[0] if words[0] == "no_such" else "ROCM_ATTN"
    status = cli.main(["bisect", *words])
    assert status == 2
    assert part in capsys.readouterr().err
