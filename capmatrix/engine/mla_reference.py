"""Latent attention in float64, and the error that a faithful kernel may have, row by row.

Both paths compute the same function; the reference computes it once, over the latent as stored. They round at
different places, which the budget follows:

* absorbed (``forward_mqa``): the absorbed query is taken as the kernels got it and judged apart
  (``query_check``). P and the latent as dequantised are rounded, then the attended latent, then the output.
* projected up (``forward_mha``): K and V are rounded after the up-projection, then as in any attention; with
  a context, the partial results of context and new tokens are rounded before they are merged.
"""

from __future__ import annotations

import torch

from ..batches import Batch
from ..cell import Cell, Check
from . import mla_inputs
from .inputs import Values
from .reference import CONFIDENCE, U_FP32, Mask, attend, rounding, unit_roundoff


def expected(
    cell: Cell,
    batch: Batch,
    values: Values,
    rows: list[torch.Tensor],
    stored: torch.dtype,
    query: torch.Tensor,
    q_scale: float,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Reference (tokens, heads, v) and bounds (tokens, heads).

    ``rows`` are a request's latent rows as stored (length, 1, rank + rope) in float64, found in the type
    ``stored``; ``query`` (decode tokens, heads, rank + rope) is the absorbed query as the kernels got it,
    its last dimension multiplied by ``q_scale`` where it is FP8. The batch's first tokens are those of ``query``.
    """
    outs, bounds, at = [], [], 0
    for request, row, fresh in zip(batch.requests, rows, values.k, strict=True):
        here = slice(at, at + request.query_len)
        if at < query.shape[0]:
            out, variance = _absorbed(cell, query[here], q_scale, row, stored, scale, values.q.dtype)
        else:
            new = torch.cat((row[: -request.query_len], fresh[-request.query_len :].double()))
            out, variance = _projected(cell, values.q[here], new, stored, scale)
        variance = variance + (unit_roundoff(values.q.dtype) * out) ** 2 / 3
        outs.append(out.transpose(0, 1))
        bounds.append(CONFIDENCE * variance.sum(-1).sqrt().transpose(0, 1))
        at += request.query_len
    return torch.cat(outs), torch.cat(bounds)


def _absorbed(
    cell: Cell,
    q: torch.Tensor,
    q_scale: float,
    rows: torch.Tensor,
    stored: torch.dtype,
    scale: float,
    model: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and the variance of its error, (heads, new, v), over the latent itself."""
    rank = mla_inputs.widths(cell.geometry).kv_lora_rank
    _, w_uv = mla_inputs.up_projections(cell.geometry, model, rows.device)
    latent = rows[:, 0, :rank]
    budget = rounding(q.dtype, stored, model)
    value = torch.einsum("kl,lhv->khv", latent, w_uv)
    # What moves a weight moves whole up-projected values; the latent's own roundings pass through W_UV.
    attended = attend(
        q.double() * q_scale, rows, value, scale, Mask(cell.geometry.causal, None), budget._replace(v=0.0)
    )
    weight, squared = attended.weight, w_uv**2
    mean = torch.einsum("hqk,kl->hql", weight, latent)
    magnitude = torch.einsum("hqk,kl->hql", weight, latent.abs())
    in_latent = (
        budget.v**2 / 3 * torch.einsum("hqk,kl->hql", weight**2, latent**2)
        + rows.shape[0] * (U_FP32 * magnitude) ** 2
        + (unit_roundoff(model) * mean) ** 2 / 3
    )
    summed = rank * U_FP32**2 * torch.einsum("hql,lhv->hqv", mean.abs(), w_uv.abs()) ** 2
    return attended.out, attended.variance + torch.einsum("hql,lhv->hqv", in_latent, squared) + summed


def _projected(
    cell: Cell, q: torch.Tensor, rows: torch.Tensor, stored: torch.dtype, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and the variance of its error, (heads, new, v), over keys and values projected up."""
    m = mla_inputs.widths(cell.geometry)
    w_uk, w_uv = mla_inputs.up_projections(cell.geometry, q.dtype, rows.device)
    latent, rope = rows[:, 0, : m.kv_lora_rank], rows[:, :, m.kv_lora_rank :]
    key = torch.cat(
        (torch.einsum("kl,lhp->khp", latent, w_uk), rope.expand(-1, cell.geometry.num_heads, -1)), dim=-1
    )
    value = torch.einsum("kl,lhv->khv", latent, w_uv)
    u = unit_roundoff(q.dtype)
    # K and V leave their projection rounded, whatever the cache holds.
    budget = rounding(q.dtype, q.dtype, q.dtype)._replace(k=u, v=u)
    attended = attend(q, key, value, scale, Mask(cell.geometry.causal, None), budget)
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
    return attended.out, variance


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
