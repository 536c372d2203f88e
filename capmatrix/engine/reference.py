"""Attention in float64, and the error a faithful kernel may have: a unit-roundoff budget, row by row.

The reference reads K and V as stored and Q as the layer quantised it. The budget follows from dtypes,
lengths and values of the *exact* computation alone; nothing is measured on a kernel. A faithful kernel may

* take the products of a tile in any order, with float32 sums (``U_FP32`` an addition);
* keep a running maximum over tiles of any size, in any order, and rescale by it (``_U_EXP`` an exponential);
* split the keys and merge partial results kept in float32 (or in ``Rounding.partial``, where a kernel is
  known to keep them shorter);
* round P, relative to its running maximum, once to the type of its product with V, flushing what lies below
  that type's smallest number; and round K and V again when they are converted and the conversion is not exact;
* round the output once.

What a rounding is worth: of a value rounded to nearest with unit roundoff u the error is at most u times the
value and, over many values, spread evenly with variance at most u²/3 of its square (N. J. Higham and T. Mary,
"A New Approach to Probabilistic Rounding Error Analysis", SIAM J. Sci. Comput. 41 (2019), and the uniform
model of a rounding error in N. J. Higham, "Accuracy and Stability of Numerical Algorithms", 2.8). An even
spread is sub-Gaussian with its own variance, so the norm of a row's error exceeds ``CONFIDENCE`` standard
deviations with a probability below 2 exp(-CONFIDENCE²/2) = 8e-6 even where one direction takes it all. The
output's own rounding needs no probability: its norm is at most u times that of the row. Flushed P lose weight
in one direction, so they count in full, with the sign of their values. Roundings count as independent, which
holds for the drawn inputs that cells are judged on, not for many equal keys.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

#: Standard deviations a row's error may have beyond what is bounded outright.
CONFIDENCE = 5.0

U_FP32 = 2.0**-24
#: exp and exp2 of GPU and numpy libraries are within a few units in the last place of float32.
_U_EXP = 2.0**-21


class Rounding(NamedTuple):
    """Unit roundoffs along a kernel: of P and V and K as its products take them, and of the output.

    ``p_floor`` is the absolute error of a P below the smallest normal number of its type. ``top_exact``: the
    largest weight of a row is exp(0), which every type holds, because the kernel rounds P as it leaves the
    exponential. ``q`` is a rounding of Q that the reference's Q has not seen. ``partial`` is the roundoff in which
    partial results of ``partial_keys`` keys each are kept before they are merged.
    """

    p: float
    p_floor: float
    k: float
    v: float
    out: float
    top_exact: bool = False
    q: float = 0.0
    partial: float = 0.0
    partial_keys: int = 256


class Expected(NamedTuple):
    """Reference (tokens, heads, size) and the norm that each row's error may reach (tokens, heads)."""

    out: torch.Tensor
    bound: torch.Tensor


class Attended(NamedTuple):
    """``out`` (heads, tokens, size) before it is rounded, its error's ``variance``, ``weight`` (heads, tokens, keys).

    ``flushed`` (heads, tokens, size) is what the output loses where P below its type's numbers become zero.
    """

    out: torch.Tensor
    variance: torch.Tensor
    weight: torch.Tensor
    flushed: torch.Tensor


class Mask(NamedTuple):
    """Which keys a query may read: ``causal``, and a sliding ``window`` in tokens (None: all)."""

    causal: bool
    window: int | None


def unit_roundoff(dtype: torch.dtype) -> float:
    """Half the distance from 1 to the next number."""
    return float(torch.finfo(dtype).eps) / 2


def smallest(dtype: torch.dtype) -> float:
    """The smallest subnormal number."""
    info = torch.finfo(dtype)
    return float(info.smallest_normal) * float(info.eps)


def converts_exactly(stored: torch.dtype, scale: float, compute: torch.dtype) -> bool:
    """Whether every number of ``stored`` times ``scale`` is one of ``compute``: a power of two that fits."""
    if stored == compute and scale == 1.0:
        return True
    if abs(math.frexp(scale)[0]) != 0.5 or unit_roundoff(stored) < unit_roundoff(compute):
        return False
    largest = float(torch.finfo(stored).max) * scale
    return smallest(stored) * scale >= smallest(compute) and largest <= float(torch.finfo(compute).max)


def rounding(
    compute: torch.dtype,
    stored: torch.dtype,
    out: torch.dtype,
    *,
    k_scale: float | None = None,
    v_scale: float | None = None,
    top_exact: bool = False,
) -> Rounding:
    """The budget of a kernel whose products take ``compute``, over a cache in ``stored``.

    P is always rounded, from float32. K and V are not rounded again where they are already in ``compute``, or
    where their scale (None: unknown) makes the conversion exact.
    """

    def again(scale: float | None) -> float:
        exact = compute == stored or (scale is not None and converts_exactly(stored, scale, compute))
        return 0.0 if exact else unit_roundoff(compute)

    return Rounding(
        p=unit_roundoff(compute),
        p_floor=smallest(compute) / 2,
        k=again(k_scale),
        v=again(v_scale),
        out=unit_roundoff(out),
        top_exact=top_exact,
    )


