"""The engine with a fault seeded into each cell, for ``capmatrix.workers.pool``: never reached from a command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from capmatrix.cell import Cell, Record
from capmatrix.engine import session
from capmatrix.engine.session import Emit

from .catalogue import FAULTS, PROBES, Fault
from .patching import edited


class FaultySession:
    """Runs a cell with the fault that its ``drafter`` names, or unbroken where it names none."""

    def __init__(self, whole: session.Session) -> None:
        self.whole = whole
        self.target = whole.target
        self.environment = whole.environment

    def run(self, cell: Cell, emit: Emit) -> Record:
        """One cell's record."""
        fault = FAULTS.get(cell.drafter) or PROBES.get(cell.drafter)
        if fault is None:
            return self.whole.run(cell, emit)
        with edited(fault.edits):
            return self._in_its_pool(fault, cell, emit)

    def _in_its_pool(self, fault: Fault, cell: Cell, emit: Emit) -> Record:
        from capmatrix.engine import setup

        if fault.pool_blocks is None:
            return self.whole.run(cell, emit)
        usual = setup.pool_blocks
        setup.pool_blocks = lambda cell, block_size: fault.pool_blocks
        self.whole._shared = None
        try:
            return self.whole.run(cell, emit)
        finally:
            setup.pool_blocks = usual
            self.whole._shared = None


def open_session(target: str, switches: Mapping[str, str], options: Mapping[str, Any]) -> FaultySession:
    """As ``capmatrix.engine.session.open_session``."""
    return FaultySession(session.open_session(target, switches, options))
