"""``--time``: cells first, then rivals in turn; what goes wrong there, resuming, and who has which GPU."""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest
from plugin_project import PATIENCE, Project, eventually

from capmatrix.cell import Phase, Record, Verdict
from capmatrix.store import read

NODES = pytest.mark.parametrize("more", [("-n", "0"), ("-n", "2")], ids=["alone", "xdist"])
TIME = ("--time", "seed", "--run-file", "run.jsonl")


@pytest.fixture
def timed(project: Project) -> Project:
    """A project whose engine serves and times ``device``."""
    project.engine = "timed_engine:open_session"
    return project


def run(project: Project, *words: str) -> pytest.RunResult:
    return project.run(*words, target="device")


def records(project: Project) -> dict[str, Record]:
    """By backend and block size, of decode."""
    found = read(project.path / "run.jsonl", lenient=False).records
    return {f"{r.cell.backend} b{r.cell.block_size}": r for r in found if r.cell.batch == "decode"}


def rounds(project: Project) -> list[str]:
    """Backend and block size of each round with repeats, in order."""
    return ["-".join(line.split()[3].split("-")[1:3]) for line in project.log() if line.startswith("time ")]


def is_timed(record: Record) -> bool:
    return [t.workload for t in record.times] == ["seed"]


@NODES
def test_cells_first_then_rivals_in_turn(timed: Project, more: tuple[str, ...]) -> None:
    file = timed.matrix("TRITON_ATTN", "ROCM_ATTN", "FLEX_ATTENTION", "ROCM_AITER_FA", batches=("decode", "mixed"))
    result = run(timed, file, *TIME, *more)
    # 16 cells, of which ROCM_ATTN is wrong at block 128, and a group of rivals for each block size.
    result.assert_outcomes(passed=14 + 2, failed=2, warnings=6)
    kinds = [line.split()[0] for line in timed.log() if not line.startswith(("open", "done", "ready"))]
    assert kinds == ["run"] * 16 + ["time"] * (4 + 2 * 3 + 3 + 2 * 2)
    # FLEX_ATTENTION is refused in its first round; ROCM_ATTN is not timed where it is wrong.
    turns = {
        "b16": ["TRITON_ATTN", "ROCM_ATTN", "FLEX_ATTENTION", "ROCM_AITER_FA"]
        + ["TRITON_ATTN", "ROCM_ATTN", "ROCM_AITER_FA"] * 2,
        "b128": ["TRITON_ATTN", "FLEX_ATTENTION", "ROCM_AITER_FA"] + ["TRITON_ATTN", "ROCM_AITER_FA"] * 2,
    }
    for block, wanted in turns.items():
        assert [name.split("-")[0] for name in rounds(timed) if name.endswith(f"-{block}")] == wanted
    repeats = {line.split()[-1] for line in timed.log() if line.startswith("time ")}
    assert repeats == {"8"}
    found = records(timed)
    assert {name for name, record in found.items() if record.times} == {
        "TRITON_ATTN b16", "ROCM_ATTN b16", "ROCM_AITER_FA b16", "TRITON_ATTN b128", "ROCM_AITER_FA b128",
    }  # fmt: skip
    (time,) = found["TRITON_ATTN b16"].times
    assert (time.phase, time.workload, time.repeats, time.requests) == ("decode", "seed", 24, 256)
    assert (time.rounds, time.drifted) == ((16.04, 16.04, 16.04), False)
    assert (time.bandwidth_tb_s, time.metadata_us, time.metadata_synchronisations) == (4.0, 25.0, 1)
    assert time.clocks == {"sm_mhz": (1980.0, 1980.0)} and time.detail == "graph replay; in turn with 2 rivals"
    assert found["TRITON_ATTN b16"].phase is Phase.TIME


@NODES
def test_each_group_has_a_line_and_its_times(timed: Project, more: tuple[str, ...]) -> None:
    result = run(timed, timed.matrix("TRITON_ATTN", "FLEX_ATTENTION"), *TIME, *more)
    result.stdout.fnmatch_lines_random(
        [
            "[[]times ?/2[]]*device-b16-auto-minimax-m3-eagle3-tp4-*-decode",
            "* 16.0 us  TRITON_ATTN  seed",
            "*FLEX_ATTENTION: not timed under seed: RuntimeError: out of memory",
            "[[]times ?/2[]]*device-b128-auto-*",
            "* 128.0 us  TRITON_ATTN  seed",
        ]
    )
    assert sum(line.startswith("[times ") for line in result.outlines) == 2
    last = max(i for i, line in enumerate(result.outlines) if line.startswith("[4/4] "))
    assert result.outlines[last + 1] == "timing 2 groups of rivals, in turn"


