"""What a fault does to the exact result: float64 models of broken attention and broken cache writes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from capmatrix import batches
from capmatrix.batches import Batch
from capmatrix.cell import Cell
from capmatrix.engine import inputs, reference

#: The scales that cells have (``capmatrix.engine.layers``); without vLLM they cannot be imported from there.
SCALES = {"q": 0.5, "k": 0.25, "v": 2.0}

FP8 = {"gfx942": torch.float8_e4m3fnuz, "gfx950": torch.float8_e4m3fn, "gfx1201": torch.float8_e4m3fn}


@dataclass(frozen=True)
class Call:
    """One request: q (new, heads, size), k and v (length, KV heads, size) as stored, in float64, and who reads what."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    mask: torch.Tensor
    scale: float
    sinks: torch.Tensor | None
    cap: float | None

    @property
    def new(self) -> int:
        """New tokens."""
        return int(self.q.shape[0])

    @property
    def length(self) -> int:
        """Context and new tokens."""
        return int(self.k.shape[0])


@dataclass(frozen=True)
class World:
    """A cell's calls with what its faults depend on: block and tile in tokens, the type and scales of the cache."""

    cell: Cell
    batch: Batch
    calls: tuple[Call, ...]
    stored: torch.dtype
    scales: dict[str, float]
    values: inputs.Values

    @property
    def block(self) -> int:
        """Manager block, in tokens."""
        return self.cell.block_size


#: The output of each call (new, heads, size), or for a write the K and V that are stored (length, KV heads, size).
Effect = Callable[[World], list[torch.Tensor]]


def world(cell: Cell, kind: str) -> World:
    """The cell's calls on ``random`` or ``needles`` values, as its unbroken kernels would see them."""
    g = cell.geometry
    dtype = getattr(torch, cell.dtype)
    batch = batches.build(
        cell.batch, block_size=cell.block_size, num_speculative_tokens=cell.num_speculative_tokens, lengths=cell.lengths
    )
    make = inputs.random_values if kind == "random" else inputs.needle_values
    values = make(batch, g, dtype)
    stored, scales = dtype, {"k": 1.0, "v": 1.0}
    if cell.kv_cache_dtype == "fp8":
        stored, scales = FP8[cell.target.split(":")[1]], {n: SCALES[n] for n in "kv"}
    q = values.q.double()
    if quantised_query(cell):
        q = as_stored(values.q, stored, SCALES["q"])
    mask = reference.Mask(g.causal, g.sliding_window)
    sinks = torch.linspace(2.0, 6.0, g.num_heads).to(dtype).double() if g.sinks else None
    calls, at = [], 0
    for request, k, v in zip(batch.requests, values.k, values.v, strict=True):
        n = request.query_len
        k_seen, v_seen = (stored_of(cell, x, stored, scales[n]) for x, n in ((k, "k"), (v, "v")))
        if cell.backend == "ROCM_ATTN" and n > 1:
            # The prefill kernel takes new tokens as the model computed them.
            k_seen, v_seen = (torch.cat((a[:-n], b[-n:].double())) for a, b in ((k_seen, k), (v_seen, v)))
        may = reference.allowed(n, request.seq_len, mask)
        calls.append(Call(q[at : at + n], k_seen, v_seen, may, g.head_size**-0.5, sinks, g.logits_soft_cap))
        at += n
    return World(cell, batch, tuple(calls), stored, scales, values)


def quantised_query(cell: Cell) -> bool:
    """Whether the backend takes an FP8 query over an FP8 cache."""
    return cell.backend == "ROCM_AITER_UNIFIED_ATTN" and cell.kv_cache_dtype == "fp8"


def as_stored(x: torch.Tensor, dtype: torch.dtype, scale: float) -> torch.Tensor:
    """``x`` as a cache of ``dtype`` gives it back."""
    largest = float(torch.finfo(dtype).max)
    return (x.float() / scale).clamp(-largest, largest).to(dtype).double() * scale


def stored_of(cell: Cell, x: torch.Tensor, dtype: torch.dtype, scale: float) -> torch.Tensor:
    """``x`` (length, KV heads, size) as the cell's cache gives it back."""
    if cell.kv_cache_dtype.startswith("int4"):
        codes, zero, scales = int4(x)
        return (codes - zero) * scales
    if cell.kv_cache_dtype.endswith("per_token_head"):
        codes, scales = per_token_head(cell, x)
        return codes * scales
    return as_stored(x, dtype, scale) if scale != 1.0 else x.double()


