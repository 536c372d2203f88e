"""Faults of cells, and of the processes around them, through pytest with two nodes.

Every time: the right verdict or a clear message, no record lost but those in flight, nothing left running (which the
``project`` fixture looks at), and ``--resume`` completes exactly the rest.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_engine import FAULTS, NOT_FAULTS, SEVERAL_CELLS
from plugin_project import CELL, FOLDERS, PATIENCE, Project, eventually

from capmatrix.cell import Verdict
from capmatrix.store import read

TWO = ("-n", "2")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB, in memory as /dev/shm is."""
    folder = tmp_path / "small"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", folder], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount a tmpfs: {done.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def blocks(*faults: str) -> tuple[int, ...]:
    return tuple(list(FAULTS).index(fault) + 1 for fault in faults)


def faulty(project: Project, *faults: str) -> str:
    project.engine = "fault_engine:open_session"
    return project.matrix("TRITON_ATTN", blocks=blocks(*faults))


def test_the_pools_faults_are_all_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDERS[1]))
    from fake_engine import ACTIONS

    assert set(ACTIONS) - NOT_FAULTS - SEVERAL_CELLS == set(FAULTS)


@pytest.mark.slow
def test_every_fault_is_its_own_cells_verdict(project: Project) -> None:
    faults = [fault for fault in FAULTS if fault not in ("FILLS", "EATS_MEMORY")]
    file = faulty(project, *faults)
    process = project.start(file, *TWO, "--run-file", "run.jsonl", "--limit-run", "1", "--limit-compile", "1")
    out, _ = process.communicate(timeout=PATIENCE * 4)
    run = read(project.path / "run.jsonl", lenient=False)
    verdicts = {list(FAULTS)[r.cell.block_size - 1]: r.verdict for r in run.records}
    assert verdicts == {fault: FAULTS[fault] for fault in faults}
    assert process.returncode == 1 and "INTERNALERROR" not in out
    assert run.started == [] and run.summary is not None and run.summary["trouble"] == 0
    ran = len(project.ran())
    again = project.run(file, *TWO, "--run-file", "run.jsonl", "--resume")
    assert again.ret == 1 and len(project.ran()) == ran


def test_a_memory_bomb_is_the_cells_error(project: Project) -> None:
    result = project.run(faulty(project, "EATS_MEMORY", "OK"), *TWO, "--run-file", "run.jsonl")
    result.assert_outcomes(passed=1, failed=1)
    reasons = {r.verdict: r.reasons for r in read(project.path / "run.jsonl").records}
    assert reasons[Verdict.ERROR] == ("MemoryError",)


def test_a_full_shared_memory_is_the_cells_error(
    project: Project, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMALL_DISK", str(small_disk))
    result = project.run(faulty(project, "FILLS", "OK"), *TWO)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*OSError: ?Errno 28? No space left on device*"])


def test_a_full_disk_under_the_run_file_is_infrastructure(project: Project, small_disk: Path) -> None:
    file = project.matrix("TRITON_ATTN", "ROCM_ATTN", blocks=tuple(range(16, 16 * 200, 16)))
    run_file = small_disk / "run.jsonl"
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * (160 << 10))
    result = project.run(file, *TWO, "--run-file", str(run_file))
    assert result.ret == 3
    text = result.stdout.str()
    assert "records cannot be written" in text and "INTERNALERROR" not in text
    before = {r.cell_id for r in read(run_file).records}
    assert 0 < len(before) < 398
    filler.unlink()
    ran = len(project.ran())
    # With room again exactly the rest is done: 256 KiB hold no more than that, so it goes on elsewhere.
    moved = project.path / "run.jsonl"
    moved.write_bytes(run_file.read_bytes())
    again = project.run(file, *TWO, "--resume", "--run-file", "run.jsonl")
    assert again.ret == 1  # ROCM_ATTN at block 128 is wrong, as ever
    assert len(project.ran()) - ran == 398 - len(before)


def start(project: Project, *backends: str, limit: str = "30") -> subprocess.Popen[str]:
    """A run of two nodes in which one cell of the first backend hangs."""
    file = project.matrix(*backends, blocks=(128,))
    process = project.start(file, *TWO, "--run-file", "run.jsonl", "--limit-run", limit)
    eventually(lambda: pid_of(project, "ULTRAQUANT"))
    return process


def test_clock_jumps_do_not_matter(project: Project) -> None:
    """The wall clock of pytest and of its nodes goes back and forth by years."""
    project.pytester.makeconftest(
        """
        import itertools, time

        real, jumps = time.time, itertools.cycle((0.0, 1e9, -1e9))
        time.time = lambda: real() + next(jumps)
        """
    )
    file = project.matrix("ULTRAQUANT", "TRITON_ATTN", blocks=(128,))
    result = project.run(file, *TWO, "--run-file", "run.jsonl", "--limit-run", "1")
    assert result.ret == 1 and "INTERNALERROR" not in result.stdout.str()
    assert verdicts(project) == {"ULTRAQUANT": Verdict.TIMEOUT, "TRITON_ATTN": Verdict.PASS}


