"""Inputs of one batch: where each token lives in the pool, and the Q, K and V values.

Two kinds of values. ``random``: normal, with logits around ``-SHIFT`` so that a slot of zeros, whose logit
is 0, would take all the weight. ``needles``: keys of ±1 and a query that points at one key of its own, so that
this key takes nearly all the weight, and values of ±1 that spell its position and KV head in bits; a wrong
block, mask edge, head or scale then is a large error in any dtype. A needle's own logit is above 89, where a
float32 exponential overflows unless the maximum is subtracted first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from ..batches import Batch, Request
from ..cell import Geometry


class Placement(NamedTuple):
    """Where a batch's tokens live.

    ``tables`` (requests, most blocks) manager block ids; ``slots`` a request, flat token slots (length,), -1
    where a sliding window has evicted the block; ``new_slots`` (new tokens,); ``query_start_loc``
    (requests + 1,), ``seq_lens`` (requests,), int32.
    """

    tables: torch.Tensor
    slots: tuple[torch.Tensor, ...]
    new_slots: torch.Tensor
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    evicted: bool = False

    def on(self, device: torch.device) -> Placement:
        """The same on ``device``; the table keeps the memory around it that is no table's."""
        if self.new_slots.device == device:
            return self
        around = self.tables._base
        tables = self.tables.to(device) if around is None else around.to(device)[1:-1, 1:-1]
        return self._replace(
            tables=tables,
            slots=tuple(s.to(device) for s in self.slots),
            new_slots=self.new_slots.to(device),
            query_start_loc=self.query_start_loc.to(device),
            seq_lens=self.seq_lens.to(device),
        )


class Values(NamedTuple):
    """``q`` (new tokens, heads, size); ``k`` and ``v`` a request, (length, KV heads, size); model dtype."""

    q: torch.Tensor
    k: tuple[torch.Tensor, ...]
    v: tuple[torch.Tensor, ...]

    def on(self, device: torch.device) -> Values:
        """The same on ``device``."""
        return Values(self.q.to(device), tuple(x.to(device) for x in self.k), tuple(x.to(device) for x in self.v))


def blocks_needed(batch: Batch, block_size: int) -> int:
    """Manager blocks that the batch's requests fill."""
    return sum(-(-request.seq_len // block_size) for request in batch.requests)


def place(batch: Batch, block_size: int, pool_blocks: int, seed: int = 1, window: int | None = None) -> Placement:
    """Give each request its blocks, in shuffled order, never block 0 (vLLM keeps it as the null block).

    The pool's last block is always used, so that a block id cut short shows. Blocks that a sliding ``window``
    (tokens) has left behind are evicted as vLLM's ``SlidingWindowManager`` does: block 0 in the table.
    What a table holds beyond a request's own blocks, and beside it in memory, is a block that no request owns.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(pool_blocks - 1, generator=generator) + 1
    counts = [-(-request.seq_len // block_size) for request in batch.requests]
    top = int((order == pool_blocks - 1).nonzero())
    if top >= sum(counts):
        order[[0, top]] = order[[top, 0]]
    width = max(counts)
    foreign = int(order[-1]) if sum(counts) < len(order) else 0
    whole = torch.full((len(counts) + 2, width + 2), foreign, dtype=torch.int32)
    tables = whole[1:-1, 1:-1]
    slots, at = [], 0
    for i, (count, request) in enumerate(zip(counts, batch.requests, strict=True)):
        mine = order[at : at + count]
        at += count
        evicted = evicted_blocks(request, block_size, window)
        tables[i, :count] = mine.int()
        tables[i, :evicted] = 0
        position = torch.arange(request.seq_len)
        slot = mine[position // block_size] * block_size + position % block_size
        slot[: evicted * block_size] = -1
        slots.append(slot)
    lengths = torch.tensor([r.query_len for r in batch.requests])
    return Placement(
        tables=tables,
        slots=tuple(slots),
        new_slots=torch.cat([s[-r.query_len :] for s, r in zip(slots, batch.requests, strict=True)]),
        query_start_loc=torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0))).int(),
        seq_lens=torch.tensor([r.seq_len for r in batch.requests], dtype=torch.int32),
        evicted=any(bool((s < 0).any()) for s in slots),
    )


def evicted_blocks(request: Request, block_size: int, window: int | None) -> int:
    """Whole blocks that lie before what the request's first new token may read."""
    if not window:
        return 0
    return max(0, request.seq_len - request.query_len - window + 1) // block_size


#: Mean of a random logit, below 0: of the size that trained models have where a token matters little.
SHIFT = 16.0


def random_values(batch: Batch, geometry: Geometry, dtype: torch.dtype, seed: int = 2) -> Values:
    """Normal Q, K and V, of variance 1; K has a mean and Q its opposite, which moves all logits by ``-SHIFT``.

    With sinks there is no shift, since it would leave them all the weight. With a soft cap there is none either,
    and Q is as many times larger as the cap says, so that the cap matters.
    """
    generator = torch.Generator().manual_seed(seed)
    mean = 0.0 if geometry.sinks or geometry.logits_soft_cap else (SHIFT * geometry.head_size**-0.5) ** 0.5
    spread = geometry.logits_soft_cap or 1.0

    def normal(tokens: int, heads: int) -> torch.Tensor:
        return torch.randn(tokens, heads, geometry.head_size, generator=generator)

    new = sum(r.query_len for r in batch.requests)
    return Values(
        q=(normal(new, geometry.num_heads) * spread - mean).to(dtype),
        k=tuple((normal(r.seq_len, geometry.num_kv_heads) + mean).to(dtype) for r in batch.requests),
        v=tuple(normal(r.seq_len, geometry.num_kv_heads).to(dtype) for r in batch.requests),
    )


#: Query magnitude of a needle: a logit of 16 * sqrt(head size) for its key, 16 * N(0, 1) for the others.
NEEDLE = 16.0


def needle_values(batch: Batch, geometry: Geometry, dtype: torch.dtype, seed: int = 3) -> Values:
    """Needles: each query's key is drawn from those it may read, its first, last and own among them."""
    generator = torch.Generator().manual_seed(seed)
    group = geometry.num_heads // geometry.num_kv_heads
    queries, keys, values = [], [], []
    for index, request in enumerate(batch.requests):
        key = signs((request.seq_len, geometry.num_kv_heads, geometry.head_size), generator)
        keys.append(key.to(dtype))
        values.append(spelled(request.seq_len, geometry.num_kv_heads, geometry.head_size, index, generator).to(dtype))
        for picks in picked_keys(request, geometry, generator):
            queries.append(NEEDLE * key[picks, torch.arange(geometry.num_heads) // group])
    return Values(q=torch.stack(queries).to(dtype), k=tuple(keys), v=tuple(values))


def picked_keys(request: Request, geometry: Geometry, generator: torch.Generator) -> Iterator[torch.Tensor]:
    """For each new token, the key position (heads,) that each of its heads points at."""
    context = request.seq_len - request.query_len
    for row in range(request.query_len):
        last = context + row if geometry.causal else request.seq_len - 1
        first = 0
        if geometry.sliding_window:
            first = max(0, context + row - geometry.sliding_window + 1)
            last = min(last, context + row + geometry.sliding_window - 1)
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
