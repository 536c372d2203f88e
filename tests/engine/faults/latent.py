"""Faults seeded in latent attention (TRITON_MLA), with what they do to attention over the latent in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from capmatrix import batches
from capmatrix.cell import Cell, Geometry, MlaGeometry
from capmatrix.engine import mla_inputs, mla_reference, reference

from .fault import Fault
from .models import FP8, SCALES, as_stored
from .patching import Edit

KERNELS = "vllm.v1.attention.ops.triton_decode_attention"
LAYER = "vllm.model_executor.layers.attention.mla_attention"
BACKEND = "vllm.v1.attention.backends.mla.triton_mla"

#: The smallest widths that vLLM 0.32 admits: a row of 320, and a prefill backend that takes (64, 64, 128).
SMALL = Geometry(4, 1, 320, mla=MlaGeometry(256, 64, 64, 128))
#: One query head a latent has a kernel of its own.
ONE_HEAD = Geometry(1, 1, 320, mla=MlaGeometry(256, 64, 64, 128))

_GROUPED = "_fwd_grouped_kernel_stage1"
_SINGLE = "_fwd_kernel_stage1"
_MERGE = "_fwd_kernel_stage2"


@dataclass(frozen=True)
class Request:
    """One request in float64: absorbed q (new, heads, rank + rope), rows (length, rank + rope), who reads what.

    ``values`` (rank, heads, v) is what the attended latent is projected up by.
    """

    cell: Cell
    q: torch.Tensor
    rows: torch.Tensor
    mask: torch.Tensor
    scale: float
    values: torch.Tensor

    @property
    def rank(self) -> int:
        """Width of the latent within a row."""
        return int(self.values.shape[0])


Change = Callable[[Request], "Request | torch.Tensor"]


def attended(r: Request) -> torch.Tensor:
    """Attention over the latent, projected up: (new, heads, v)."""
    weight = torch.softmax(_logits(r), -1)
    return torch.einsum("hqk,kl,lhv->qhv", weight, r.rows[:, : r.rank], r.values)


def _logits(r: Request) -> torch.Tensor:
    logits = torch.einsum("qhd,kd->hqk", r.q, r.rows) * r.scale
    return logits.masked_fill(~r.mask, -math.inf)


def measured(change: Change) -> Callable[[Cell], float]:
    """How many times its bound ``change`` moves the worst row of a cell, over both kinds of values."""

    def measure(cell: Cell) -> float:
        return max(_moved(cell, kind, change) for kind in (mla_inputs.random_values, mla_inputs.needle_values))

    return measure


def _moved(cell: Cell, kind: Callable[..., mla_inputs.Values], change: Change) -> float:
    model, g = getattr(torch, cell.dtype), cell.geometry
    shape = {"block_size": cell.block_size, "num_speculative_tokens": cell.num_speculative_tokens}
    batch = batches.build(cell.batch, **shape, lengths=cell.lengths)
    given = kind(batch, g, model)
    stored, scale = (FP8[cell.target.split(":")[1]], SCALES["k"]) if cell.kv_cache_dtype == "fp8" else (model, 1.0)
    rows = [as_stored(x, stored, scale) if scale != 1.0 else x.double() for x in given.k]
    w_uk, w_uv = mla_inputs.up_projections(g, model)
    query = _absorbed(given.q, w_uk).to(model)
    scales = {"k_scale": scale, "v_scale": scale} if scale != 1.0 else {}
    budget = reference.rounding(model, stored, model, **scales, top_exact=g.num_heads > 1)
    if g.num_heads == 1:
        budget = budget._replace(q=reference.unit_roundoff(model))
    _, bounds = mla_reference.expected(cell, batch, given, rows, stored, mla_reference.Absorbed(query, 1.0, budget))
    worst, at = 0.0, 0
    for request, x in zip(batch.requests, rows, strict=True):
        here = slice(at, at + request.query_len)
        at += request.query_len
        mask = reference.allowed(request.query_len, request.seq_len, reference.Mask(g.causal, None))
        whole = Request(cell, query[here].double(), x[:, 0], mask, mla_reference.softmax_scale(cell), w_uv)
        broken = change(whole)
        out = attended(broken) if isinstance(broken, Request) else broken
        error = (out - attended(whole)).nan_to_num(nan=math.inf).norm(dim=-1)
        worst = max(worst, float((error / bounds[here]).max()))
    return worst


def _absorbed(q: torch.Tensor, w_uk: torch.Tensor) -> torch.Tensor:
    nope, rope = q.double().split([w_uk.shape[-1], q.shape[-1] - w_uk.shape[-1]], dim=-1)
    return torch.cat((torch.einsum("thp,lhp->thl", nope, w_uk), rope), dim=-1)


def _query_moved(cell: Cell) -> float:
    """How many of its roundings the absorbed query's worst element is off, absorbed by the next head's keys."""
    model = getattr(torch, cell.dtype)
    shape = {"block_size": cell.block_size, "num_speculative_tokens": cell.num_speculative_tokens}
    batch = batches.build(cell.batch, **shape, lengths=cell.lengths)
    q = mla_inputs.random_values(batch, cell.geometry, model).q
    w_uk, _ = mla_inputs.up_projections(cell.geometry, model)
    right = _absorbed(q, w_uk)
    error = (_absorbed(q, w_uk.roll(1, 1)) - right).abs()
    return float((error / (reference.unit_roundoff(model) * right.abs()).clamp_min(1e-6)).max())


def _no_rope(r: Request) -> Request:
    return replace(r, q=torch.cat((r.q[..., : r.rank], torch.zeros_like(r.q[..., r.rank :])), -1))


def _key_of_zeros(r: Request) -> Request:
    """One more slot, which the kernel reads as zeros."""
    more = torch.ones(r.mask.shape[0], 1, dtype=torch.bool)
    return replace(r, rows=torch.cat((r.rows, torch.zeros(1, r.rows.shape[1]))), mask=torch.cat((r.mask, more), 1))


def _key_short(r: Request) -> Request:
    """No row reads its own key."""
    mask = r.mask.clone()
    mask[torch.arange(len(mask)), torch.arange(r.rows.shape[0] - len(mask), r.rows.shape[0])] = False
    return replace(r, mask=mask)


def _first_block_only(r: Request) -> Request:
    return replace(r, rows=r.rows[torch.arange(r.rows.shape[0]) % r.cell.block_size])


def _latent_unscaled(r: Request) -> Request:
    """The latent's codes are taken as they are; the rotary part is dequantised."""
    rows = r.rows.clone()
    rows[:, : r.rank] /= SCALES["k"]
    return replace(r, rows=rows)


