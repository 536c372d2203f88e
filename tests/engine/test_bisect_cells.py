"""Bisecting a real cell: which of its switches makes vLLM refuse it, and which do nothing in the installed vLLM."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from capmatrix.bisect import knobs
from capmatrix.bisect.cells import Limits, bisect_cell
from capmatrix.bisect.delta import Change
from capmatrix.cell import Cell, Geometry, Record, Role, Verdict
from capmatrix.workers.limits import Limits as WorkerLimits
from capmatrix.workers.pool import Pool

pytestmark = pytest.mark.engine

UNIFIED = Change("VLLM_ROCM_USE_AITER_UNIFIED_ATTENTION", "1")
INVARIANT = Change("VLLM_BATCH_INVARIANT", "")


def test_the_table_of_defaults_is_that_of_the_installed_vllm() -> None:
    """Each switch unset, and set to what the table calls its default, read the same; set to another value, not."""
    code = (
        "import json, os, sys; import vllm.envs as envs\n"
        "def read(name, value):\n"
        "    os.environ.pop(name, None)\n"
        "    if value is not None: os.environ[name] = value\n"
        "    return envs.environment_variables[name]()\n"
        "table = json.loads(sys.argv[1])\n"
        "print(json.dumps({n: [read(n, v) for v in [None, *vs]] for n, vs in table.items()}))"
    )
    command = [sys.executable, "-c", code, json.dumps(knobs.SWITCHES)]
    env = {k: v for k, v in os.environ.items() if not k.startswith("VLLM_")}
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True, timeout=300)
    for name, values in json.loads(done.stdout.splitlines()[-1]).items():
        assert values[0] == values[1], name
        assert len({str(v) for v in values[1:]}) == len(knobs.SWITCHES[name]), name


@pytest.mark.slow
def test_the_switch_that_makes_vllm_refuse_a_cell_is_found() -> None:
    """Batch invariance rules ROCM_ATTN out; AITER has nothing to do with it, and UNIFIED_ATTENTION does nothing."""
    cell = Cell(
        target="offline:gfx942",
        backend="ROCM_ATTN",
        block_size=128,
        kv_cache_dtype="auto",
        drafter="minimax-m3-eagle3",
        tp=4,
        role=Role.DRAFTER,
        method="eagle3",
        geometry=Geometry(16, 16, 128),
        num_speculative_tokens=2,
        batch="decode",
        switches=(("VLLM_BATCH_INVARIANT", "1"), ("VLLM_ROCM_USE_AITER", "1")),
    )
    changes = [INVARIANT, Change("VLLM_ROCM_USE_AITER", ""), UNIFIED]
    with Pool(limits=WorkerLimits(idle_s=5.0), retry_alone=False) as pool:

        def run(changed: Cell) -> Record:
            pool.end_worker(changed)
            return pool.run(changed)

        result = bisect_cell(cell, changes, run, lambda *a: None, Limits())
    assert result.baseline.verdict is Verdict.REJECTED
    assert result.found.smallest == frozenset([INVARIANT]) and result.found.proven and result.verified
    assert result.passed is not None and result.passed.verdict is Verdict.PASS
    alone = {t.change: t.differs for t in result.tried}
    assert "selection" in alone[Change("VLLM_ROCM_USE_AITER", "")]
    assert set(result.idle) == {UNIFIED}, "established by asking: same verdict, claims, default, set-up and route"
    assert result.idle[UNIFIED] == [frozenset(), frozenset([INVARIANT])]