def allowed(query_len: int, seq_len: int, mask: Mask, device: torch.device | None = None) -> torch.Tensor:
    """(query_len, seq_len) mask of keys that each new token reads."""
    position = torch.arange(seq_len - query_len, seq_len, device=device)[:, None]
    key = torch.arange(seq_len, device=device)[None, :]
    may = torch.ones(query_len, seq_len, dtype=torch.bool, device=device)
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
    mask: Mask | torch.Tensor,
    budget: Rounding,
    sinks: torch.Tensor | None = None,
    soft_cap: float | None = None,
) -> Expected:
    """One request: q (new, heads, size), k and v (length, KV heads, size), in any dtype.

    Heads of q share KV heads in consecutive groups. ``sinks`` (heads,) are extra logits without value. ``mask``
    may be given as the (new, length) or (heads, new, length) keys allowed.
    """
    out, variance, _, flushed = attend(q, k, v, scale, mask, budget, sinks, soft_cap)
    bound = CONFIDENCE * variance.sum(-1).sqrt() + flushed.norm(dim=-1) + budget.out * out.norm(dim=-1)
    return Expected(out.transpose(0, 1), bound.transpose(0, 1))


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    mask: Mask | torch.Tensor,
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
    may = allowed(q.shape[0], k.shape[0], mask, q.device) if isinstance(mask, Mask) else mask
    masked = logits.masked_fill(~may, float("-inf"))
    top = masked.amax(-1, keepdim=True)
    if sinks is not None:
        top = torch.maximum(top, sinks.to(top)[:, None, None])
    weight = torch.exp(masked - top)
    total = weight.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + torch.exp(sinks.to(top)[:, None, None] - top)
    # Rounding of P, where P is what the exponential gave: exp(0) needs none.
    rounded = ((weight < 1.0) if budget.top_exact else may).double()
    weight = weight / total
    out = torch.einsum("hqk,khd->hqd", weight, v)

    # Errors of a weight: its own rounding, the floor below P's normal numbers, and its logit's error.
    floor = torch.minimum(weight, budget.p_floor / total)
    own = weight**2 * (budget.p**2 * rounded + budget.v**2 + 3 * _U_EXP**2) / 3
    own = own + floor**2 / 3
    products = torch.einsum("qhd,khd->hqk", q**2, k**2) * scale**2
    reach = (logits.abs() + top.abs()).masked_fill(~may, 0.0)
    logit_error = products * ((budget.k**2 + budget.q**2) / 3 + 8 * U_FP32**2) + (4 * U_FP32 * reach) ** 2
    if soft_cap:
        logit_error = logit_error + (4 * _U_EXP * soft_cap) ** 2
    moved = weight**2 * logit_error
    square = torch.einsum("hqk,khd->hqd", own + moved, v**2)
    square = square - 2 * out * torch.einsum("hqk,khd->hqd", moved, v) + out**2 * moved.sum(-1, keepdim=True)
    summed = k.shape[0] * U_FP32**2 * torch.einsum("hqk,khd->hqd", weight, v.abs()) ** 2
    summed = summed + _merged(weight, v, budget)
    # P of a lower running maximum is larger: what is flushed is below the floor in the end as well.
    flushed = torch.einsum("hqk,khd->hqd", weight * (weight * total <= budget.p_floor), v)
    return Attended(out, square.clamp_min(0) + summed, weight, flushed)


def _merged(weight: torch.Tensor, v: torch.Tensor, budget: Rounding) -> torch.Tensor | float:
    """Variance from rounding the partial results of consecutive keys before they are merged."""
    if not budget.partial:
        return 0.0
    parts = [
        torch.einsum("hqk,khd->hqd", w, x) ** 2
        for w, x in zip(weight.split(budget.partial_keys, -1), v.split(budget.partial_keys), strict=True)
    ]
    return torch.stack(parts).sum(0) * budget.partial**2 / 3


def plain(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    mask: Mask | torch.Tensor,
    compute: torch.dtype,
    out: torch.dtype,
    sinks: torch.Tensor | None = None,
    soft_cap: float | None = None,
) -> torch.Tensor:
    """The same attention as plain PyTorch computes it, (new, heads, size) in ``out``.

    Logits, softmax and sums in float32, without tiles; P rounded to ``compute`` for its product with V.
    """
    group = q.shape[1] // k.shape[1]
    k = k.to(compute).float().repeat_interleave(group, 1)
    v = v.to(compute).float().repeat_interleave(group, 1)
    logits = torch.einsum("qhd,khd->hqk", q.float(), k) * scale
    if soft_cap:
        logits = soft_cap * torch.tanh(logits / soft_cap)
    may = allowed(q.shape[0], k.shape[0], mask, q.device) if isinstance(mask, Mask) else mask
    logits = logits.masked_fill(~may, float("-inf"))
    top = logits.amax(-1, keepdim=True)
    if sinks is not None:
        top = torch.maximum(top, sinks.to(top)[:, None, None])
    p = torch.exp(logits - top)
    total = p.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + torch.exp(sinks.to(top)[:, None, None] - top)
    result = torch.einsum("hqk,khd->hqd", p.to(compute).float(), v) / total
    return result.transpose(0, 1).to(out)
