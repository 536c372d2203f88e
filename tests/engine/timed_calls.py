"""The engine that times cells where there is no GPU: its clock, its waits and its bandwidth are made up.

Everything else is the engine's own: set-up at the profile's size, placement, the call, the metadata's builder. Nothing
that it returns as a time is one. A cell's drafter names what its rounds run into (``FAULTS``), and ``clocks`` says
which process it was.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Mapping
from typing import Any
from unittest import mock

import msgspec

from capmatrix.cell import Cell, Record
from capmatrix.engine import session as engine
from capmatrix.grid import Workload
from capmatrix.timings import Sample


class Event:
    """Counts itself: each lies one millisecond after the one before."""

    made = 0

    def __init__(self, enable_timing: bool = False) -> None:
        self.at = 0

    def record(self) -> None:
        Event.made += 1
        self.at = Event.made

    def elapsed_time(self, end: Event) -> float:
        return float(end.at - self.at)

    def synchronize(self) -> None:
        pass


def open_session(target: str, switches: Mapping[str, str], options: Mapping[str, Any]) -> Timed:
    """As the engine's own, which then takes the CPU for a GPU."""
    session = engine.open_session(target, switches, options)
    import torch

    from capmatrix.engine import device_boot, timing

    session._device = torch.device("cpu")
    device_boot.healthy = lambda: ""
    timing.bandwidth = lambda: 4e12
    timing._FLUSH_BYTES = 1 << 10
    torch.cuda.Event = Event  # type: ignore[assignment,misc]
    torch.cuda.synchronize = lambda *a: None
    torch.cuda.get_sync_debug_mode = lambda: 0
    torch.cuda.set_sync_debug_mode = lambda mode: None
    return Timed(session)


class Timed:
    """The engine's session, with a kind of target that it times."""

    def __init__(self, session: engine.Session) -> None:
        self.session = session
        self.environment = session.environment

    @property
    def spent(self) -> bool:
        """Whether the worker must be replaced."""
        return self.session.spent

    def run(self, cell: Cell, emit: engine.Emit) -> Record:
        """As the engine's own."""
        return self.session.run(cell, emit)

    def time(self, cell: Cell, workload: Workload, repeats: int, emit: engine.Emit) -> Sample:
        """One round."""
        from capmatrix.engine import forward, static_call

        fault = FAULTS.get(cell.drafter, lambda build: build)
        target, self.session.target = self.session.target, self.session.target._replace(kind="device")
        with contextlib.ExitStack() as patches:
            for module in (forward, static_call):
                broken = fault(module.build_attn_metadata)
                patches.enter_context(mock.patch.object(module, "build_attn_metadata", broken))
            sample = self.session.time(cell, workload, repeats, emit)
        self.session.target = target
        return msgspec.structs.replace(sample, clocks={"pid": float(os.getpid())})


def waiting(build: Any) -> Any:
    """A builder that waits three times: twice as PyTorch warns of, once for the device."""
    import torch

    def build_and_wait(*args: Any, **kwargs: Any) -> Any:
        for _ in range(2):
            warnings.warn("called a synchronizing CUDA operation (Triggered internally)", stacklevel=1)
        warnings.warn("something else", stacklevel=1)
        torch.cuda.synchronize()
        return build(*args, **kwargs)

    return build_and_wait


def failing(build: Any) -> Any:
    """A builder that meets an illegal access."""

    def build_and_fail(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered")

    return build_and_fail


def out_of_memory(build: Any) -> Any:
    """A builder for which the memory does not suffice."""
    import torch

    def build_and_fail(*args: Any, **kwargs: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 TiB")

    return build_and_fail


FAULTS = {"waits": waiting, "illegal": failing, "memory": out_of_memory}