def test_nodes_make_ready_what_will_be_timed_while_others_run(timed: Project) -> None:
    file = timed.matrix("TRITON_ATTN", "ROCM_ATTN", batches=("decode", "mixed"))
    run(timed, file, *TIME, "-n", "2")
    ready = [line.split()[2] for line in timed.log() if line.startswith("ready ")]
    # What passes and will be timed, and nothing else; before anything is timed.
    assert Counter("-".join(name.split("-")[1:3]) for name in ready) == Counter(set(rounds(timed)))
    order = [line.split()[0] for line in timed.log()]
    assert max(i for i, kind in enumerate(order) if kind == "ready") < order.index("time")
    alone = timed.matrix("TRITON_ATTN", name="other")
    before = len(timed.log())
    run(timed, alone, "--time", "seed", "-n", "0")
    assert not any(line.startswith("ready ") for line in timed.log()[before:])


@NODES
def test_what_goes_wrong_costs_a_time_and_no_verdict(timed: Project, more: tuple[str, ...]) -> None:
    file = timed.matrix("TURBOQUANT", "TRITON_ATTN", "TRITON_ATTN_DIFFKV", "ULTRAQUANT", "ROCM_ATTN", blocks=(16,))
    result = run(timed, file, *TIME, "--limit-run", "1", *more)
    result.assert_outcomes(passed=6, warnings=3)
    assert result.ret == 0
    found = records(timed)
    assert {record.verdict for record in found.values()} == {Verdict.PASS}
    reasons = {name: record.reasons for name, record in found.items()}
    assert reasons["TURBOQUANT b16"][0].startswith("not timed under seed: worker died of SIGABRT in time")
    assert reasons["ULTRAQUANT b16"] == ("not timed under seed: run limit of 1 s reached in time",)
    assert "an illegal memory access" in reasons["TRITON_ATTN_DIFFKV b16"][0]
    assert all(is_timed(found[f"{backend} b16"]) for backend in ("TRITON_ATTN", "ROCM_ATTN"))
    assert Counter(rounds(timed)) == {
        "TRITON_ATTN-b16": 3, "ROCM_ATTN-b16": 3, "TURBOQUANT-b16": 1, "TRITON_ATTN_DIFFKV-b16": 1, "ULTRAQUANT-b16": 1,
    }  # fmt: skip
    # Each of these had its worker replaced, and the next rival a fresh one.
    workers = [line.split()[1] for line in timed.log() if line.startswith("time ")]
    assert len(set(workers)) == 4
    # An attempt that failed is noted, and not made again.
    again = run(timed, file, *TIME, "--resume", "--limit-run", "1", *more)
    again.assert_outcomes(passed=5, skipped=1)
    assert len(rounds(timed)) == 9


def test_what_was_refused_before_is_not_called_timed(timed: Project) -> None:
    file = timed.matrix("FLEX_ATTENTION", blocks=(16,))
    run(timed, file, *TIME).assert_outcomes(passed=1, skipped=1, warnings=2)
    again = run(timed, file, *TIME, "--resume", "-rs")
    again.assert_outcomes(passed=1, skipped=1, warnings=1)
    shown = again.stdout.str()
    assert "each was tried before and refused" in shown and "timed already" not in shown
    assert rounds(timed) == ["FLEX_ATTENTION-b16"]


@NODES
def test_nothing_passed_nothing_is_timed(timed: Project, more: tuple[str, ...]) -> None:
    result = run(timed, timed.matrix("ROCM_ATTN", blocks=(128,)), *TIME, *more)
    result.assert_outcomes(failed=1, skipped=1)
    assert "nothing was timed: no cell passed (in 1 group)" in result.outlines
    assert rounds(timed) == [] and not any(line.startswith("ready") for line in timed.log())
    shown = run(timed, "matrices/small.toml", *TIME, "--resume", "-rs", *more).stdout.str()
    assert "no cell passed" in shown


@NODES
def test_resume_does_exactly_the_missing_times(timed: Project, more: tuple[str, ...]) -> None:
    file = timed.matrix("TRITON_ATTN", "ROCM_AITER_FA")
    run(timed, file, "--run-file", "run.jsonl", *more).assert_outcomes(passed=4)
    assert rounds(timed) == [] and "timed" not in read(timed.path / "run.jsonl").header
    run(timed, file, *TIME, "--resume", "-k", "b16", *more).assert_outcomes(passed=3)
    assert Counter(rounds(timed)) == {"TRITON_ATTN-b16": 3, "ROCM_AITER_FA-b16": 3}
    run(timed, file, *TIME, "--resume", *more).assert_outcomes(passed=5, skipped=1)
    assert Counter(rounds(timed)) == {f"{b}-b{n}": 3 for b in ("TRITON_ATTN", "ROCM_AITER_FA") for n in (16, 128)}
    assert all(map(is_timed, records(timed).values())) and len(timed.ran()) == 4
    assert {record.attempt for record in records(timed).values()} == {1}
    done = len(timed.log())
    last = run(timed, file, *TIME, "--resume", *more)
    last.assert_outcomes(passed=4, skipped=2)
    assert "not timed" not in last.stdout.str() and "nothing was timed" not in last.stdout.str()
    assert len(timed.log()) == done


