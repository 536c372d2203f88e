"""An engine without vLLM that serves ``device`` and times cells: a cell's backend says what becomes of it.

``TINY_LOG`` names a file that gets a line for each cell run (``run PID CELL``) and each round of times: ``ready PID
CELL WORKLOAD`` for one without repeats, else ``time PID GPU CELL WORKLOAD REPEATS`` at its begin and ``done PID GPU``
at its end. While it is timed a cell of TURBOQUANT dies, one of FLEX_ATTENTION raises, one of TRITON_ATTN_DIFFKV leaves
its worker unfit, and one of ULTRAQUANT never ends; those of ROCM_ATTN are wrong at block 128. ``TINY_HOLD`` names a
file that stops every round with repeats from the second on, for as long as it exists.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from tiny_engine import log

from capmatrix import codec
from capmatrix.cell import Cell, Environment, Flag, Phase, Record, Rung, Verdict
from capmatrix.grid import Workload
from capmatrix.timings import Sample

Emit = Callable[[str, dict[str, Any]], None]

#: How long a round takes, in seconds: long enough that two at once would be seen in the log.
PAUSE = 0.02


class Session:
    def __init__(self, target: str, switches: dict[str, str]) -> None:
        words = "".join(f"-{name}={value}" for name, value in sorted(switches.items()))
        told = os.environ.get("TINY_ENVIRONMENT", "timed")
        self.environment = Environment(
            f"{told}-{target}{words}", target, versions={"vllm": "0.32.0"}, hardware={"name": "GPU of the tests"}
        )
        self.spent = False

    def run(self, cell: Cell, emit: Emit) -> Record:
        """Everything passes but ROCM_ATTN at block 128, and FLEX_ATTENTION is ``nan_unsafe``."""
        log(f"run {os.getpid()} {codec.cell_id(cell)}")
        emit("phase", {"phase": "forward"})
        verdict, reasons = Verdict.PASS, ()
        if cell.backend == "ROCM_ATTN" and cell.block_size == 128:
            verdict, reasons = Verdict.WRONG, ("relative L2 0.55 over the bound 0.0042",)
        return Record(
            cell_id=codec.cell_id(cell),
            cell=cell,
            verdict=verdict,
            rung=Rung.EXECUTED,
            phase=Phase.FORWARD,
            environment=self.environment.id,
            reasons=reasons,
            flags=(Flag.NAN_UNSAFE,) if cell.backend == "FLEX_ATTENTION" else (),
            durations={"forward": 0.01},
        )

    def time(self, cell: Cell, workload: Workload, repeats: int, emit: Emit) -> Sample:
        """One round, whose microseconds are the block size, the number of the repeat in hundredths added."""
        name = codec.cell_id(cell)
        if not repeats:
            log(f"ready {os.getpid()} {name} {workload.concurrency}")
            return Sample(how="ready")
        gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "none")
        log(f"time {os.getpid()} {gpu} {name} {workload.concurrency} {repeats}")
        emit("phase", {"phase": "time"})
        time.sleep(PAUSE)
        self.misbehave(cell)
        log(f"done {os.getpid()} {gpu}")
        return Sample(
            microseconds=tuple(cell.block_size + i / 100 for i in range(repeats)),
            how="graph replay",
            requests=workload.concurrency,
            query_tokens=workload.concurrency,
            moved_bytes=1_000_000,
            bandwidth=4e12,
            metadata_us=(20.0, 30.0),
            synchronisations=1,
            clocks={"sm_mhz": 1980.0},
        )

    def misbehave(self, cell: Cell) -> None:
        hold = os.environ.get("TINY_HOLD", "")
        while hold and rounds() > 1 and os.path.exists(hold):
            time.sleep(0.01)
        if cell.backend == "TURBOQUANT":
            os.abort()
        if cell.backend == "FLEX_ATTENTION":
            raise RuntimeError("out of memory")
        if cell.backend == "TRITON_ATTN_DIFFKV":
            self.spent = True
            raise RuntimeError("an illegal memory access was encountered")
        while cell.backend == "ULTRAQUANT":
            time.sleep(0.05)


def rounds() -> int:
    """How many rounds with repeats were begun so far."""
    with open(os.environ["TINY_LOG"]) as file:
        return sum(line.startswith("time ") for line in file)


def open_session(target: str, switches: dict[str, str], options: dict[str, Any]) -> Session:
    """For any target."""
    log(f"open {os.getpid()} {target}")
    return Session(target, switches)
