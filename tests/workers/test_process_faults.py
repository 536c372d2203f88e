"""Everything that a cell can do to its worker: the right verdict, the next cell runs, nothing is left running."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_engine import cell
from worker_helpers import running, wait_for

from capmatrix.cell import Phase, Record, Rung, Verdict
from capmatrix.workers.pool import Pool

MakePool = Callable[..., Pool]


def goes_on(pool: Pool) -> None:
    """The next cell passes."""
    assert pool.run(cell("OK", block=4096)).verdict is Verdict.PASS


#: What a cell does: verdict, what its first reason says, signal.
SUDDEN = {
    "FAILS": (Verdict.ERROR, "ValueError: No common block size for 128", ""),
    "INTERRUPTS": (Verdict.ERROR, "KeyboardInterrupt", ""),
    "ENDLESS_RECURSION": (Verdict.ERROR, "RecursionError", ""),
    "SYS_EXIT": (Verdict.CRASH, "exited with code 0 before finishing the cell", ""),
    "SYS_EXIT_TEXT": (Verdict.CRASH, "exited with code 1 before", ""),
    "OS_EXIT": (Verdict.CRASH, "exited with code 0 before finishing the cell", ""),
    "OS_EXIT_3": (Verdict.CRASH, "exited with code 3 before", ""),
    "ABORT": (Verdict.CRASH, "SIGABRT in forward of kernel_b: LLVM ERROR: Cannot select", "SIGABRT"),
    "SEGFAULT": (Verdict.CRASH, "SIGSEGV", "SIGSEGV"),
    "BUS_ERROR": (Verdict.CRASH, "SIGBUS", "SIGBUS"),
    "STACK_OVERFLOW": (Verdict.CRASH, "SIGSEGV", "SIGSEGV"),
    "KILLED": (Verdict.CRASH, "SIGKILL (sent from outside; often the kernel, out of memory)", "SIGKILL"),
    "ALARM": (Verdict.CRASH, "SIGALRM", "SIGALRM"),
    "CLOSES_EVERYTHING": (Verdict.CRASH, "lost its connection", ""),
    "GARBAGE": (Verdict.CRASH, "connection was damaged in forward of kernel_b", ""),
    "GARBAGE_JSON": (Verdict.CRASH, "connection was damaged", ""),
    "ENDLESS_LINE": (Verdict.CRASH, "connection was damaged", ""),
    "HALF_LINE": (Verdict.CRASH, "SIGABRT", "SIGABRT"),
    "FLOODS_AND_DIES": (Verdict.CRASH, "SIGABRT", "SIGABRT"),
    "DAEMON_AND_DIES": (Verdict.CRASH, "SIGABRT", "SIGABRT"),
    "NOT_A_RECORD": (Verdict.ERROR, "invalid record", ""),
    "ANOTHER_CELLS_RECORD": (Verdict.ERROR, "of another cell", ""),
}


@pytest.mark.parametrize("fault", SUDDEN)
def test_sudden_fault(fault: str, make_pool: MakePool) -> None:
    """A fault that ends a cell at once gives its verdict, where it was, and leaves the pool working."""
    pool = make_pool()
    verdict, says, signal = SUDDEN[fault]
    record = pool.run(cell(fault))
    assert (record.verdict, record.rung) == (verdict, Rung.COMPILED)
    assert record.cell == cell(fault)
    assert says in record.reasons[0]
    assert record.failure is not None
    assert record.failure.signal == signal
    assert record.phase is Phase.FORWARD
    assert record.environment in pool.environments
    assert record.started_at <= record.ended_at != ""
    goes_on(pool)


def test_crash_says_what_was_printed_and_where(make_pool: MakePool) -> None:
    """A crash holds the exit, the end of the cell's own output and the Python stack at its death."""
    pool = make_pool(stderr_tail=2000)
    assert pool.run(cell("OK")).verdict is Verdict.PASS
    record = pool.run(cell("SEGFAULT"))
    assert record.failure is not None
    assert record.failure.exit_code is None
    assert "Fatal Python error: Segmentation fault" in record.failure.stderr_tail
    assert "in segfault" in record.failure.traceback[-2] + record.failure.traceback[-1]
    flooded = pool.run(cell("FLOODS_AND_DIES"))
    assert flooded.failure is not None
    assert "the last words" in flooded.failure.stderr_tail
    assert len(flooded.failure.stderr_tail) <= 2000
    left = pool.run(cell("OS_EXIT_3"))
    assert left.failure is not None
    assert left.failure.exit_code == 3


def test_verdict_keeps_the_targets_rung(make_pool: MakePool) -> None:
    """A crash is evidence of its target's rung."""
    pool = make_pool()
    rungs = [pool.run(cell("OS_EXIT", target=t)).rung for t in ("interpreter:gfx950", "device", "offline:gfx942")]
    assert rungs == [Rung.INTERPRETED, Rung.EXECUTED, Rung.COMPILED]


