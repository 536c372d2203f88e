"""The float64 reference and its budget, by themselves: against a slow one, and against simulated faithful kernels."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from capmatrix.engine import reference  # noqa: E402
from capmatrix.engine.reference import Mask, allowed, attention, converts_exactly, plain, rounding  # noqa: E402

EXACT = reference.Rounding(0.0, 0.0, 0.0, 0.0, 0.0)
FP8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2)


class Case(NamedTuple):
    """One request's inputs in the types that a kernel gets, and what it does with them."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    scale: float
    mask: Mask
    sinks: torch.Tensor | None
    cap: float | None


def slow(case: Case) -> list[list[list[float]]]:
    """Attention one number at a time, from its definition, with exact sums."""
    q, k, v = (x.double().tolist() for x in (case.q, case.k, case.v))
    new, heads, size, length, kv_heads = len(q), len(q[0]), len(q[0][0]), len(k), len(k[0])
    out = [[[0.0] * size for _ in range(heads)] for _ in range(new)]
    for i in range(new):
        position = length - new + i
        for h in range(heads):
            g = h // (heads // kv_heads)
            logits = {}
            for j in range(length):
                if case.mask.causal and j > position:
                    continue
                if case.mask.window is not None and abs(position - j) >= case.mask.window:
                    continue
                s = math.fsum(a * b for a, b in zip(q[i][h], k[j][g], strict=True)) * case.scale
                logits[j] = case.cap * math.tanh(s / case.cap) if case.cap else s
            sink = [] if case.sinks is None else [float(case.sinks[h])]
            top = max([*logits.values(), *sink])
            total = math.fsum([*(math.exp(s - top) for s in logits.values()), *(math.exp(s - top) for s in sink)])
            for d in range(size):
                out[i][h][d] = math.fsum(math.exp(s - top) / total * v[j][g][d] for j, s in logits.items())
    return out


def drawn(seed: int, dtype: torch.dtype, **more: object) -> Case:
    """Random inputs; ``more``: new, length, heads, kv_heads, size, causal, window, sinks, cap, spread, stored."""
    generator = torch.Generator().manual_seed(seed)
    new, length = int(more.get("new", 3)), int(more.get("length", 40))
    heads, kv_heads, size = int(more.get("heads", 4)), int(more.get("kv_heads", 2)), int(more.get("size", 16))
    spread = float(more.get("spread", 1.0))

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    stored = more.get("stored", dtype)
    return Case(
        q=(normal(new, heads, size) * spread).to(dtype),
        k=normal(length, kv_heads, size).to(stored),
        v=(normal(length, kv_heads, size) + float(more.get("mean", 0.0))).to(stored),
        scale=size**-0.5,
        mask=Mask(bool(more.get("causal", True)), more.get("window")),  # type: ignore[arg-type]
        sinks=normal(heads).to(dtype) * 2 if more.get("sinks") else None,
        cap=more.get("cap"),  # type: ignore[arg-type]
    )


def exactly(case: Case, budget: reference.Rounding = EXACT) -> reference.Expected:
    return attention(case.q, case.k, case.v, case.scale, case.mask, budget, case.sinks, case.cap)


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"new": 1, "length": 1},
        {"new": 1, "length": 33},
        {"new": 7, "length": 7},
        {"heads": 6, "kv_heads": 2},
        {"heads": 3, "kv_heads": 3},
        {"heads": 8, "kv_heads": 1},
        {"causal": False},
        {"window": 5},
        {"window": 1},
        {"window": 100},
        {"causal": False, "window": 4, "new": 9, "length": 20},
        {"sinks": True},
        {"cap": 3.0, "spread": 4.0},
        {"sinks": True, "cap": 2.0, "window": 6, "new": 5},
        {"spread": 60.0},
    ],
)
def test_the_reference_is_attention(shape: dict[str, object]) -> None:
    case = drawn(1, torch.float32, **shape)
    assert torch.allclose(exactly(case).out, torch.tensor(slow(case), dtype=torch.float64), rtol=1e-12, atol=1e-13)


def test_a_mask_may_be_given_as_keys() -> None:
    case = drawn(2, torch.float32, window=6)
    keys = allowed(3, 40, case.mask)
    by_keys = attention(case.q, case.k, case.v, case.scale, keys, EXACT)
    assert torch.equal(by_keys.out, exactly(case).out)


def test_who_may_read_what() -> None:
    assert allowed(2, 4, Mask(True, None)).tolist() == [[True, True, True, False], [True] * 4]
    assert allowed(2, 4, Mask(True, 2)).tolist() == [[False, True, True, False], [False, False, True, True]]
    assert allowed(2, 4, Mask(False, 2)).tolist() == [[False, True, True, True], [False, False, True, True]]


