"""Rounds of times in workers: what goes wrong there is said, costs the worker and nothing else."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import fake_engine
import pytest
from fake_engine import cell

from capmatrix.cell import Verdict
from capmatrix.grid import Workload
from capmatrix.timings import Sample
from capmatrix.workers.limits import Limits
from capmatrix.workers.pool import Pool

ENGINE = "test_timed_workers:open_session"
SEED = Workload(concurrency=4, input=100, output=10)


class TimedSession(fake_engine.FakeSession):
    """A cell's argument says what becomes of its rounds."""

    spent = False

    def time(self, cell: Any, workload: Workload, repeats: int, emit: Any) -> Any:
        """Says in ``how`` which process it was."""
        emit("phase", {"phase": "time"})
        if cell.drafter == "dies":
            os.abort()
        if cell.drafter == "raises":
            raise RuntimeError("no kernel at this size\nat all")
        while cell.drafter == "hangs":
            time.sleep(0.01)
        self.spent = cell.drafter == "spent"
        if cell.drafter == "nonsense":
            return {"microseconds": "many"}
        if cell.drafter == "nan":
            return Sample((float("nan"),))
        return Sample(tuple(float(workload.concurrency) for _ in range(repeats)), how=f"pid {os.getpid()}")


def open_session(target: str, switches: dict[str, str], options: dict[str, Any]) -> TimedSession:
    """Named by the pools below."""
    return TimedSession(target, switches)


@pytest.fixture
def pool(tmp_path: Path) -> Any:
    with Pool(ENGINE, session_dir=tmp_path / "session", limits=Limits(run_s=0.7)) as made:
        yield made


def test_a_round_runs_in_the_cells_own_worker(pool: Pool) -> None:
    (ran,) = pool.run(cell("OK")).reasons
    sample = pool.time(cell("OK"), SEED, 3)
    assert sample.microseconds == (4.0, 4.0, 4.0) and sample.how == ran
    assert sample.environment in pool.environments and not sample.refused
    assert pool.time(cell("OK"), SEED, 0).microseconds == ()
    assert pool.run(cell("OK")).reasons == (ran,)


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("dies", "worker died of SIGABRT in time"),
        ("raises", "RuntimeError: no kernel at this size"),
        ("hangs", "run limit of 0.7 s reached in time"),
        ("nonsense", "the engine returned an invalid record"),
        ("nan", "the engine returned an invalid record"),
    ],
)
def test_what_goes_wrong_is_said_and_the_next_round_runs(pool: Pool, argument: str, said: str) -> None:
    before = pool.time(cell("OK"), SEED, 1)
    sample = pool.time(cell("OK", argument=argument), SEED, 1)
    assert sample.refused.startswith(said) and sample.microseconds == ()
    # It was this machine that refused, so the record may say so.
    assert sample.environment == before.environment
    after = pool.time(cell("OK"), SEED, 1)
    assert not after.refused and (after.how != before.how) == (argument in ("dies", "hangs"))
    assert pool.run(cell("OK")).verdict is Verdict.PASS


def test_a_worker_that_is_unfit_after_a_round_is_replaced(pool: Pool) -> None:
    first = pool.time(cell("OK", argument="spent"), SEED, 1)
    second = pool.time(cell("OK"), SEED, 1)
    assert not first.refused and not second.refused and first.how != second.how


def test_an_engine_that_times_nothing_says_so(tmp_path: Path) -> None:
    with Pool("fake_engine:open_session", session_dir=tmp_path / "session") as pool:
        assert pool.time(cell("OK"), SEED, 1).refused == "this engine times nothing"
        assert pool.run(cell("OK")).verdict is Verdict.PASS


def test_where_the_target_cannot_be_had_nothing_is_timed(tmp_path: Path) -> None:
    with Pool("fake_engine:open_session", {"open": "unavailable"}, session_dir=tmp_path / "session") as pool:
        for _ in range(2):
            sample = pool.time(cell("OK"), SEED, 1)
            assert sample.refused.startswith("no such hardware here") and sample.environment == ""


def test_a_turn_through_several_servers_starts_each_worker_once(pool: Pool) -> None:
    rivals = [cell("OK", switches=(("FAKE_SWITCH", str(i)),)) for i in range(4)]
    pool.keep_warm(len(rivals))
    turns = [[pool.time(one, SEED, 1).how for one in rivals] for _ in range(3)]
    assert turns[0] == turns[1] == turns[2] and len(set(turns[0])) == 4


def test_without_room_a_turn_starts_workers_again(pool: Pool) -> None:
    rivals = [cell("OK", switches=(("FAKE_SWITCH", str(i)),)) for i in range(3)]
    turns = [[pool.time(one, SEED, 1).how for one in rivals] for _ in range(2)]
    assert all(len(set(turn)) == 3 for turn in turns) and turns[0] != turns[1]
