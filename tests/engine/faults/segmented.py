"""Faults of ROCM_SEGMENTED_ATTN's kernels: the stage, which may split a context into segments, and what merges them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch

from capmatrix.cell import Geometry

from . import effects as e
from .fault import SINKS, WINDOWED, Fault
from .flexes import next_key
from .models import Call, Effect, World, each, exact, logits, lost, overflowing, positions
from .patching import Edit

KERNELS = "vllm.v1.attention.ops.segmented_attention"
BACKEND = "vllm.v1.attention.backends.rocm_segmented_attn"

_STAGE = "_segmented_attention_stage"
_REDUCE = "_segmented_attention_reduce"
_FP8 = ("fp8",)

#: Heads of 128 are read in two halves by several rows, heads of 256 over FP8 are scaled by v_scale at the end.
WIDE = Geometry(4, 2, 128)
WIDEST = Geometry(2, 1, 256)

#: Segments of ``long_decode`` with these heads, and the tile that they are made of (``select_segmented_config``).
_SEGMENTS, _TILE = 8, 32


def _tile(w: World) -> int:
    """The stage's tile in keys at these heads: decode and short FP8 contexts have small ones where it matters."""
    short = max(call.length for call in w.calls) <= 256
    if w.stored.itemsize == 1 and short:
        return 32
    return 64 if short or max(call.new for call in w.calls) > 2 else 32


