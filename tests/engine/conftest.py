"""Real cells for the engine's tests: vLLM's own kernels, compiled or interpreted, in isolated workers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from engine_helpers import drafter_cell

from capmatrix.cell import Record
from capmatrix.workers.pool import Pool

# References are many small operators: beside other tests, threads of one would wait for each other. Read by torch once.
os.environ.setdefault("OMP_NUM_THREADS", "1")


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
        return pool.run(drafter_cell(target, backend, block_size, kv_cache_dtype, batch, **fields))

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
