"""Effects of seeded faults on the exact result, by what goes wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch

from capmatrix.engine import reference

from .models import (
    Call,
    Effect,
    World,
    each,
    exact,
    merged,
    online,
    per_token_head,
    positions,
    reread,
    with_zero_key,
)


def _masked(w: World, call: Call, change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Call:
    return replace(call, mask=change(call.mask, torch.arange(call.length)))


def ahead(w: World, call: Call) -> Call:
    """Each row reads the key behind its own."""
    longer = with_zero_key(call)
    mask = longer.mask.clone()
    mask[torch.arange(call.new), positions(call) + 1] = True
    return replace(longer, mask=mask)


def behind(w: World, call: Call) -> Call:
    """No row reads its own key."""
    mask = call.mask.clone()
    mask[torch.arange(call.new), positions(call)] = False
    return replace(call, mask=mask)


def one_more_slot(w: World, call: Call) -> Call:
    """The sequence counts one slot too many."""
    longer = with_zero_key(call)
    mask = longer.mask.clone()
    mask[:, 1:] = longer.mask[:, :-1]
    mask[:, 0] = True
    return replace(longer, mask=mask)


def one_more_stale_slot(w: World, call: Call) -> Call:
    """The sequence counts one slot too many, which holds large values of both signs."""
    longer = one_more_slot(w, call)
    large = float(torch.finfo(w.stored).max) / 2 if w.stored.itemsize == 1 else 1.0e5
    k, v = longer.k.clone(), longer.v.clone()
    for x, name in ((k, "k"), (v, "v")):
        x[-1] = large * w.scales[name]
        x[-1, ..., 1::2] *= -1
    return replace(longer, k=k, v=v)


#: A kernel's tile in tokens, or how it follows from the cell.
Tile = int | Callable[[World], int]


def paged_tile(w: World) -> int:
    """The tile of ``kernel_paged_attention_2d``: the block up to 128, or 32 where that is no power of two."""
    return 32 if w.block & (w.block - 1) else min(w.block, 128)


def _size(tile: Tile, w: World) -> int:
    return tile if isinstance(tile, int) else tile(w)


def last_tile_dropped(tile: Tile, context_only: bool = False) -> Effect:
    """The last ``tile`` keys' tile is left out, where there is another."""

    def change(w: World, call: Call) -> Call:
        end = call.length - call.new if context_only else call.length
        start = (-(-end // _size(tile, w)) - 1) * _size(tile, w)
        if start <= 0 and not context_only:
            return call
        return _masked(w, call, lambda mask, key: mask & ~((key >= max(start, 0)) & (key < end)))

    return each(change)


def predecessor_block(w: World, call: Call) -> Call:
    """Every block is read from the one before it: the first twice, the last not at all."""
    key = torch.arange(call.length)
    source = torch.where(key >= w.block, key - w.block, key)
    return replace(call, k=call.k[source], v=call.v[source])


def one(w: World) -> float:
    """As it is."""
    return 1.0


def unscaled(name: str) -> Callable[[World], float]:
    """What takes the scale of ``k`` or ``v`` off again."""
    return lambda w: 1.0 / w.scales[name]


def scaled(factor: float) -> Effect:
    """Logits times ``factor``."""
    return each(lambda w, call: replace(call, scale=call.scale * factor))


def stored_times(k: Callable[[World], float], v: Callable[[World], float], context_only: bool = False) -> Effect:
    """K and V times a factor each: a scale that was not applied, or another one."""

    def change(w: World, call: Call) -> Call:
        factors = torch.ones(2, call.length, 1, 1, dtype=torch.float64)
        end = call.length - call.new if context_only and call.new > 1 else call.length
        factors[0, :end], factors[1, :end] = k(w), v(w)
        return replace(call, k=call.k * factors[0], v=call.v * factors[1])

    return each(change)


def kv_head_modulo(w: World, call: Call) -> Call:
    """Query head h takes KV head h mod the number of KV heads."""
    heads, kv = call.q.shape[1], call.k.shape[1]
    pick = torch.arange(heads) % kv
    return replace(call, k=call.k[:, pick], v=call.v[:, pick])


def heads_flipped(k: bool, v: bool, context_only: bool = False) -> Effect:
    """K, V or both of the other KV heads."""

    def change(w: World, call: Call) -> Call:
        end = call.length - call.new if context_only and call.new > 1 else call.length
        other_k, other_v = call.k.clone(), call.v.clone()
        if k:
            other_k[:end] = call.k[:end].flip(1)
        if v:
            other_v[:end] = call.v[:end].flip(1)
        return replace(call, k=other_k, v=other_v)

    return each(change)


def v_head_stride(w: World, call: Call) -> Call:
    """V of head 1 starts one element late."""
    v = call.v.clone()
    v[:, 1, :-1], v[:, 1, -1] = call.v[:, 1, 1:], 0.0
    return replace(call, v=v)


def first_query(w: World, call: Call) -> Call:
    """Every row uses the first row's query."""
    return replace(call, q=call.q[:1].expand_as(call.q))


def window(by: int) -> Effect:
    """A sliding window that is ``by`` tokens too long."""

    def change(w: World, call: Call) -> Call:
        g = w.cell.geometry
        assert g.sliding_window
        return replace(
            call, mask=reference.allowed(call.new, call.length, reference.Mask(g.causal, g.sliding_window + by))
        )

    return each(change)


def window_starts_late(tile: int) -> Effect:
    """Keys of the tile in which the first row's window starts are left out."""

    def change(w: World, call: Call) -> Call:
        assert w.cell.geometry.sliding_window
        first = int(positions(call)[0]) - w.cell.geometry.sliding_window + 1
        start = (first // tile + 1) * tile if first >= 0 else 0
        return _masked(w, call, lambda mask, key: mask & (key >= start))

    return each(change)


def every_key(w: World, call: Call) -> Call:
    """No causal mask."""
    return replace(call, mask=torch.ones_like(call.mask))


def first_row_reads_all(w: World, call: Call) -> Call:
    """The first of several rows reads the whole sequence."""
    mask = call.mask.clone()
    mask[0] = True
    return replace(call, mask=mask)


def other_requests_blocks(pick: Callable[[int, int], int], context_only: bool = False) -> Effect:
    """Request i reads the blocks of request ``pick(i, requests)``; zeros where that one has none."""

    def effect(w: World) -> list[torch.Tensor]:
        outs = []
        for i, call in enumerate(w.calls):
            other = w.calls[pick(i, len(w.calls))]
            end = call.length - call.new if context_only and call.new > 1 else call.length
            k, v = call.k.clone(), call.v.clone()
            for mine, theirs in ((k, other.k), (v, other.v)):
                mine[:end] = 0.0
                n = min(end, other.length)
                mine[:n] = theirs[:n]
            outs.append(exact(replace(call, k=k, v=v)))
        return outs

    return effect


def second_block_is_first(w: World) -> list[torch.Tensor]:
    """One wrong table entry: the last request's second block is its first again."""
    call, b = w.calls[-1], w.block
    k, v = call.k.clone(), call.v.clone()
    n = max(0, min(b, call.length - b))
    k[b : b + n], v[b : b + n] = call.k[:n], call.v[:n]
    return [*map(exact, w.calls[:-1]), exact(replace(call, k=k, v=v))]


def top_block_is_another(w: World) -> list[torch.Tensor]:
    """The first request's first block, the pool's last, is read from where zeros are."""
    call, b = w.calls[0], w.block
    k, v = call.k.clone(), call.v.clone()
    k[:b], v[:b] = 0.0, 0.0
    return [exact(replace(call, k=k, v=v)), *map(exact, w.calls[1:])]


def first_length(w: World, call: Call) -> Call:
    """Every request ends where the first one does."""
    return _masked(w, call, lambda mask, key: mask & (key < w.calls[0].length))


def no_sinks(w: World, call: Call) -> Call:
    """Sinks do not count."""
    return replace(call, sinks=None)


def no_cap(w: World, call: Call) -> Call:
    """Logits are not capped."""
    return replace(call, cap=None)


def k_and_v_swapped(w: World, call: Call) -> Call:
    """Keys are read from the value cache."""
    return replace(call, k=call.v)


def half_head(w: World, call: Call) -> Call:
    """Only the first half of the head enters the logits."""
    q = call.q.clone()
    q[..., q.shape[-1] // 2 :] = 0.0
    return replace(call, q=q)


def first_new_key_twice(w: World, call: Call) -> Call:
    """The context's loop reads one slot too many, masked to zeros."""
    if call.length == call.new:
        return call
    longer = with_zero_key(call)
    mask = longer.mask.clone()
    mask[:, -1] = True
    return replace(longer, mask=mask)


def read_as(other: torch.dtype, context_only: bool = False) -> Effect:
    """Codes of the cache are read in another FP8 type."""

    def change(w: World, call: Call) -> Call:
        end = call.length - call.new if context_only and call.new > 1 else call.length
        read = {}
        for name, x in (("k", call.k), ("v", call.v)):
            read[name] = torch.cat((reread(x[:end], w.stored, other, w.scales[name]), x[end:]))
        return replace(call, **read)

    return each(change)


def not_rescaled(tile: Tile, **what: bool) -> Effect:
    """Online softmax over tiles that forgets to rescale."""
    return lambda w: [online(call, _size(tile, w), **what) for call in w.calls]


def badly_merged(tile: int, segments: int, **what: bool) -> Effect:
    """Partial results that are not merged as they should be."""

    def effect(w: World) -> list[torch.Tensor]:
        return [merged(call, -(-call.length // (segments * tile)) * tile, **what) for call in w.calls]

    return effect


def first_row_is_nan(w: World) -> list[torch.Tensor]:
    """A padded row's NaN reaches the batch's first row."""
    outs = [exact(call) for call in w.calls]
    outs[0][0] = math.nan
    return outs


def without_token_head_scale(name: str) -> Effect:
    """Codes of ``k`` or ``v`` are used as they are."""

    def effect(w: World) -> list[torch.Tensor]:
        outs = []
        for call, k, v in zip(w.calls, w.values.k, w.values.v, strict=True):
            codes = per_token_head(w.cell, k if name == "k" else v)[0]
            outs.append(exact(replace(call, **{name: codes})))
        return outs

    return effect


def first_slots_scale(w: World) -> list[torch.Tensor]:
    """Every slot of a block has the scale of the block's first."""
    outs = []
    for call, k in zip(w.calls, w.values.k, strict=True):
        codes, scales = per_token_head(w.cell, k)
        first = torch.arange(call.length) // w.block * w.block
        outs.append(exact(replace(call, k=codes * scales[first])))
    return outs


# Of writes: K and V of each request in turn, as they are stored.


def _stored(w: World, change: Callable[[torch.Tensor, str], torch.Tensor]) -> list[torch.Tensor]:
    pairs = zip(w.values.k, w.values.v, strict=True)
    return [change(x, name) for k, v in pairs for x, name in ((k.double(), "k"), (v.double(), "v"))]


def one_slot_late(w: World) -> list[torch.Tensor]:
    """Every token's K and V in the slot behind its own."""
    return _stored(w, lambda x, name: torch.cat((torch.full_like(x[:1], math.nan), x[:-1])))


def only(name: str, change: Callable[[World, torch.Tensor], torch.Tensor]) -> Effect:
    """K alone or V alone changed."""
    return lambda w: _stored(w, lambda x, which: change(w, x) if which == name else x)


def keys_are_values(w: World) -> list[torch.Tensor]:
    """The value in the key's place."""
    return [v.double() for v in w.values.v for _ in range(2)]


def last_token_missing(w: World) -> list[torch.Tensor]:
    """The batch's last token is not written."""
    stored = _stored(w, lambda x, name: x.clone())
    stored[-1][-1] = stored[-2][-1] = math.nan
    return stored


def in_type(dtype: torch.dtype) -> Effect:
    """Stored in another FP8 type than it is read in."""

    def effect(w: World) -> list[torch.Tensor]:
        largest = float(torch.finfo(dtype).max)

        def change(x: torch.Tensor, name: str) -> torch.Tensor:
            codes = (x.float() / w.scales[name]).clamp(-largest, largest).to(dtype)
            return codes.view(w.stored).double() * w.scales[name]

        return _stored(w, change)

    return effect


def cut_off(w: World) -> list[torch.Tensor]:
    """Per-token-head scales that are too small for the largest value."""

    def change(x: torch.Tensor, name: str) -> torch.Tensor:
        codes, scales = per_token_head(w.cell, x, largest=1024.0)
        return codes * scales

    return _stored(w, change)