@pytest.mark.parametrize(
    "fault",
    ["HANGS", "HANGS_BLOCKED", "HANGS_IN_LOCK", "STOPS", "SUBPROCESS_AND_HANGS", "MANY_PROCESSES", "STOPS_KEEPER"],
)
def test_hang(fault: str, make_pool: MakePool) -> None:
    """A hang, however deep, is a timeout that says which limit and where, and is gone afterwards."""
    pool = make_pool(run_s=1.0, reap_s=2.0)
    record = pool.run(cell(fault))
    assert (record.verdict, record.phase) == (Verdict.TIMEOUT, Phase.FORWARD)
    assert record.reasons[0] == "run limit of 1 s reached in forward of kernel_b"
    goes_on(pool)


def test_hang_shows_its_stack(make_pool: MakePool) -> None:
    """A timeout says where Python was."""
    record = make_pool(run_s=1.0).run(cell("HANGS_IN_LOCK"))
    assert record.failure is not None
    assert any("hangs_in_lock" in line for line in record.failure.traceback)


@pytest.mark.parametrize("fault", ["COMPILES_FOREVER", "COMPILES_MANY"])
def test_compile_limit(fault: str, make_pool: MakePool) -> None:
    """Compiling has a budget of its own, for one kernel and for many."""
    record = make_pool(compile_s=1.0).run(cell(fault))
    assert record.verdict is Verdict.TIMEOUT
    assert record.reasons[0].startswith("compile limit of 1 s reached in compile of kernel_")
    assert record.phase is Phase.COMPILE


def test_memory_bomb(make_pool: MakePool) -> None:
    """Memory beyond the limit is refused to the cell, and to it alone."""
    pool = make_pool(memory_bytes=1 << 28)
    record = pool.run(cell("EATS_MEMORY"))
    assert (record.verdict, record.reasons[0]) == (Verdict.ERROR, "MemoryError")
    goes_on(pool)


def test_huge_file(make_pool: MakePool, tmp_path: Path) -> None:
    """A file beyond the limit is refused."""
    record = make_pool(file_bytes=1 << 22).run(cell("FILLS", argument=str(tmp_path)))
    assert (record.verdict, record.reasons[0]) == (Verdict.ERROR, "OSError: [Errno 27] File too large")
    assert (tmp_path / "big").stat().st_size <= 1 << 22


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount a tmpfs: {done.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_disk_full(make_pool: MakePool, small_disk: Path) -> None:
    """No space left, on disk or in shared memory, is the cell's error."""
    pool = make_pool()
    record = pool.run(cell("FILLS", argument=str(small_disk)))
    assert (record.verdict, record.reasons[0]) == (Verdict.ERROR, "OSError: [Errno 28] No space left on device")
    goes_on(pool)


@pytest.mark.parametrize("does", ["FLOODS", "CLOSES_OUTPUT", "LEAVES_THREAD", "FORKS_ON"])
def test_harmless(does: str, make_pool: MakePool, tmp_path: Path) -> None:
    """What does no harm passes, leaves no trace on disk and gives one record."""
    pool = make_pool(retry_alone=False)
    assert pool.run(cell(does)).verdict is Verdict.PASS
    goes_on(pool)
    assert sum(f.stat().st_size for f in tmp_path.rglob("*") if f.is_file()) < 1 << 16


def test_daemon_ends_with_its_worker(make_pool: MakePool, tag: str) -> None:
    """A process that a cell leaves behind, in a session of its own, is killed with the worker, and said so."""
    pool = make_pool()
    before = len(running(tag))
    assert pool.run(cell("OK")).verdict is Verdict.PASS
    with_worker = len(running(tag))
    assert pool.run(cell("DAEMON")).verdict is Verdict.PASS
    assert wait_for(lambda: len(running(tag)) == with_worker + 1)
    assert pool.run(cell("OS_EXIT")).verdict is Verdict.CRASH
    assert len(running(tag)) < with_worker
    assert before == 0
    died = make_pool().run(cell("DAEMON_AND_DIES"))
    assert "1 process it left running killed" in died.reasons


def test_killing_the_keeper(make_pool: MakePool) -> None:
    """A cell that kills what guards it is run once more, then named; what it left is killed all the same."""
    pool = make_pool()
    record = pool.run(cell("KILLS_KEEPER"))
    assert record.verdict is Verdict.CRASH
    assert "lost twice in forward of kernel_b" in record.reasons[0]
    goes_on(pool)


def test_every_cell_has_its_record_in_order(make_pool: MakePool) -> None:
    """Amid faults no record is lost and none is another's."""
    pool = make_pool()
    does = ["OK", "FAILS", "OK", "OS_EXIT", "OK", "GARBAGE", "OK", "ABORT", "OK"]
    cells = [cell(d, block=16 * (i + 1)) for i, d in enumerate(does)]
    records: list[Record] = [pool.run(c) for c in cells]
    assert [r.cell for r in records] == cells
    assert [r.verdict for r in records if r.cell.backend == "OK"] == [Verdict.PASS] * 5
    assert os.getpid() not in [int(r.reasons[0].split()[1]) for r in records if r.cell.backend == "OK"]