def test_groups_without_a_time_are_counted_beside_those_with_one(timed: Project) -> None:
    result = run(timed, timed.matrix("ROCM_ATTN"), *TIME)
    assert "1 group of rivals not timed: no cell passed (in 1 group)" in result.outlines


def test_a_resumed_run_keeps_its_profiles(timed: Project) -> None:
    file = timed.matrix("TRITON_ATTN", "ROCM_ATTN", blocks=(16,))
    run(timed, file, *TIME, "-k", "TRITON_ATTN")
    run(timed, file, "--run-file", "run.jsonl", "--resume").assert_outcomes(passed=3)
    assert all(map(is_timed, records(timed).values()))
    assert read(timed.path / "run.jsonl").header["timed"] == "seed"


@NODES
def test_killed_while_timing(timed: Project, more: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    hold = timed.path / "hold"
    hold.touch()
    monkeypatch.setenv("TINY_HOLD", str(hold))
    file = timed.matrix("TRITON_ATTN", "ROCM_AITER_FA")
    process = timed.start(file, *TIME, *more, target="device")
    # One round of the first group is done, and the second one is held.
    eventually(lambda: len(rounds(timed)) == 2)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=PATIENCE)
    eventually(lambda: not timed.processes())
    timed.remove_session_dirs()
    # Every verdict is on disk, and no time: a part of the rounds is none.
    before = records(timed)
    assert {r.verdict for r in before.values()} == {Verdict.PASS} and len(before) == 4
    assert not any(record.times or record.reasons for record in before.values())
    hold.unlink()
    run(timed, file, *TIME, "--resume", *more).assert_outcomes(passed=6)
    assert len(timed.ran()) == 4 and all(map(is_timed, records(timed).values()))
    assert len(rounds(timed)) == 2 + 12


