"""An engine whose cells do what the pool's fault suite has them do: a cell's block size picks the fault.

``SMALL_DISK`` names a folder that ``FILLS`` fills; without it no cell fills anything. ``EATS_MEMORY`` eats what is
left of the pool's limit after all but a little of it is taken away.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from typing import Any

import msgspec

from capmatrix import codec, rungs
from capmatrix.cell import Cell, Environment, Phase, Record, Verdict

#: Faults in the order of block sizes, from 1, with the verdict that each must get.
FAULTS: dict[str, Verdict] = {
    "OK": Verdict.PASS,
    "FAILS": Verdict.ERROR,
    "INTERRUPTS": Verdict.ERROR,
    "ENDLESS_RECURSION": Verdict.ERROR,
    "SYS_EXIT": Verdict.CRASH,
    "OS_EXIT": Verdict.CRASH,
    "ABORT": Verdict.CRASH,
    "SEGFAULT": Verdict.CRASH,
    "BUS_ERROR": Verdict.CRASH,
    "STACK_OVERFLOW": Verdict.CRASH,
    "KILLED": Verdict.CRASH,
    "HANGS": Verdict.TIMEOUT,
    "HANGS_BLOCKED": Verdict.TIMEOUT,
    "HANGS_IN_LOCK": Verdict.TIMEOUT,
    "STOPS": Verdict.TIMEOUT,
    "COMPILES_FOREVER": Verdict.TIMEOUT,
    "FLOODS": Verdict.PASS,
    "FLOODS_AND_DIES": Verdict.CRASH,
    "CLOSES_EVERYTHING": Verdict.CRASH,
    "CLOSES_OUTPUT": Verdict.PASS,
    "GARBAGE": Verdict.CRASH,
    "HALF_LINE": Verdict.CRASH,
    "DAEMON": Verdict.PASS,
    "DAEMON_AND_DIES": Verdict.CRASH,
    "SUBPROCESS_AND_HANGS": Verdict.TIMEOUT,
    "FILLS": Verdict.ERROR,
    "SYS_EXIT_TEXT": Verdict.CRASH,
    "OS_EXIT_3": Verdict.CRASH,
    "ALARM": Verdict.CRASH,
    "EATS_MEMORY": Verdict.ERROR,
    "COMPILES_MANY": Verdict.TIMEOUT,
    "MANY_PROCESSES": Verdict.TIMEOUT,
    "LEAVES_THREAD": Verdict.PASS,
    "FORKS_ON": Verdict.PASS,
    "GARBAGE_JSON": Verdict.CRASH,
    "ENDLESS_LINE": Verdict.CRASH,
    "NOT_A_RECORD": Verdict.ERROR,
    "ANOTHER_CELLS_RECORD": Verdict.ERROR,
    "KILLS_KEEPER": Verdict.CRASH,
    "STOPS_KEEPER": Verdict.TIMEOUT,
    "KILLS_SERVER": Verdict.CRASH,
}

#: What the pool's suite has beyond these: no faults, or such as need several cells or files of their own.
NOT_FAULTS = {"ENVIRON", "WAITS_FOR_FILE", "LEAVES_FILES", "KILLS_SERVER_ONCE"}
SEVERAL_CELLS = {"POISON", "DIES_OF_POISON", "DIES_OF_TWO_POISONS"}


class Session:
    def __init__(self, target: str) -> None:
        self.environment = Environment(id=f"fault-{target}", target=target)

    def run(self, cell: Cell, emit: Callable[[str, dict[str, Any]], None]) -> Record:
        import fake_engine  # of tests/workers, on the path of the runs alone

        fault = list(FAULTS)[cell.block_size - 1]
        with open(os.environ["TINY_LOG"], "a") as log:
            log.write(f"run {os.getpid()} {codec.cell_id(cell)}\n")
        emit("phase", {"phase": "forward", "detail": "kernel_b"})
        disk = os.environ.get("SMALL_DISK", "")
        if fault == "EATS_MEMORY":
            leave_a_little_memory()
        if fault != "FILLS" or disk:
            made = fake_engine.ACTIONS[fault](msgspec.structs.replace(cell, drafter=disk), emit)
            if isinstance(made, Record):
                return made
        return Record(
            cell_id=codec.cell_id(cell),
            cell=cell,
            verdict=Verdict.PASS,
            rung=rungs.reachable(cell.target),
            phase=Phase.FORWARD,
            environment=self.environment.id,
        )


def leave_a_little_memory() -> None:
    """Lower the limit that the pool has set, so that a machine with little memory survives the test as well."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    assert soft != resource.RLIM_INFINITY, "the pool has set no limit"
    with open("/proc/self/status") as file:
        used = next(int(line.split()[1]) << 10 for line in file if line.startswith("VmData:"))
    resource.setrlimit(resource.RLIMIT_DATA, (min(soft, used + (1 << 27)), hard))


def open_session(target: str, switches: dict[str, str], options: dict[str, Any]) -> Session:
    return Session(target)