@pytest.mark.parametrize("stored", FP8)
@pytest.mark.parametrize("compute", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("scale", [1.0, 0.25, 2.0, 0.3])
def test_a_conversion_that_is_called_exact_is(stored: torch.dtype, compute: torch.dtype, scale: float) -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(stored).double()
    values = codes[codes.isfinite()] * scale
    is_exact = torch.equal(values.to(compute).double(), values)
    assert converts_exactly(stored, scale, compute) == is_exact


def test_widths_decide_the_other_conversions() -> None:
    assert converts_exactly(torch.bfloat16, 1.0, torch.bfloat16)
    assert not converts_exactly(torch.float16, 1.0, torch.bfloat16)
    assert not converts_exactly(torch.bfloat16, 1.0, torch.float16)
    assert not converts_exactly(torch.bfloat16, 1.0, torch.float8_e4m3fn)


# Kernels that a budget must leave alone. Each differs from the exact result only in what the budget allows.


def simulated(
    case: Case,
    compute: torch.dtype,
    out: torch.dtype,
    *,
    tile: int,
    segments: int = 1,
    scale_p: float = 1.0,
    backwards: bool = False,
) -> torch.Tensor:
    """Online softmax by tiles and segments in float32, P rounded to ``compute``, the output to ``out``.

    ``scale_p``: P times a power of two before it is rounded. ``backwards``: tiles from the last to the first.
    """
    group = case.q.shape[1] // case.k.shape[1]
    k = case.k.to(torch.float32).to(compute).float().repeat_interleave(group, 1)
    v = case.v.to(torch.float32).to(compute).float().repeat_interleave(group, 1)
    q = case.q.float()
    may = allowed(case.q.shape[0], case.k.shape[0], case.mask)
    parts = []
    length = case.k.shape[0]
    per_segment = -(-length // segments)
    for first in range(0, length, per_segment):
        top = torch.full((q.shape[1], q.shape[0]), -math.inf)
        total = torch.zeros_like(top)
        if case.sinks is not None and first == 0:
            top = case.sinks.float()[:, None].expand_as(top).clone()
            total = torch.ones_like(top)
        acc = torch.zeros(q.shape[1], q.shape[0], v.shape[2])
        starts = list(range(first, min(first + per_segment, length), tile))
        for start in reversed(starts) if backwards else starts:
            end = min(start + tile, first + per_segment, length)
            s = torch.einsum("qhd,khd->hqk", q, k[start:end]) * case.scale
            if case.cap:
                s = case.cap * (1 - 2 / (torch.exp(2 * s / case.cap) + 1))
            s = s.masked_fill(~may[:, start:end], -math.inf)
            now = torch.maximum(top, s.amax(-1))
            safe = torch.where(now > -math.inf, now, 0.0)
            p = torch.exp(s - safe[..., None])
            alpha = torch.exp(top - safe)
            total = total * alpha + p.sum(-1)
            rounded = (p * scale_p).to(compute).float() / scale_p
            acc = acc * alpha[..., None] + torch.einsum("hqk,khd->hqd", rounded, v[start:end])
            top = now
        parts.append((top, total, acc))
    tops, totals, accs = (torch.stack(x) for x in zip(*parts, strict=True))
    weight = torch.exp(tops - tops.amax(0))
    result = (accs * weight[..., None]).sum(0) / (totals * weight).sum(0)[..., None]
    return result.transpose(0, 1).to(out)


def worst_ratio(case: Case, got: torch.Tensor, budget: reference.Rounding) -> float:
    """The worst row's error over its bound."""
    expected = exactly(case, budget)
    return float(((got.double() - expected.out).norm(dim=-1) / expected.bound).max())


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**31),
    compute=st.sampled_from([torch.bfloat16, torch.float16, torch.float32, *FP8[:2]]),
    length=st.sampled_from([1, 5, 16, 33, 150, 513]),
    new=st.integers(1, 9),
    tile=st.sampled_from([16, 32, 64]),
    segments=st.sampled_from([1, 2, 16]),
    spread=st.sampled_from([0.1, 1.0, 4.0, 16.0]),
    mean=st.sampled_from([0.0, 1.0, 5.0]),
    window=st.sampled_from([None, 1, 20]),
    causal=st.booleans(),
    sinks=st.booleans(),
    cap=st.sampled_from([None, 5.0]),
    backwards=st.booleans(),
)
def test_no_faithful_kernel_exceeds_its_budget(
    seed: int,
    compute: torch.dtype,
    length: int,
    new: int,
    tile: int,
    segments: int,
    spread: float,
    mean: float,
    window: int | None,
    causal: bool,
    sinks: bool,
    cap: float | None,
    backwards: bool,
) -> None:
    fp8 = compute in FP8
    model = torch.bfloat16 if fp8 else compute
    case = drawn(
        seed, model, length=length, new=min(new, length), spread=spread, mean=mean, window=window, causal=causal,
        sinks=sinks, cap=cap, stored=compute,
    )  # fmt: skip
    if fp8:
        case = case._replace(q=case.q.clamp(-200, 200).to(compute).to(model))
    got = simulated(case, compute, model, tile=tile, segments=segments, backwards=backwards)
    assert worst_ratio(case, got, rounding(compute, compute, model, top_exact=True)) <= 1.0
    by_plain = plain(
        case.q, case.k.float(), case.v.float(), case.scale, case.mask, compute, model, case.sinks, case.cap
    )
    assert worst_ratio(case, by_plain, rounding(compute, compute, model)) <= 1.0


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    stored=st.sampled_from(FP8),
    scale=st.sampled_from([0.25, 0.3, 1.7]),
    length=st.sampled_from([5, 150]),
)
def test_a_dequantising_kernel_stays_within_its_budget(
    seed: int, stored: torch.dtype, scale: float, length: int
) -> None:
    case = drawn(seed, torch.bfloat16, length=length, stored=stored)
    seen = case._replace(k=case.k.double() * scale, v=case.v.double() * scale)
    got = simulated(
        case._replace(k=case.k.float() * scale, v=case.v.float() * scale), torch.bfloat16, torch.bfloat16, tile=32
    )
    budget = rounding(torch.bfloat16, stored, torch.bfloat16, k_scale=scale, v_scale=scale, top_exact=True)
    assert worst_ratio(seen, got, budget) <= 1.0