def test_a_group_that_was_done_before_the_kill_is_not_done_again(
    timed: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = timed.matrix("TRITON_ATTN", "ROCM_AITER_FA", blocks=(16,))
    run(timed, file, *TIME)
    file = timed.matrix("TRITON_ATTN", "ROCM_AITER_FA")
    hold = timed.path / "hold"
    hold.touch()
    monkeypatch.setenv("TINY_HOLD", str(hold))
    process = timed.start(file, *TIME, "--resume", target="device")
    eventually(lambda: len(rounds(timed)) == 7)
    os.kill(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2 and "--resume --run-file" in out and "INTERNALERROR" not in out
    hold.unlink()
    run(timed, file, *TIME, "--resume").assert_outcomes(passed=5, skipped=1)
    assert Counter(rounds(timed))["TRITON_ATTN-b16"] == 3 and all(map(is_timed, records(timed).values()))


def test_another_environment_adds_nothing_to_a_record(timed: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    file = timed.matrix("TRITON_ATTN", blocks=(16,))
    run(timed, file, "--run-file", "run.jsonl")
    before = records(timed)
    monkeypatch.setenv("TINY_ENVIRONMENT", "elsewhere")
    result = run(timed, file, *TIME, "--resume", "-rs")
    result.assert_outcomes(passed=1, skipped=1, warnings=1)
    assert "its record is of another environment than this one" in result.stdout.str()
    assert records(timed) == before
    monkeypatch.delenv("TINY_ENVIRONMENT")
    run(timed, file, *TIME, "--resume").assert_outcomes(passed=2)
    assert all(map(is_timed, records(timed).values()))


TWO_GPUS = """
from capmatrix.workers import slots

slots._visible = lambda environment, root: ("nvidia", ["0", "1"])
"""


def overlaps(log: list[str]) -> tuple[set[str], bool]:
    """The GPUs that rounds ran on, and whether two ever ran on one at a time."""
    busy: Counter[str] = Counter()
    gpus: set[str] = set()
    for line in log:
        kind, _, *rest = line.split()
        if kind in ("time", "done"):
            gpus.add(rest[0])
            busy[rest[0]] += 1 if kind == "time" else -1
            if busy[rest[0]] > 1:
                return gpus, True
    return gpus, False


def test_nodes_that_share_a_gpu_time_one_at_a_time(timed: Project) -> None:
    timed.pytester.makeconftest(TWO_GPUS)
    file = timed.matrix("TRITON_ATTN", "ROCM_AITER_FA", blocks=tuple(range(16, 16 * 9, 16)))
    run(timed, file, *TIME, "-n", "4").assert_outcomes(passed=16 + 8)
    gpus, at_once = overlaps(timed.log())
    assert gpus <= {"0", "1"} and not at_once
    nodes = {line.split()[1] for line in timed.log() if line.startswith("time ")}
    assert len(nodes) > 1
    # A group stays on one GPU: its rivals' rounds are beside each other there.
    homes: dict[str, set[str]] = {}
    for line in timed.log():
        if line.startswith("time "):
            homes.setdefault(line.split()[3].split("-")[2], set()).add(line.split()[2])
    assert all(len(where) == 1 for where in homes.values())


def test_one_gpu_is_timed_by_one_node(timed: Project) -> None:
    file = timed.matrix("TRITON_ATTN", "ROCM_AITER_FA", blocks=tuple(range(16, 16 * 7, 16)))
    run(timed, file, *TIME, "-n", "3").assert_outcomes(passed=12 + 6)
    assert len({line.split()[1] for line in timed.log() if line.startswith("time ")}) == 1


def test_rivals_of_several_servers_are_in_turn(timed: Project) -> None:
    sets = {"on": 'AITER = "1"', "off": 'AITER = "0"', "odd": 'AITER_MHA = "0"'}
    more = 'switches = ["default", "on", "off", "odd"]\n'
    more += "".join(f"[switches.{name}]\nVLLM_ROCM_USE_{line}\n" for name, line in sets.items())
    file = timed.matrix("TRITON_ATTN", blocks=(16,), more=more)
    run(timed, file, *TIME).assert_outcomes(passed=5)
    workers = [line.split()[1] for line in timed.log() if line.startswith("time ")]
    assert workers[:4] == workers[4:8] == workers[8:] and len(set(workers)) == 4
    found = read(timed.path / "run.jsonl").records
    assert len(found) == 4 and all(is_timed(record) for record in found)
    assert {t.detail for record in found for t in record.times} == {"graph replay; in turn with 3 rivals"}


def test_several_profiles_are_timed_one_after_the_other(timed: Project) -> None:
    own = timed.path / "own.toml"
    own.write_text(
        (timed.path / timed.matrix("TRITON_ATTN", "ROCM_AITER_FA", blocks=(16,))).read_text()
        + "[workload.small]\nconcurrency = 2\ninput = 100\noutput = 10\n"
    )
    result = run(timed, "matrices/small.toml", "--time", "seed,own.toml:small", "--run-file", "run.jsonl")
    result.assert_outcomes(passed=3)
    profiles = [line.split()[4] for line in timed.log() if line.startswith("time ")]
    assert profiles == ["256"] * 6 + ["2"] * 6
    assert all([t.workload for t in record.times] == ["seed", "small"] for record in records(timed).values())


def test_what_cannot_be_timed_has_no_item(timed: Project) -> None:
    file = timed.matrix("TRITON_ATTN", batches=("mixed",))
    run(timed, file, *TIME).assert_outcomes(passed=2)
    offline = timed.run(timed.matrix("TRITON_ATTN", name="b"), "--time", "seed")
    offline.assert_outcomes(passed=2)
    assert rounds(timed) == []


@pytest.mark.parametrize("words", [("--time", "no-such"), ("--time", "seed", "-n", "2", "--dist", "loadfile")])
def test_a_mistake_is_one_message(timed: Project, words: tuple[str, ...]) -> None:
    result = run(timed, timed.matrix("TRITON_ATTN"), *words)
    assert result.ret == pytest.ExitCode.USAGE_ERROR and timed.log() == []
    assert len([line for line in result.errlines if line.startswith("ERROR")]) == 1


def test_a_run_file_that_cannot_grow_is_infrastructure(timed: Project) -> None:
    file = timed.matrix("TRITON_ATTN", blocks=(16,))
    run(timed, file, "--run-file", "run.jsonl")
    timed.pytester.makeconftest(
        """
        from capmatrix.runwriter import RunWriter, StoreError

        def record(self, record):
            raise StoreError("run.jsonl: no space left")

        RunWriter.record = record
        """
    )
    result = run(timed, file, *TIME, "--resume")
    assert result.ret == 3 and "INTERNALERROR" not in result.stdout.str()
    result.stdout.fnmatch_lines(["*the cells were not timed: run.jsonl: no space left*", "1 group*not timed*"])


def test_collecting_shows_the_groups(timed: Project) -> None:
    result = run(timed, timed.matrix("TRITON_ATTN", "ROCM_ATTN"), "--time", "seed", "--collect-only", "-q")
    names = [line.rpartition("::")[2] for line in result.outlines if "::" in line]
    assert [name.startswith("times[device-b") for name in names] == [False] * 4 + [True] * 2