def _segment(call: Call) -> int:
    return -(-call.length // (_SEGMENTS * _TILE)) * _TILE


def _reading(keep: Callable[[World, Call, torch.Tensor], torch.Tensor]) -> Effect:
    """Only the keys that ``keep`` admits are read; a row that reads nothing is zero, as the stage has it."""

    def effect(w: World) -> list[torch.Tensor]:
        outs = []
        for call in w.calls:
            kept = keep(w, call, torch.arange(call.length))
            outs.append(exact(replace(call, mask=call.mask & kept)).nan_to_num(nan=0.0))
        return outs

    return effect


def _but_the_tail(w: World, call: Call, key: torch.Tensor) -> torch.Tensor:
    """Whole tiles alone."""
    return key < call.length // _tile(w) * _tile(w)


def _from_the_next_tile(w: World, call: Call, key: torch.Tensor) -> torch.Tensor:
    """A window that begins within a tile is read from the tile behind it."""
    window = w.cell.geometry.sliding_window
    assert window
    first = max(0, int(positions(call)[0]) - window + 1)
    return key >= -(-first // _tile(w)) * _tile(w)


def _last_key_dropped(w: World, call: Call) -> Call:
    """Nobody reads the sequence's last key."""
    mask = call.mask.clone()
    mask[:, -1] = False
    return replace(call, mask=mask)


def _page_not_crossed(w: World, call: Call) -> Call:
    """What a tile has behind the end of its first key's block is read from that block again."""
    key = torch.arange(call.length)
    first = key // _tile(w) * _tile(w)
    source = torch.where(key // w.block > first // w.block, key - w.block, key)
    return replace(call, k=call.k[source], v=call.v[source])


def _first_segment_twice(w: World, call: Call) -> Call:
    """Every segment but the first is the one before it."""
    size = _segment(call)
    starts = (max(i - 1, 0) * size for i in range(_SEGMENTS))
    read = torch.cat([torch.arange(start, max(start, min(start + size, call.length))) for start in starts])
    return replace(call, k=call.k[read], v=call.v[read], mask=call.mask[:, read])


def _sinks_in_each_segment(w: World, call: Call) -> Call:
    """Every segment counts the sinks, also one that is empty."""
    assert call.sinks is not None
    return replace(call, sinks=call.sinks + math.log(_SEGMENTS))


def _merged(weigh: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Effect:
    """Segments merged by ``weigh(tops, sums)`` (segments, heads, new) in place of their exponentials' sums.

    ``tops`` are the largest logits of each segment, ``sums`` the sums of the exponentials below them.
    """

    def effect(w: World) -> list[torch.Tensor]:
        outs = []
        for call in w.calls:
            v = call.v.repeat_interleave(call.q.shape[1] // call.v.shape[1], 1)
            scores, size = logits(call), _segment(call)
            tops, sums, parts = [], [], []
            for start in range(0, call.length, size):
                here = scores[..., start : start + size]
                tops.append(here.amax(-1))
                p = torch.exp(here - tops[-1][..., None])
                sums.append(p.sum(-1))
                parts.append(torch.einsum("hqk,khd->hqd", p, v[start : start + size]) / sums[-1][..., None])
            weight = weigh(torch.stack(tops), torch.stack(sums))
            out = (torch.stack(parts) * weight[..., None]).sum(0) / weight.sum(0)[..., None]
            outs.append(out.transpose(0, 1))
        return outs

    return effect


def _by_tops_alone(tops: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
    return torch.exp(tops - tops.amax(0))


def _alike(tops: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(tops)


def _to_the_wrong_base(tops: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
    """Logarithms to base two, and powers of e."""
    whole = tops + sums.log()
    return torch.exp((whole - whole.amax(0)) / math.log(2.0))


def _without_the_last(tops: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
    """The eighth segment has no weight; shorter sequences have none."""
    weight = torch.exp(tops - tops.amax(0)) * sums
    weight[_SEGMENTS - 1 :] = 0.0
    return weight


def _groups_swapped(w: World) -> list[torch.Tensor]:
    """The output of the other KV head's query heads."""
    kv = w.cell.geometry.num_kv_heads
    return [exact(call).unflatten(1, (kv, -1)).flip(1).flatten(1, 2) for call in w.calls]


def _fault(name: str, kernel: str, old: str, new: str, effect: Effect | None, batch: str, **more: object) -> Fault:
    edits = (Edit(str(more.pop("module", KERNELS)), str(more.pop("function", kernel)), old, new),)
    more.setdefault("block_size", 16)
    return Fault(
        f"segmented-{name}", kernel, edits, effect, "ROCM_SEGMENTED_ATTN", batch=batch, target="interpreter:gfx1201",
        **more,
    )  # type: ignore[arg-type]  # fmt: skip


def segmented_faults() -> list[Fault]:
    """All of them, on gfx1201: gfx11 has no FP8 there."""
    return [*_each_shape(), *_one_shape(), *_split_contexts()]


def _each_shape() -> list[Fault]:
    """Of one row a request, and of several: other tiles."""
    ignored = {"kv_cache_dtypes": _FP8}
    return [
        _fault(f"{name}-{batch}", _STAGE, old, new, effect, batch, **more)
        for batch in ("decode", "verify")
        for name, old, new, effect, more in (
            ("mask-behind", "ns[None, :] <= prefix + qpos[:, None]", "ns[None, :] < prefix + qpos[:, None]",
             each(e.behind), {}),
            ("range-ends-early", "prefix + tl.cdiv(tile_rows, G)", "prefix + tl.cdiv(tile_rows, G) - 1",
             each(_last_key_dropped), {}),
            ("stale-slot", "sequence = tl.load(LENS + seq)", "sequence = tl.load(LENS + seq) + 1",
             each(e.one_more_slot), {}),
            ("last-tile-dropped", "loop_end = end\n", "loop_end = loop_begin\n", _reading(_but_the_tail), {}),
            ("first-block-twice", "TABLE + seq * T0 + page * T1", "TABLE + seq * T0 + tl.maximum(page - 1, 0) * T1",
             each(e.predecessor_block), {}),
            ("previous-requests-table", "TABLE + seq * T0", "TABLE + tl.maximum(seq - 1, 0) * T0",
             e.other_requests_blocks(lambda i, n: max(i - 1, 0)), {}),
            ("scale-doubled", "scores *= SCALE", "scores *= 2.0 * SCALE", e.scaled(2.0), {}),
            ("k-scale-ignored", "k_scale = tl.load(KS)", "k_scale = 1.0", e.stored_times(e.unscaled("k"), e.one),
             ignored),
            ("v-scale-ignored", "v_scale = tl.load(VS)", "v_scale = 1.0", e.stored_times(e.one, e.unscaled("v")),
             ignored),
            ("wrong-gqa-head", "kh * G + m % G", "kh + m % G * HK", each(e.kv_head_modulo), {}),
            ("wrong-kv-head", "+ kh * K2", "+ (HK - 1 - kh) * K2", e.heads_flipped(True, False), {}),
            ("v-of-other-head", "+ kh * V2", "+ (HK - 1 - kh) * V2", e.heads_flipped(False, True), {}),
            ("no-max-subtraction", "p = tl.exp2(scores - safe_max[:, None])", "p = tl.exp2(scores)", overflowing, {}),
            ("window-too-long", "prefix + qpos[:, None] - WINDOW", "prefix + qpos[:, None] - WINDOW - 1", e.window(1),
             {"geometry": WINDOWED}),
            ("window-too-short", "prefix + qpos[:, None] - WINDOW", "prefix + qpos[:, None] - WINDOW + 1",
             e.window(-1), {"geometry": WINDOWED}),
            ("window-starts-late", "(range_begin // BN) * BN", "tl.cdiv(range_begin, BN) * BN",
             _reading(_from_the_next_tile), {"geometry": WINDOWED}),
            ("sinks-ignored", "if HAS_SINKS:", "if False:", each(e.no_sinks), {"geometry": SINKS}),
        )
    ]  # fmt: skip


def _one_shape() -> list[Fault]:
    stored = "            result,\n            mask=(m < nq * G)[:, None],\n        )\n    else:"
    viewed = "key_cache = key_cache.view(self.fp8_dtype)\n        value_cache = value_cache.view(self.fp8_dtype)"
    query = "Q + (first + qpos[:, None]) * Q0"
    return [
        _fault(name, _STAGE, old, new, effect, batch, **more)
        for name, old, new, effect, batch, more in (
            ("mask-ahead", "<= prefix + qpos[:, None]", "<= prefix + qpos[:, None] + 1", each(next_key), "verify", {}),
            ("causal-mask-dropped", "                if CAUSAL:\n", "                if False:\n", each(e.every_key),
             "verify", {}),
            ("query-start-off", "first = tl.load(STARTS + seq)", "first = tl.load(STARTS + seq) + 1",
             lost(lambda out: out[:1]), "verify", {}),
            ("rows-identical", query, "Q + (first + 0 * qpos[:, None]) * Q0", each(e.first_query), "verify", {}),
            ("rows-unwritten", stored, stored.replace("nq * G", "(nq - 1) * G"), lost(lambda out: out[-1:]), "verify",
             {}),
            ("first-length-for-all", "tl.load(LENS + seq)", "tl.load(LENS)", each(e.first_length), "decode", {}),
            ("accumulator-not-rescaled", "acc *= alpha[:, None]", "acc *= 1.0",
             e.not_rescaled(_tile, rescale_out=False), "verify", {}),
            ("sum-not-rescaled", "denom = denom * alpha", "denom = denom", e.not_rescaled(_tile, rescale_sum=False),
             "decode", {}),
            ("base-two-forgotten", "SCALE * 1.4426950408889634", "SCALE", e.scaled(math.log(2.0)), "prefill", {}),
            ("half-head", "tl.range(D // BK,", "tl.range(D // BK - 1,", each(e.half_head), "verify",
             {"geometry": WIDE}),
            ("v-scale-of-wide-heads-ignored", "result *= v_scale", "result *= 1.0",
             e.stored_times(e.one, e.unscaled("v")), "prefill", {"geometry": WIDEST, "kv_cache_dtypes": _FP8}),
            ("e4m3fn-read-as-fnuz", viewed, viewed.replace("self.fp8_dtype", "torch.float8_e4m3fnuz"),
             e.read_as(torch.float8_e4m3fnuz), "verify",
             {"module": BACKEND, "function": "RocmSegmentedAttentionImpl.forward", "kv_cache_dtypes": _FP8}),
            ("page-not-crossed", "page += crossed", "page += 0 * crossed", each(_page_not_crossed), "verify",
             {"block_size": 272, "blocks": (272, 544), "lengths": "full", "kv_cache_dtypes": _FP8}),
        )
    ]  # fmt: skip


def _split_contexts() -> list[Fault]:
    begin = "begin = range_begin + split * segment"
    weigh, load = "tl.exp2(lse - tl.max(lse, 0))", "lse = tl.load(LSE + row + s)"
    return [
        _fault(name, kernel, old, new, effect, "long_decode", **more)
        for name, kernel, old, new, effect, more in (
            ("first-segment-twice", _STAGE, begin, "begin = range_begin + tl.maximum(split - 1, 0) * segment",
             each(_first_segment_twice), {}),
            ("first-segment-left-out", _STAGE, begin, "begin = range_begin + (split + 1) * segment",
             _reading(lambda w, call, key: key >= _segment(call)), {}),
            ("sinks-in-each-segment", _STAGE, "tl.where(split == 0,", "tl.where(split >= 0,",
             each(_sinks_in_each_segment), {"geometry": SINKS}),
            ("sums-left-out", _STAGE, "maximum + tl.log2(denom)", "maximum", _merged(_by_tops_alone), {}),
            ("merge-unweighted", _REDUCE, weigh, 'tl.where(lse > float("-inf"), 1.0, 0.0)', _merged(_alike), {}),
            ("merge-to-another-base", _REDUCE, weigh, "tl.exp(lse - tl.max(lse, 0))", _merged(_to_the_wrong_base),
             {}),
            ("merge-loses-last", _REDUCE, load,
             'lse = tl.load(LSE + row + s, mask=s < SPLITS - 1, other=float("-inf"))', _merged(_without_the_last), {}),
            ("merge-of-other-head", _REDUCE, "row = ((seq * HK + kh)", "row = ((seq * HK + HK - 1 - kh)",
             _groups_swapped, {}),
            ("merge-leaves-heads", _REDUCE, "mask=d < D,\n    )\n", "mask=(d < D) & (m > 0),\n    )\n",
             lost(lambda out: out[:1, ::2]), {}),
        )
    ]  # fmt: skip
