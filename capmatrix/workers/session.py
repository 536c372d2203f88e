"""The processes of one run, tied together by a folder: its owner, its servers, its slots.

All processes of a run (pytest and its xdist nodes) share the folder; whoever first needs a server
starts it, under a lock, and the others find its socket there. Servers end with the owner.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import hashlib
import os
import select
import shutil
import signal
import socket
import sys
import sysconfig
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from .. import codec
from ..engine import Unavailable
from ..errors import CapmatrixError, printable
from . import processes
from .limits import Limits
from .protocol import (
    TAG,
    ConnectionLost,
    Exit,
    FromWorker,
    Hello,
    Identity,
    ProtocolError,
    Reader,
    Status,
    Welcome,
    address,
    send,
)

#: How often a server that fails to start is tried in one run.
_ATTEMPTS = 2
_TAIL = 3000


class ServerError(CapmatrixError):
    """A worker server cannot be started or reached: infrastructure, not a cell's verdict."""


class _State(msgspec.Struct, frozen=True):
    """A server as last started: what it is, or why it is not there. ``failures``: starts that failed so far."""

    status: str
    message: str = ""
    process: Identity | None = None
    tag: str = ""
    failures: int = 0


def create(folder: str | os.PathLike[str]) -> Path:
    """Makes a session folder owned by this process; the process that ends last should call it. Returns it."""
    path = Path(folder)
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    _write(path / "owner", codec.encode(processes.myself()))
    return path


def owner_of(folder: Path) -> Identity:
    """The process that the folder's servers must not outlive; the first to ask becomes it where none is."""
    with _locked(folder / "owner.lock"):
        with contextlib.suppress(OSError, msgspec.DecodeError):
            owner = codec.decode((folder / "owner").read_bytes(), Identity)
            if processes.alive(owner):
                return owner
        create(folder)
    return processes.myself()


class Connection:
    """A worker of this process's own: socket, reader and who serves it."""

    def __init__(self, link: socket.socket, reader: Reader, welcome: Welcome) -> None:
        self.link = link
        self.reader = reader
        self.worker = welcome.worker
        self.keeper = welcome.keeper
        self.environment = welcome.environment


