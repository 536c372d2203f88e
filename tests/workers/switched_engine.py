"""An engine without vLLM whose one cell needs AITER and block 64, and that does not open with one of the switches."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from capmatrix import codec, rungs
from capmatrix.cell import Cell, Claim, Environment, Phase, Record, Timing, Verdict
from capmatrix.engine import Unavailable

Emit = Callable[[str, dict[str, Any]], None]


def open_session(target: str, switches: dict[str, str], options: dict[str, Any]) -> SwitchedSession:
    """Raises what an engine that cannot be imported raises, where VLLM_BATCH_INVARIANT is set."""
    if target != "offline:gfx942":
        raise Unavailable("no such hardware here")
    if os.environ.get("VLLM_BATCH_INVARIANT"):
        raise ImportError("cannot import name 'x' from 'vllm'")
    return SwitchedSession(target, switches)


class SwitchedSession:
    """Passes with VLLM_ROCM_USE_AITER=1 and block 64; dies with the shuffled layout."""

    def __init__(self, target: str, switches: dict[str, str]) -> None:
        name = "-".join(f"{k}{v}" for k, v in sorted(switches.items()))
        self.environment = Environment(f"env-{name}", target, versions={"vllm": "0.32.0"}, switches=dict(switches))

    def run(self, cell: Cell, emit: Emit) -> Record:
        """One cell's record."""
        emit("phase", {"phase": "forward", "detail": "kernel_a"})
        if os.environ.get("VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT") == "1":
            os.abort()
        aiter = os.environ.get("VLLM_ROCM_USE_AITER") == "1"
        good = aiter and cell.block_size == 64
        return Record(
            codec.cell_id(cell),
            cell,
            Verdict.PASS if good else Verdict.ERROR,
            rungs.reachable(cell.target),
            Phase.FORWARD,
            self.environment.id,
            reasons=() if good else (f"RuntimeError: no kernel for block {cell.block_size}",),
            claims=(Claim("selector", aiter, f"AITER {'on' if aiter else 'off'}"),),
        )


def open_timed(target: str, switches: dict[str, str], options: dict[str, Any]) -> TimedSession:
    """An engine that times every cell, on whatever target."""
    return TimedSession(target)


class TimedSession:
    """Passes, and says how long it took."""

    def __init__(self, target: str) -> None:
        self.environment = Environment(f"env-{target}", target)

    def run(self, cell: Cell, emit: Emit) -> Record:
        """One cell's record."""
        return Record(
            codec.cell_id(cell),
            cell,
            Verdict.PASS,
            rungs.reachable(cell.target),
            Phase.TIME,
            self.environment.id,
            times=(Timing("decode", "w", 10.0, 9.0, 11.0, 5),),
        )
