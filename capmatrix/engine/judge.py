"""Compare what a batch left behind with what it should be: the cache write alone, then the forward alone."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ..batches import Batch, Request
from ..cell import Cell, Check
from . import cache_view, mla, mla_reference, packed, reads, sparse
from .forward import Outcome
from .inputs import Placement, Values
from .pool import Snapshot
from .reference import Mask, Rounding, attention, plain, rounding, unit_roundoff
from .setup import Setup

_FP8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz)


class Stored(NamedTuple):
    """K and V as the cache holds them, dequantised, by request, and in which element type they were found.

    Rows of evicted blocks are zero: nothing may read them. ``folded`` is the smallest scale that a kernel folds
    into P before it rounds it (1 where it folds none).
    """

    k: list[torch.Tensor]
    v: list[torch.Tensor]
    dtype: torch.dtype
    folded: float = 1.0


class Expectation(NamedTuple):
    """Reference (new tokens, heads, size), bound of each row's error (new tokens, heads), and what plain PyTorch gets.

    ``plain`` is in the model's type, None where it was not computed. ``unjudged`` says why there is no bound.
    """

    out: torch.Tensor
    bound: torch.Tensor
    plain: torch.Tensor | None = None
    unjudged: str = ""


def scale_of(layer: Any, name: str, dtype: torch.dtype) -> float:
    """The layer's scale of ``k`` or ``v``; 1 where the cache is not FP8. A latent has one, that of ``k``."""
    if mla.is_mla(layer):
        name = "k"
    return float(getattr(layer, f"_{name}_scale_float")) if dtype in _FP8 else 1.0


def write_check(
    cell: Cell, setup: Setup, placement: Placement, values: Values, before: Snapshot, cache: str
) -> tuple[list[Check], Stored | None]:
    """Judge the write, and read back what is stored.

    ``before`` is what the KV storage held before the write; ``cache`` names it.
    Every stored element must be within half an ulp of the requested type of its input, and every byte
    that no token owns must be as before.
    """
    layer = setup.layer
    slots = _kept(placement, placement.slots)
    owned = cache_view.owned_bytes(layer, slots)
    if owned is None:
        return [Check("write", None, cache, detail=f"no view of K and V in a {cell.kv_cache_dtype} cache")], None
    checks = [_untouched(layer, before, owned, cache)]
    if packed.is_packed(layer):
        check, stored = _packed_write(layer, placement, values, slots, cache)
    else:
        check, stored = _plain_write(cell, layer, placement, values, slots, cache)
    return [*checks, check], stored


