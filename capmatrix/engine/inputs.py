"""Inputs of one batch: where each token lives in the pool, and the Q, K and V values.

Two kinds of values. ``random``: standard normal. ``needles``: keys of ±1 and a query that points at
one key of its own, so that this key takes nearly all the weight, and values of ±1 that spell its
position and KV head in bits; a wrong block, mask edge, head or scale then is a large error in any dtype.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from ..batches import Batch, Request
from ..cell import Geometry


class Placement(NamedTuple):
    """Where a batch's tokens live.

    ``tables`` (requests, most blocks) manager block ids; ``slots`` a request, flat token slots (length,);
    ``new_slots`` (new tokens,); ``query_start_loc`` (requests + 1,), ``seq_lens`` (requests,), int32.
    """

    tables: torch.Tensor
    slots: tuple[torch.Tensor, ...]
    new_slots: torch.Tensor
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor


class Values(NamedTuple):
    """``q`` (new tokens, heads, size); ``k`` and ``v`` a request, (length, KV heads, size); model dtype."""

    q: torch.Tensor
    k: tuple[torch.Tensor, ...]
    v: tuple[torch.Tensor, ...]


def blocks_needed(batch: Batch, block_size: int) -> int:
    """Manager blocks that the batch's requests fill."""
    return sum(-(-request.seq_len // block_size) for request in batch.requests)


def place(batch: Batch, block_size: int, pool_blocks: int, seed: int = 1) -> Placement:
    """Give each request its blocks, in shuffled order, never block 0 (vLLM keeps it as the null block)."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(pool_blocks - 1, generator=generator) + 1
    counts = [-(-request.seq_len // block_size) for request in batch.requests]
    tables = torch.zeros(len(counts), max(counts), dtype=torch.int32)
    slots, at = [], 0
    for i, (count, request) in enumerate(zip(counts, batch.requests, strict=True)):
        mine = order[at : at + count]
        at += count
        tables[i, :count] = mine.int()
        position = torch.arange(request.seq_len)
        slots.append(mine[position // block_size] * block_size + position % block_size)
    lengths = torch.tensor([r.query_len for r in batch.requests])
    return Placement(
        tables=tables,
        slots=tuple(slots),
        new_slots=torch.cat([s[-r.query_len :] for s, r in zip(slots, batch.requests, strict=True)]),
        query_start_loc=torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0))).int(),
        seq_lens=torch.tensor([r.seq_len for r in batch.requests], dtype=torch.int32),
    )


def random_values(batch: Batch, geometry: Geometry, dtype: torch.dtype, seed: int = 2) -> Values:
    """Standard normal Q, K and V."""
    generator = torch.Generator().manual_seed(seed)

    def normal(tokens: int, heads: int) -> torch.Tensor:
        return torch.randn(tokens, heads, geometry.head_size, generator=generator).to(dtype)

    new = sum(r.query_len for r in batch.requests)
    return Values(
        q=normal(new, geometry.num_heads),
        k=tuple(normal(r.seq_len, geometry.num_kv_heads) for r in batch.requests),
        v=tuple(normal(r.seq_len, geometry.num_kv_heads) for r in batch.requests),
    )


#: Query magnitude of a needle: logits of about 4 * sqrt(head size) for its key, 4 * N(0, 1) for the others.
NEEDLE = 4.0


def needle_values(batch: Batch, geometry: Geometry, dtype: torch.dtype, seed: int = 3) -> Values:
    """Needles: each query's key is drawn from those it may read, its first, last and own among them."""
    generator = torch.Generator().manual_seed(seed)
    group = geometry.num_heads // geometry.num_kv_heads
    queries, keys, values = [], [], []
    for index, request in enumerate(batch.requests):
        key = signs((request.seq_len, geometry.num_kv_heads, geometry.head_size), generator)
        keys.append(key.to(dtype))
        values.append(
            spelled(request.seq_len, geometry.num_kv_heads, geometry.head_size, index, generator).to(dtype)
        )
        for picks in picked_keys(request, geometry, generator):
            queries.append(NEEDLE * key[picks, torch.arange(geometry.num_heads) // group])
    return Values(q=torch.stack(queries).to(dtype), k=tuple(keys), v=tuple(values))


def picked_keys(request: Request, geometry: Geometry, generator: torch.Generator) -> Iterator[torch.Tensor]:
    """For each new token, the key position (heads,) that each of its heads points at."""
    context = request.seq_len - request.query_len
    for row in range(request.query_len):
        last = context + row if geometry.causal else request.seq_len - 1
        first = max(0, context + row - geometry.sliding_window + 1) if geometry.sliding_window else 0
        picks = torch.randint(first, last + 1, (geometry.num_heads,), generator=generator)
        # The edges of what a row may read are where masks go wrong.
        edges = [last, first, max(first, context - 1)]
        picks[: min(3, len(picks))] = torch.tensor(edges[: len(picks)])
        yield picks


def signs(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """±1 at random."""
    return torch.randint(0, 2, shape, generator=generator).float() * 2 - 1


def spelled(length: int, heads: int, size: int, request: int, generator: torch.Generator) -> torch.Tensor:
    """±1 (length, heads, size): 16 bits of the position, 8 of the head, 6 of the request, the rest random."""
    value = signs((length, heads, size), generator)
    position, head = torch.arange(length), torch.arange(heads)
    for bit in range(min(16, size)):
        value[:, :, bit] = ((position >> bit) & 1)[:, None] * 2.0 - 1
    for bit in range(8):
        if 16 + bit < size:
            value[:, :, 16 + bit] = ((head >> bit) & 1)[None, :] * 2.0 - 1
    for bit in range(6):
        if 24 + bit < size:
            value[:, :, 24 + bit] = ((request >> bit) & 1) * 2.0 - 1
    return value
