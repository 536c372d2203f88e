"""Servers: one for all processes of a run, gone with it, started again when lost, honest when they cannot start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_engine import cell
from worker_helpers import running, wait_for

from capmatrix import codec
from capmatrix.cell import Environment, Phase, Rung, Verdict
from capmatrix.workers import processes, session
from capmatrix.workers.pool import Pool

MakePool = Callable[..., Pool]

#: A process of a run: pool over a session folder, one cell after another, a line a record.
CLIENT = """
import sys
from fake_engine import cell
from capmatrix.workers.limits import Limits
from capmatrix.workers.pool import Pool
folder, log, *cells = sys.argv[1:]
pool = Pool("fake_engine:open_session", {"log": log}, Limits(), folder)
for text in cells:
    does, _, argument = text.partition("=")
    record = pool.run(cell(does, argument=argument))
    print(record.verdict.value, record.reasons[0], flush=True)
if "--leave" not in sys.argv:
    pool.close()
"""


def client(folder: Path, log: Path, *cells: str) -> subprocess.Popen[str]:
    """Starts a process of a run."""
    command = [sys.executable, "-c", CLIENT, str(folder), str(log), *cells]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def tree(pool: Pool) -> tuple[int, int]:
    """Pids of the supervisor and the forkserver of a pool's only server."""
    (file,) = pool.session_dir.glob("*.state")
    found = codec.decode(file.read_bytes(), session._State)
    assert found.process is not None
    (forkserver,) = [p for p, lives in processes.children(found.process.pid).items() if lives]
    return found.process.pid, forkserver


def test_warm_worker_is_kept_and_replaced(make_pool: MakePool, tmp_path: Path) -> None:
    """Cells share a worker until one dies; the engine is opened once."""
    log = tmp_path / "log"
    pool = make_pool({"log": str(log)})
    first = [pool.run(cell("OK", block=b)).reasons for b in (16, 32)]
    pool.run(cell("OS_EXIT"))
    after = pool.run(cell("OK")).reasons
    assert first[0] == first[1] != after
    assert len(log.read_text().splitlines()) == 1


