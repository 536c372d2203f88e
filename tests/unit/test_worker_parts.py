"""The pure parts of workers: budgets, messages, what a death's output says, rungs."""

from __future__ import annotations

import signal
import socket
import time

import pytest

from capmatrix import rungs
from capmatrix.cell import Phase, Rung
from capmatrix.workers import failure, protocol
from capmatrix.workers.deaths import Progress, _how
from capmatrix.workers.limits import Limits
from capmatrix.workers.protocol import Begin, ConnectionLost, Event, Exit, FromWorker, ProtocolError, Reader


@pytest.mark.parametrize(
    ("target", "rung"),
    [
        ("offline:gfx942", Rung.COMPILED),
        ("interpreter:gfx950", Rung.INTERPRETED),
        ("emulator:gfx950", Rung.EMULATED),
        ("device", Rung.EXECUTED),
        ("else", Rung.DECLARED),
    ],
)
def test_reachable_rung(target: str, rung: Rung) -> None:
    """A target's kind says how strong its evidence can be."""
    assert rungs.reachable(target) is rung


def test_compile_and_run_have_budgets_of_their_own() -> None:
    """Each phase's time is charged to its budget, and budgets do not start afresh with a phase."""
    p = Progress(Limits(compile_s=100.0, run_s=10.0), 1000.0)
    assert (p.clock, p.deadline) == ("run", 1010.0)
    p.enter("compile", "kernel_a", 1004.0)
    assert (p.phase, p.where, p.deadline) == (Phase.COMPILE, "compile of kernel_a", 1104.0)
    p.enter("forward", "", 1094.0)
    assert (p.where, p.deadline) == ("forward", 1100.0)  # 6 of 10 s are left
    p.enter("compile", "kernel_b", 1095.0)
    assert p.deadline == 1105.0  # 10 of 100 s are left
    p.enter("compile", "kernel_c", 1100.0)
    assert p.deadline == 1105.0
    assert p.used == {"compile": 95.0, "run": 5.0}


def test_odd_events_do_not_move_a_budget_back() -> None:
    """A time before the last one and an unknown phase are taken for what they can be."""
    p = Progress(Limits(run_s=10.0), 1000.0)
    p.enter("build", "", 1004.0)
    p.enter("no such phase", "\x1b[2J" + "x" * 5000, 900.0)
    assert (p.phase, p.deadline, p.used["run"]) == (Phase.BUILD, 1010.0, 4.0)
    assert p.kernel.isprintable()
    assert len(p.kernel) == 300


@pytest.fixture
def link() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)


def test_messages_arrive_whole_and_in_order(link: tuple[socket.socket, socket.socket]) -> None:
    """However the stream is cut, messages come one by one; blank lines are none."""
    left, right = link
    reader = Reader(right, FromWorker)
    event = (
        b'\n{"kind":"event","name":"phase","data":{"phase":"compile"},"at":1.5}\n\n{"kind":"begin","number":3,"at":2}'
    )
    left.sendall(event[:20])
    with pytest.raises(TimeoutError):
        reader.read(time.monotonic() - 1)
    left.sendall(event[20:])
    assert reader.read(time.monotonic() - 1) == Event("phase", {"phase": "compile"}, 1.5)
    with pytest.raises(TimeoutError):
        reader.read(time.monotonic() - 1)
    left.sendall(b"\n")
    assert reader.read() == Begin(3, 2.0)
    left.close()
    with pytest.raises(ConnectionLost):
        reader.read()


@pytest.mark.parametrize(
    "line", [b"\xff\x00", b"{}", b'{"kind":"else"}', b"[" * 100_000, b'{"kind":"begin","number":"x","at":1}', b"1"]
)
def test_what_is_no_message_is_said(line: bytes, link: tuple[socket.socket, socket.socket]) -> None:
    """A line that is not a message is an error, and the stream goes on after it."""
    left, right = link
    reader = Reader(right, FromWorker)
    left.sendall(line + b"\n")
    protocol.send(left, Begin(1, 1.0))
    with pytest.raises(ProtocolError, match="not a message"):
        reader.read()
    assert reader.read() == Begin(1, 1.0)


def test_lines_are_bounded(link: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither side holds more than a line's limit."""
    left, right = link
    monkeypatch.setattr(protocol, "MAX_LINE", 1000)
    left.sendall(b"x" * 2000)
    with pytest.raises(ProtocolError, match="over 1000 bytes"):
        Reader(right, FromWorker).read()
    with pytest.raises(ProtocolError, match="over the limit"):
        protocol.send(left, Exit(1, None, output="x" * 2000))


@pytest.mark.parametrize(
    ("exit", "name", "text"),
    [
        (Exit(0, None), "exit", "worker exited with code 0 before finishing the cell"),
        (Exit(None, signal.SIGSEGV), "SIGSEGV", "worker died of SIGSEGV"),
        (Exit(None, 63), "signal 63", "worker died of signal 63"),
    ],
)
def test_how_a_worker_ended(exit: Exit, name: str, text: str) -> None:
    """Exit codes and signals by name."""
    assert _how(exit) == (name, text)


OUTPUT = """loading
Fatal Python error: Aborted

Current thread 0x00007f (most recent call first):
  File "/x/site-packages/triton/compiler/compiler.py", line 320 in compile
  File "/x/site-packages/vllm/v1/attention/backends/rocm_attn.py", line 12 in forward
  File "/x/capmatrix/workers/worker.py", line 99 in _run

Thread 0x00007e (most recent call first):
  File "/x/lib/python3.11/threading.py", line 324 in wait
"""


def test_output_of_a_death() -> None:
    """The deepest frame of the dying thread in vllm, aiter or triton, and the line that tells most."""
    reason, frame, frames = failure.of_output("Memory access fault by GPU node-1 on address 0x7f\n" + OUTPUT)
    assert reason == "GPU memory fault: Memory access fault by GPU node-1 on address 0x7f"
    assert frame == "triton/compiler/compiler.py:320 in compile"
    assert len(frames) == 3
    assert frames[-1] == frame
    assert failure.of_output(OUTPUT)[0] == "Fatal Python error: Aborted"
    assert failure.of_output("nothing of note") == ("", "", ())


def test_tail_is_the_cells_own() -> None:
    """What earlier cells printed is not shown; terminal escapes are harmless; the end is kept."""
    output = "old" + failure.mark(6).decode() + "old too" + failure.mark(7).decode() + "a\x1b[31mb" + "x" * 50
    assert failure.tail(output, 7, 1000).startswith("a\N{REPLACEMENT CHARACTER}[31mb")
    assert failure.tail(output, 7, 5) == "xxxxx"
    assert failure.tail("flooded", 7, 1000) == "flooded"


def test_exception_has_its_deepest_frame() -> None:
    """The frame is the deepest in a package that matters, else the deepest."""
    code = compile("def f(g):\n    g()\n", "/x/site-packages/vllm/v1/worker.py", "exec")
    space: dict[str, object] = {}
    exec(code, space)

    def fails() -> None:
        raise ValueError("no\x07 way")

    try:
        space["f"](fails)  # type: ignore[operator]
    except ValueError as error:
        found = failure.of_exception(error)
    assert (found.type, found.message) == ("ValueError", "no\N{REPLACEMENT CHARACTER} way")
    assert found.frame == "vllm/v1/worker.py:2 in f"
    assert found.traceback[-1].endswith("in fails")
