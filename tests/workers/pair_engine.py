"""The fake engine with pairs: a pair's drafter backend names what it does."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import fake_engine

from capmatrix.cell import Phase, Rung, Verdict
from capmatrix.pair import Pair, PairRecord, pair_id


class PairSession(fake_engine.FakeSession):
    """Runs cells as the fake engine does, and pairs."""

    def run_pair(self, pair: Pair, emit: fake_engine.Emit) -> PairRecord:
        emit("phase", {"phase": "select", "detail": "drafter"})
        what = pair.drafter.backend
        if what == "ROCM_ATTN":
            os.kill(os.getpid(), signal.SIGSEGV)
        if what == "FLEX_ATTENTION":
            time.sleep(600)
        if what == "ROCM_AITER_FA":
            raise ValueError("No common block size for 128")
        asked = pair
        if what == "TURBOQUANT":
            asked = Pair(pair.target, pair.target_model, pair.drafter, 99, pair.method, 1)
        return PairRecord(
            pair_id=pair_id(pair),
            pair=asked,
            verdict=Verdict.PASS,
            rung=Rung.DECLARED,
            phase=Phase.BUILD,
            environment=self.environment.id,
            layout="LHBNC",
            reasons=(f"pid {os.getpid()}",),
        )


def open_session(target: str, switches: dict[str, str], options: dict[str, Any]) -> PairSession:
    opened = fake_engine.open_session(target, switches, options)
    opened.__class__ = PairSession
    return opened  # type: ignore[return-value]
