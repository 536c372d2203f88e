"""What a pool and its worker say to each other: one JSON object a line over a unix socket.

The pool sends ``hello`` once and then ``run`` or ``time`` per cell; the worker answers ``welcome``, then per cell
``begin``, any number of ``event`` and one ``result``. Of a session that answers questions, ``ask`` is answered
by one ``answers``. After the worker is dead its keeper sends ``exit``.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from .. import codec
from ..cell import Cell, Environment
from ..errors import CapmatrixError
from ..grid import Workload
from ..pair import Pair

#: Longest line in bytes; a longer one means that the other side is not speaking this protocol.
MAX_LINE = 16 << 20


#: Environment variable that marks a server's processes and everything below them.
TAG = "CAPMATRIX_SERVER"


class ProtocolError(CapmatrixError):
    """The other side sent something that is not a message."""


class ConnectionLost(CapmatrixError):
    """The other side is gone without a word."""


class Identity(msgspec.Struct, frozen=True):
    """A process: its id and its start in clock ticks since boot, so that a reused id is not mistaken for it."""

    pid: int
    start: int


class Hello(msgspec.Struct, tag_field="kind", tag="hello"):
    """What a connection's worker is to be: extra environment (its GPU), its limits in bytes."""

    env: dict[str, str] = {}
    memory_bytes: int | None = None
    file_bytes: int | None = None
    output_bytes: int = 1 << 16


class Run(msgspec.Struct, tag_field="kind", tag="run"):
    """Run this cell, or the pair that it stands for; ``number`` counts the connection's jobs."""

    number: int
    cell: Cell
    pair: Pair | None = None


class Time(msgspec.Struct, tag_field="kind", tag="time"):
    """Time this cell's call under a workload profile, ``repeats`` times; 0: only make ready what that will need."""

    number: int
    cell: Cell
    workload: Workload
    repeats: int


class Ask(msgspec.Struct, tag_field="kind", tag="ask"):
    """Answer these questions, a JSON list; ``number`` counts the connection's."""

    number: int
    questions: msgspec.Raw


class Status(msgspec.Struct, frozen=True):
    """How a server's start went, one line on its ready pipe: ``ready``, ``unavailable`` or ``failed``."""

    status: str
    message: str = ""


ToWorker = Hello | Run | Time | Ask


class Welcome(msgspec.Struct, tag_field="kind", tag="welcome"):
    """The worker is ready."""

    worker: Identity
    keeper: Identity
    environment: Environment


class Begin(msgspec.Struct, tag_field="kind", tag="begin"):
    """The worker has cell ``number``; what happens from here on is its doing. ``at``: monotonic seconds."""

    number: int
    at: float


class Event(msgspec.Struct, tag_field="kind", tag="event"):
    """Something the engine emitted, such as ``phase``. ``at``: monotonic seconds."""

    name: str
    data: dict[str, Any]
    at: float


class Result(msgspec.Struct, tag_field="kind", tag="result"):
    """The record of the cell (or the pair), or a ``timings.Sample``, as JSON."""

    number: int
    record: msgspec.Raw


class Answers(msgspec.Struct, tag_field="kind", tag="answers"):
    """A JSON list, one answer a question in their order; or ``error``, what the session raised."""

    number: int
    answers: msgspec.Raw = msgspec.Raw(b"[]")
    error: str = ""


class Exit(msgspec.Struct, tag_field="kind", tag="exit"):
    """The worker is dead and so is what it left behind.

    One of ``code`` and ``signal`` is set. ``killed``: the keeper killed it, as asked. ``output``: the
    end of its stdout and stderr. ``strays``: processes killed after it; ``unkillable``: those still there.
    """

    code: int | None
    signal: int | None
    killed: bool = False
    output: str = ""
    strays: int = 0
    unkillable: tuple[int, ...] = ()


FromWorker = Welcome | Begin | Event | Result | Answers | Exit


def send(connection: socket.socket, message: object) -> None:
    """Sends one message. Raises OSError as the socket does, ProtocolError for one that is too long."""
    data = codec.encode(message) + b"\n"
    if len(data) > MAX_LINE:
        raise ProtocolError(f"a message of {len(data)} bytes is over the limit of {MAX_LINE}")
    connection.sendall(data)


class Reader:
    """Reads messages of one type from a socket."""

    def __init__(self, connection: socket.socket, kind: Any) -> None:
        self._connection = connection
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind)
        self._buffer = bytearray()
        self._searched = 0

    def read(self, deadline: float | None = None) -> Any:
        """The next message; empty lines are skipped.

        Args:
            deadline: of ``time.monotonic()``. What has already arrived is read even past it.

        Raises:
            TimeoutError: nothing came in time.
            ConnectionLost: end of the stream.
            ProtocolError: a line that is over-long or not a message; the stream goes on after it.
        """
        while True:
            line = self._line(deadline)
            if line.strip():
                try:
                    return self._decoder.decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                    raise ProtocolError(f"not a message: {error}") from None

    def _line(self, deadline: float | None) -> bytes:
        while True:
            end = self._buffer.find(b"\n", self._searched)
            if end >= 0:
                line = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                self._searched = 0
                return line
            self._searched = len(self._buffer)
            if self._searched > MAX_LINE:
                self._buffer.clear()
                self._searched = 0
                raise ProtocolError(f"a line over {MAX_LINE} bytes")
            try:
                # A timeout of 0 would make the socket non-blocking for its other users too.
                self._connection.settimeout(None if deadline is None else max(1e-6, deadline - time.monotonic()))
                data = self._connection.recv(1 << 18)
            except TimeoutError:
                raise TimeoutError from None
            except (ConnectionError, BlockingIOError):
                data = b""
            if not data:
                raise ConnectionLost("the connection was closed")
            self._buffer += data


@contextlib.contextmanager
def address(path: Path) -> Iterator[str]:
    """A path to ``path`` that fits a socket address (107 bytes): through its folder's descriptor if need be."""
    if len(os.fsencode(path)) <= 100:
        yield str(path)
        return
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{path.name}"
    finally:
        os.close(fd)
