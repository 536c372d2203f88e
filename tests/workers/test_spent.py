"""A worker whose GPU context is lost after a cell says so, and the next cell gets a fresh one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import fake_engine
from fake_engine import cell

from capmatrix.cell import Verdict
from capmatrix.workers.pool import Pool

ENGINE = "test_spent:open_session"


class SpentSession(fake_engine.FakeSession):
    """Its context is lost after every cell whose argument says so."""

    spent = False

    def run(self, cell: Any, emit: Any) -> Any:
        """As any other."""
        record = super().run(cell, emit)
        self.spent = cell.drafter == "lost"
        return record


def open_session(target: str, switches: dict[str, str], options: dict[str, Any]) -> SpentSession:
    """Named by the pools below."""
    return SpentSession(target, switches)


def test_the_next_cell_runs_in_a_fresh_worker(tmp_path: Path) -> None:
    with Pool(ENGINE, session_dir=tmp_path / "session") as pool:
        first, same, fresh, again = (pool.run(cell("OK", argument=name)) for name in ("a", "lost", "b", "c"))
    assert [r.verdict for r in (first, same, fresh, again)] == [Verdict.PASS] * 4
    assert first.reasons == same.reasons
    assert fresh.reasons != same.reasons
    assert again.reasons == fresh.reasons
    assert all(r.reasons != (f"pid {os.getpid()}",) for r in (first, fresh))


def test_one_lost_context_after_another(tmp_path: Path) -> None:
    with Pool(ENGINE, session_dir=tmp_path / "session") as pool:
        workers = {pool.run(cell("OK", argument="lost", block=16 * i)).reasons for i in range(1, 5)}
    assert len(workers) == 4
