"""The keeper: a small process between server and worker that sees one worker, and all it left, to its end.

Being the subreaper of exactly one worker, it knows every orphan below it as that worker's. It keeps
the end of the worker's output (a flood costs no disk), kills when the pool hangs up, and reports the death.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import time
import traceback
from collections.abc import Callable, Iterable
from typing import NoReturn

from . import processes
from .protocol import ConnectionLost, Exit, Hello, Reader, send

#: How long, in seconds, a worker that is about to be killed may take to print where it is.
_DUMP_S = 0.5
_DUMP_QUIET_S = 0.05
_HELLO_S = 30.0

#: ``start(connection, hello, output)`` runs the worker in the forked child and never returns.
Start = Callable[[socket.socket, Hello, int], NoReturn]


def keep(connection: socket.socket, lifeline: int, close: Iterable[int], start: Start) -> NoReturn:
    """Forks a worker for ``connection``, waits for its end or the pool's, and exits. Runs in a fresh fork.

    Args:
        lifeline: read end of a pipe whose write end only the server holds; its end is the server's.
        close: descriptors of the server's that neither keeper nor worker may hold.
    """
    code = 1
    try:
        gc.disable()  # a collection would touch, and so copy, the pages shared with the server
        for fd in close:
            os.close(fd)
        _Keeper(connection, lifeline, start).run()
        code = 0
    except (ConnectionLost, TimeoutError):
        code = 0  # it connected and asked for nothing
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


class _Keeper:
    def __init__(self, connection: socket.socket, lifeline: int, start: Start) -> None:
        self.connection = connection
        self.lifeline = lifeline
        self.start = start
        self.output = b""
        self.limit = 1 << 16

    def run(self) -> None:
        hello = Reader(self.connection, Hello).read(time.monotonic() + _HELLO_S)
        # Worker and keeper share the description, so its mode too: blocking, from here on.
        self.connection.settimeout(None)
        self.limit = hello.output_bytes
        processes.become_subreaper()
        self.wake, wake_in = os.pipe()
        os.set_blocking(wake_in, False)
        os.set_blocking(self.wake, False)
        signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, _ignore)
        self.pipe, pipe_in = os.pipe()
        keeper = os.getpid()
        self.worker = os.fork()
        if self.worker == 0:
            self._worker(hello, pipe_in, wake_in, keeper)
        os.close(pipe_in)
        os.set_blocking(self.pipe, False)
        self._finish(self._wait())

    def _worker(self, hello: Hello, pipe_in: int, wake_in: int, keeper: int) -> NoReturn:
        processes.die_with_parent(keeper)
        signal.set_wakeup_fd(-1)
        for fd in (self.wake, wake_in, self.pipe, self.lifeline):
            os.close(fd)
        self.start(self.connection, hello, pipe_in)

    def _wait(self) -> str:
        """Until the worker is dead (``died``) or is to die: ``hung up``, ``told`` (half closed), ``server``."""
        poll = select.poll()
        poll.register(self.connection, select.POLLRDHUP)
        poll.register(self.pipe, select.POLLIN)
        poll.register(self.wake, select.POLLIN)
        poll.register(self.lifeline, 0)
        while True:
            for fd, event in poll.poll():
                if fd == self.wake:
                    if signal.SIGTERM in os.read(self.wake, 4096):
                        return "server"
                    if self._dead():
                        return "died"
                elif fd == self.lifeline:
                    return "server"
                elif fd == self.pipe:
                    if not self._drain():
                        poll.unregister(self.pipe)
                elif self._dead():
                    return "died"
                elif event & (select.POLLHUP | select.POLLERR | select.POLLNVAL):
                    return "hung up"
                elif event & select.POLLRDHUP:
                    return "told"

    def _dead(self) -> bool:
        return os.waitid(os.P_PID, self.worker, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _finish(self, why: str) -> None:
        if why == "told":
            self._dump()
        with contextlib.suppress(OSError):
            os.killpg(self.worker, signal.SIGKILL)  # not yet reaped, so the number is still its own
        killed = processes.kill_children()
        self._drain()
        if why in ("server", "hung up"):
            return
        status = killed.statuses.get(self.worker)
        code = None if status is None or os.WIFSIGNALED(status) else os.waitstatus_to_exitcode(status)
        number = os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else None
        message = Exit(
            code=code,
            signal=number,
            killed=why == "told",
            output=self.output[-self.limit :].decode("utf-8", "replace"),
            strays=max(0, len(killed.statuses) - (status is not None)),
            unkillable=killed.unkillable,
        )
        with contextlib.suppress(OSError):
            self.connection.settimeout(5.0)
            self.connection.sendall(b"\n")  # ends what the worker may have left half said
            send(self.connection, message)

    def _dump(self) -> None:
        """Has faulthandler print the worker's Python stacks, and waits shortly for them."""
        with contextlib.suppress(OSError):
            os.kill(self.worker, signal.SIGUSR1)
        poll = select.poll()
        poll.register(self.pipe, select.POLLIN)
        end = time.monotonic() + _DUMP_S
        wait = _DUMP_S
        while wait > 0 and poll.poll(wait * 1000):
            if not self._drain():
                return
            wait = min(_DUMP_QUIET_S, end - time.monotonic())

    def _drain(self) -> bool:
        """Reads what there is of the worker's output, a bounded piece at a time; False at its end."""
        try:
            for _ in range(16):
                data = os.read(self.pipe, 1 << 16)
                if not data:
                    return False
                self.output = (self.output + data)[-2 * self.limit :]
        except BlockingIOError:
            pass
        return True


def _ignore(number: int, frame: object) -> None:
    """A Python-level handler, so that the signal reaches the wakeup descriptor."""
