"""An engine whose cells do what the pool's fault suite has them do: a cell's block size picks the fault.

``SMALL_DISK`` names a folder that ``FILLS`` fills; without it no cell fills anything.
"""

from __future__ import annotations

import os
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
}


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
        if fault != "FILLS" or disk:
            fake_engine.ACTIONS[fault](msgspec.structs.replace(cell, drafter=disk), emit)
        return Record(
            cell_id=codec.cell_id(cell),
            cell=cell,
            verdict=Verdict.PASS,
            rung=rungs.reachable(cell.target),
            phase=Phase.FORWARD,
            environment=self.environment.id,
        )


def open_session(target: str, switches: dict[str, str], options: dict[str, Any]) -> Session:
    return Session(target)
