"""The benchmark beside vLLM's own: its cells, what it refuses, and its report from recorded data."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from samples import environment, record

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import attention_benchmarks as benchmark  # noqa: E402
import attention_cells as cells  # noqa: E402
import attention_report as report  # noqa: E402
import attention_vllm as other_side  # noqa: E402

from capmatrix import matrix  # noqa: E402
from capmatrix.cell import Cell, Timing, Verdict  # noqa: E402
from capmatrix.store import RunWriter  # noqa: E402

#: The grammar as vLLM's batch_spec.py documents it.
SEGMENT = re.compile(r"^(\d+)?q(\d+)(k?)(?:s(\d+)(k?))?$")


def requests(spec: str) -> list[tuple[int, int]]:
    """What vLLM's benchmark makes of a specification."""
    found = []
    for segment in spec.split("_"):
        match = SEGMENT.match(segment)
        assert match is not None, segment
        count, new, new_k, length, length_k = match.groups()
        query = int(new) * (1024 if new_k else 1)
        found += [(query, int(length) * (1024 if length_k else 1) if length else query)] * int(count or 1)
    return found


@pytest.fixture
def some(tmp_path: Path) -> tuple[Path, list[Cell], list[cells.Call]]:
    """The matrix file of one backend at block 16, its cells and its calls."""
    path = tmp_path / cells.FILE
    path.write_text(cells.matrix_text(["TRITON_ATTN"], [16], ["auto", "fp8"], cells.BATCHES))
    return path, matrix.expand(matrix.load(path), None, ["device"]), cells.calls(path, "device")


def test_every_cell_is_called_under_every_profile(some: tuple[Path, list[Cell], list[cells.Call]]) -> None:
    _, expanded, calls = some
    assert len(calls) == len(expanded) * len(cells.PROFILES) == 12
    assert len({call.key for call in calls}) == 12


def test_heads_of_the_cells_are_those_that_the_other_side_is_given(
    some: tuple[Path, list[Cell], list[cells.Call]],
) -> None:
    for cell in some[1]:
        g = cell.geometry
        assert (g.num_heads, g.num_kv_heads, g.head_size) == (
            other_side.HEADS, other_side.KV_HEADS, other_side.HEAD_SIZE
        )  # fmt: skip


@pytest.mark.parametrize(
    ("batch", "profile", "expected"),
    [
        ("decode", "long", [(1, 8193)] * 255 + [(1, 8194)]),
        ("verify", "long", [(3, 8195)] * 255 + [(3, 8196)]),
        ("prefill", "long", [(2048, 8192)] * 4),
        ("decode", "short", [(1, 1025)] * 7 + [(1, 1026)]),
        ("prefill", "short", [(2048, 2048)] * 4),
    ],
)
def test_specifications_say_the_requests(
    some: tuple[Path, list[Cell], list[cells.Call]], batch: str, profile: str, expected: list[tuple[int, int]]
) -> None:
    found = [call for call in some[2] if call.batch == batch and call.profile == profile]
    assert len(found) == 2
    for call in found:
        assert requests(call.spec) == expected


def test_layers_are_enough_to_leave_the_last_cache(some: tuple[Path, list[Cell], list[cells.Call]]) -> None:
    for call in some[2]:
        element = 1 if call.kv_cache_dtype == "fp8" else 2
        read = call.layers * sum(length for _, length in requests(call.spec)) * 2 * 8 * 128 * element
        assert call.layers == 1 if call.batch == "prefill" or call.profile == "long" else read >= 512 << 20


def test_agreement_is_the_margin_or_intervals_that_meet() -> None:
    theirs = report.Time(100.0, 99.0, 101.0)
    assert report.agree(report.Time(104.9, 104.8, 105.0), theirs)
    assert not report.agree(report.Time(106.0, 105.0, 107.0), theirs)
    assert report.agree(report.Time(106.0, 100.5, 107.0), theirs)
    assert not report.agree(report.Time(94.0, 93.0, 95.0), theirs)