def test_flushed_weights_are_counted_in_full() -> None:
    """Many keys whose P is below the smallest FP8 number, with values of one sign: the loss has a direction."""
    q = torch.ones(1, 1, 16, dtype=torch.bfloat16)
    k = torch.zeros(4000, 1, 16, dtype=torch.bfloat16)
    k[0] = 1.0
    case = Case(q * 2, k, torch.ones(4000, 1, 16, dtype=torch.bfloat16), 0.25, Mask(True, None), None, None)
    got = simulated(case, torch.float8_e4m3fn, torch.bfloat16, tile=64)
    expected = exactly(case, rounding(torch.float8_e4m3fn, torch.bfloat16, torch.bfloat16, top_exact=True))
    error = float((got.double() - expected.out).norm())
    assert 0.3 * float(expected.out.norm()) < error <= float(expected.bound)


def test_partial_results_that_are_rounded_are_allowed_where_they_are() -> None:
    case = drawn(5, torch.bfloat16, length=600, new=1)
    group = 2
    k, v = case.k.double().repeat_interleave(group, 1), case.v.double().repeat_interleave(group, 1)
    weight = torch.softmax(torch.einsum("qhd,khd->hqk", case.q.double(), k) * case.scale, -1)
    parts = [
        (torch.einsum("hqk,khd->hqd", w, x)).to(torch.bfloat16).double()
        for w, x in zip(weight.split(4, -1), v.split(4), strict=True)
    ]
    got = torch.stack(parts).sum(0).transpose(0, 1)
    base = rounding(torch.float32, torch.float32, torch.float32)
    assert worst_ratio(case, got, base) > 10
    partial = base._replace(partial=reference.unit_roundoff(torch.bfloat16), partial_keys=4)
    assert worst_ratio(case, got, partial) <= 1.0


@pytest.mark.parametrize(
    ("change", "least"),
    [
        (lambda c: c._replace(scale=c.scale * 1.2), 2.0),
        (lambda c: c._replace(v=c.v.flip(0)), 50.0),
        (lambda c: c._replace(mask=Mask(True, 30)), 5.0),
        (lambda c: c._replace(v=c.v * 1.1), 5.0),
    ],
)
def test_the_budget_is_tight_enough_to_see_faults(change: object, least: float) -> None:
    case = drawn(6, torch.bfloat16, length=60, new=4, size=64)
    got = simulated(change(case), torch.bfloat16, torch.bfloat16, tile=32)  # type: ignore[operator]
    assert worst_ratio(case, got, rounding(torch.bfloat16, torch.bfloat16, torch.bfloat16, top_exact=True)) > least


def test_a_needles_budget_is_the_outputs_rounding() -> None:
    case = drawn(7, torch.bfloat16, size=64, spread=0.0)
    q = (16.0 * torch.sign(case.k[-3:].float())).to(torch.bfloat16).repeat_interleave(2, 1)
    k = torch.sign(case.k.float()).to(torch.bfloat16)
    expected = exactly(
        case._replace(q=q, k=k), rounding(torch.float8_e4m3fn, torch.float8_e4m3fn, torch.bfloat16, top_exact=True)
    )
    assert float((expected.bound / expected.out.norm(dim=-1)).max()) < 2.5 * 2.0**-8


def test_a_longer_type_has_a_smaller_budget() -> None:
    bounds = []
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn):
        case = drawn(8, torch.float32)
        bounds.append(float(exactly(case, rounding(dtype, dtype, torch.float32)).bound.norm()))
    assert bounds == sorted(bounds) and bounds[0] < 1e-4 < bounds[2]
