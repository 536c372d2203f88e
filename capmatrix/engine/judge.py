"""Compare what a batch left behind with what it should be: the cache write alone, then the forward alone."""

from __future__ import annotations

from typing import Any

import torch

from ..batches import Batch
from ..cell import Cell, Check
from . import cache_view, mla, mla_reference, reads
from .forward import Outcome
from .inputs import Placement, Values
from .reference import Mask, attention, rounding, unit_roundoff
from .setup import Setup

_FP8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz)


class Stored:
    """K and V as the cache holds them, dequantised, and in which element type they were found."""

    def __init__(self, k: list[torch.Tensor], v: list[torch.Tensor], dtype: torch.dtype) -> None:
        self.k = k
        self.v = v
        self.dtype = dtype


def scale_of(layer: Any, name: str, dtype: torch.dtype) -> float:
    """The layer's scale of ``k`` or ``v``; 1 where the cache is not FP8. A latent has one, that of ``k``."""
    if mla.is_mla(layer):
        name = "k"
    return float(getattr(layer, f"_{name}_scale_float")) if dtype in _FP8 else 1.0


def write_check(
    cell: Cell, setup: Setup, placement: Placement, values: Values, before: torch.Tensor, cache: str
) -> tuple[list[Check], Stored | None]:
    """Judge the write, and read back what is stored.

    ``before`` are the bytes of the whole KV storage before the write; ``cache`` names what they held.
    Every stored element must be within half an ulp of the requested type of its input, and every byte
    that no token owns must be as before.
    """
    layer = setup.layer
    slots = torch.cat(placement.slots)
    owned = cache_view.owned_bytes(layer, slots)
    views = cache_view.split(layer, layer.kv_cache)
    if views is None or owned is None:
        return [Check("write", None, cache, detail=f"no view of K and V in a {cell.kv_cache_dtype} cache")], None
    checks = [_untouched(layer, before, owned, cache)]
    asked = cache_view.requested_dtype(cell.kv_cache_dtype, values.k[0].dtype)
    raw = [cache_view.rows(view, slots) for view in views]
    found, detail = asked, ""
    worst = _write_error(layer, raw, values, asked)
    if worst > 1.0:
        # Say what is there instead, when it is another FP8 type.
        for other in _FP8 if asked in _FP8 else ():
            if other != asked and _write_error(layer, raw, values, other) <= 1.0:
                found = other
                detail = f"the cache holds {_name(other)}, not the {_name(asked)} that was asked for"
                break
        else:
            detail = f"stored values are off by {worst:.3g} half-ulps of {_name(asked)}"
    checks.append(Check("write", worst <= 1.0, cache, max_abs=worst, bound=1.0, detail=detail))
    lengths = [len(s) for s in placement.slots]
    k, v = (
        list((part.view(found).double() * scale_of(layer, name, found)).unflatten(1, shape).split(lengths))
        for part, name, shape in (
            (raw[0], "k", (layer.num_kv_heads, -1)),
            (raw[1], "v", (layer.num_kv_heads, -1)),
        )
    )
    return checks, Stored(k, v, found)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _untouched(layer: Any, before: torch.Tensor, owned: torch.Tensor, cache: str) -> Check:
    after = torch.empty(0, dtype=torch.uint8).set_(layer.kv_cache.untyped_storage())
    changed = (after != before) & ~owned
    count = int(changed.sum())
    detail = f"{count} bytes outside the written slots changed" if count else ""
    return Check("guard", count == 0, cache, unwritten_count=0, detail=detail)


def _write_error(layer: Any, raw: list[torch.Tensor], values: Values, dtype: torch.dtype) -> float:
    """Largest distance from the input in half-ulps of ``dtype`` (1 is the most a faithful write has)."""
    worst = 0.0
    for part, inputs, name in ((raw[0], values.k, "k"), (raw[1], values.v, "v")):
        scale = scale_of(layer, name, dtype)
        wanted = torch.cat([x.flatten(1) for x in inputs]).double() / scale
        info = torch.finfo(dtype)
        wanted = wanted.clamp(float(info.min), float(info.max))
        stored = part.view(dtype).double() if part.element_size() == dtype.itemsize else part.double()
        exponent = torch.frexp(wanted.abs().clamp_min(float(info.smallest_normal)))[1] - 1
        half_ulp = torch.ldexp(torch.full_like(wanted, unit_roundoff(dtype)), exponent)
        error = ((stored - wanted).abs() / half_ulp).nan_to_num(nan=float("inf"))
        worst = max(worst, float(error.max()))
    return worst


