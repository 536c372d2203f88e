"""Measured costs of backends, made comparable: published serving results and estimated step times.

A *setting* is one place where several backends were measured alike: one published table under one load, or
one GPU, condition and workload profile. Costs are compared within a setting only. Less is better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from ..cell import Timing
from ..grid import Workload
from . import published
from .published import METRICS, Load
from .standing import Condition, Served, Standing, Time

#: What a policy weighed, strongest first.
THROUGHPUT = "serving throughput"
SERVING_TIME = "serving time"
STEP_TIME = "estimated step time"
_STRENGTH = (THROUGHPUT, SERVING_TIME, STEP_TIME)


class Cost(msgspec.Struct, frozen=True):
    """A cost with the interval that its repeats span (``low`` to ``high``; less is better), the figure it was made
    from, in ``Setting.unit``, and what it rests on. ``repeats`` of 1: there is no interval."""

    mid: float
    low: float
    high: float
    value: float
    repeats: int
    refs: tuple[str, ...] = ()

    @property
    def spans(self) -> bool:
        """Whether repeats gave it an interval."""
        return self.repeats > 1 and self.low < self.high

    def overlaps(self, other: Cost) -> bool:
        """Whether the repeats do not tell the two apart."""
        return self.low <= other.high and other.low <= self.high


@dataclass(frozen=True)
class Setting:
    """One comparison. ``load`` orders settings: the larger decides. ``phases``: cost by phase and backend (µs).
    ``note`` says what was not weighed, ``doubt`` under which assumption another backend would be first."""

    kind: str
    title: str
    unit: str
    costs: Mapping[str, Cost]
    load: tuple[int, ...]
    date: str = ""
    fits: bool = True
    gpu_stated: bool = True
    phases: Mapping[str, Mapping[str, Cost]] = field(default_factory=dict)
    note: str = ""
    doubt: str = ""


def settings(
    standings: Sequence[Standing], workloads: Mapping[str, Workload], wanted: str, method: str
) -> list[Setting]:
    """Every setting in which a candidate was measured, the one that decides first.

    ``wanted`` names the workload profile to weigh by (empty: any). Serving outranks step times; a setting
    that fits the profile outranks one that does not, and a comparison outranks a lone figure; then the one with
    more candidates, the heavier load and the newer date.
    """
    candidates = [s for s in standings if s.state == "pass"]
    found = _serving(candidates, workloads.get(wanted)) + _stepping(candidates, workloads, wanted, method)

    def order(s: Setting) -> tuple[object, ...]:
        heavier = tuple(-n for n in s.load)
        return not s.fits, len(s.costs) < 2, _STRENGTH.index(s.kind), -len(s.costs), *heavier, _newer(s), s.title

    return sorted(found, key=order)


def _newer(setting: Setting) -> tuple[int, ...]:
    return tuple(-ord(c) for c in setting.date)


def _serving(candidates: Sequence[Standing], profile: Workload | None) -> list[Setting]:
    groups: dict[tuple[str, bytes], list[tuple[str, Served]]] = {}
    for one in candidates:
        for served in one.served:
            if served.result.status == "pass":
                same = msgspec.json.encode(msgspec.structs.replace(served.result.load, prompts=None))
                groups.setdefault((served.table.name, same), []).append((one.backend, served))
    out = []
    for (name, _), group in groups.items():
        table, load = group[0][1].table, group[0][1].result.load
        metric = published.deciding_metric(tuple(s.result for _, s in group), table.compare)
        if not metric:
            continue
        costs = {}
        for backend in sorted({backend for backend, _ in group}):
            rows = [s for b, s in group if b == backend]
            costs[backend] = _serving_cost(metric, rows)
        more = METRICS[metric].better > 0
        out.append(
            Setting(
                THROUGHPUT if more else SERVING_TIME,
                f"{table.source} ({name}), {load_text(load)}",
                METRICS[metric].title,
                costs,
                (load.concurrency or 0, load.input or 0),
                table.date,
                profile is None or _fits(load, profile),
                table.arch != published.UNKNOWN,
            )
        )
    return out


def load_text(load: Load) -> str:
    """A load in a few words: ``8192 in / 1024 out, concurrency 256``."""
    parts = []
    if load.input or load.output:
        parts.append(f"{load.input or '?'} in / {load.output or '?'} out")
    if load.context:
        parts.append(f"context {load.context}")
    if load.concurrency:
        parts.append(f"concurrency {load.concurrency}")
    if load.speculative_tokens:
        parts.append(f"k={load.speculative_tokens}")
    return ", ".join(parts) or load.dataset or "load not stated"


def _fits(load: Load, profile: Workload) -> bool:
    asked = (profile.concurrency, profile.input, profile.output)
    return (load.concurrency, load.input, load.output) == asked


def _serving_cost(metric: str, rows: Sequence[Served]) -> Cost:
    values = sorted(row.result.figures[metric] for row in rows)
    repeats = max(len(values), *(row.result.repeats for row in rows))
    # The middle of several rows; of an even number, the one that is worse.
    more = METRICS[metric].better > 0
    value = values[(len(values) - 1) // 2] if more else values[len(values) // 2]
    spread = max(row.result.spread or 0.0 for row in rows)
    ends = (max(values[0] - spread, values[0] / 2), values[-1] + spread)
    costs = sorted(1 / v if more else v for v in ends)
    mid = 1 / value if more else value
    return Cost(mid, costs[0], costs[-1], value, repeats, tuple(sorted(row.ref for row in rows)))


def calls(method: str, role: str, k: int) -> dict[str, int]:
    """Attention calls of one layer in one speculative step, by phase (design: role).

    A target, and ngram, verify 1 + k tokens (decode where k is 0). Sequential drafters make a first pass of the
    target's lengths and then k - 1 decodes; one-pass drafters a single pass; a draft model a first pass too.
    """
    if role == "target" or method in ("ngram", "none"):
        return {"verify": 1} if k else {"decode": 1}
    if method in ("dflash", "dspark"):
        return {"verify": 1}
    return {"verify": 1, "decode": k - 1} if k > 1 else {"verify": 1}


def _stepping(
    candidates: Sequence[Standing], workloads: Mapping[str, Workload], wanted: str, method: str
) -> list[Setting]:
    groups: dict[tuple[str, Condition, str], dict[str, list[Time]]] = {}
    for one in candidates:
        for time in one.times:
            place = (time.machine, time.condition, time.timing.workload)
            groups.setdefault(place, {}).setdefault(one.backend, []).append(time)
    out = []
    for (machine, condition, name), by_backend in groups.items():
        k = condition.num_speculative_tokens
        profile = workloads.get(name)
        role = "target" if method == "none" else "drafter"
        made = _step_costs(by_backend, profile, calls(method, role, k))
        if made is None:
            continue
        costs, phases, note, doubt = made
        load = (profile.concurrency, profile.input) if profile else (0, 0)
        title = f"workload {name} on {machine or 'an unnamed GPU'}, {condition}"
        fits = not wanted or wanted == name
        out.append(
            Setting(STEP_TIME, title, "us a layer", costs, load, fits=fits, phases=phases, note=note, doubt=doubt)
        )
    return out


def _step_costs(
    by_backend: Mapping[str, Sequence[Time]], profile: Workload | None, step: Mapping[str, int]
) -> tuple[dict[str, Cost], dict[str, dict[str, Cost]], str, str] | None:
    """Cost of serving the profile's requests once, in µs of one layer: prefill calls, and a step's calls times steps.

    Steps are counted as one output token each, an upper bound; where counting them as 1 + k tokens each would
    put another backend first, the note says so. Without a known profile: one step, no prefill.
    """
    phases: dict[str, dict[str, Cost]] = {}
    tokens: dict[str, dict[str, int]] = {}
    for backend, times in by_backend.items():
        for phase in ("prefill", "verify", "decode"):
            found = [t for t in times if t.timing.phase == phase]
            if found:
                phases.setdefault(phase, {})[backend] = _time_cost(found)
                tokens.setdefault(phase, {})[backend] = found[0].timing.query_tokens
    needed = [phase for phase, n in step.items() if n]
    measured = sorted(b for b in by_backend if all(b in phases.get(p, {}) for p in needed))
    if not measured:
        return None
    prefilled = profile is not None and all(tokens.get("prefill", {}).get(b, 0) > 0 for b in measured)

    def total(backend: str, steps: float) -> Cost:
        weighed = [(phases[p][backend], n * steps) for p, n in step.items() if n]
        if profile is not None and prefilled:
            pieces = profile.concurrency * profile.input / tokens["prefill"][backend]
            weighed.append((phases["prefill"][backend], pieces))
        mid, low, high = (sum(getattr(c, end) * n for c, n in weighed) for end in ("mid", "low", "high"))
        refs = tuple(sorted({ref for c, _ in weighed for ref in c.refs}))
        return Cost(mid, low, high, mid, min(c.repeats for c, _ in weighed), refs)

    most = float(profile.output) if profile is not None else 1.0
    costs = {b: total(b, most) for b in measured}
    note = doubt = ""
    if profile is None:
        note = "the workload profile is not known here: one step, prefill not weighed"
    elif not prefilled:
        note = "prefill not measured for every candidate, or its tokens not recorded: not weighed"
    if profile is not None and len(measured) > 1:
        fewest = {b: total(b, most / (1 + profile.speculative_tokens)) for b in measured}
        first, other = (min(c, key=lambda b: (c[b].mid, b)) for c in (costs, fewest))
        if first != other:
            doubt = f"were every draft accepted, {other} would be first"
    return costs, phases, note, doubt


def _time_cost(times: Sequence[Time]) -> Cost:
    """Several records of one phase (a batch and its repeats): the slowest median, the widest interval."""
    worst: Timing = max((t.timing for t in times), key=lambda t: t.median_us)
    low = min(t.timing.low_us for t in times)
    high = max(t.timing.high_us for t in times)
    refs = tuple(sorted({t.ref for t in times}))
    return Cost(worst.median_us, low, high, worst.median_us, sum(t.timing.repeats for t in times), refs)
