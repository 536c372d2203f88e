"""The tiny engine with pairs: what is asked of the drafter decides what comes out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tiny_engine

from capmatrix.cell import Phase, Rung, Verdict
from capmatrix.pair import Pair, PairRecord, SideFacts, pair_id


class PairSession(tiny_engine.Session):
    def run_pair(self, pair: Pair, emit: Callable[[str, dict[str, Any]], None]) -> PairRecord:
        tiny_engine.log(f"pair {pair_id(pair)}")
        verdict, reasons = Verdict.PASS, ()
        if pair.drafter.backend == "ROCM_AITER_FA":
            verdict, reasons = Verdict.REJECTED, ("ValueError: No common block size for 128",)
        if pair.drafter.backend == "ROCM_ATTN":
            verdict, reasons = Verdict.WRONG, ("drafter ROCM_ATTN, decode: off by 3",)
        return PairRecord(
            pair_id=pair_id(pair),
            pair=pair,
            verdict=verdict,
            rung=Rung.DECLARED if verdict is Verdict.REJECTED else Rung.COMPILED,
            phase=Phase.BUILD,
            step="kernel blocks and metadata builders" if verdict is Verdict.REJECTED else "",
            environment=self.environment.id,
            reasons=reasons,
            drafter=SideFacts(backends={pair.drafter.backend or "TRITON_ATTN": 1}, how="inherited"),
            layout="LHBNC",
        )


def open_session(target: str, switches: dict[str, str], options: dict[str, Any]) -> PairSession:
    opened = tiny_engine.open_session(target, switches, options)
    opened.__class__ = PairSession
    return opened  # type: ignore[return-value]
