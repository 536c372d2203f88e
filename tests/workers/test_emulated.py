"""Cells of an emulated GPU: their rung, and no times, whatever the engine measured."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fake_engine import cell

from capmatrix.cell import Rung, Verdict
from capmatrix.workers.pool import Pool


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool("switched_engine:open_timed") as made:
        yield made


def test_an_emulated_cell_has_no_times(pool: Pool) -> None:
    record = pool.run(cell("TRITON_ATTN", target="emulator:gfx942"))
    assert (record.verdict, record.rung, record.times) == (Verdict.PASS, Rung.EMULATED, ())
    assert record.cell_id.startswith("emulator:gfx942-")


def test_a_real_one_keeps_them(pool: Pool) -> None:
    record = pool.run(cell("TRITON_ATTN", target="device"))
    assert record.rung is Rung.EXECUTED and record.times[0].median_us == 10.0
