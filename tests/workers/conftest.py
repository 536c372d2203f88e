"""Pools over the fake engine, and a look at what they leave running."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from worker_helpers import AMPLE, TAG, running, wait_for

from capmatrix.workers.limits import Limits
from capmatrix.workers.pool import Pool

HERE = Path(__file__).parent
ENGINE = "fake_engine:open_session"


@pytest.fixture(autouse=True)
def tag(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Marks all processes that the test starts; at its end none of them may be there."""
    value = uuid.uuid4().hex
    monkeypatch.setenv(TAG, value)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), str(HERE.parents[1])]))
    monkeypatch.syspath_prepend(str(HERE))
    yield value
    wait_for(lambda: not running(value), 20.0)
    left = running(value)
    assert not left, f"left running: {left}"


@pytest.fixture
def make_pool(tmp_path: Path) -> Iterator[Callable[..., Pool]]:
    """Makes pools over the fake engine, closed at the test's end; keywords are limits or the pool's own."""
    pools: list[Pool] = []

    def make(options: dict[str, Any] | None = None, **more: Any) -> Pool:
        own = {name: more.pop(name) for name in ("retry_alone", "listener", "slot", "session_dir") if name in more}
        own.setdefault("session_dir", tmp_path / "session")
        limits = Limits(**{"run_s": AMPLE, "compile_s": AMPLE, **more})
        pools.append(Pool(ENGINE, options, limits, **own))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()
