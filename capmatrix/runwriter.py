"""Writing a run file: one ``write`` a line, under a lock, by any number of processes of one run."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from . import codec
from .cell import Environment, Record
from .errors import CapmatrixError, printable
from .pair import PairRecord
from .runlines import (
    MAX_LINE,
    EndLine,
    EnvironmentLine,
    Line,
    PairLine,
    RecordLine,
    RunLine,
    StartedLine,
    line_decoder,
    now,
)


class StoreError(CapmatrixError):
    """A run file cannot be written: in use by another run, no space, no permission."""


class RunWriter:
    """Appends to a run file.

    ``RunWriter(path, header)`` is the controller: it creates the file (0644, missing folders too) or,
    with ``resume``, continues it, and keeps a second run off it until closed. Other processes of the same
    run append through ``RunWriter.attach(path)``. With ``fsync`` ``started`` and ``record`` lines are
    on the medium before the call returns, which only a machine that may go down needs.

    Raises StoreError where the file is another run's, exists without ``resume``, or cannot be written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        header: Mapping[str, Any],
        *,
        resume: bool = False,
        fsync: bool = False,
    ) -> None:
        self.path = Path(path)
        self.fsync = fsync
        self._fd = -1
        self._lock_fd = -1
        if self.path.suffix == ".gz":
            raise StoreError(f"{path}: a compressed run file can be read, not written; decompress it first")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock_fd = _own(self.path)
            self._fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            if os.fstat(self._fd).st_size and not resume:
                raise StoreError(f"{path}: exists already; continue it with --resume, or name another file")
            self._append(RunLine(dict(header)))
        except OSError as error:
            self.close()
            raise StoreError(f"{path}: cannot write the run file: {error.strerror or error}") from None
        except BaseException:
            self.close()
            raise

    @classmethod
    def attach(cls, path: str | os.PathLike[str], *, fsync: bool = False) -> RunWriter:
        """A writer for another process of the run whose controller created ``path``."""
        writer = cls.__new__(cls)
        writer.path = Path(path)
        writer.fsync = fsync
        writer._lock_fd = -1
        try:
            writer._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            raise StoreError(f"{path}: cannot append to the run file: {error.strerror or error}") from None
        return writer

    def environment(self, environment: Environment) -> None:
        """Appends an environment; records name it by its id."""
        self._append(EnvironmentLine(environment))

    def started(self, cell_id: str, attempt: int = 1) -> None:
        """Says, before its launch, that a cell is about to run."""
        self._append(StartedLine(cell_id, attempt, now()), sync=self.fsync)

    def record(self, record: Record) -> None:
        """Appends a record. Raises StoreError, with nothing written, for one that would not read back."""
        self._append(RecordLine(record), sync=self.fsync)

    def pair(self, record: PairRecord) -> None:
        """Appends a pair's record, as ``record`` does a cell's."""
        self._append(PairLine(record), sync=self.fsync)

    def end(self, summary: Mapping[str, Any]) -> None:
        """Marks the run complete."""
        self._append(EndLine(dict(summary)), sync=True)

    def _append(self, line: Line, sync: bool = False) -> None:
        import fcntl

        data = codec.encode(line) + b"\n"
        if len(data) > MAX_LINE:
            raise StoreError(f"{self.path}: a line of {len(data)} bytes is over the limit of {MAX_LINE}")
        try:
            # A NaN becomes null in JSON: better refused here than a line that nobody can read.
            line_decoder.decode(data)
        except msgspec.DecodeError as error:
            raise StoreError(f"{self.path}: cannot store an invalid {type(line).__name__}: {error}") from None
        fd = self._fd
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            try:
                size = os.fstat(fd).st_size
                if size and os.pread(fd, 1, size - 1) != b"\n":
                    data = b"\n" + data  # ends the line that a killed writer left truncated
                try:
                    written = os.write(fd, data)
                except OSError:
                    written = -1
                    raise
                finally:
                    if written != len(data):
                        os.ftruncate(fd, size)
                if written != len(data):
                    raise StoreError(f"{self.path}: no space left to append {len(data)} bytes")
                if sync:
                    os.fsync(fd)
            finally:
                fcntl.flock(fd, fcntl.LOCK_UN)
        except OSError as error:
            raise StoreError(f"{self.path}: cannot append to the run file: {error.strerror or error}") from None

    def close(self) -> None:
        """Closes the file and lets another run have it. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
        lock, self._lock_fd = self._lock_fd, -1
        if lock >= 0:
            with contextlib.suppress(OSError):
                os.unlink(_lock_path(self.path))  # while held: the next owner checks that its lock is still there
            os.close(lock)

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _lock_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")


def _own(path: Path) -> int:
    """Takes the run file for this process; the descriptor holds it until closed or the process ends."""
    import fcntl

    lock = _lock_path(path)
    while True:
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.stat(lock).st_ino == os.fstat(fd).st_ino:
                os.ftruncate(fd, 0)
                os.write(fd, json.dumps({"pid": os.getpid(), "since": now()}).encode())
                return fd
        except FileNotFoundError:
            pass  # its owner closed and removed it between our open and our lock
        except BlockingIOError:
            owner = printable(os.read(fd, 200).decode("utf-8", "replace"))
            os.close(fd)
            raise StoreError(
                f"{path}: another run is writing this file ({owner}); wait for it, stop it, or name another file"
            ) from None
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
