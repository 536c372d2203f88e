"""The engine's side of ``--time`` with vLLM's own set-up, builders and kernels, and a clock that is made up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine_helpers import drafter_cell

from capmatrix.cell import Cell, Geometry, MlaGeometry, Verdict
from capmatrix.grid import Workload
from capmatrix.workers.pool import Pool

pytestmark = pytest.mark.engine

#: Two requests of 40 to 60 tokens.
SMALL = Workload(concurrency=2, input=40, output=20, speculative_tokens=2)

INTERPRETED, OFFLINE = "interpreter:gfx950", "offline:gfx942"


def cell(target: str, batch: str, backend: str = "TRITON_ATTN", **changes: Any) -> Cell:
    given = {"block_size": 16, "kv_cache_dtype": "auto"} | changes
    return drafter_cell(target, backend, batch=batch, **given)


@pytest.fixture(scope="module")
def pool(engines: Callable[..., Pool]) -> Pool:
    return engines("timed_calls")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("triton")


@pytest.fixture(scope="module")
def offline(engines: Callable[..., Pool], cache: Path) -> Pool:
    return engines("timed_calls", {"triton_cache": str(cache)})


@pytest.mark.parametrize(("batch", "tokens", "dtype"), [("decode", 2, "auto"), ("verify", 6, "fp8")])
def test_a_round_of_replays(pool: Pool, batch: str, tokens: int, dtype: str) -> None:
    sample = pool.time(cell(INTERPRETED, batch, kv_cache_dtype=dtype), SMALL, 3)
    # One repeat lies between two events: one of the made-up milliseconds.
    assert not sample.refused and sample.microseconds == (1000.0,) * 3
    assert len(sample.host_us) == 3 and min(sample.host_us) > 0
    assert (sample.requests, sample.query_tokens, sample.bandwidth) == (2, tokens, 4e12)
    assert sample.how.startswith("graph replay; the cell's server is eager")
    assert len(sample.metadata_us) == 5 and min(sample.metadata_us) > 0 and sample.synchronisations == 0
    # Keys and values of 40 to 60 tokens, 4 heads of 128, of 1 or 2 bytes, twice; query and output beside them.
    size = 1 if dtype == "fp8" else 2
    assert 2 * 80 * 4 * 128 * size < (sample.moved_bytes or 0) < 2 * 160 * 4 * 128 * size + 4 * tokens * 4 * 128 * 2


@pytest.mark.parametrize(
    ("batch", "requests", "said"),
    [
        ("decode", 19, "graph replay, padded to 24 requests"),
        ("decode", 24, "graph replay"),
        # 600 tokens are more than the largest size that vLLM captures, 512.
        ("verify", 200, "graph replay; vLLM would run this batch eagerly"),
    ],
)
def test_a_graph_is_of_the_size_that_vllm_captures(offline: Pool, batch: str, requests: int, said: str) -> None:
    load = Workload(concurrency=requests, input=40, output=20)
    sample = offline.time(cell(OFFLINE, batch, execution="full"), load, 1)
    assert not sample.refused and (sample.how, sample.requests) == (said, requests)


def test_a_round_of_prefills(offline: Pool) -> None:
    """Compiled and not run: an interpreted prefill of a whole chunk takes long."""
    sample = offline.time(cell(OFFLINE, "prefill"), Workload(concurrency=1, input=100, output=10), 2)
    assert not sample.refused and sample.how == "eager" and len(sample.microseconds) == 2
    assert (sample.requests, sample.query_tokens, sample.moved_bytes) == (1, 2048, None)


def test_what_waits_in_the_builder_is_counted(pool: Pool) -> None:
    sample = pool.time(cell(INTERPRETED, "decode", drafter="waits"), SMALL, 1)
    assert sample.synchronisations == 3, sample.refused


@pytest.mark.parametrize(
    ("fault", "said", "replaced"),
    [("illegal", "GPU memory fault: Triton Error [CUDA]: an illegal memory access", True),
     ("memory", "GPU out of memory in time: ", False)],
)  # fmt: skip
def test_what_goes_wrong_is_said(pool: Pool, fault: str, said: str, replaced: bool) -> None:
    before = pool.time(cell(INTERPRETED, "decode"), SMALL, 1)
    sample = pool.time(cell(INTERPRETED, "decode", drafter=fault), SMALL, 1)
    assert sample.refused.startswith(said) and sample.microseconds == ()
    after = pool.time(cell(INTERPRETED, "decode"), SMALL, 1)
    assert not before.refused and not after.refused
    assert (after.clocks != before.clocks) == replaced


def test_a_profile_may_be_longer_than_the_cells_own_batches(pool: Pool) -> None:
    """The model is then as long as the profile needs: a cell's own is of 2,048 tokens here."""
    sample = pool.time(cell(INTERPRETED, "decode"), Workload(concurrency=1, input=4500, output=10), 1)
    assert not sample.refused and (sample.requests, len(sample.microseconds)) == (1, 1)
    # Keys and values of 4,501 tokens, 4 heads of 128, two bytes, and little beside them.
    assert 0 <= (sample.moved_bytes or 0) - 2 * 4501 * 4 * 128 * 2 < 1 << 14