def test_two_runs_on_one_file(project: Project) -> None:
    process = start(project, "ULTRAQUANT", "TRITON_ATTN", limit="60")
    second = project.run("matrices/small.toml", *TWO, "--resume", "--run-file", "run.jsonl")
    assert second.ret == pytest.ExitCode.USAGE_ERROR
    second.stderr.fnmatch_lines(["ERROR: *another run is writing this file*"])
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=PATIENCE)
    assert project.run("matrices/small.toml", "--resume", "--run-file", "run.jsonl", "--limit-run", "0.5").ret == 1
    assert verdicts(project) == {"ULTRAQUANT": Verdict.TIMEOUT, "TRITON_ATTN": Verdict.PASS}


def pid_of(project: Project, backend: str) -> int:
    """The newest worker process that ran a cell of this backend; 0 for none."""
    pids = [int(line.split()[1]) for line in project.log() if line.startswith("run ") and backend in line]
    return pids[-1] if pids else 0


def verdicts(project: Project) -> dict[str, Verdict]:
    return {r.cell.backend: r.verdict for r in read(project.path / "run.jsonl", lenient=False).records}


def test_a_worker_killed_from_outside(project: Project) -> None:
    process = start(project, "ULTRAQUANT", "TRITON_ATTN")
    os.kill(pid_of(project, "ULTRAQUANT"), signal.SIGKILL)
    out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1 and "SIGKILL (sent from outside" in out
    assert verdicts(project) == {"ULTRAQUANT": Verdict.CRASH, "TRITON_ATTN": Verdict.PASS}


def test_a_stopped_worker(project: Project) -> None:
    process = start(project, "ULTRAQUANT", "TRITON_ATTN", limit="3")
    os.kill(pid_of(project, "ULTRAQUANT"), signal.SIGSTOP)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert verdicts(project) == {"ULTRAQUANT": Verdict.TIMEOUT, "TRITON_ATTN": Verdict.PASS}


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)])
def test_a_forkserver_killed_or_stopped(project: Project, number: signal.Signals) -> None:
    """The cell under way ends as it would have; others get another server."""
    process = start(project, "ULTRAQUANT", "TRITON_ATTN", "TRITON_ATTN_DIFFKV", limit="3")
    (server,) = {int(line.split()[1]) for line in project.log() if line.startswith("open ")}
    os.kill(server, number)
    out, _ = process.communicate(timeout=PATIENCE * 2)
    assert process.returncode == 1 and "INTERNALERROR" not in out
    found = verdicts(project)
    assert found == {
        "ULTRAQUANT": Verdict.TIMEOUT,
        "TRITON_ATTN": Verdict.PASS,
        "TRITON_ATTN_DIFFKV": Verdict.PASS,
    }


def nodes(process: subprocess.Popen[str], project: Project) -> list[int]:
    """xdist's nodes: in the session of pytest, and not pytest itself."""
    found = []
    for pid in project.processes():
        try:
            if pid != process.pid and os.getsid(pid) == process.pid:
                found.append(pid)
        except ProcessLookupError:
            continue
    return found


@pytest.mark.parametrize("who", ["node", "pytest"])
def test_a_process_of_pytest_stopped_and_continued(project: Project, who: str) -> None:
    """It goes on where it was: limits are the pool's, and nobody took the stopped process for dead."""
    process = start(project, "ULTRAQUANT", "TRITON_ATTN", limit="4")
    stopped = nodes(process, project) if who == "node" else [process.pid]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(1)
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert verdicts(project) == {"ULTRAQUANT": Verdict.TIMEOUT, "TRITON_ATTN": Verdict.PASS}


def test_one_ctrl_c_ends_a_run_whose_nodes_are_stopped(project: Project) -> None:
    process = start(project, "ULTRAQUANT", "TRITON_ATTN", limit="60")
    for pid in nodes(process, project):
        os.kill(pid, signal.SIGSTOP)
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
    eventually(lambda: not project.processes())
    assert not project.session_dirs()
    assert project.run("matrices/small.toml", "--resume", "--run-file", "run.jsonl", "--limit-run", "0.5").ret == 1
    assert verdicts(project) == {"ULTRAQUANT": Verdict.TIMEOUT, "TRITON_ATTN": Verdict.PASS}


@pytest.mark.parametrize("damage", [b'{"kind":"record","rec', b"\x00\xff garbage", b'{"kind":"record","record":{}}\n'])
def test_a_damaged_last_line(project: Project, damage: bytes) -> None:
    file = project.matrix("TRITON_ATTN", "ROCM_AITER_FA", blocks=(16,))
    project.run(file, "--run-file", "run.jsonl", "-k", "TRITON_ATTN")
    path = project.path / "run.jsonl"
    with path.open("ab") as run_file:
        run_file.write(damage)
    result = project.run(file, *TWO, "--run-file", "run.jsonl", "--resume")
    assert result.ret == 0
    result.assert_outcomes(passed=1, skipped=1)
    assert len(project.ran()) == 2
    assert "run.jsonl: line " in result.stdout.str()


def test_what_is_no_run_file_is_not_resumed(project: Project) -> None:
    file = project.matrix("TRITON_ATTN")
    (project.path / "run.jsonl").write_text("precious\n")
    result = project.run(file, "--run-file", "run.jsonl", "--resume")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *run.jsonl: not a run file*"])
    assert (project.path / "run.jsonl").read_text() == "precious\n"
    assert CELL.format("TRITON_ATTN", 16, "decode") not in project.ran()