def timing(call: cells.Call, median: float) -> Timing:
    return Timing(call.batch, call.profile, median, median - 1, median + 1, 24)  # type: ignore[arg-type]


def recorded(folder: Path, some: tuple[Path, list[Cell], list[cells.Call]], slower: float = 1.0) -> Path:
    """A folder of results: capmatrix 2 % above vLLM's, but prefill twice it; one of vLLM's calls failed."""
    _, expanded, calls = some
    folder.mkdir()
    (folder / "calls.json").write_text(json.dumps(calls))
    steps = []
    for cache, at in (("cold", 1000.0), ("warm", 2000.0)):
        steps.append(report.Step("vllm", cache, at, at + 300, 0))
        steps.append(report.Step("capmatrix", cache, 1_795_000_000.0, 1_795_000_120.0, 0))
        told: list[dict[str, Any]] = [{"kind": "boot", "replaced": ["rich"], "at": at + 60}]
        for variant, us in (("plain", 90.0), ("layer", 100.0)):
            for number, call in enumerate(calls):
                line = {"kind": "call", "key": call.key, "variant": variant, "at": at + 70 + 10 * number}
                figures = {"median_us": us, "min_us": us - 0.5, "max_us": us + 0.5}
                bad = call.key == "TRITON_ATTN b16 fp8 verify short"
                told.append(line | ({"error": "RuntimeError: \x1b[31mno"} if bad else figures))
        told.append({"kind": "replay", "median_us": 6.5, "at": at + 299})
        text = "\n".join(json.dumps(line) for line in told)
        # As a process leaves it that is killed while it writes.
        (folder / f"vllm-{cache}.jsonl").write_text(text + '\n{"kind": "ca')
        with RunWriter(folder / f"capmatrix-{cache}.jsonl", {"matrix": cells.FILE}) as writer:
            writer.environment(environment("device", hardware={"name": "NVIDIA H200"}))
            for cell in expanded:
                mine = [c for c in calls if c.key.rpartition(" ")[0] == _cell(cell)]
                base = 200.0 if cell.batch == "prefill" else 102.0
                times = tuple(timing(c, base * (slower if cell.batch == "decode" else 1.0)) for c in mine)
                made = record(cell, times=times, started_at="2026-11-18T11:07:10+00:00")
                writer.record(made)
    (folder / "steps.jsonl").write_text("".join(json.dumps(step._asdict()) + "\n" for step in steps))
    return folder


def _cell(cell: Cell) -> str:
    return f"{cell.backend} b{cell.block_size} {cell.kv_cache_dtype} {cell.batch}"