@pytest.mark.parametrize(("batch", "tokens"), [("decode", 2), ("verify", 6)])
def test_latent_calls_are_timed(pool: Pool, batch: str, tokens: int) -> None:
    latent = Geometry(4, 1, 576, mla=MlaGeometry(512, 128, 64, 128))
    given = cell(INTERPRETED, batch, "TRITON_MLA", drafter="deepseek-mtp", method="mtp", geometry=latent)
    sample = pool.time(given, SMALL, 2)
    assert not sample.refused and sample.how.startswith("graph replay")
    assert (sample.requests, sample.query_tokens, len(sample.microseconds)) == (2, tokens, 2)
    # Rows of 576 elements of two bytes, one a token for all heads; query and output beside them.
    assert 80 * 576 * 2 < (sample.moved_bytes or 0) < 160 * 576 * 2 + tokens * 4 * (192 + 128) * 2


@pytest.mark.parametrize("code", ["e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz"])
def test_a_random_cache_has_finite_numbers_in_every_fp8_format(code: str) -> None:
    import torch

    from capmatrix.engine import timing

    class Made:
        class layer:
            kv_cache = torch.zeros(1 << 16, dtype=torch.uint8)

    timing._random_cache(Made)  # type: ignore[arg-type]
    values = Made.layer.kv_cache.view(getattr(torch, f"float8_{code}")).float()
    assert bool(values.isfinite().all()) and bool((values > 0).any()) and bool((values < 0).any())


def test_a_cell_still_runs_after_its_time(pool: Pool) -> None:
    one = cell(INTERPRETED, "decode")
    assert not pool.time(one, SMALL, 1).refused
    assert pool.run(one).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("backend", "batch"), [("TRITON_ATTN", "decode"), ("TRITON_ATTN", "prefill"), ("ROCM_ATTN", "decode")]
)
def test_what_is_made_ready_is_not_compiled_again(offline: Pool, cache: Path, backend: str, batch: str) -> None:
    """The requests do not fit the small pool at once: they share its blocks, and choose the same kernels."""
    profile = Workload(concurrency=80, input=500, output=20)
    one = cell(OFFLINE, batch, backend, block_size=128, geometry=Geometry(8, 2, 128), kv_cache_dtype="fp8")

    def compiled() -> set[Path]:
        return set(cache.rglob("*.hsaco"))

    before = compiled()
    ready = offline.time(one, profile, 0)
    made = compiled()
    assert not ready.refused and ready.microseconds == () and made > before
    offline.end_worker(one)
    sample = offline.time(one, profile, 1)
    assert not sample.refused and len(sample.microseconds) == 1
    assert compiled() == made