def per_token_head(cell: Cell, x: torch.Tensor, largest: float | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales (length, KV heads, 1) of an ``int8`` or ``fp8`` per-token-head cache."""
    x = x.double()
    fp8 = FP8[cell.target.split(":")[1]]
    top = 127.0 if cell.kv_cache_dtype.startswith("int8") else (224.0 if fp8 is torch.float8_e4m3fnuz else 448.0)
    scales = (x.abs().amax(-1, keepdim=True) / (largest or top)).clamp_min(1e-6)
    codes = (x / scales).clamp(-top - (top == 127.0), top)
    return (codes.round() if top == 127.0 else codes.float().to(fp8).double()), scales


def int4(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes of 4 bits of ``x`` (length, KV heads, size), zero points and scales (length, KV heads, 1)."""
    x = x.double()
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    scales = ((high - low) / 15.0).clamp_min(1e-6)
    zero = (-low / scales).round().clamp(0.0, 15.0)
    return (x / scales + zero).round().clamp(0.0, 15.0), zero, scales


def budget(w: World) -> reference.Rounding:
    """The cell's budget, as the judge derives it."""
    model = getattr(torch, w.cell.dtype)
    if w.cell.kv_cache_dtype.endswith("per_token_head"):
        found = reference.rounding(model, model, model)
        if w.cell.kv_cache_dtype.startswith("int4"):
            found = found._replace(q=reference.unit_roundoff(model), out=2 * found.out)
        return found
    compute = w.stored if quantised_query(w.cell) else model
    scales = {"k_scale": w.scales["k"], "v_scale": w.scales["v"]} if w.stored is not model else {}
    return reference.rounding(compute, w.stored, model, **scales, top_exact=True)


def attended(call: Call, rounding: reference.Rounding) -> reference.Expected:
    """The call's exact result, and its bounds."""
    return reference.attention(call.q, call.k, call.v, call.scale, call.mask, rounding, call.sinks, call.cap)


def sensitivity(cell: Cell, effect: Effect) -> float:
    """How many times its bound the worst row is off, over both kinds of values; infinite where rows are lost."""
    worst = 0.0
    for kind in ("random", "needles"):
        w = world(cell, kind)
        rounding = budget(w)
        for call, broken in zip(w.calls, effect(w), strict=True):
            right = attended(call, rounding)
            error = (broken - right.out).nan_to_num(nan=math.inf).norm(dim=-1)
            worst = max(worst, float((error / right.bound).max()))
    return worst


def write_sensitivity(cell: Cell, effect: Effect) -> float:
    """How many half-ulps (or half-steps of a scale) the worst stored element is from its input."""
    w = world(cell, "random")
    worst = 0.0
    effects = effect(w)
    for index, (k, v) in enumerate(zip(w.values.k, w.values.v, strict=True)):
        for wanted, name, broken in ((k, "k", effects[2 * index]), (v, "v", effects[2 * index + 1])):
            if cell.kv_cache_dtype.startswith("int4"):
                half = int4(wanted)[2] / 2 + torch.finfo(wanted.dtype).eps * wanted.double().abs()
            elif cell.kv_cache_dtype.endswith("per_token_head"):
                half = per_token_head(cell, wanted)[1] / 2 * torch.ones(cell.geometry.head_size)
            else:
                info = torch.finfo(w.stored)
                code = (wanted.double() / w.scales[name]).abs().clamp(float(info.smallest_normal), float(info.max))
                half = torch.ldexp(torch.full_like(code, info.eps / 2), torch.frexp(code)[1] - 1) * w.scales[name]
            error = ((broken - wanted.double()).abs() / half).nan_to_num(nan=math.inf)
            worst = max(worst, float(error.max()))
    return worst


def each(change: Callable[[World, Call], Call]) -> Effect:
    """The effect of a fault that changes each call by itself."""

    def effect(w: World) -> list[torch.Tensor]:
        return [exact(change(w, call)) for call in w.calls]

    return effect


def exact(call: Call) -> torch.Tensor:
    """The call's result in float64 (new, heads, size); NaN where a row reads nothing."""
    none = reference.Rounding(0.0, 0.0, 0.0, 0.0, 0.0)
    return attended(call, none).out


def with_zero_key(call: Call) -> Call:
    """The call with one more slot behind its last, that holds zeros and that nobody reads yet."""
    zeros = torch.zeros(1, *call.k.shape[1:], dtype=torch.float64)
    mask = torch.cat((call.mask, torch.zeros(call.new, 1, dtype=torch.bool)), 1)
    return replace(call, k=torch.cat((call.k, zeros)), v=torch.cat((call.v, zeros)), mask=mask)


def positions(call: Call) -> torch.Tensor:
    """Positions of the new tokens."""
    return torch.arange(call.length - call.new, call.length)


def logits(call: Call) -> torch.Tensor:
    """Masked logits (heads, new, length)."""
    k = call.k.repeat_interleave(call.q.shape[1] // call.k.shape[1], 1)
    raw = torch.einsum("qhd,khd->hqk", call.q, k) * call.scale
    if call.cap:
        raw = call.cap * torch.tanh(raw / call.cap)
    return raw.masked_fill(~call.mask, -math.inf)


def online(call: Call, tile: int, *, rescale_sum: bool = True, rescale_out: bool = True) -> torch.Tensor:
    """Online softmax over tiles that may forget to rescale its sum or its accumulator."""
    v = call.v.repeat_interleave(call.q.shape[1] // call.v.shape[1], 1)
    scores = logits(call)
    top = torch.full(scores.shape[:2], -math.inf, dtype=torch.float64)
    total = torch.zeros_like(top)
    acc = torch.zeros(*scores.shape[:2], call.q.shape[2], dtype=torch.float64)
    for start in range(0, call.length, tile):
        part = scores[..., start : start + tile]
        now = torch.maximum(top, part.amax(-1))
        now = torch.where(now > -math.inf, now, 0.0)
        p = torch.exp(part - now[..., None])
        alpha = torch.exp(top - now)
        total = (total * alpha if rescale_sum else total) + p.sum(-1)
        acc = acc * alpha[..., None] if rescale_out else acc
        acc = acc + torch.einsum("hqk,khd->hqd", p, v[start : start + tile])
        top = now
    return (acc / total[..., None]).transpose(0, 1)


def merged(call: Call, segment: int, *, out: bool = True, total: bool = True, last: bool = True) -> torch.Tensor:
    """Partial results of ``segment`` keys, merged; without weighing the outputs or the sums, or without the last."""
    v = call.v.repeat_interleave(call.q.shape[1] // call.v.shape[1], 1)
    scores = logits(call)
    parts = []
    for start in range(0, call.length, segment):
        part = scores[..., start : start + segment]
        top = part.amax(-1)
        p = torch.exp(part - torch.where(top > -math.inf, top, 0.0)[..., None])
        parts.append((top, p.sum(-1), torch.einsum("hqk,khd->hqd", p, v[start : start + segment])))
    if not last:
        parts = parts[:-1]
    if not parts:
        return torch.zeros_like(call.q)
    tops, sums, outs = (torch.stack(x) for x in zip(*parts, strict=True))
    weight = torch.exp(tops - tops.amax(0))
    outs = outs * weight[..., None] if out else outs
    sums = sums * weight if total else sums
    return (outs.sum(0) / sums.sum(0)[..., None]).transpose(0, 1)


def lost(rows: Callable[[torch.Tensor], Any]) -> Effect:
    """The effect of leaving rows unwritten: ``rows`` picks them from an output (new, heads, size)."""

    def effect(w: World) -> list[torch.Tensor]:
        outs = [exact(call) for call in w.calls]
        for out in outs:
            rows(out).fill_(math.nan)
        return outs

    return effect


def overflowing(w: World) -> list[torch.Tensor]:
    """Without subtracting the maximum, a float32 exponential overflows above 88.7."""
    outs = []
    for call in w.calls:
        out = exact(call)
        out[(logits(call).amax(-1) > 88.8).T] = math.nan
        outs.append(out)
    return outs


def reread(x: torch.Tensor, dtype: torch.dtype, other: torch.dtype, scale: float) -> torch.Tensor:
    """``x``, stored in ``dtype`` by ``scale``, as it looks when its codes are read in another FP8 type."""
    largest = float(torch.finfo(dtype).max)
    return (x.float() / scale).clamp(-largest, largest).to(dtype).view(other).double() * scale
