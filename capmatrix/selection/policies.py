"""How a default is chosen among candidates: ``lightest``, ``fastest``, ``safest``. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..cell import Rung
from ..summary import strength
from ..vocabulary import ROCM_BACKENDS
from .measures import Cost

#: What a backend needs beyond vLLM and Triton themselves (vllm 0.32.0, vllm/v1/attention/backends).
EXTRA_DEPENDENCIES: dict[str, tuple[str, ...]] = {
    "ROCM_AITER_FA": ("aiter",),
    "ROCM_AITER_UNIFIED_ATTN": ("aiter",),
    "ROCM_AITER_MLA": ("aiter",),
    "ROCM_AITER_TRITON_MLA": ("aiter",),
    "ROCM_AITER_MLA_SPARSE": ("aiter",),
    "FLASH_ATTN": ("flash-attn",),
}

_RUN = strength(Rung.EXECUTED)


class Candidate(NamedTuple):
    """A backend that may be chosen. ``missing``: needed batches without a record; ``cost`` None: not measured."""

    backend: str
    rung: Rung
    missing: int = 0
    shapes: int = 0
    blemishes: int = 0
    cost: Cost | None = None

    @property
    def weight(self) -> int:
        """How many extra dependencies it has."""
        return len(EXTRA_DEPENDENCIES.get(self.backend, ()))

    @property
    def tier(self) -> tuple[int, int]:
        """Evidence that may be weighed against each other: coverage, then rung. What was executed counts as served
        does; below that each rung stands alone. Less is better."""
        return self.missing, -min(strength(self.rung), _RUN)


class Choice(NamedTuple):
    """The chosen backend and why each other one is not, as ``Other.why`` says it."""

    backend: str
    decided_by: str
    runner_up: str
    fastest: str
    others: Mapping[str, str]


def place(backend: str) -> tuple[int, str]:
    """A backend's place in vLLM's list for ROCm: the last resort of every order."""
    return (ROCM_BACKENDS.index(backend) if backend in ROCM_BACKENDS else len(ROCM_BACKENDS)), backend


def choose(policy: str, candidates: Sequence[Candidate], margin_percent: float, measured_by: str) -> Choice:
    """The default among ``candidates``, of which there is at least one.

    ``measured_by`` names what costs are. Candidates on a lower tier of evidence are not weighed, and where any
    has a cost those without have no part in it. Raises KeyError for an unknown policy.
    """
    order = {"lightest": _lightest, "fastest": _fastest, "safest": _safest}[policy]
    others: dict[str, str] = {}
    pool = list(candidates)
    if policy != "safest":
        best = min(c.tier for c in pool)
        for c in pool:
            if c.tier != best:
                others[c.backend] = "incomplete" if c.missing > best[0] else "weaker"
        pool = [c for c in pool if c.tier == best]
    measured = [c for c in pool if c.cost is not None]
    if policy != "safest" and measured:
        others |= {c.backend: "unmeasured" for c in pool if c.cost is None}
        pool = measured
    ranked = order(pool, margin_percent)
    chosen = ranked[0]
    for c in ranked[1:]:
        others[c.backend] = _why(policy, chosen, c, margin_percent)
    by_cost = sorted((c for c in pool if c.cost is not None), key=_speed)
    rivals = [c.backend for c in by_cost if c.backend != chosen.backend] or [c.backend for c in ranked[1:]]
    if len(candidates) == 1:
        decided = "only candidate"
    elif len(pool) == 1:
        decided = "evidence"
    elif policy == "safest":
        decided = "dependencies" if _safety(ranked[1]) == _safety(chosen) else "evidence"
    elif len(by_cost) > 1:
        decided = measured_by
    else:
        decided = "dependencies" if any(c.weight != chosen.weight for c in ranked[1:]) else "evidence"
    fastest = by_cost[0].backend if by_cost else ""
    return Choice(chosen.backend, decided, rivals[0] if rivals else "", fastest, others)


def _speed(c: Candidate) -> tuple[float, int, tuple[int, str]]:
    return (c.cost.mid if c.cost else 0.0, c.weight, place(c.backend))


def _ties(c: Candidate) -> tuple[int, int, int, float, tuple[int, str]]:
    """For equals: fewest dependencies, fewest blemishes, most shapes, speed, then vLLM's own order."""
    return c.weight, c.blemishes, -c.shapes, c.cost.mid if c.cost else 0.0, place(c.backend)


def _fastest(pool: Sequence[Candidate], margin_percent: float) -> list[Candidate]:
    return sorted(pool, key=lambda c: (c.cost.mid if c.cost else 0.0, *_ties(c)))


def within(cost: Cost, best: Cost, margin_percent: float) -> bool:
    """Whether ``cost`` is as good as ``best``: within the margin, or not told apart by the repeats."""
    return cost.mid <= best.mid * (1 + margin_percent / 100) or cost.overlaps(best)


def _lightest(pool: Sequence[Candidate], margin_percent: float) -> list[Candidate]:
    costs = [c.cost for c in pool if c.cost is not None]
    if not costs:
        return sorted(pool, key=_ties)
    best = min(costs, key=lambda cost: cost.mid)

    def order(c: Candidate) -> tuple[object, ...]:
        near = c.cost is not None and within(c.cost, best, margin_percent)
        return (0, c.weight, *_speed(c)) if near else (1, 0, *_speed(c))

    return sorted(pool, key=order)


def _safety(c: Candidate) -> tuple[int, int, int, int]:
    return c.missing, -strength(c.rung), -c.shapes, c.blemishes


def _safest(pool: Sequence[Candidate], margin_percent: float) -> list[Candidate]:
    def order(c: Candidate) -> tuple[object, ...]:
        return *_safety(c), c.cost is None, *_ties(c)

    return sorted(pool, key=order)


def _why(policy: str, chosen: Candidate, c: Candidate, margin_percent: float) -> str:
    if policy == "safest" and (c.missing, strength(c.rung)) != (chosen.missing, strength(chosen.rung)):
        return "incomplete" if c.missing > chosen.missing else "weaker"
    if chosen.cost is not None and c.cost is not None:
        if policy == "lightest" and c.weight > chosen.weight and within(c.cost, chosen.cost, margin_percent):
            return "heavier"
        return "slower" if c.cost.mid > chosen.cost.mid else "heavier" if c.weight > chosen.weight else "behind"
    if c.cost is None and chosen.cost is not None:
        return "unmeasured"
    return "heavier" if c.weight > chosen.weight else "behind"
