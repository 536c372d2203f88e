"""The engine with GPU faults provoked on purpose, one kind a batch shape: for a machine with a GPU.

    PYTHONPATH=tests/device capmatrix run eagle3-llama --target device:gfx950 --limit-run 12 \\
        -k "TRITON_ATTN and b16- and auto and heads16.16" -- --capmatrix-engine faulty_engine:open_session

``decode``: a block table entry far outside the pool (an illegal access). ``verify``: an entry just past the
pool's end (no error at all, wrong numbers). ``prefill``: more memory than there is. ``mixed``: a kernel that
never ends. ``chunked_prefill``: nothing; it must pass, after and beside all of them.

``open_timed`` breaks times instead (``--preset timed --time seed``): every cell passes, the rounds of decode meet an
illegal access and those of prefill run out of memory, and those of verify, which come after and beside them, are timed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from capmatrix.cell import Cell, Record
from capmatrix.engine import session as engine
from capmatrix.grid import Workload
from capmatrix.timings import Sample

#: By batch: what is done to a set-up and where its tokens live, before the call.
Faults = Mapping[str, Callable[[Any, Any], None]]


def open_session(target: str, switches: Mapping[str, str], options: Mapping[str, Any]) -> Faulty:
    """As the engine's own."""
    return Faulty(engine.open_session(target, switches, options), runs=FAULTS)


def open_timed(target: str, switches: Mapping[str, str], options: Mapping[str, Any]) -> Faulty:
    """As the engine's own."""
    return Faulty(engine.open_session(target, switches, options), times=TIME_FAULTS)


class Faulty:
    """A session that breaks cells, or their times, by their batch."""

    def __init__(self, session: engine.Session, runs: Faults | None = None, times: Faults | None = None) -> None:
        # Not before the session is open: importing it imports vLLM.
        from capmatrix.engine import forward

        self.forward, self.attend = forward, forward.attend
        self.session = session
        self.environment = session.environment
        self.runs, self.times = runs or {}, times or {}

    @property
    def spent(self) -> bool:
        """Whether the worker must be replaced."""
        return self.session.spent

    def run(self, cell: Cell, emit: engine.Emit) -> Record:
        """The cell's record, broken."""
        fault = self.runs.get(cell.batch)
        if fault is None:
            return self.session.run(cell, emit)

        def broken(setup: Any, batch: Any, placement: Any, *rest: Any) -> Any:
            fault(setup, placement)
            return self.attend(setup, batch, placement, *rest)

        self.forward.attend = broken
        try:
            return self.session.run(cell, emit)
        finally:
            self.forward.attend = self.attend

    def time(self, cell: Cell, workload: Workload, repeats: int, emit: engine.Emit) -> Sample:
        """One round, broken; what is made ready beforehand is not."""
        from capmatrix.engine import timing

        fault, given = self.times.get(cell.batch), timing._given

        def broken(cell: Cell, made: Any, batch: Any) -> Any:
            placement, values = given(cell, made, batch)
            if fault is not None and repeats:
                fault(made, placement)
            return placement, values

        timing._given = broken
        try:
            return self.session.time(cell, workload, repeats, emit)
        finally:
            timing._given = given


def far_outside(setup: Any, placement: Any) -> None:
    """Every entry of the block table points at 100 million."""
    placement.tables.fill_(100_000_000)


def just_outside(setup: Any, placement: Any) -> None:
    """The last request's first block is the one past the pool's end."""
    placement.tables[-1, 0] = setup.kv_cache_config.num_blocks


def out_of_memory(setup: Any, placement: Any) -> None:
    """Allocate a terabyte."""
    import torch

    torch.empty(1 << 40, dtype=torch.uint8, device=setup.device)


def endless(setup: Any, placement: Any) -> None:
    """A kernel that spins for days, and a wait for it."""
    import torch

    torch.cuda._sleep(1 << 50)
    torch.cuda.synchronize()


TIME_FAULTS = {"decode": far_outside, "prefill": out_of_memory}
FAULTS = {"decode": far_outside, "verify": just_outside, "prefill": out_of_memory, "mixed": endless}
