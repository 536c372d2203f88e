"""Pairs in workers: the same isolation as for cells, and records of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import fake_engine
import pytest
from worker_helpers import AMPLE

from capmatrix.cell import Geometry, Phase, Verdict
from capmatrix.pair import Pair, Side, pair_id
from capmatrix.workers.limits import Limits
from capmatrix.workers.pool import Pool

ENGINE = "pair_engine:open_session"


def pair(does: str, target: str = "offline:gfx942") -> Pair:
    """A pair whose drafter backend is ``does``."""
    return Pair(
        target=target,
        target_model=Side("llama3.1-8b", "LlamaForCausalLM", Geometry(8, 8, 64), "TRITON_ATTN"),
        drafter=Side("eagle3-llama3.1-8b", "LlamaForCausalLMEagle3", Geometry(8, 8, 64), does),
        tp=1,
        method="eagle3",
        num_speculative_tokens=2,
    )


@pytest.fixture
def make_pool(tmp_path: Path) -> Iterator[Callable[..., Pool]]:
    """A pool over the fake engine that knows pairs."""
    pools: list[Pool] = []

    def make(options: dict[str, str] | None = None, **limits: float) -> Pool:
        pools.append(Pool(ENGINE, options, Limits(**{"run_s": AMPLE, **limits}), session_dir=tmp_path / "session"))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def test_a_pair_runs_in_a_worker_that_cells_share(make_pool: Callable[..., Pool]) -> None:
    pool = make_pool()
    first, second = pool.run_pair(pair("TRITON_ATTN")), pool.run_pair(pair("CUSTOM"))
    assert (first.verdict, first.layout) == (Verdict.PASS, "LHBNC")
    assert first.reasons == second.reasons  # one worker process
    assert first.environment in pool.environments
    assert first.started_at and first.ended_at
    assert pool.run(fake_engine.cell("OK")).reasons == first.reasons


def test_a_pair_that_kills_its_worker_is_a_crash_of_its_own(make_pool: Callable[..., Pool]) -> None:
    pool = make_pool()
    died = pool.run_pair(pair("ROCM_ATTN"))
    assert (died.verdict, died.phase, died.pair_id) == (Verdict.CRASH, Phase.SELECT, pair_id(pair("ROCM_ATTN")))
    assert "SIGSEGV" in died.reasons[0]
    assert pool.run_pair(pair("TRITON_ATTN")).verdict is Verdict.PASS


def test_a_pair_that_hangs_is_killed(make_pool: Callable[..., Pool]) -> None:
    hung = make_pool(run_s=0.5).run_pair(pair("FLEX_ATTENTION"))
    assert hung.verdict is Verdict.TIMEOUT
    assert "run limit of 0.5 s" in hung.reasons[0]


def test_what_an_engine_raises_is_the_pair_s_error(make_pool: Callable[..., Pool]) -> None:
    raised = make_pool().run_pair(pair("ROCM_AITER_FA"))
    assert (raised.verdict, raised.phase) == (Verdict.ERROR, Phase.SELECT)
    assert raised.failure is not None and "No common block size" in raised.failure.message


def test_another_pair_s_record_is_not_taken(make_pool: Callable[..., Pool]) -> None:
    other = make_pool().run_pair(pair("TURBOQUANT"))
    assert other.verdict is Verdict.ERROR
    assert "it is of another pair" in other.reasons[0]


def test_a_target_that_is_not_there_makes_a_pair_unavailable(make_pool: Callable[..., Pool]) -> None:
    found = make_pool({"open": "unavailable"}).run_pair(pair("TRITON_ATTN"))
    assert (found.verdict, found.reasons) == (Verdict.UNAVAILABLE, ("no such hardware here; install it",))
