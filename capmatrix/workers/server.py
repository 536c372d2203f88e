"""The server of one target and switch set: imports the engine once, then forks a worker a connection.

``python -m capmatrix.workers.server --engine module:function --target T --socket PATH --owner PID:START ...``
Two processes: a small supervisor, which ends everything when the run's owner is gone or on SIGTERM,
and the forkserver below it.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from .. import codec
from ..engine import Unavailable
from ..errors import printable
from ..vocabulary import SWITCHES
from . import processes
from .keeper import keep
from .protocol import Hello, Identity, Status, address
from .worker import Session, work


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Starts supervisor and forkserver; never returns."""
    options = _arguments(argv)
    if os.getsid(0) != os.getpid():
        os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    processes.become_subreaper()
    pid, start = options.owner.split(":")
    owner = processes.Owner(Identity(int(pid), int(start)))
    wake = _wake_on(signal.SIGCHLD, signal.SIGTERM)
    supervisor = os.getpid()
    server = os.fork()
    if server == 0:
        code = 1
        try:
            _forget(wake)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            processes.die_with_parent(supervisor)
            code = _forkserver(options)
        finally:
            os._exit(code)
    os.close(options.ready)
    _supervise(server, owner, wake)
    processes.kill_children()
    shutil.rmtree(options.scratch, ignore_errors=True)
    os._exit(0)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="capmatrix.workers.server", description=__doc__)
    add = parser.add_argument
    add("--engine", required=True, help="module:function that opens a session")
    add("--target", required=True)
    add("--switches", default="{}", type=json.loads, help="JSON object of environment switches")
    add("--options", default="{}", type=json.loads, help="JSON object of the engine's options")
    add("--socket", required=True, help="where to listen")
    add("--owner", required=True, help="PID:START of the process not to outlive")
    add("--ready", required=True, type=int, help="descriptor that takes one line of status")
    add("--scratch", required=True, help="folder for temporary files, removed at the end")
    add("--idle", default=300.0, type=float, help="seconds without workers after which to end")
    return parser.parse_args(argv)


def _supervise(server: int, owner: processes.Owner, wake: int) -> None:
    """Returns when the forkserver is dead, the owner gone, or SIGTERM came."""
    poll = select.poll()
    poll.register(wake, select.POLLIN)
    if owner.fd >= 0:
        poll.register(owner.fd, select.POLLIN)
    while True:
        poll.poll(owner.poll_seconds * 1000)
        signals = b""
        with contextlib.suppress(BlockingIOError):
            signals = os.read(wake, 4096)
        if signal.SIGTERM in signals or owner.gone():
            return
        # Orphans of dead keepers are reaped by the forkserver, a subreaper itself; here only it can end.
        if os.waitid(os.P_PID, server, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return


def _forkserver(options: argparse.Namespace) -> int:
    for name in SWITCHES:
        if name not in options.switches:
            os.environ.pop(name, None)  # a switch is part of the cell, not of the shell that ran pytest
    os.environ.update(options.switches)
    processes.become_subreaper()
    try:
        session = _open(options)
    except Unavailable as error:
        _report(options.ready, Status("unavailable", printable(str(error))))
        return 0
    except BaseException as error:
        traceback.print_exc()
        first = printable(str(error)).strip().splitlines()[:1]
        _report(options.ready, Status("failed", ": ".join([type(error).__name__, *first])))
        return 1
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with address(Path(options.socket)) as place:
        listener.bind(place)
    listener.listen(128)
    listener.setblocking(False)
    gc.collect()
    gc.freeze()  # collections in workers then leave the shared pages alone
    _report(options.ready, Status("ready"))
    return _serve(listener, session, options.idle)


def _open(options: argparse.Namespace) -> Session:
    module, _, function = options.engine.partition(":")
    opener = getattr(importlib.import_module(module), function)
    session: Session = opener(options.target, dict(options.switches), dict(options.options))
    return session


def _report(fd: int, status: Status) -> None:
    with contextlib.suppress(OSError):  # nobody waits any more
        os.write(fd, codec.encode(status) + b"\n")
    os.close(fd)


def _serve(listener: socket.socket, session: Session, idle_s: float) -> int:
    """Forks a keeper, and through it a worker, a connection; ends after ``idle_s`` seconds without any."""
    wake = _wake_on(signal.SIGCHLD)
    lifeline, lifeline_in = os.pipe()
    keepers: set[int] = set()
    own = set(processes.children(os.getpid()))  # what opening the session left running
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    poll.register(wake, select.POLLIN)
    idle_since = time.monotonic()

    def start(connection: socket.socket, hello: Hello, output: int) -> NoReturn:
        work(connection, hello, output, session)

    while True:
        if not keepers and time.monotonic() - idle_since > idle_s:
            return 0
        poll.poll(min(1.0, idle_s) * 1000 if not keepers else 60_000)
        with contextlib.suppress(BlockingIOError):
            os.read(wake, 4096)
        if _reap(keepers, own):
            idle_since = time.monotonic()
        try:
            connection, _ = listener.accept()
        except OSError:
            continue
        connection.setblocking(True)
        pid = os.fork()
        if pid == 0:
            _forget(wake)
            keep(connection, lifeline, (lifeline_in, listener.detach()), start)
        keepers.add(pid)
        connection.close()


def _reap(keepers: set[int], own: set[int]) -> bool:
    """Reaps keepers, and kills the orphans of those that were killed themselves. Whether any keeper ended."""
    ended = False
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if not pid:
            break
        if pid in keepers:
            keepers.discard(pid)
            ended = True
            if status:
                processes.kill_children(2.0, spare=keepers | own)
    return ended


def _wake_on(*numbers: int) -> int:
    """A descriptor that becomes readable, with the signal's number, when one of these signals comes."""
    out, into = os.pipe()
    os.set_blocking(out, False)
    os.set_blocking(into, False)
    signal.set_wakeup_fd(into, warn_on_full_buffer=False)
    for number in numbers:
        signal.signal(number, lambda *_: None)
    return out


def _forget(wake: int) -> None:
    """Closes both ends of ``_wake_on``'s pipe in a fork."""
    for fd in (signal.set_wakeup_fd(-1), wake):
        with contextlib.suppress(OSError):  # a library may have taken the wakeup descriptor back meanwhile
            os.close(fd)


if __name__ == "__main__":
    sys.exit(main())
