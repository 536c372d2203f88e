"""Limits of a worker; times in seconds of the monotonic clock, so that clock jumps do not matter."""

from __future__ import annotations

import msgspec

GIB = 1 << 30


class Limits(msgspec.Struct, frozen=True):
    """What a cell may use before it is stopped, and how long infrastructure may take.

    ``compile_s`` and ``run_s`` are budgets of one cell: the time it spends in phase ``compile`` and
    in all other phases. ``start_s``: importing the engine. ``fork_s``: a fresh worker of a running
    server. ``reap_s``: for a killed worker to be gone. ``memory_bytes``: data a worker may allocate
    beyond what the server had (not applied on ``device``: GPU runtimes reserve address space freely);
    None is no limit. ``file_bytes``: largest file a worker may write. ``output_bytes``: how much of
    the end of a worker's output is kept in memory; ``stderr_tail``: characters of it in a record.
    ``emulated_factor``: how many times ``run_s`` a cell may take on an emulated GPU.
    ``history``: cells before a crash that a bisection looks at; ``bisect_attempts`` and ``bisect_s``
    bound it. ``idle_s``: a server without workers ends after it.
    """

    compile_s: float = 600.0
    run_s: float = 300.0
    start_s: float = 180.0
    fork_s: float = 60.0
    reap_s: float = 20.0
    idle_s: float = 300.0
    memory_bytes: int | None = 8 * GIB
    file_bytes: int | None = 4 * GIB
    output_bytes: int = 1 << 16
    stderr_tail: int = 4000
    emulated_factor: float = 20.0
    history: int = 64
    bisect_attempts: int = 9
    bisect_s: float = 900.0


def for_target(limits: Limits, target: str) -> Limits:
    """The limits of cells on ``target``: an emulated GPU runs kernels much slower; compiling is the CPU's, as ever."""
    if target.partition(":")[0] != "emulator":
        return limits
    return msgspec.structs.replace(limits, run_s=limits.run_s * limits.emulated_factor)
