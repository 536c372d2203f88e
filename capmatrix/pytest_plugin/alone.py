"""Who may run beside whom: what ``--rerun-unexpected`` repeats has the machine to itself, what is timed a GPU.

Two locks a room in the session folder: cells hold one together; who wants to be alone first keeps others from joining.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: The room of the whole machine.
MACHINE = "alone"


def room_of(gpu: str) -> str:
    """The room of a GPU, by its token in the runtime's visibility variable; "" is a room as well."""
    return f"gpu-{''.join(c if c.isalnum() else '.' for c in gpu)}"


@contextmanager
def together(session_dir: Path, room: str = MACHINE) -> Iterator[None]:
    """While the body runs nobody is alone in the room; waits while somebody is."""
    inside = _open(session_dir / f"{room}-room.lock")
    try:
        with _held(session_dir / f"{room}-door.lock", fcntl.LOCK_EX):
            fcntl.flock(inside, fcntl.LOCK_SH)
        yield
    finally:
        os.close(inside)


@contextmanager
def alone(session_dir: Path, room: str = MACHINE) -> Iterator[None]:
    """While the body runs no other process is in ``together`` or here; waits for those that are."""
    door, inside = (session_dir / f"{room}-{part}.lock" for part in ("door", "room"))
    with _held(door, fcntl.LOCK_EX), _held(inside, fcntl.LOCK_EX):
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
