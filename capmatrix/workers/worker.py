"""The worker: a forked child of the preloaded server that runs cells, one after the other, until the pool hangs up."""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

import msgspec

from .. import codec, rungs
from ..cell import Cell, Environment, Phase, Record, Verdict
from ..grid import Workload
from ..pair import Pair, PairRecord, of_death
from ..timings import Sample
from . import failure, processes
from .protocol import (
    Answers,
    Ask,
    Begin,
    ConnectionLost,
    Event,
    Hello,
    Reader,
    Result,
    Run,
    Time,
    ToWorker,
    Welcome,
    send,
)

#: Exit codes of a worker that cannot go on for reasons of its own.
EXIT_CONNECTION = 70
#: Exit code of a worker whose pool hung up while it was idle.
EXIT_HUNG_UP = 71

#: Exit code of a worker that replaces itself: its GPU context is not to be trusted after the last cell.
EXIT_SPENT = 72

#: Descriptors from here on are out of the way of cells that close or write to low numbers.
_HIGH = 500

Emit = Callable[[str, dict[str, Any]], None]


class Session(Protocol):
    """What an engine's ``open_session`` returns."""

    environment: Environment

    def run(self, cell: Cell, emit: Emit) -> Record:
        """Runs one cell; emits ``phase`` with ``{"phase": ..., "detail": kernel}`` whenever the phase changes."""

    def run_pair(self, pair: Pair, emit: Emit) -> PairRecord:
        """Runs one pair, emitting as ``run`` does."""

    def time(self, cell: Cell, workload: Workload, repeats: int, emit: Emit) -> Sample:
        """Times one cell under a profile, or with no repeats makes ready for it; an engine may have no such method."""


def work(connection: socket.socket, hello: Hello, output: int, session: Session) -> NoReturn:
    """Serves cells on ``connection``. Runs in a fresh fork and ends the process.

    Args:
        output: write end of the pipe that takes stdout and stderr.
    """
    code = EXIT_CONNECTION
    try:
        os.setsid()
        connection = _settle(connection, hello, output)
        code = _serve(connection, session)
    except SystemExit as exit:
        code = exit.code if isinstance(exit.code, int) else 0 if exit.code is None else 1
    except BaseException as error:
        with contextlib.suppress(BaseException):
            sys.stderr.write(f"the worker failed: {type(error).__name__}: {error}\n")
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code & 0xFF)


def _settle(connection: socket.socket, hello: Hello, output: int) -> socket.socket:
    """Descriptors, signals, environment and limits of a worker; the connection under its high number."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(null)
    os.close(output)
    high = fcntl.fcntl(connection.fileno(), fcntl.F_DUPFD_CLOEXEC, _HIGH)
    connection.close()
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable(file=2)
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
    os.environ.update(hello.env)
    tempfile.tempdir = None
    processes.limit(hello.memory_bytes, hello.file_bytes)
    return socket.socket(fileno=high)


def _serve(connection: socket.socket, session: Session) -> int:
    reader = Reader(connection, ToWorker)
    me, keeper = processes.myself(), processes.identify(os.getppid())
    if keeper is None:
        return EXIT_CONNECTION
    try:
        send(connection, Welcome(me, keeper, session.environment))
        while True:
            message = reader.read()
            if isinstance(message, Run | Time):
                _run(connection, session, message, me.pid)
                if getattr(session, "spent", False):
                    return EXIT_SPENT
            elif isinstance(message, Ask):
                _answer(connection, session, message)
    except ConnectionLost:
        return EXIT_HUNG_UP


def _run(connection: socket.socket, session: Session, message: Run | Time, pid: int) -> None:
    with contextlib.suppress(OSError):
        os.write(2, failure.mark(message.number))
    send(connection, Begin(message.number, time.monotonic()))
    phase = Phase.SELECT

    def emit(name: str, data: dict[str, Any]) -> None:
        nonlocal phase
        if name == "phase":
            with contextlib.suppress(ValueError):
                phase = Phase(str(data.get("phase")))
        send(connection, Event(name, data, time.monotonic()))

    result: Record | PairRecord | Sample
    try:
        if isinstance(message, Time):
            result = _timed(session, message, emit)
        elif message.pair is None:
            result = session.run(message.cell, emit)
        else:
            result = session.run_pair(message.pair, emit)
    except SystemExit:
        raise  # a death like any other: what asked for it is not in a state to go on
    except BaseException as error:
        record = _error(message.cell, session.environment, phase, error)
        result = record
        if isinstance(message, Time):
            result = Sample(refused=record.reasons[0])
        elif message.pair is not None:
            result = of_death(record, message.pair)
    if os.getpid() != pid:
        os._exit(0)  # a fork that the cell made and let run on
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    send(connection, Result(message.number, msgspec.Raw(codec.encode(result))))


def _timed(session: Any, message: Time, emit: Emit) -> Sample:
    if not hasattr(session, "time"):
        return Sample(refused="this engine times nothing")
    sample: Sample = session.time(message.cell, message.workload, message.repeats, emit)
    return sample


def _answer(connection: socket.socket, session: Any, message: Ask) -> None:
    """Answers of a session that has ``ask``; what it raises is told instead."""
    try:
        answers = msgspec.Raw(codec.encode(session.ask(codec.decode(bytes(message.questions), list))))
        send(connection, Answers(message.number, answers))
    except Exception as error:
        send(connection, Answers(message.number, error=f"{type(error).__name__}: {error}"))


def _error(cell: Cell, environment: Environment, phase: Phase, error: BaseException) -> Record:
    what = failure.of_exception(error)
    first = what.message.splitlines()[0] if what.message else ""
    return Record(
        cell_id=codec.cell_id(cell),
        cell=cell,
        verdict=Verdict.ERROR,
        rung=rungs.reachable(cell.target),
        phase=phase,
        environment=environment.id,
        reasons=(f"{what.type}: {first}" if first else what.type,),
        failure=what,
    )
