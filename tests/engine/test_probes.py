"""What unused slots, evicted blocks and neighbouring memory hold, and whether it shows."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from capmatrix import batches  # noqa: E402
from capmatrix.batches import Request  # noqa: E402
from capmatrix.cell import Geometry  # noqa: E402
from capmatrix.engine import bands, inputs  # noqa: E402


def placed(window: int | None = None, pool: int = 40, block: int = 16) -> inputs.Placement:
    batch = batches.build("decode", block_size=block, num_speculative_tokens=2, lengths="short")
    return inputs.place(batch, block, pool, window=window)


def test_requests_share_no_slot_and_leave_the_null_block_alone() -> None:
    placement = placed()
    slots = torch.cat(placement.slots)
    assert len(slots.unique()) == len(slots) == 5 + 33 + 150
    assert int(slots.min()) >= 16
    for row, mine, length in zip(placement.tables, placement.slots, placement.seq_lens, strict=True):
        position = torch.arange(int(length))
        assert torch.equal(row[position // 16].long() * 16 + position % 16, mine)


def test_the_pools_last_block_is_used() -> None:
    assert int(placed().tables.max()) == 39
    assert int(placed(pool=70_000).tables.max()) == 69_999


def test_beside_a_table_stand_blocks_that_nobody_owns() -> None:
    placement = placed()
    owned = {int(s) // 16 for s in torch.cat(placement.slots)}
    short = zip(placement.tables[:2], placement.seq_lens[:2], strict=True)
    stray = [int(row[-(-int(n) // 16) :].max()) for row, n in short]
    assert not owned & set(stray) and 0 not in stray
    whole = placement.tables._base
    assert whole is not None and whole.shape == (5, 12)
    assert set(whole[0].tolist()) == set(stray) == {int(whole[2, -1])}


@pytest.mark.parametrize(("window", "evicted"), [(None, 0), (32, 7), (150, 0), (135, 0), (134, 1), (1, 9)])
def test_what_a_sliding_window_left_behind_is_evicted(window: int | None, evicted: int) -> None:
    # A decode at position 149 reads from 150 - window on.
    assert inputs.evicted_blocks(Request(1, 150), 16, window) == evicted
    placement = placed(window)
    assert (placement.tables[2] == 0).sum() == evicted
    assert (placement.slots[2] == -1).sum() == 16 * evicted


def test_a_verify_keeps_what_its_first_row_reads() -> None:
    # Its first new token, at 147, reads from 116 on, in block 7.
    assert inputs.evicted_blocks(Request(3, 150), 16, 32) == 7
    assert inputs.evicted_blocks(Request(3, 147), 16, 32) == 7
    assert inputs.evicted_blocks(Request(3, 145), 16, 32) == 6


def test_random_logits_are_below_zero_where_nothing_forbids_it() -> None:
    batch = batches.build("decode", block_size=16, num_speculative_tokens=2, lengths="short")
    for geometry, mean in ((Geometry(4, 2, 64), -16.0), (Geometry(4, 2, 64, sinks=True), 0.0)):
        values = inputs.random_values(batch, geometry, torch.bfloat16)
        k = values.k[2].double().repeat_interleave(2, 1)
        logits = torch.einsum("hd,khd->hk", values.q[2].double(), k) / 8
        assert abs(float(logits.mean()) - mean) < 2.0


def test_a_needle_overflows_an_exponential_without_its_maximum() -> None:
    batch = batches.build("verify", block_size=16, num_speculative_tokens=2, lengths="short")
    for size in (64, 80, 128, 256):
        values = inputs.needle_values(batch, Geometry(4, 2, size), torch.bfloat16)
        k = values.k[0].double().repeat_interleave(2, 1)
        logits = torch.einsum("qhd,khd->hqk", values.q[:3].double(), k) * size**-0.5
        assert float(logits.amax(-1).min()) > 89.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float8_e4m3fn])
def test_a_band_tells_what_was_written(dtype: torch.dtype) -> None:
    x = torch.arange(24.0).view(3, 2, 4).to(dtype)
    banded = bands.around("x", x)
    assert torch.equal(bands.raw(banded.view), bands.raw(x)) and torch.equal(banded.given().float(), x.float())
    assert bands.trespasses([banded], [banded], {}) == []
    bands.raw(banded.view).zero_()
    assert bands.trespasses([], [banded], {}) == []
    assert bands.trespasses([banded], [], {}) == ["x"]
    assert torch.equal(banded.given().float(), x.float())
    bands.raw(banded.whole)[bands.ROWS + 3, 0, 0] = 0
    assert bands.trespasses([], [banded], {}) == ["the band of x"]


def test_tables_are_watched_too() -> None:
    now = torch.tensor([1, 2])
    assert bands.trespasses([], [], {"t": (now, now.clone())}) == []
    assert bands.trespasses([], [], {"t": (now, torch.tensor([1, 3]))}) == ["t"]