class Server:
    """One server, by engine, target, switches and options, seen from a process that uses it."""

    def __init__(
        self,
        folder: Path,
        engine: str,
        target: str,
        switches: Mapping[str, str],
        options: Mapping[str, Any],
        limits: Limits,
    ) -> None:
        self.folder = folder
        self.target = target
        self.limits = limits
        self.engine = engine
        self.switches = codec.encode(dict(switches))
        self.options = codec.encode(dict(options))
        what = [engine, target, self.switches, self.options]
        self.key = hashlib.sha256(codec.encode(what)).hexdigest()[:12]

    def connect(self, hello: Hello) -> Connection:
        """A fresh worker, of a server that is started where needed.

        Raises:
            Unavailable: the target cannot run here.
            ServerError: the engine does not open, or the server does not answer.
        """
        last = ""
        for _ in range(4):
            link = self._link() or self._start()
            if link is None:
                continue
            reader = Reader(link, FromWorker)
            try:
                send(link, hello)
                welcome = reader.read(time.monotonic() + self.limits.fork_s)
                if isinstance(welcome, Welcome):
                    return Connection(link, reader, welcome)
                if isinstance(welcome, Exit):
                    last = f"; its last worker died at once (exit code {welcome.code}, signal {welcome.signal}): "
                    last += printable(welcome.output[-_TAIL:]).strip()
            except TimeoutError:
                self.stop()  # stopped or stuck: it is there, but forks nothing
            except (ConnectionLost, ProtocolError, OSError):
                pass  # ending, just now
            link.close()
        raise ServerError(f"the worker server of {self.target} does not answer; its output: {self._log_tail()}{last}")

    def _link(self) -> socket.socket | None:
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            link.settimeout(self.limits.fork_s)
            with address(self._file("sock")) as place:
                link.connect(place)
            return link
        except OSError:
            link.close()
            return None

    def _file(self, kind: str) -> Path:
        return self.folder / f"{self.key}.{kind}"

    def _state(self) -> _State:
        try:
            return codec.decode(self._file("state").read_bytes(), _State)
        except (OSError, msgspec.DecodeError):
            return _State("none")

    def _start(self) -> socket.socket | None:
        """Starts the server unless another process just has; raises what it said if it does not run."""
        with _locked(self._file("lock")):
            link = self._link()
            if link is not None:
                return link
            state = self._state()
            if state.status == "unavailable":
                raise Unavailable(state.message)
            if state.status == "failed" and state.failures >= _ATTEMPTS:
                raise ServerError(state.message)
            self._end(state)
            state = self._launch(state.failures)
            _write(self._file("state"), codec.encode(state))
            if state.status == "unavailable":
                raise Unavailable(state.message)
            if state.status == "failed" and state.failures >= _ATTEMPTS:
                raise ServerError(state.message)
        return None

    def _launch(self, failures: int) -> _State:
        with contextlib.suppress(FileNotFoundError):
            self._file("sock").unlink()
        ready, ready_in = os.pipe()
        tag = uuid.uuid4().hex
        scratch = self._file("tmp")
        scratch.mkdir(mode=0o700, exist_ok=True)
        owner = owner_of(self.folder)
        argv = [sys.executable, *(["-P"] if sys.version_info >= (3, 11) else []), "-m", "capmatrix.workers.server"]
        argv += ["--engine", self.engine, "--target", self.target, "--ready", "3", "--idle", str(self.limits.idle_s)]
        argv += ["--switches", self.switches.decode(), "--options", self.options.decode()]
        argv += ["--socket", str(self._file("sock")), "--owner", f"{owner.pid}:{owner.start}"]
        argv += ["--scratch", str(scratch)]
        log = os.open(self._file("log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            actions = [(os.POSIX_SPAWN_DUP2, a, b) for a, b in ((null, 0), (log, 1), (log, 2), (ready_in, 3))]
            pid = os.posix_spawn(sys.executable, argv, _environment(tag, scratch), file_actions=actions)
        except OSError as error:
            os.close(ready)
            raise ServerError(f"cannot start a worker server: {error}") from None
        finally:
            for fd in (log, null, ready_in):
                os.close(fd)
        process = processes.identify(pid) or Identity(pid, 0)
        state = _State("starting", process=process, tag=tag)
        _write(self._file("state"), codec.encode(state))
        try:
            status = self._await(ready)
        except BaseException:
            self._end(state)
            raise
        finally:
            os.close(ready)
        if status.status == "ready":
            return msgspec.structs.replace(state, status="ready")
        self._end(state)
        if status.status == "unavailable":
            return _State("unavailable", status.message)
        text = f"the worker server of {self.target} could not start: {status.message}\n{self._log_tail()}"
        return _State("failed", text.rstrip(), failures=failures + 1)

    def _await(self, ready: int) -> Status:
        end = time.monotonic() + self.limits.start_s
        data = b""
        while not data.endswith(b"\n"):
            left = end - time.monotonic()
            if left <= 0 or not select.select([ready], [], [], left)[0]:
                return Status("failed", f"not ready after {self.limits.start_s:g} s")
            piece = os.read(ready, 1 << 16)
            if not piece:
                return Status("failed", "it died while importing the engine")
            data += piece
        return codec.decode(data, Status)

    def _log_tail(self) -> str:
        try:
            with open(self._file("log"), "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
                return printable(file.read().decode("utf-8", "replace")).strip()
        except OSError:
            return ""

    def stop(self) -> None:
        """Ends the server, all its workers and what they left; returns when they are gone."""
        self._end(self._state())

    def _end(self, state: _State) -> None:
        process = state.process
        if process is not None:
            processes.kill(process, signal.SIGTERM)
            processes.kill(process, signal.SIGCONT)
            if not processes.wait_gone(process, 5.0):
                processes.kill(process)
                processes.wait_gone(process, 5.0)
            with contextlib.suppress(OSError):
                os.waitpid(process.pid, os.WNOHANG)  # where it is this process's own child
        if state.tag:
            processes.sweep(TAG, state.tag)
        shutil.rmtree(self._file("tmp"), ignore_errors=True)


def stop(folder: str | os.PathLike[str]) -> None:
    """Ends all servers of a session folder; returns when they, their workers and their strays are gone."""
    path = Path(folder)
    for file in sorted(path.glob("*.state")):
        server = Server(path, "", "", {}, {}, Limits())
        server.key = file.stem
        server.stop()


def _environment(tag: str, scratch: Path) -> dict[str, str]:
    """This process's environment with the server's tag, its folder for temporary files, a way to this very package."""
    env = {**os.environ, TAG: tag, "TMPDIR": str(scratch)}
    # A cache that is meant to last, although torch keeps it among temporary files.
    inductor = Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}"
    env.setdefault("TORCHINDUCTOR_CACHE_DIR", str(inductor))
    root = str(Path(__file__).resolve().parents[2])
    if root not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        env["PYTHONPATH"] = os.pathsep.join([p for p in (env.get("PYTHONPATH"), root) if p])
    return env


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _write(path: Path, data: bytes) -> None:
    """Replaces a file in one step."""
    new = path.with_name(f"{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    new.write_bytes(data)
    os.replace(new, path)