def _kept(placement: Placement, per_request: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Rows of the tokens whose blocks are not evicted, of all requests."""
    if not placement.evicted:
        return torch.cat(per_request)
    return torch.cat([x[s >= 0] for x, s in zip(per_request, placement.slots, strict=True)])


def _by_request(placement: Placement, rows: torch.Tensor) -> list[torch.Tensor]:
    """``_kept``'s rows by request again, zeros where a block is evicted."""
    if not placement.evicted:
        return list(rows.split([len(slots) for slots in placement.slots]))
    found, at = [], 0
    for slots in placement.slots:
        whole = rows.new_zeros(len(slots), *rows.shape[1:])
        count = int((slots >= 0).sum())
        whole[slots >= 0] = rows[at : at + count]
        at += count
        found.append(whole)
    return found


def _plain_write(
    cell: Cell, layer: Any, placement: Placement, values: Values, slots: torch.Tensor, cache: str
) -> tuple[Check, Stored]:
    views = cache_view.split(layer, layer.kv_cache)
    assert views is not None  # owned_bytes found them
    asked = cache_view.requested_dtype(cell.kv_cache_dtype, values.k[0].dtype)
    raw = [cache_view.rows(view, slots) for view in views]
    inputs = [_kept(placement, x).flatten(1) for x in (values.k, values.v)]
    found, detail = asked, ""
    worst = _write_error(layer, raw, inputs, asked)
    if worst > 1.0:
        # Say what is there instead, when it is another FP8 type.
        for other in _FP8 if asked in _FP8 else ():
            if other != asked and _write_error(layer, raw, inputs, other) <= 1.0:
                found = other
                detail = f"the cache holds {_name(other)}, not the {_name(asked)} that was asked for"
                break
        else:
            detail = f"stored values are off by {worst:.3g} half-ulps of {_name(asked)}"
    check = Check("write", worst <= 1.0, cache, max_abs=_finite(worst), bound=1.0, detail=detail)
    k, v = (
        _by_request(
            placement, (part.view(found).double() * scale_of(layer, name, found)).unflatten(1, (layer.num_kv_heads, -1))
        )
        for part, name in zip(raw, "kv", strict=True)
    )
    return check, Stored(k, v, found)


def _packed_write(
    layer: Any, placement: Placement, values: Values, slots: torch.Tensor, cache: str
) -> tuple[Check, Stored]:
    found = packed.read(layer, slots)
    dtype = cache_view.requested_dtype("fp8", layer.dtype) if packed.mode(layer) == "fp8" else torch.int8
    worst, troubles = 0.0, []
    for name, part, inputs in zip("kv", found, (values.k, values.v), strict=True):
        error, trouble = packed.write_error(layer, part, _kept(placement, inputs), dtype)
        worst = max(worst, error)
        if trouble:
            troubles.append(f"{name} {trouble}")
    if worst > 1.0:
        troubles.insert(0, f"stored values are off by {worst:.3g} half-steps of their scale")
    check = Check("write", not troubles, cache, max_abs=_finite(worst), bound=1.0, detail="; ".join(troubles))
    rescale = packed.stored_scale(layer)
    k, v = (_by_request(placement, part.values * rescale) for part in found)
    # A slot that was not written may have no scale, which folds nothing into P that could be lost.
    used = found[1].scales[found[1].scales > 0]
    folded = float(used.min()) * rescale if used.numel() else 1.0
    # Codes of up to eight bits are exact in every type that a product takes.
    return check, Stored(k, v, layer.dtype, folded=folded)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _untouched(layer: Any, before: Snapshot, owned: torch.Tensor, cache: str) -> Check:
    storage = torch.empty(0, dtype=torch.uint8, device=layer.kv_cache.device)
    storage.set_(layer.kv_cache.untyped_storage())
    count = 0
    for start, was in before.parts:
        here = slice(start, start + was.numel())
        count += _changed(storage[here], was, owned[here])
    detail = f"{count} bytes outside the written slots changed" if count else ""
    return Check("guard", count == 0, cache, detail=detail)


def _changed(now: torch.Tensor, was: torch.Tensor, owned: torch.Tensor) -> int:
    """Bytes that differ where nobody owns them. Pools are large and nearly all the same: eight bytes at a time."""
    whole = now.numel() // 8 * 8
    if now.storage_offset() % 8 or was.storage_offset() % 8:
        whole = 0
    at = torch.arange(whole, now.numel(), device=now.device)
    if whole:
        words = (now[:whole].view(torch.int64) != was[:whole].view(torch.int64)).nonzero().flatten()
        at = torch.cat((at, (words[:, None] * 8 + torch.arange(8, device=now.device)).flatten()))
    return int(((now[at] != was[at]) & (owned.to(at.device)[at] == 0)).sum())


def _write_error(layer: Any, raw: list[torch.Tensor], inputs: list[torch.Tensor], dtype: torch.dtype) -> float:
    """Largest distance from the input in half-ulps of ``dtype`` (1 is the most a faithful write has)."""
    worst = 0.0
    for part, given, name in zip(raw, inputs, "kv", strict=True):
        wanted = given.double() / scale_of(layer, name, dtype)
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


def query_checks(cell: Cell, setup: Setup, batch: Batch, values: Values, outcome: Outcome, cache: str) -> list[Check]:
    """What the layer did before its attention: the query with W_UK absorbed, the blocks that an indexer selected."""
    if sparse.is_sparse(setup.layer):
        return [sparse.selection_check(setup.layer, batch, values.q, values.k, cache)]
    if cell.geometry.mla is None or not outcome.query.shape[0]:
        return []
    judged = not mla.without_bound(setup.layer)
    return [mla_reference.query_check(cell, values, outcome.query, query_scale(setup.layer, outcome), cache, judged)]


def expected(
    cell: Cell, setup: Setup, batch: Batch, values: Values, stored: Stored, outcome: Outcome, kernels: tuple[str, ...]
) -> Expectation:
    """What the rows should be, and how far off a faithful kernel may leave them. ``kernels``: the attention's names."""
    layer, g = setup.layer, cell.geometry
    if g.mla is not None:
        absorbed = mla_reference.Absorbed(
            outcome.query,
            query_scale(layer, outcome),
            _budget(layer, outcome.query.dtype, stored, values.q.dtype, kernels),
        )
        out, bound = mla_reference.expected(cell, batch, values, stored.k, stored.dtype, absorbed)
        return Expectation(out, bound, unjudged=mla.without_bound(layer) if outcome.query.shape[0] else "")
    given = outcome.query.view(-1, g.num_heads, g.head_size)
    q = packed.turned(layer, given.double() * query_scale(layer, outcome))
    budget = _budget(layer, given.dtype, stored, values.q.dtype, kernels)
    extra = {"sinks": getattr(layer.impl, "sinks", None), "soft_cap": g.logits_soft_cap}
    outs, bounds, plains, at = [], [], [], 0
    for request, k, v, k_in, v_in in zip(batch.requests, stored.k, stored.v, values.k, values.v, strict=True):
        n = request.query_len
        if reads.new_tokens_unquantised(kernels, n):
            k = torch.cat((k[:-n], k_in[-n:].double()))
            v = torch.cat((v[:-n], v_in[-n:].double()))
        here = q[at : at + n]
        mask = _mask(setup, cell, request, at)
        result = attention(here, k, v, float(layer.impl.scale), mask, budget, **extra)
        outs.append(result.out)
        bounds.append(result.bound)
        plains.append(plain(here, k, v, float(layer.impl.scale), mask, given.dtype, values.q.dtype, **extra))
        at += n
    back = packed.turned_back
    return Expectation(back(layer, torch.cat(outs)), torch.cat(bounds), back(layer, torch.cat(plains)))


def _mask(setup: Setup, cell: Cell, request: Request, first: int) -> Mask | torch.Tensor:
    """Keys that a request's rows may read, of which ``first`` is the first in the batch."""
    if sparse.is_sparse(setup.layer):
        return sparse.mask(setup.layer, request, first)
    return Mask(cell.geometry.causal, cell.geometry.sliding_window)


def _budget(layer: Any, compute: torch.dtype, stored: Stored, model: torch.dtype, kernels: tuple[str, ...]) -> Rounding:
    scales = {} if stored.dtype not in _FP8 else {f"{n}_scale": scale_of(layer, n, stored.dtype) for n in "kv"}
    folds = packed.is_packed(layer)
    budget = rounding(compute, stored.dtype, model, **scales, top_exact=reads.top_exact(kernels) and not folds)
    if folds:
        budget = budget._replace(p_floor=budget.p_floor / stored.folded)
    if packed.mode(layer) == "int4":
        # The turned query is rounded, and the output both before and after it is turned back.
        budget = budget._replace(q=unit_roundoff(compute), out=2 * budget.out)
    if reads.products_rounded(kernels):
        budget = budget._replace(q=unit_roundoff(compute))
    keys = reads.partial_keys(kernels)
    return budget if keys is None else budget._replace(partial=unit_roundoff(model), partial_keys=keys)


def accuracy_check(
    cell: Cell, setup: Setup, batch: Batch, values: Values, outcome: Outcome, cache: str
) -> Check | None:
    """The error against attention over the inputs before anything was quantised; reported, not judged."""
    g, mine = cell.geometry, ~outcome.native_rows
    if not bool(mine.any()):
        return None
    if g.mla is not None:
        return _accuracy(mla_reference.exact(cell, batch, values), outcome, mine, cache)
    budget = rounding(values.q.dtype, values.q.dtype, values.q.dtype)
    outs, at = [], 0
    for request, k, v in zip(batch.requests, values.k, values.v, strict=True):
        q = values.q[at : at + request.query_len]
        mask = _mask(setup, cell, request, at)
        at += request.query_len
        sinks = getattr(setup.layer.impl, "sinks", None)
        outs.append(attention(q, k, v, float(setup.layer.impl.scale), mask, budget, sinks, g.logits_soft_cap).out)
    return _accuracy(torch.cat(outs), outcome, mine, cache)


def _accuracy(want: torch.Tensor, outcome: Outcome, mine: torch.Tensor, cache: str) -> Check:
    error = (outcome.output[mine].double() - want[mine]).norm() / want[mine].norm()
    return Check("accuracy", None, cache, relative_l2=_finite(float(error)), detail="against unquantised inputs")


def repeat_check(first: Outcome, again: Outcome, expected: Expectation | None, cache: str) -> Check:
    """Whether a second call on the same inputs and cache agrees with the first, of a process that had not run it.

    The same bits, or both within the bound. Two that are off in different ways are not judged here.
    """
    mine = ~first.native_rows
    if not bool(mine.any()):
        return Check("repeat", None, cache, detail="every row belongs to a native operator")
    one, two = first.output[mine], again.output[mine]
    if bool(((one == two) | (one.isnan() & two.isnan())).all()):
        return Check("repeat", True, cache, max_abs=0.0)
    apart = (one.double() - two.double()).nan_to_num(nan=float("inf"))
    size = _finite(float(apart.abs().max()))
    rows = int(apart.ne(0).any(-1).sum())
    if expected is None or expected.unjudged:
        return Check("repeat", None, cache, max_abs=size, detail=f"{rows} rows differ; no bound to judge them by")
    want, bound = expected.out[mine], expected.bound[mine]
    errors = [(x.double() - want).nan_to_num(nan=float("inf")).norm(dim=-1) for x in (one, two)]
    within = [bool((error <= bound).all()) for error in errors]
    ok, found = {
        (True, True): (True, "all within the bound"),
        (False, True): (False, "only the first is off"),
        (True, False): (False, "only the next is off"),
        (False, False): (None, "both are off"),
    }[within[0], within[1]]
    detail = f"{rows} rows differ between the first call and the next; {found}"
    return Check("repeat", ok, cache, max_abs=size, detail=detail)


def forward_check(part: str, cache: str, outcome: Outcome, expected: Expectation) -> Check:
    """Judge the rows that no native operator wrote, each row and overall."""
    mine = ~outcome.native_rows
    if not bool(mine.any()):
        return Check(part, None, cache, detail="every row belongs to a native operator")
    got, want, limit = outcome.output[mine].double(), expected.out[mine], expected.bound[mine]
    nan = torch.isnan(got)
    unwritten = int(nan.all(-1).sum())
    error = (got - want).nan_to_num(nan=float("inf"))
    row_error = error.norm(dim=-1)
    ratio = (row_error / limit.clamp_min(1e-300)).flatten()
    worst = int(ratio.argmax())
    norm = float(want.norm())
    overall = float(error.norm())
    if expected.unjudged:
        return Check(
            part, None, cache, relative_l2=_finite(overall / norm), nan_count=int(nan.sum()), detail=expected.unjudged
        )
    ok = bool((row_error <= limit).all()) and overall <= float(limit.norm())
    detail = ""
    if not ok:
        token, head = divmod(worst, row_error.shape[-1])
        token = int(mine.nonzero()[token])
        here = float(want.flatten(0, 1)[worst].norm())
        detail = (
            f"{int((row_error > limit).sum())} of {ratio.numel()} rows are off; token {token}, head {head}: "
            f"error {float(row_error.flatten()[worst]):.3g} of a norm of {here:.3g}, "
            f"bound {float(limit.flatten()[worst]):.3g}"
        )
    plain_error = None
    if expected.plain is not None:
        plain_error = _finite(float((expected.plain[mine].double() - want).norm()) / norm)
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
        plain_error=plain_error,
        detail=detail,
    )


def band_check(outcome: Outcome, cache: str) -> Check:
    """Whether the bands around the buffers that the kernels got, and those that they only read, are as before."""
    detail = ", ".join(f"{name} changed" for name in outcome.trespasses)
    return Check("guard", not outcome.trespasses, cache, detail=detail)


def _finite(value: float) -> float | None:
    # JSON has no infinity; a NaN among the outputs is counted by itself.
    return value if value < float("inf") else None
