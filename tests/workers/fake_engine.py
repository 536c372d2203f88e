"""An engine without vLLM whose cells misbehave: a cell's ``backend`` names what it does."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

from capmatrix import codec, rungs
from capmatrix.cell import Cell, Environment, Geometry, Phase, Record, Role, Verdict
from capmatrix.engine import Unavailable

Emit = Callable[[str, dict[str, Any]], None]

#: What an earlier cell of the same worker left behind.
_poison: list[str] = []


def cell(does: str, *, target: str = "offline:gfx942", block: int = 16, argument: str = "x", **more: Any) -> Cell:
    """A cell that does ``does``, with an argument of its own."""
    fields: dict[str, Any] = {
        "target": target,
        "backend": does,
        "block_size": block,
        "kv_cache_dtype": "auto",
        "drafter": argument,
        "tp": 1,
        "role": Role.DRAFTER,
        "method": "eagle3",
        "geometry": Geometry(8, 2, 64),
        "num_speculative_tokens": 3,
        "batch": "decode",
    }
    return Cell(**{**fields, **more})


def open_session(target: str, switches: dict[str, str], options: dict[str, Any]) -> FakeSession:
    """Appends a line to ``options["log"]`` at each opening; ``options["open"]`` says how it fails."""
    if options.get("log"):
        with open(options["log"], "a") as file:
            file.write(f"{os.getpid()} {target}\n")
    how = options.get("open", "")
    if how == "unavailable":
        raise Unavailable("no such hardware here; install it")
    if how == "raise":
        raise ImportError("cannot import name 'x' from 'vllm'")
    if how == "die":
        print("about to abort in import", file=sys.stderr, flush=True)
        os.abort()
    if how == "hang":
        time.sleep(1000)
    return FakeSession(target, switches)


class FakeSession:
    def __init__(self, target: str, switches: dict[str, str]) -> None:
        seen = {name: os.environ.get(name, "") for name in switches}
        self.environment = Environment(id=f"fake-{target}", target=target, switches=seen)

    def run(self, cell: Cell, emit: Emit) -> Record:
        emit("phase", {"phase": "compile", "detail": "kernel_a"})
        emit("phase", {"phase": "forward", "detail": "kernel_b"})
        outcome = ACTIONS[cell.backend](cell, emit)
        if isinstance(outcome, Record):
            return outcome
        reasons = outcome or (f"pid {os.getpid()}",)
        return Record(
            cell_id=codec.cell_id(cell),
            cell=cell,
            verdict=Verdict.PASS,
            rung=rungs.reachable(cell.target),
            phase=Phase.COMPARE,
            environment=self.environment.id,
            reasons=reasons,
        )


ACTIONS: dict[str, Callable[[Cell, Emit], Any]] = {}


def action(function: Callable[[Cell, Emit], Any]) -> Callable[[Cell, Emit], Any]:
    ACTIONS[function.__name__.upper()] = function
    return function


def connection_fd() -> int:
    """The worker's own connection, as a cell that writes to stray descriptors may hit it."""
    for name in sorted(os.listdir("/proc/self/fd"), key=int, reverse=True):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                return int(name)
    raise AssertionError("no socket")


def hold_signals() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))


@action
def ok(cell: Cell, emit: Emit) -> None:
    pass


@action
def environ(cell: Cell, emit: Emit) -> tuple[str, ...]:
    return tuple(os.environ.get(name, "absent") for name in cell.drafter.split(","))


@action
def fails(cell: Cell, emit: Emit) -> None:
    raise ValueError("No common block size for 128")


@action
def interrupts(cell: Cell, emit: Emit) -> None:
    raise KeyboardInterrupt


@action
def sys_exit(cell: Cell, emit: Emit) -> None:
    sys.exit(0)


@action
def sys_exit_text(cell: Cell, emit: Emit) -> None:
    sys.exit("giving up")


@action
def os_exit(cell: Cell, emit: Emit) -> None:
    os._exit(0)


@action
def os_exit_3(cell: Cell, emit: Emit) -> None:
    os._exit(3)


@action
def abort(cell: Cell, emit: Emit) -> None:
    print("LLVM ERROR: Cannot select: intrinsic", file=sys.stderr)
    os.abort()


@action
def segfault(cell: Cell, emit: Emit) -> None:
    ctypes.string_at(0)


@action
def bus_error(cell: Cell, emit: Emit) -> None:
    with tempfile.TemporaryFile() as file:
        file.truncate(mmap.PAGESIZE)
        view = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        file.truncate(0)
        view[0]


@action
def stack_overflow(cell: Cell, emit: Emit) -> None:
    faulthandler._stack_overflow()


@action
def endless_recursion(cell: Cell, emit: Emit) -> None:
    endless_recursion(cell, emit)


@action
def killed(cell: Cell, emit: Emit) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@action
def alarm(cell: Cell, emit: Emit) -> None:
    os.kill(os.getpid(), signal.SIGALRM)


@action
def hangs(cell: Cell, emit: Emit) -> None:
    while True:
        pass


@action
def hangs_blocked(cell: Cell, emit: Emit) -> None:
    hold_signals()
    ctypes.CDLL(None).sleep(1000)