def _row_unscaled(r: Request) -> Request:
    """Keys are made of codes, values of the dequantised latent: a scale on the logits alone."""
    return replace(r, scale=r.scale / SCALES["k"])


def _merged(r: Request, splits: int, *, weigh: bool = True, rescale: bool = True, last: bool = True) -> torch.Tensor:
    """Partial results of ``splits`` parts of each row's keys, merged as stage 2 does, or not quite."""
    logits, heads = _logits(r), r.q.shape[1]
    outs = torch.empty(r.q.shape[0], heads, r.rank, dtype=torch.float64)
    for row in range(r.q.shape[0]):
        length = int(r.mask[row].sum())
        size = -(-length // splits)
        acc, total = torch.zeros(heads, r.rank, dtype=torch.float64), torch.zeros(heads, dtype=torch.float64)
        top = torch.full((heads,), -math.inf, dtype=torch.float64)
        for start in range(0, length, size)[: splits if last else splits - 1]:
            part = logits[:, row, start : min(start + size, length)]
            lse = torch.logsumexp(part, -1)
            now = torch.maximum(top, lse)
            old, new = torch.exp(top - now), torch.exp(lse - now)
            value = torch.softmax(part, -1) @ r.rows[start : min(start + size, length), : r.rank]
            acc = acc * (old[:, None] if rescale else 1.0) + value * (new[:, None] if weigh else 1.0)
            total, top = total * old + new, now
        outs[row] = acc / total[:, None]
    return torch.einsum("qhl,lhv->qhv", outs, r.values)


def _fault(name: str, kernel: str, old: str, new: str, change: Change, batch: str = "decode", **more: object) -> Fault:
    edit = Edit(str(more.pop("module", KERNELS)), str(more.pop("function", kernel)), old, new)
    more = {"measured": measured(change), "geometry": SMALL, **more}
    return Fault(
        f"latent-{name}", f"latent {kernel}", (edit,), None, "TRITON_MLA", 16, batch,
        target="interpreter:gfx950", **more,
    )  # type: ignore[arg-type]  # fmt: skip


def latent_faults() -> list[Fault]:
    """All of them."""
    fp8 = ("fp8",)
    page = "+ offs_n // PAGE_SIZE,"
    absorb = "torch.bmm(mqa_q_nope, W_UK_T, out=mqa_ql_nope.transpose(0, 1))"
    two = {"lengths": "full", "geometry": SMALL}  # at these lengths the context is split in two
    alone = {"geometry": ONE_HEAD}
    return [
        _fault("rope-dropped", _GROUPED, "qk += tl.dot(qpe,", "qk += 0.0 * tl.dot(qpe,", _no_rope),
        _fault("scale-doubled", _GROUPED, "qk *= sm_scale", "qk *= sm_scale * 2.0",
               lambda r: replace(r, scale=2 * r.scale)),
        _fault("one-key-too-many", _GROUPED, "mask_h[:, None] & (offs_n[None, :] < split_kv_end)",
               "mask_h[:, None] & (offs_n[None, :] <= split_kv_end)", _key_of_zeros),
        _fault("one-block-for-all", _GROUPED, page, "+ offs_n // PAGE_SIZE * 0,", _first_block_only),
        _fault("dequantised-without-scale", _GROUPED, "k = (k.to(tl.float32) * ks)", "k = (k.to(tl.float32) * 1.0)",
               _latent_unscaled, kv_cache_dtypes=fp8),
        _fault("verify-not-causal", _GROUPED, "seq_lens = (seq_lens.unsqueeze(1) + offsets)",
               "seq_lens = (seq_lens.unsqueeze(1) + 0 * offsets)",
               lambda r: replace(r, mask=torch.ones_like(r.mask)), "verify", module=BACKEND,
               function="TritonMLAImpl.forward_mqa"),
        _fault("values-of-another-head", _GROUPED, "torch.bmm(x, self.W_UV,", "torch.bmm(x, self.W_UV.roll(1, 0),",
               lambda r: replace(r, values=r.values.roll(1, 1)), module=LAYER, function="MLAAttention._v_up_proj"),
        _fault("keys-of-another-head", _GROUPED, absorb, absorb.replace("W_UK_T,", "W_UK_T.roll(1, 0),"), lambda r: r,
               module=LAYER, function="MLAAttention.forward_impl", measured=_query_moved, part="query"),
        _fault("key-too-few-alone", _SINGLE, "tl.where(offs_n < split_kv_end, qk",
               "tl.where(offs_n < split_kv_end - 1, qk", _key_short, **alone),
        _fault("scale-ignored-alone", _SINGLE, "k = (k.to(tl.float32) * ks)", "k = (k.to(tl.float32) * 1.0)",
               _row_unscaled, kv_cache_dtypes=fp8, **alone),
        _fault("one-block-for-all-alone", _SINGLE, page, "+ offs_n // PAGE_SIZE * 0,", _first_block_only, **alone),
        _fault("merge-unweighted", _MERGE, "acc += exp_logic * tv", "acc += tv",
               lambda r: _merged(r, 2, weigh=False), **two),
        _fault("merge-not-rescaled", _MERGE, "acc *= old_scale", "acc *= 1.0",
               lambda r: _merged(r, 2, rescale=False), **two),
        _fault("merge-loses-last", _MERGE, "range(0, NUM_KV_SPLITS)", "range(0, NUM_KV_SPLITS - 1)",
               lambda r: _merged(r, 2, last=False), **two),
    ]  # fmt: skip
