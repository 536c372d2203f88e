"""Real cells for the engine's tests: vLLM's own kernels, compiled or interpreted, in isolated workers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from capmatrix.cell import Cell, Geometry, Record, Role
from capmatrix.workers.pool import Pool

# References are many small operators: beside other tests, threads of one would wait for each other. Read by torch once.
os.environ.setdefault("OMP_NUM_THREADS", "1")

#: MiniMax-M3's EAGLE3 drafter at TP 4, and the same with few heads for the interpreter.
WHOLE = Geometry(16, 16, 128)
FEW = Geometry(4, 4, 128)


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """One pool for all tests of this process: each target's server starts once."""
    with Pool(retry_alone=False) as opened:
        yield opened


@pytest.fixture(scope="session")
def run(pool: Pool) -> Callable[..., Record]:
    """Runs one cell: ``run("offline:gfx942", "TRITON_ATTN", 16, "fp8", "decode", **fields of Cell)``."""
    if find_spec("vllm") is None:
        pytest.skip("vLLM is not installed")

    def one(target: str, backend: str, block_size: int, kv_cache_dtype: str, batch: str, **fields: Any) -> Record:
        interpreted = target.startswith("interpreter")
        given: dict[str, Any] = {
            "drafter": "minimax-m3-eagle3",
            "tp": 4,
            "role": Role.DRAFTER,
            "method": "eagle3",
            "geometry": FEW if interpreted else WHOLE,
            "num_speculative_tokens": 2,
            "lengths": "short" if interpreted else "full",
        } | fields
        return pool.run(
            Cell(
                target=target,
                backend=backend,
                block_size=block_size,
                kv_cache_dtype=kv_cache_dtype,
                batch=batch,
                **given,
            )
        )

    return one


@pytest.fixture(scope="module")
def engines() -> Iterator[Callable[..., Pool]]:
    """Pools of workers with engines that lie beside the tests: ``engines("faults.engine", options)``, by module."""
    if find_spec("vllm") is None:
        pytest.skip("vLLM is not installed")
    here = Path(__file__).resolve().parent
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as pools:
        for folder in (here.parents[1], here):
            patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)

        def opened(module: str, options: dict[str, Any] | None = None) -> Pool:
            return pools.enter_context(Pool(f"{module}:open_session", options or {}, retry_alone=False))

        yield opened