@action
def hangs_in_lock(cell: Cell, emit: Emit) -> None:
    threading.Lock().acquire()
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


@action
def stops(cell: Cell, emit: Emit) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(1000)


@action
def compiles_forever(cell: Cell, emit: Emit) -> None:
    emit("phase", {"phase": "compile", "detail": "kernel_slow"})
    time.sleep(1000)


@action
def compiles_many(cell: Cell, emit: Emit) -> None:
    for i in range(100_000):
        emit("phase", {"phase": "compile", "detail": f"kernel_{i}"})
        time.sleep(0.01)
        emit("phase", {"phase": "forward"})


@action
def eats_memory(cell: Cell, emit: Emit) -> None:
    kept = []
    while True:
        kept.append(bytearray(1 << 24))


@action
def fills(cell: Cell, emit: Emit) -> None:
    """Fills the folder named by the cell's drafter."""
    with open(f"{cell.drafter}/big", "wb") as file:
        while True:
            file.write(b"x" * (1 << 20))


@action
def floods(cell: Cell, emit: Emit) -> None:
    for _ in range(400):
        os.write(1, b"flood " * 20_000 + b"\n")


@action
def floods_and_dies(cell: Cell, emit: Emit) -> None:
    floods(cell, emit)
    os.write(2, b"the last words\n")
    os.abort()


@action
def closes_everything(cell: Cell, emit: Emit) -> None:
    os.closerange(0, 4096)


@action
def closes_output(cell: Cell, emit: Emit) -> None:
    os.closerange(0, 3)


@action
def garbage(cell: Cell, emit: Emit) -> None:
    os.write(connection_fd(), b"\x00\xff not a message\n")


@action
def garbage_json(cell: Cell, emit: Emit) -> None:
    os.write(connection_fd(), b'{"kind": "result", "number": "x"}\n')


@action
def half_line(cell: Cell, emit: Emit) -> None:
    os.write(connection_fd(), b'{"kind": "ev')
    os.abort()


@action
def endless_line(cell: Cell, emit: Emit) -> None:
    with socket.socket(fileno=os.dup(connection_fd())) as link:
        for _ in range(40):
            link.sendall(b"x" * (1 << 20))


@action
def daemon(cell: Cell, emit: Emit) -> None:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            hold_signals()
            time.sleep(1000)
        os._exit(0)
    os.wait()


@action
def daemon_and_dies(cell: Cell, emit: Emit) -> None:
    daemon(cell, emit)
    os.abort()


@action
def subprocess_and_hangs(cell: Cell, emit: Emit) -> None:
    subprocess.run(["sleep", "1000"], check=False)


@action
def many_processes(cell: Cell, emit: Emit) -> None:
    for _ in range(4):
        os.fork()
    time.sleep(1000)


@action
def forks_on(cell: Cell, emit: Emit) -> None:
    os.fork()


@action
def leaves_thread(cell: Cell, emit: Emit) -> None:
    threading.Thread(target=time.sleep, args=(1000,)).start()


@action
def kills_keeper(cell: Cell, emit: Emit) -> None:
    daemon(cell, emit)
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(1000)


@action
def stops_keeper(cell: Cell, emit: Emit) -> None:
    os.kill(os.getppid(), signal.SIGSTOP)
    time.sleep(1000)


@action
def kills_server_once(cell: Cell, emit: Emit) -> None:
    """Kills the forkserver unless the file named by the cell's drafter says that this was done."""
    if not os.path.exists(cell.drafter):
        with open(cell.drafter, "w") as file:
            file.write("done")
        kills_server(cell, emit)


@action
def kills_server(cell: Cell, emit: Emit) -> None:
    with open(f"/proc/{os.getppid()}/stat") as file:
        os.kill(int(file.read().rsplit(")", 1)[1].split()[1]), signal.SIGKILL)
    time.sleep(1000)


@action
def poison(cell: Cell, emit: Emit) -> None:
    _poison.append(cell.drafter)


@action
def dies_of_poison(cell: Cell, emit: Emit) -> None:
    if _poison:
        os.abort()


@action
def dies_of_two_poisons(cell: Cell, emit: Emit) -> None:
    if len(set(_poison)) > 1:
        os.abort()


@action
def not_a_record(cell: Cell, emit: Emit) -> Any:
    return Record("x", cell, "no such verdict", "compiled", "compare", "e")  # type: ignore[arg-type]


@action
def another_cells_record(cell: Cell, emit: Emit) -> Record:
    other = globals()["cell"]("OK", block=999)
    return Record(codec.cell_id(other), other, Verdict.PASS, rungs.reachable(other.target), Phase.COMPARE, "e")


@action
def waits_for_file(cell: Cell, emit: Emit) -> None:
    """Says that it runs by making ``<drafter>.running``, and ends when ``<drafter>`` exists."""
    with open(f"{cell.drafter}.running", "w") as file:
        file.write(str(os.getpid()))
    while not os.path.exists(cell.drafter):
        time.sleep(0.005)


@action
def leaves_files(cell: Cell, emit: Emit) -> None:
    """Leaves a temporary file behind, whose name goes to the file named by the cell's drafter."""
    with open(cell.drafter, "w") as file:
        file.write(tempfile.mkdtemp())
    os.abort()
