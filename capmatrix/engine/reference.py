"""Attention in float64, and the error a faithful kernel may have: a unit-roundoff budget, row by row.

The reference reads K and V as stored and Q as the layer quantised it. The budget follows from dtypes
and lengths alone. Roundings are taken as independent with the variance u²/3 of a value rounded to
nearest with unit roundoff u (N. J. Higham and T. Mary, "A New Approach to Probabilistic Rounding
Error Analysis", SIAM J. Sci. Comput. 41 (2019)); a row's bound is ``CONFIDENCE`` standard deviations
of its error's norm.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

#: Standard deviations a row may be off; one rounding alone reaches sqrt(3), so 4 leaves a faithful kernel alone.
CONFIDENCE = 4.0

U_FP32 = 2.0**-24
#: exp and exp2 of GPU and numpy libraries are within a few units in the last place of float32.
_U_EXP = 2.0**-21


class Rounding(NamedTuple):
    """Unit roundoffs along a kernel: of P and V and K as its products take them, and of the output.

    ``p_floor`` is the absolute error of a P below the smallest normal number of its type.
    """

    p: float
    p_floor: float
    k: float
    v: float
    out: float


class Expected(NamedTuple):
    """Reference (tokens, heads, size) and the norm that each row's error may reach (tokens, heads)."""

    out: torch.Tensor
    bound: torch.Tensor


class Attended(NamedTuple):
    """``out`` (heads, tokens, size) before it is rounded, its error's ``variance``, ``weight`` (heads, tokens, keys)."""

    out: torch.Tensor
    variance: torch.Tensor
    weight: torch.Tensor


class Mask(NamedTuple):
    """Which keys a query may read: ``causal``, and a sliding ``window`` in tokens (None: all)."""

    causal: bool
    window: int | None


def unit_roundoff(dtype: torch.dtype) -> float:
    """Half the distance from 1 to the next number."""
    return float(torch.finfo(dtype).eps) / 2


def rounding(compute: torch.dtype, stored: torch.dtype, out: torch.dtype) -> Rounding:
    """The budget of a kernel whose products take ``compute``, over a cache in ``stored``.

    A value already in ``compute`` is not rounded again; P always is, from float32.
    """
    info = torch.finfo(compute)
    again = 0.0 if compute == stored else unit_roundoff(compute)
    return Rounding(
        p=unit_roundoff(compute),
        p_floor=float(info.smallest_normal) * float(info.eps) / 2,
        k=again,
        v=again,
        out=unit_roundoff(out),
    )


def allowed(query_len: int, seq_len: int, mask: Mask) -> torch.Tensor:
    """(query_len, seq_len) mask of keys that each new token reads."""
    position = torch.arange(seq_len - query_len, seq_len)[:, None]
    key = torch.arange(seq_len)[None, :]
    may = torch.ones(query_len, seq_len, dtype=torch.bool)
    if mask.causal:
        may &= key <= position
    if mask.window is not None:
        may &= key > position - mask.window
        if not mask.causal:
            may &= key < position + mask.window
    return may


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    mask: Mask,
    budget: Rounding,
    sinks: torch.Tensor | None = None,
    soft_cap: float | None = None,
) -> Expected:
    """One request: q (new, heads, size), k and v (length, KV heads, size), in any dtype.

    Heads of q share KV heads in consecutive groups. ``sinks`` (heads,) are extra logits without value.
    """
    out, variance, _ = attend(q, k, v, scale, mask, budget, sinks, soft_cap)
    variance = variance + (budget.out * out) ** 2 / 3
    bound = CONFIDENCE * variance.sum(-1).sqrt()
    return Expected(out.transpose(0, 1), bound.transpose(0, 1))


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    mask: Mask,
    budget: Rounding,
    sinks: torch.Tensor | None = None,
    soft_cap: float | None = None,
) -> Attended:
    """As ``attention``, before the output is rounded; K and V may have different numbers of heads and sizes."""
    q, k, v = q.double(), k.double(), v.double()
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    v = v.repeat_interleave(q.shape[1] // v.shape[1], 1)
    logits = torch.einsum("qhd,khd->hqk", q, k) * scale
    if soft_cap:
        logits = soft_cap * torch.tanh(logits / soft_cap)
    may = allowed(q.shape[0], k.shape[0], mask)
    logits = logits.masked_fill(~may, float("-inf"))
    top = logits.amax(-1, keepdim=True)
    if sinks is not None:
        top = torch.maximum(top, sinks.double()[:, None, None])
    weight = torch.exp(logits - top)
    total = weight.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + torch.exp(sinks.double()[:, None, None] - top)
    weight = weight / total
    out = torch.einsum("hqk,khd->hqd", weight, v)

    # Errors of a weight: its own rounding, the floor below P's normal numbers, and its logit's error.
    own = weight**2 * (budget.p**2 + budget.v**2 + 3 * _U_EXP**2) / 3
    own = own + (budget.p_floor / total) ** 2 / 3 * may
    products = torch.einsum("qhd,khd->hqk", q**2, k**2) * scale**2
    logit_error = products * (budget.k**2 / 3 + 8 * U_FP32**2) + (4 * U_FP32 * logits.masked_fill(~may, 0.0)) ** 2
    moved = weight**2 * logit_error
    square = torch.einsum("hqk,khd->hqd", own + moved, v**2)
    square = square - 2 * out * torch.einsum("hqk,khd->hqd", moved, v) + out**2 * moved.sum(-1, keepdim=True)
    summed = k.shape[0] * U_FP32**2 * torch.einsum("hqk,khd->hqd", weight, v.abs()) ** 2
    return Attended(out, square.clamp_min(0) + summed, weight)
