"""One cell at a time on the whole machine: what ``--rerun-unexpected`` repeats runs beside no other cell of the run.

Two locks in the session folder: cells hold one together; who wants to be alone first keeps others from joining.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_DOOR, _ROOM = "alone-door.lock", "alone-room.lock"


@contextmanager
def together(session_dir: Path) -> Iterator[None]:
    """While the body runs nobody is alone; waits while somebody is."""
    with _held(session_dir / _DOOR, fcntl.LOCK_EX):
        room = _open(session_dir / _ROOM)
        fcntl.flock(room, fcntl.LOCK_SH)
    try:
        yield
    finally:
        os.close(room)


@contextmanager
def alone(session_dir: Path) -> Iterator[None]:
    """While the body runs no other process is in ``together`` or here; waits for those that are."""
    with _held(session_dir / _DOOR, fcntl.LOCK_EX), _held(session_dir / _ROOM, fcntl.LOCK_EX):
        yield


@contextmanager
def _held(path: Path, how: int) -> Iterator[None]:
    descriptor = _open(path)
    try:
        fcntl.flock(descriptor, how)
        yield
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