def test_the_report_says_which_calls_agree(
    tmp_path: Path, some: tuple[Path, list[Cell], list[cells.Call]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = recorded(tmp_path / "out", some)
    assert benchmark.main(["--report", str(folder)]) == 0
    text = capsys.readouterr().out
    assert "7 of 11 calls that both sides timed agree" in text
    row = next(line for line in text.splitlines() if "b16 auto decode long" in line)
    assert "| 90.0 | 100.0 (99.5 to 100.5) | 102.0 (101.0 to 103.0) | 1.020 | agree |" in row
    row = next(line for line in text.splitlines() if "b16 auto prefill long" in line)
    assert "| 2.000 | +100.0 us |" in row
    row = next(line for line in text.splitlines() if "fp8 verify short" in line)
    assert "RuntimeError" in row and "\x1b" not in text
    assert "- prefill, short: ratio 2.000 (2.000 to 2.000, 2 calls)" in text
    assert "one tiny kernel takes 6.5 us" in text and "stand-ins for: rich" in text


def test_the_report_says_calls_a_minute(
    tmp_path: Path, some: tuple[Path, list[Cell], list[cells.Call]], capsys: pytest.CaptureFixture[str]
) -> None:
    benchmark.main(["--report", str(recorded(tmp_path / "out", some))])
    lines = capsys.readouterr().out.splitlines()
    # Of vLLM's 12 calls one failed; the last plain one ended 180 s after the start, 120 s after the boot.
    assert "| warm | vllm | 11 | 180.0 | 3.7 | 120.0 | 5.5 |" in lines
    # 2026-11-18T11:07:10 is 30 s after the step began; it ended at 120 s.
    assert "| warm | capmatrix | 12 | 120.0 | 6.0 | 90.0 | 8.0 |" in lines
    assert "- warm: capmatrix times 1.64 calls for one of vLLM's, 1.45 without the start" in lines
    assert any(line.startswith("- warm: beside its times capmatrix judged 6 cells (6 pass)") for line in lines)


def test_times_are_compared_with_an_earlier_run(
    tmp_path: Path, some: tuple[Path, list[Cell], list[cells.Call]], capsys: pytest.CaptureFixture[str]
) -> None:
    earlier = recorded(tmp_path / "earlier", some) / "capmatrix-warm.jsonl"
    folder = recorded(tmp_path / "out", some, slower=1.2)
    assert benchmark.main(["--report", str(folder), "--against", str(earlier)]) == 0
    text = capsys.readouterr().out
    assert "The warm run against the cold one: of 12 times 0 slower and 0 faster beyond noise." in text
    assert "The warm run against the earlier one: of 12 times 4 slower and 0 faster beyond noise." in text
    assert len(re.findall(r"^- slower: .*decode.*\(\+20\.0 %\)$", text, re.MULTILINE)) == 4


def test_times_of_other_hardware_are_not_compared(
    tmp_path: Path, some: tuple[Path, list[Cell], list[cells.Call]]
) -> None:
    folder = recorded(tmp_path / "out", some)
    run = report.store.read(folder / "capmatrix-warm.jsonl")
    other = report.store.read(folder / "capmatrix-cold.jsonl")
    other.environments = {
        key: msgspec.structs.replace(e, hardware={"name": "AMD Instinct MI300X"})
        for key, e in other.environments.items()
    }
    assert next(report._changes("It", other, run)).startswith("It: of 0 times")


def test_cells_that_were_not_timed_are_told(some: tuple[Path, list[Cell], list[cells.Call]]) -> None:
    cell = some[1][0]
    why = "not timed under long: OutOfMemoryError: 8 GiB"
    lines = list(report.refused([record(cell, reasons=(why,)), record(cell, Verdict.WRONG, reasons=("off by 1",))]))
    assert lines[0].endswith(f": {why}") and lines[1].endswith(": wrong: off by 1")


def test_passes_cut_short_leave_what_there_is(
    tmp_path: Path, some: tuple[Path, list[Cell], list[cells.Call]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = recorded(tmp_path / "out", some)
    steps = [step for step in report.steps(folder) if (step.side, step.cache) != ("capmatrix", "warm")]
    (folder / "steps.jsonl").write_text("".join(json.dumps(step._asdict()) + "\n" for step in steps))
    assert benchmark.main(["--report", str(folder)]) == 0
    text = capsys.readouterr().out
    assert "7 of 11 calls that both sides timed agree" in text
    assert "| warm | vllm | 11 |" in text and "| warm | capmatrix |" not in text


def test_a_side_that_timed_nothing_is_a_failure(
    tmp_path: Path, some: tuple[Path, list[Cell], list[cells.Call]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = recorded(tmp_path / "out", some)
    (folder / "vllm-warm.jsonl").write_text("")
    assert benchmark.main(["--report", str(folder)]) == 3
    assert "| warm | vllm | nothing (exit status 0) |" in capsys.readouterr().out


def vllms(folder: Path) -> Path:
    """A folder with the names that vLLM's benchmark has."""
    folder.mkdir()
    for name in benchmark.NEEDED:
        (folder / name).write_text("")
    return folder


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "FOLDER"),
        (["{vllm}"], "--out"),
        (["{tmp}", "--out", "{tmp}/o"], "runner.py, common.py, batch_spec.py missing"),
        (["{vllm}", "--out", "{tmp}/o", "--aiter", "{tmp}/none"], "--aiter"),
        (["{vllm}", "--out", "{tmp}/o", "--backends", "TRITON_ATN"], "TRITON_ATTN"),
        (["{vllm}", "--out", "{tmp}/o", "--blocks", "0"], "block_size"),
        (["--report", "{tmp}/nothing"], "steps.jsonl"),
        (["--report", "{tmp}", "--against", "{tmp}/nothing.jsonl"], "nothing.jsonl"),
    ],
)
def test_wrong_use_is_one_line(tmp_path: Path, words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    vllm = vllms(tmp_path / "attention_benchmarks")
    assert benchmark.main([word.format(tmp=tmp_path, vllm=vllm) for word in words]) == 2
    said = capsys.readouterr().err.strip()
    assert text in said and said.startswith("error: ") and "\n" not in said


def test_results_are_not_overwritten(
    tmp_path: Path, some: tuple[Path, list[Cell], list[cells.Call]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, vllm = recorded(tmp_path / "out", some), vllms(tmp_path / "attention_benchmarks")
    assert benchmark.main([str(vllm), "--out", str(folder)]) == 2
    assert "holds results already" in capsys.readouterr().err


def test_each_side_goes_first_once_and_gets_the_same_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    monkeypatch.setattr(benchmark, "_step", lambda side, name, command, *rest: taken.append((side, name, command)))
    vllm, out = vllms(tmp_path / "attention_benchmarks"), tmp_path / "out"
    arguments = benchmark.parser().parse_args([str(vllm), "--out", str(out), "--blocks", "16", "--workers", "8"])
    benchmark.run(arguments, *benchmark.checked(arguments))
    assert [(side, name) for side, name, _ in taken] == [
        ("capmatrix", "cold"), ("vllm", "cold"), ("vllm", "warm"), ("capmatrix", "warm")
    ]  # fmt: skip
    command = taken[0][2]
    assert command[1:4] == ["-m", "capmatrix", "run"] and command[command.index("-n") + 1] == "8"
    profiles = command[command.index("--time") + 1].split(",")
    assert [name.rpartition(":")[2] for name in profiles] == list(cells.PROFILES)
    given = [json.loads(Path(c[3]).read_text()) for side, _, c in taken if side == "vllm"]
    assert [work["variants"] for work in given] == [["plain"], ["plain", "layer"]]
    assert given[0]["calls"] == given[1]["calls"] and len(given[0]["calls"]) == 12
    assert given[0]["triton_cache"] == given[1]["triton_cache"] != command[command.index("--triton-cache") + 1]


def test_a_process_over_its_limit_is_ended_and_noted(tmp_path: Path) -> None:
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
    benchmark._step("vllm", "cold", sleeper, tmp_path, 1.0)
    (step,) = report.steps(tmp_path)
    assert step.code is None and step.ended - step.begun < 40
    benchmark._step("vllm", "warm", sleeper, tmp_path, -3.0)
    assert report.steps(tmp_path) == [step]


def test_the_model_is_found_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    other_side.provide_model(tmp_path / "place")
    config = json.loads((Path.cwd() / other_side.MODEL / "config.json").read_text())
    assert config["torch_dtype"] == "bfloat16" and config["num_attention_heads"] == other_side.HEADS


def test_what_fails_is_a_line_and_not_the_end() -> None:
    class Runner:
        @staticmethod
        def BenchmarkConfig(**fields: Any) -> dict[str, Any]:
            return fields

        @staticmethod
        def run_attention_benchmark(config: dict[str, Any]) -> Any:
            assert config["use_cuda_graphs"] is (config["batch_spec"] == "8q1s1k")
            raise ValueError("no kernel\nat all")

    call = {"key": "a", "backend": "TRITON_ATTN", "spec": "8q1s1k", "layers": 16, "batch": "decode",
            "block_size": 16, "kv_cache_dtype": "auto"}  # fmt: skip
    line = other_side.measured(Runner, call, "plain", "cuda:0")
    assert line["error"] == "ValueError: no kernel" and line["key"] == "a" and line["variant"] == "plain"
    prefill = call | {"spec": "q2k", "batch": "prefill"}
    assert other_side.measured(Runner, prefill, "plain", "cuda:0")["error"] == "ValueError: no kernel"