def query_scale(layer: Any, outcome: Outcome) -> float:
    """What the query that the kernels got is to be multiplied by: the layer's q scale where it is FP8."""
    return float(layer._q_scale_float) if outcome.query.dtype in _FP8 else 1.0


def query_checks(cell: Cell, setup: Setup, values: Values, outcome: Outcome, cache: str) -> list[Check]:
    """How the layer made the kernels' query, where it does more than quantise it: the absorbed W_UK."""
    if cell.geometry.mla is None or not outcome.query.shape[0]:
        return []
    judged = hasattr(setup.layer, "W_UK_T")
    return [mla_reference.query_check(cell, values, outcome.query, query_scale(setup.layer, outcome), cache, judged)]


def expected(
    cell: Cell, setup: Setup, batch: Batch, values: Values, stored: Stored, outcome: Outcome, kernels: tuple[str, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Reference and row bounds, (new tokens, heads, size) and (new tokens, heads)."""
    layer, g = setup.layer, cell.geometry
    if g.mla is not None:
        return mla_reference.expected(
            cell, batch, values, stored.k, stored.dtype, outcome.query, query_scale(layer, outcome), layer.impl.scale
        )
    q = outcome.query.view(-1, g.num_heads, g.head_size)
    compute = q.dtype
    q = q.double() * query_scale(layer, outcome)
    budget = rounding(compute, stored.dtype, values.q.dtype)
    mask = Mask(g.causal, g.sliding_window)
    outs, bounds, at = [], [], 0
    for request, k, v, k_in, v_in in zip(batch.requests, stored.k, stored.v, values.k, values.v, strict=True):
        n = request.query_len
        if reads.new_tokens_unquantised(kernels, n):
            k = torch.cat((k[:-n], k_in[-n:].double()))
            v = torch.cat((v[:-n], v_in[-n:].double()))
        result = attention(
            q[at : at + n],
            k,
            v,
            float(layer.impl.scale),
            mask,
            budget,
            sinks=getattr(layer.impl, "sinks", None),
            soft_cap=g.logits_soft_cap,
        )
        outs.append(result.out)
        bounds.append(result.bound)
        at += n
    return torch.cat(outs), torch.cat(bounds)


def forward_check(
    part: str, cache: str, outcome: Outcome, reference: torch.Tensor, bound: torch.Tensor
) -> Check:
    """Judge the rows that no native operator wrote, each row and overall."""
    mine = ~outcome.native_rows
    if not bool(mine.any()):
        return Check(part, None, cache, detail="every row belongs to a native operator")
    got, want, limit = outcome.output[mine].double(), reference[mine], bound[mine]
    nan = torch.isnan(got)
    unwritten = int(nan.all(-1).sum())
    error = (got - want).nan_to_num(nan=float("inf"))
    row_error = error.norm(dim=-1)
    ratio = (row_error / limit.clamp_min(1e-300)).flatten()
    worst = int(ratio.argmax())
    norm = float(want.norm())
    overall = float(error.norm())
    ok = bool((row_error <= limit).all()) and overall <= float(limit.norm())
    detail = ""
    if not ok:
        token, head = divmod(worst, row_error.shape[-1])
        detail = f"token {token}, head {head}: error {float(row_error.flatten()[worst]):.3g}, bound " + (
            f"{float(limit.flatten()[worst]):.3g}"
        )
    return Check(
        part=part,
        ok=ok,
        cache=cache,
        relative_l2=_finite(overall / norm),
        worst_row=worst,
        worst_row_error=_finite(float(ratio[worst])),
        max_abs=_finite(float(error.abs().max())),
        nan_count=int(nan.sum()),
        unwritten_count=unwritten,
        bound=float(limit.norm()) / norm,
        detail=detail,
    )


def _finite(value: float) -> float | None:
    # JSON has no infinity; a NaN among the outputs is counted by itself.
    return value if value < float("inf") else None
