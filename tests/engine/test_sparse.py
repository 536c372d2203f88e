"""Block-sparse attention: the reference's mask, the indexer's judge, and what a token owns in the pool."""

from __future__ import annotations

from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.engine

if find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch  # noqa: E402

from capmatrix.batches import Batch, Request  # noqa: E402
from capmatrix.engine import cache_view, reference, sparse  # noqa: E402

SIZE, BLOCK, TOP = 8, 4, 2


def layer(rows: list[list[list[int]]], heads: int = 4, kv_heads: int = 1) -> Any:
    """A layer whose indexer selected ``rows`` (KV heads, tokens, blocks)."""
    return SimpleNamespace(
        impl=SimpleNamespace(block_size=BLOCK, topk_blocks=TOP),
        num_heads=heads,
        num_kv_heads=kv_heads,
        num_idx_heads=kv_heads,
        topk_indices_buffer=torch.tensor(rows, dtype=torch.int32),
    )


def test_a_mask_is_causal_within_the_selected_blocks() -> None:
    found = sparse.mask(layer([[[0, 2], [2, -1]]]), Request(2, 10), 0)
    assert found.shape == (4, 2, 10)
    assert found[0, 0].nonzero().flatten().tolist() == [0, 1, 2, 3, 8]
    assert found[3, 1].nonzero().flatten().tolist() == [8, 9]


def test_each_kv_head_has_blocks_of_its_own_and_each_request_its_rows() -> None:
    two = layer([[[9, 9], [0, 1]], [[9, 9], [1, -1]]], heads=4, kv_heads=2)
    found = sparse.mask(two, Request(1, 6), 1)
    assert found[0, 0].tolist() == found[1, 0].tolist() == [True] * 6
    assert found[2, 0].tolist() == found[3, 0].tolist() == [False] * 4 + [True] * 2


def test_the_reference_reads_nothing_outside_the_mask() -> None:
    """With the blocks left out taken away altogether, attention is the same."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(n, h, SIZE, generator=generator) for n, h in ((1, 4), (10, 1), (10, 1)))
    budget = reference.rounding(torch.float32, torch.float32, torch.float32)
    may = sparse.mask(layer([[[0, 2]]]), Request(1, 10), 0)
    found = reference.attention(q, k, v, 0.5, may, budget).out
    kept = torch.tensor([0, 1, 2, 3, 8, 9])
    alone = reference.attention(q, k[kept], v[kept], 0.5, reference.Mask(True, None), budget).out
    assert torch.allclose(found, alone)
    dense = reference.attention(q, k, v, 0.5, reference.Mask(True, None), budget).out
    assert not torch.allclose(found, dense)


def judged(chosen: list[int], best: tuple[int, ...] = (1,)) -> tuple[bool | None, str]:
    """The check of one row over four blocks, of which the tokens of ``best`` look like the query."""
    q = torch.ones(1, 4, SIZE)
    k = -torch.ones(16, 1, SIZE)
    for block in best:
        k[block * BLOCK + 1] = 1
    batch = Batch("decode", (Request(1, 15),))
    check = sparse.selection_check(layer([[chosen]]), batch, q, (k[:15],), "nan")
    return check.ok, check.detail


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ([1, 3], "1 of 1 rows had more blocks than the 2"),
        ([3, 1], "1 of 1 rows had more blocks than the 2"),
        ([0, 3], "block 1 scores 8 and is left out for one of -8"),
        ([1, 2], "the row's own block 3 is not among"),
        ([3, -1], "selected 1 blocks, not 2"),
        ([3, 3], "selected blocks [3, 3]"),
        ([3, 4], "selected blocks [3, 4]"),
    ],
)
def test_the_best_blocks_and_the_row_s_own_are_wanted(chosen: list[int], said: str) -> None:
    ok, detail = judged(chosen)
    assert said in detail and ok is (said.startswith("1 of 1"))


def test_equal_scores_are_as_good_as_each_other() -> None:
    for other in (0, 1, 2):
        assert judged([other, 3], best=(0, 1, 2))[0] is True


def test_a_token_after_the_row_does_not_count() -> None:
    """The last block's best key comes after the row: it must not make another block look left out."""
    q, k = torch.ones(1, 4, SIZE), -torch.ones(16, 1, SIZE)
    k[15] = 1
    batch = Batch("decode", (Request(1, 15),))
    assert sparse.selection_check(layer([[[0, 3]]]), batch, q, (k[:15],), "nan").ok is True


def test_a_batch_gets_a_request_of_more_blocks_than_may_be_selected() -> None:
    made = sparse.with_selection(Batch("verify", (Request(3, 9), Request(3, 50))), layer([[[0, 1]]]))
    assert made.requests[:2] == (Request(3, 9), Request(3, 50))
    added = made.requests[2]
    assert added.query_len == 3 and -(-added.seq_len // BLOCK) > TOP


def test_only_the_triton_path_can_be_judged() -> None:
    triton, aiter = (type(f"MiniMaxM3Sparse{name}Impl", (), {})() for name in ("Triton", "AiterPA"))
    assert sparse.out_of_reach(SimpleNamespace(impl=triton)) == ""
    assert sparse.out_of_reach(SimpleNamespace(impl=aiter)).startswith("native: aiter.reshape_and_cache")


def test_a_token_owns_its_keys_in_the_indexer_s_cache_too() -> None:
    storage = torch.zeros(256, dtype=torch.uint8)
    kv = storage[:192].view(torch.bfloat16).view(3, 1, 4, 8)
    side = storage[192:].view(torch.bfloat16).view(2, 4, 4)
    with_side = SimpleNamespace(
        kv_cache=kv,
        kv_cache_dtype="auto",
        num_kv_heads=1,
        head_size=4,
        attn_backend=type("Backend", (), {}),
        impl=object(),
        side_caches=(side,),
    )
    owned = cache_view.owned_bytes(with_side, torch.tensor([5]))
    assert owned is not None
    assert owned.nonzero().flatten().tolist() == [*range(5 * 16, 6 * 16), *range(192 + 5 * 8, 192 + 6 * 8)]
    with_side.side_caches = ()
    owned = cache_view.owned_bytes(with_side, torch.tensor([5]))
    assert owned is not None and int((owned != 0).sum()) == 16
