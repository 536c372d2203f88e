"""Who is beside whom on a machine: what a cell's time needs is made ready among others, never beside a repetition."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

import pytest
from samples import cell, record

from capmatrix.grid import Workload
from capmatrix.pytest_plugin.alone import MACHINE, alone, room_of, together
from capmatrix.pytest_plugin.options import Options
from capmatrix.pytest_plugin.plan import Plan
from capmatrix.pytest_plugin.runner import Runner
from capmatrix.store import RunWriter
from capmatrix.timings import Sample

SEED = Workload(concurrency=4, input=100, output=10)
OPTIONS = Options((), None, None, None, False, "", "", None, None, "fake_engine:open_session")


def is_free(folder: Path, room: str) -> bool:
    """Whether nobody is in a room, so that one could be alone there."""
    inside = os.open(folder / f"{room}-room.lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(inside, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(inside)
    return True


def test_a_room_is_taken_while_the_body_runs(tmp_path: Path) -> None:
    for enter in (together, alone):
        with enter(tmp_path), enter(tmp_path, room_of("GPU-1")):
            assert not is_free(tmp_path, MACHINE) and not is_free(tmp_path, room_of("GPU-1"))
            assert is_free(tmp_path, room_of("GPU-2"))
        assert is_free(tmp_path, MACHINE) and is_free(tmp_path, room_of("GPU-1"))


@pytest.mark.parametrize("repeats", [True, False])
def test_what_is_made_ready_is_not_beside_a_repetition(
    tmp_path: Path, repeats: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, path = tmp_path / "session", tmp_path / "run.jsonl"
    RunWriter(path, {}).close()
    plan = Plan((), None, (), None, str(path), False, str(folder), os.getpid(), workloads={"seed": SEED})
    runner = Runner(plan, OPTIONS._replace(rerun_unexpected=repeats), beside=True)
    free: list[tuple[bool, bool]] = []

    def time(*asked: Any) -> Sample:
        free.append((is_free(folder, MACHINE), is_free(folder, room_of(""))))
        return Sample()

    monkeypatch.setattr(runner._pool, "time", time)
    monkeypatch.setattr(runner._pool, "gpu", lambda: "")
    try:
        runner.prepare(record(cell(target="device", batch="decode")))
    finally:
        runner.close()
    # Without repetitions nobody asks to have the machine to himself.
    assert free == [(not repeats, False)]
