"""Linux process plumbing: who is alive, who descends from whom, killing all of it, limits. Needs no packages."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import time
from collections.abc import Collection

from .protocol import Identity

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl failed")


def become_subreaper() -> None:
    """Orphans below this process become its children instead of init's."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """SIGKILL for this process when ``parent``, which forked it, dies; at once if it already has."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/<pid>/stat from the state on (state 0, parent 1, start 19), or None."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    return text[text.rfind(b")") + 2 :].decode("ascii", "replace").split()


def identify(pid: int) -> Identity | None:
    """A living process's identity; None when it is gone or a zombie."""
    fields = _stat(pid)
    if not fields or fields[0] in ("Z", "X"):
        return None
    return Identity(pid, int(fields[19]))


def myself() -> Identity:
    """This process's identity."""
    found = identify(os.getpid())
    return found if found is not None else Identity(os.getpid(), 0)


def alive(process: Identity) -> bool:
    """Whether that very process still runs."""
    return identify(process.pid) == process


def kill(process: Identity, number: int = signal.SIGKILL) -> None:
    """Signals that very process, if it is still there."""
    if alive(process):
        with contextlib.suppress(OSError):
            os.kill(process.pid, number)


def wait_gone(process: Identity, seconds: float) -> bool:
    """Waits for a process that need not be a child; whether it went in time."""
    end = time.monotonic() + seconds
    pause = 0.001
    while alive(process):
        if time.monotonic() > end:
            return False
        time.sleep(pause)
        pause = min(0.05, pause * 1.5)
    return True


def pids() -> list[int]:
    """All process ids that /proc shows."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def children(parent: int) -> dict[int, bool]:
    """Direct children of a process; the value says whether it lives (False: a zombie)."""
    found = {}
    for pid in pids():
        fields = _stat(pid)
        if fields and int(fields[1]) == parent:
            found[pid] = fields[0] not in ("Z", "X")
    return found


class Killed:
    """What ``kill_children`` did: statuses of reaped children by pid, pids that would not die."""

    def __init__(self) -> None:
        self.statuses: dict[int, int] = {}
        self.unkillable: tuple[int, ...] = ()


def kill_children(seconds: float = 10.0, spare: Collection[int] = ()) -> Killed:
    """Kills and reaps this subreaper's children, and the orphans that thereby become its children.

    ``spare``d children are left alone. What still lives after ``seconds`` (uninterruptible in a driver) is named.
    """
    result = Killed()
    end = time.monotonic() + seconds
    pause = 0.0005
    while True:
        mine = {pid: lives for pid, lives in children(os.getpid()).items() if pid not in spare}
        for pid, lives in mine.items():
            if lives:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        for pid in mine:
            with contextlib.suppress(ChildProcessError):
                reaped, status = os.waitpid(pid, os.WNOHANG)
                if reaped:
                    result.statuses[pid] = status
        left = [pid for pid in mine if pid not in result.statuses]
        if not mine:
            return result
        if left:
            if time.monotonic() > end:
                result.unkillable = tuple(left)
                return result
            time.sleep(pause)
            pause = min(0.02, pause * 2)


def sweep(name: str, value: str) -> int:
    """Kills every process whose environment holds ``name=value``; how many there were.

    The last resort, for what is left when a server and all its keepers were killed at once.
    """
    wanted = f"{name}={value}".encode()
    count = 0
    for pid in pids():
        if pid == os.getpid():
            continue
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                environment = file.read()
        except OSError:
            continue
        if wanted in environment.split(b"\0"):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                count += 1
    return count


def limit(memory_bytes: int | None, file_bytes: int | None) -> None:
    """Bounds this process: data beyond what it has now, size of a file it writes, stack; no core files."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_bytes is not None:
        _lower(resource.RLIMIT_DATA, _data_bytes() + memory_bytes)
    if file_bytes is not None:
        _lower(resource.RLIMIT_FSIZE, file_bytes)
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    if soft == resource.RLIM_INFINITY:
        # Endless recursion must end in a fault, not in the machine's memory.
        resource.setrlimit(resource.RLIMIT_STACK, (1 << 28, hard))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")  # out of memory, the kernel takes a worker rather than pytest


def _lower(what: int, value: int) -> None:
    _, hard = resource.getrlimit(what)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(what, (value, value))


def _data_bytes() -> int:
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("VmData:"):
                return int(line.split()[1]) * 1024
    return 0


class Owner:
    """Watches a process that this one must not outlive."""

    def __init__(self, owner: Identity) -> None:
        self.owner = owner
        self.fd = -1
        if alive(owner):
            with contextlib.suppress(OSError, AttributeError):
                self.fd = os.pidfd_open(owner.pid)  # readable at its end; absent before Linux 5.3

    @property
    def poll_seconds(self) -> float:
        """How long to sleep at most between looks."""
        return 5.0 if self.fd >= 0 else 0.5

    def gone(self) -> bool:
        """Whether it has ended."""
        return not alive(self.owner)