def test_switches_and_targets_have_servers_of_their_own(
    make_pool: MakePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server has its cells' switches and no others that happen to be set around it."""
    monkeypatch.setenv("VLLM_ROCM_USE_AITER_MHA", "1")
    log = tmp_path / "log"
    pool = make_pool({"log": str(log)})
    names = "VLLM_ROCM_USE_AITER,VLLM_ROCM_USE_AITER_MHA"
    switched = cell("ENVIRON", argument=names, switches=(("VLLM_ROCM_USE_AITER", "1"),))
    assert pool.run(switched).reasons == ("1", "absent")
    assert pool.run(cell("ENVIRON", argument=names)).reasons == ("absent", "absent")
    assert pool.run(cell("ENVIRON", argument=names, target="offline:gfx950")).reasons == ("absent", "absent")
    assert pool.run(switched).reasons == ("1", "absent")
    assert len(log.read_text().splitlines()) == 3
    environment: Environment = pool.environments["fake-offline:gfx950"]
    assert environment.target == "offline:gfx950"


def test_slot_gets_its_gpu(make_pool: MakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On target device a worker sees its slot's GPU; on others the environment is left alone."""
    monkeypatch.setattr("capmatrix.workers.slots._visible", lambda *_: ("amd", ["0", "5"]))
    monkeypatch.delenv("HIP_VISIBLE_DEVICES", raising=False)
    ask = {"argument": "HIP_VISIBLE_DEVICES"}
    first, second = make_pool(), make_pool()
    assert first.run(cell("ENVIRON", target="device", **ask)).reasons == ("0",)
    assert second.run(cell("ENVIRON", target="device", **ask)).reasons == ("5",)
    assert make_pool(slot=3).run(cell("ENVIRON", target="device", **ask)).reasons == ("5",)
    assert first.run(cell("ENVIRON", **ask)).reasons == ("absent",)


def test_threads_have_workers_of_their_own(make_pool: MakePool, tmp_path: Path) -> None:
    """Two threads of one pool run two cells at once."""
    pool = make_pool()
    gates = [tmp_path / "a", tmp_path / "b"]
    verdicts: list[Verdict] = []
    run = lambda gate: verdicts.append(pool.run(cell("WAITS_FOR_FILE", argument=str(gate))).verdict)  # noqa: E731
    threads = [threading.Thread(target=run, args=(gate,)) for gate in gates]
    for thread in threads:
        thread.start()
    assert wait_for(lambda: all(Path(f"{gate}.running").exists() for gate in gates))
    for gate in gates:
        gate.touch()
    for thread in threads:
        thread.join(60)
    assert verdicts == [Verdict.PASS, Verdict.PASS]


def test_processes_share_a_server(tmp_path: Path) -> None:
    """Processes that start at once open the engine once; one that is killed takes only its worker along."""
    folder, log = session.create(tmp_path / "session"), tmp_path / "log"
    gates = [tmp_path / f"gate{i}" for i in range(3)]
    clients = [client(folder, log, "OK", f"WAITS_FOR_FILE={gate}", "OK") for gate in gates]
    started = [Path(f"{gate}.running") for gate in gates]
    assert wait_for(lambda: all(s.exists() and s.read_text() for s in started))
    workers = [processes.identify(int(s.read_text())) for s in started]
    assert None not in workers
    clients[0].kill()
    clients[0].communicate()
    assert wait_for(lambda: not processes.alive(workers[0]))  # type: ignore[arg-type]
    assert [processes.alive(w) for w in workers[1:]] == [True, True]  # type: ignore[arg-type]
    for gate in gates:
        gate.touch()
    for one in clients[1:]:
        lines = one.communicate(timeout=60)[0].splitlines()
        assert [line.split()[0] for line in lines] == ["pass", "pass", "pass"]
    assert len(log.read_text().splitlines()) == 1
    session.stop(folder)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_the_owner(number: int, tmp_path: Path, tag: str) -> None:
    """When the owner is killed in the middle of a cell, everything it started ends, daemons too."""
    gate = tmp_path / "gate"
    owner = client(tmp_path / "session", tmp_path / "log", "DAEMON", f"WAITS_FOR_FILE={gate}")
    assert wait_for(Path(f"{gate}.running").exists)
    assert len(running(tag)) >= 6  # owner, supervisor, forkserver, keeper, worker, daemon
    owner.send_signal(number)
    owner.communicate()
    assert wait_for(lambda: not running(tag)) is True


def test_owner_that_leaves_without_closing(tmp_path: Path, tag: str) -> None:
    """A process that ends without closing its pool leaves nothing either."""
    assert "pass" in client(tmp_path / "session", tmp_path / "log", "OK", "OK=--leave").communicate()[0]
    assert wait_for(lambda: not running(tag)) is True


def test_stopped_owner_does_not_end_its_cell(tmp_path: Path) -> None:
    """SIGSTOP and SIGCONT of the process that waits change nothing."""
    gate = tmp_path / "gate"
    owner = client(tmp_path / "session", tmp_path / "log", f"WAITS_FOR_FILE={gate}", "OK")
    assert wait_for(Path(f"{gate}.running").exists)
    owner.send_signal(signal.SIGSTOP)
    gate.touch()
    owner.send_signal(signal.SIGCONT)
    assert [line.split()[0] for line in owner.communicate()[0].splitlines()] == ["pass", "pass"]


@pytest.mark.parametrize("which", ["supervisor", "forkserver"])
def test_killed_server_is_started_again_between_cells(which: str, make_pool: MakePool, tmp_path: Path) -> None:
    """A server lost between cells is started again; no cell notices."""
    log = tmp_path / "log"
    pool = make_pool({"log": str(log)})
    worker = int(pool.run(cell("OK")).reasons[0].split()[1])
    os.kill(tree(pool)[which == "forkserver"], signal.SIGKILL)
    assert wait_for(lambda: processes.identify(worker) is None)
    record = pool.run(cell("OK"))
    assert (record.verdict, len(record.reasons)) == (Verdict.PASS, 1)
    assert len(log.read_text().splitlines()) == 2


def test_stopped_supervisor_is_ended(make_pool: MakePool, tag: str) -> None:
    """Closing ends a server whose supervisor was stopped, and what its cells left."""
    pool = make_pool()
    assert pool.run(cell("DAEMON")).verdict is Verdict.PASS
    os.kill(tree(pool)[0], signal.SIGSTOP)
    pool.close()
    assert not running(tag)


def test_everything_above_the_worker_killed_at_once(tmp_path: Path, tag: str) -> None:
    """With owner, supervisor, forkserver and keeper gone in one moment, a worker in the middle of a cell ends too."""
    gate = tmp_path / "gate"
    owner = client(tmp_path / "session", tmp_path / "log", f"WAITS_FOR_FILE={gate}")
    started = Path(f"{gate}.running")
    assert wait_for(lambda: started.exists() and started.read_text())
    worker = int(started.read_text())
    above = [pid for pid in running(tag) if pid != worker]
    assert len(above) == 4
    for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first, so that none can act on another's end
        for pid in above:
            os.kill(pid, number)
    owner.communicate()
    assert wait_for(lambda: not running(tag)) is True


def test_killed_server_repeats_the_cell_and_says_so(make_pool: MakePool, tmp_path: Path) -> None:
    """A server lost during a cell: the cell is run again, and its record says so."""
    record = make_pool().run(cell("KILLS_SERVER_ONCE", argument=str(tmp_path / "done")))
    assert record.verdict is Verdict.PASS
    assert record.reasons[-1].startswith("the worker server was lost while this cell ran")


def test_cell_that_kills_its_server_is_a_crash(make_pool: MakePool) -> None:
    """Twice is the cell's own doing."""
    pool = make_pool()
    record = pool.run(cell("KILLS_SERVER"))
    assert (record.verdict, record.rung) == (Verdict.CRASH, Rung.COMPILED)
    assert pool.run(cell("OK")).verdict is Verdict.PASS


def test_stopped_forkserver_is_replaced(make_pool: MakePool, tmp_path: Path) -> None:
    """A forkserver that forks nothing is ended and started again; a worker that runs meanwhile goes on."""
    log = tmp_path / "log"
    pool = make_pool({"log": str(log)}, fork_s=2.0)
    pool.run(cell("OK"))
    os.kill(tree(pool)[1], signal.SIGSTOP)
    assert pool.run(cell("OK")).verdict is Verdict.PASS
    assert len(log.read_text().splitlines()) == 1
    assert pool.run(cell("OS_EXIT")).verdict is Verdict.CRASH
    assert pool.run(cell("OK")).verdict is Verdict.PASS
    assert len(log.read_text().splitlines()) == 2


def test_worker_killed_between_cells(make_pool: MakePool) -> None:
    """A worker that dies idle is no cell's fault."""
    pool = make_pool()
    worker = int(pool.run(cell("OK")).reasons[0].split()[1])
    os.kill(worker, signal.SIGKILL)
    after = pool.run(cell("OK"))
    assert after.verdict is Verdict.PASS
    assert after.reasons != (f"pid {worker}",)
    assert len(after.reasons) == 1


def test_unavailable_target(make_pool: MakePool, tmp_path: Path) -> None:
    """A target that cannot run here: every cell says so, the engine is asked once by the whole run."""
    log = tmp_path / "log"
    options = {"log": str(log), "open": "unavailable"}
    for pool in (make_pool(options), make_pool(options)):
        for block in (16, 32):
            record = pool.run(cell("OK", block=block))
            assert (record.verdict, record.rung, record.phase) == (Verdict.UNAVAILABLE, Rung.DECLARED, Phase.SELECT)
            assert record.reasons == ("no such hardware here; install it",)
            assert pool.environments[record.environment].target == "offline:gfx942"
    assert len(log.read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("raise", "ImportError: cannot import name 'x' from 'vllm'"),
        ("die", "about to abort in import"),
        ("hang", "not ready after 1 s"),
    ],
)
def test_engine_that_does_not_open(how: str, says: str, make_pool: MakePool, tmp_path: Path, tag: str) -> None:
    """An engine that fails to open is tried twice in a run, then reported as infrastructure, with its output."""
    log = tmp_path / "log"
    pool = make_pool({"log": str(log), "open": how}, start_s=1.0 if how == "hang" else 60.0)
    for _ in range(2):
        with pytest.raises(session.ServerError) as error:
            pool.run(cell("OK"))
        assert says in str(error.value)
        assert error.value.exit_code == 3
    assert len(log.read_text().splitlines()) == 2 or how == "hang"
    assert not running(tag)


def test_unknown_engine(tmp_path: Path) -> None:
    """An engine that is not there is a clear error."""
    pool = Pool("no_such_engine:open_session", session_dir=tmp_path / "s")
    with pool, pytest.raises(session.ServerError, match="No module named 'no_such_engine'"):
        pool.run(cell("OK"))


def test_idle_server_ends_and_is_started_again(make_pool: MakePool, tmp_path: Path, tag: str) -> None:
    """A server without workers gives its memory back."""
    log = tmp_path / "log"
    pool = make_pool({"log": str(log)}, idle_s=0.05, retry_alone=False)
    assert pool.run(cell("OS_EXIT")).verdict is Verdict.CRASH
    assert wait_for(lambda: not running(tag)) is True
    assert pool.run(cell("OK")).verdict is Verdict.PASS


def test_deep_session_folder(make_pool: MakePool, tmp_path: Path) -> None:
    """A folder whose path does not fit a socket address works."""
    assert make_pool(session_dir=tmp_path / ("deep" * 30) / ("er" * 60)).run(cell("OK")).verdict is Verdict.PASS


def test_temporary_session_is_removed(tag: str) -> None:
    """Without a folder the pool makes one, and takes it away with everything in it."""
    with Pool("fake_engine:open_session") as pool:
        assert pool.run(cell("OK")).verdict is Verdict.PASS
        folder = pool.session_dir
        assert folder.stat().st_mode & 0o077 == 0
    assert not folder.exists()
    assert not running(tag)


def test_interrupt_ends_the_cell_and_leaves_the_pool_usable(make_pool: MakePool, tmp_path: Path) -> None:
    """Ctrl-C while a cell runs: its worker is gone, the next cell gets another."""
    gate = tmp_path / "gate"
    started = Path(f"{gate}.running")
    pool = make_pool()

    def interrupt() -> None:
        wait_for(lambda: started.exists() and started.read_text())
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        pool.run(cell("WAITS_FOR_FILE", argument=str(gate)))
    thread.join()
    worker = int(started.read_text())
    assert wait_for(lambda: processes.identify(worker) is None)
    assert pool.run(cell("OK")).verdict is Verdict.PASS


def test_clock_jumps_do_not_matter(make_pool: MakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wall clock, back and forth by years, ends no cell and saves none."""
    pool = make_pool(run_s=1.0, retry_alone=False)
    times = iter([4e9, 1.0] * 10_000)
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: next(times))
        assert pool.run(cell("OK")).verdict is Verdict.PASS
        assert pool.run(cell("HANGS_IN_LOCK")).verdict is Verdict.TIMEOUT


def test_events_reach_the_listener(make_pool: MakePool) -> None:
    """Who listens hears of phases as they come."""
    heard = []
    pool = make_pool(listener=lambda c, name, data: heard.append((c.backend, name, data["phase"], data["detail"])))
    pool.run(cell("OK"))
    assert heard == [("OK", "phase", "compile", "kernel_a"), ("OK", "phase", "forward", "kernel_b")]


def test_temporary_files_go_with_the_server(make_pool: MakePool, tmp_path: Path) -> None:
    """What killed cells leave in the folder for temporary files is removed with the server."""
    pool = make_pool()
    pool.run(cell("LEAVES_FILES", argument=str(tmp_path / "name")))
    left = Path((tmp_path / "name").read_text())
    assert left.is_relative_to(pool.session_dir)
    assert left.exists()
    pool.close()
    assert not left.exists()
