"""Latent attention in float64, and the error that a faithful kernel may have, row by row.

Both paths compute the same function; the reference computes it once, over the latent as stored. They round at
different places, which the budget follows:

* absorbed (``forward_mqa``): the absorbed query is taken as the kernels got it and judged apart
  (``query_check``). P and the latent as dequantised are rounded, then the attended latent, then the output.
* projected up (``forward_mha``): K and V are rounded after the up-projection, then as in any attention; with
  a context, the partial results of context and new tokens are rounded before they are merged.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from ..batches import Batch
from ..cell import Cell, Check
from . import mla_inputs
from .inputs import Values
from .reference import CONFIDENCE, U_FP32, Mask, Rounding, attend, rounding, unit_roundoff


class Absorbed(NamedTuple):
    """The absorbed ``query`` (decode tokens, heads, rank + rope) as the kernels got it, to be multiplied by ``scale``.

    ``budget`` is that of the kernels over the latent.
    """

    query: torch.Tensor
    scale: float
    budget: Rounding


class _Result(NamedTuple):
    """(heads, new, v): ``out``, the variance of its error before the output is rounded, what a P too small loses."""

    out: torch.Tensor
    variance: torch.Tensor
    flushed: torch.Tensor


def expected(
    cell: Cell, batch: Batch, values: Values, rows: list[torch.Tensor], stored: torch.dtype, absorbed: Absorbed
) -> tuple[torch.Tensor, torch.Tensor]:
    """Reference (tokens, heads, v) and bounds (tokens, heads).

    ``rows`` are a request's latent rows as stored (length, 1, rank + rope) in float64, found in the type
    ``stored``. The batch's first tokens are those of the absorbed query.
    """
    outs, bounds, at = [], [], 0
    u = unit_roundoff(values.q.dtype)
    for request, row, fresh in zip(batch.requests, rows, values.k, strict=True):
        here = slice(at, at + request.query_len)
        at += request.query_len
        if here.start < absorbed.query.shape[0]:
            found = _absorbed(cell, absorbed, here, row, values.q.dtype)
        else:
            # New tokens never come from the cache here.
            new = torch.cat((row[: -request.query_len], fresh[-request.query_len :].double()))
            found = _projected(cell, values.q[here], new, stored)
        bound = CONFIDENCE * found.variance.sum(-1).sqrt() + found.flushed.norm(dim=-1) + u * found.out.norm(dim=-1)
        outs.append(found.out.transpose(0, 1))
        bounds.append(bound.transpose(0, 1))
    return torch.cat(outs), torch.cat(bounds)


def exact(cell: Cell, batch: Batch, values: Values) -> torch.Tensor:
    """Attention over the inputs before anything was quantised or rounded, (tokens, heads, v)."""
    outs, at = [], 0
    for request, rows in zip(batch.requests, values.k, strict=True):
        found = _projected(cell, values.q[at : at + request.query_len], rows.double(), values.q.dtype)
        outs.append(found.out.transpose(0, 1))
        at += request.query_len
    return torch.cat(outs)


def softmax_scale(cell: Cell) -> float:
    """One over the root of a head's key width, as DeepSeek V2's model sets it."""
    m = mla_inputs.widths(cell.geometry)
    return float((m.qk_nope_head_dim + m.qk_rope_head_dim) ** -0.5)


def _absorbed(cell: Cell, absorbed: Absorbed, here: slice, rows: torch.Tensor, model: torch.dtype) -> _Result:
    """Over the latent itself."""
    rank = mla_inputs.widths(cell.geometry).kv_lora_rank
    _, w_uv = mla_inputs.up_projections(cell.geometry, model, rows.device)
    latent, budget = rows[:, 0, :rank], absorbed.budget
    value = torch.einsum("kl,lhv->khv", latent, w_uv)
    q = absorbed.query[here].double() * absorbed.scale
    # What moves a weight moves whole up-projected values; the latent's own roundings pass through W_UV.
    mask = Mask(cell.geometry.causal, None)
    attended = attend(q, rows, value, softmax_scale(cell), mask, budget._replace(v=0.0))
    weight = attended.weight
    mean = torch.einsum("hqk,kl->hql", weight, latent)
    magnitude = torch.einsum("hqk,kl->hql", weight, latent.abs())
    in_latent = (
        budget.v**2 / 3 * torch.einsum("hqk,kl->hql", weight**2, latent**2)
        + rows.shape[0] * (U_FP32 * magnitude) ** 2
        + (unit_roundoff(model) * mean) ** 2 / 3
    )
    summed = rank * U_FP32**2 * torch.einsum("hql,lhv->hqv", mean.abs(), w_uv.abs()) ** 2
    variance = attended.variance + torch.einsum("hql,lhv->hqv", in_latent, w_uv**2) + summed
    return _Result(attended.out, variance, attended.flushed)


def _projected(cell: Cell, q: torch.Tensor, rows: torch.Tensor, stored: torch.dtype) -> _Result:
    """Over keys and values projected up."""
    m = mla_inputs.widths(cell.geometry)
    w_uk, w_uv = mla_inputs.up_projections(cell.geometry, q.dtype, rows.device)
    latent, rope = rows[:, 0, : m.kv_lora_rank], rows[:, :, m.kv_lora_rank :]
    key = torch.cat((torch.einsum("kl,lhp->khp", latent, w_uk), rope.expand(-1, cell.geometry.num_heads, -1)), dim=-1)
    value = torch.einsum("kl,lhv->khv", latent, w_uv)
    u = unit_roundoff(q.dtype)
    # K and V leave their projection rounded, whatever the cache holds.
    budget = rounding(q.dtype, q.dtype, q.dtype)._replace(k=u, v=u)
    attended = attend(q, key, value, softmax_scale(cell), Mask(cell.geometry.causal, None), budget)
    variance = attended.variance
    context = rows.shape[0] - q.shape[0]
    if context:
        for part in (slice(0, context), slice(context, None)):
            partial = torch.einsum("hqk,khv->hqv", attended.weight[:, :, part], value[part])
            variance = variance + (u * partial) ** 2 / 3
    if stored != q.dtype:
        # The latent is dequantised to the model's type before it is projected: K and V move by as much again.
        moved = u**2 / 3 * torch.einsum("kl,lhv->khv", latent**2, w_uv**2)
        variance = variance + torch.einsum("hqk,khv->hqv", attended.weight**2, moved)
    return _Result(attended.out, variance, attended.flushed)


def query_check(cell: Cell, values: Values, query: torch.Tensor, q_scale: float, cache: str, judged: bool) -> Check:
    """Judge the absorbed query that the kernels got: W_UK applied to each head's query, rotary part unchanged.

    Within a rounding to the model's type after float32 accumulation, and another to FP8 where it is quantised.
    ``judged`` is False where vLLM itself quantises W_UK; the error is then reported only.
    """
    model = values.q.dtype
    m = mla_inputs.widths(cell.geometry)
    w_uk, _ = mla_inputs.up_projections(cell.geometry, model, query.device)
    nope, rope = values.q[: query.shape[0]].double().split([m.qk_nope_head_dim, m.qk_rope_head_dim], dim=-1)
    want = torch.cat((torch.einsum("thp,lhp->thl", nope, w_uk), rope), dim=-1)
    summed = torch.einsum("thp,lhp->thl", nope.abs(), w_uk.abs()) * m.qk_nope_head_dim * U_FP32
    allowed = unit_roundoff(model) * want.abs() + torch.nn.functional.pad(summed, (0, m.qk_rope_head_dim))
    if query.dtype != model:
        info = torch.finfo(query.dtype)
        want = want.clamp(float(info.min) * q_scale, float(info.max) * q_scale)
        floor = float(info.smallest_normal) * q_scale
        allowed = allowed + unit_roundoff(query.dtype) * (want.abs() + allowed).clamp_min(floor)
    error = (query.double() * q_scale - want).abs().nan_to_num(nan=float("inf"))
    ratio = float((error / allowed.clamp_min(1e-300)).max())
    ok = ratio <= 1.0
    return Check(
        part="query",
        ok=ok if judged else None,
        cache=cache,
        relative_l2=_finite(float(error.norm() / want.norm())),
        max_abs=_finite(float(error.max())),
        bound=float(allowed.norm() / want.norm()),
        detail="" if ok else f"the absorbed query is off by {ratio:.3g} of what its roundings allow",
    )


def _finite(value: float) -> float | None:
    return value if value < float("inf") else None
