"""Failing regions explained: the shortest rules that separate a backend's failing cells from its passing ones.

A rule is a conjunction of up to three conditions on what a cell is. Rules are searched over bit sets (one bit
a record), taken greedily until every failing cell is covered, and then checked again, by evaluating their
words, against every record of the backend. Cells that were refused, unavailable or unverified neither support
nor contradict one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from .. import summary
from ..cell import Environment, Force, Record, Verdict

Value = str | int | bool

#: Most conditions of a rule, most rules of a backend, and how many partial rules are extended at each length.
MAX_CONDITIONS = 3
MAX_RULES = 12
_BEAM = 400
#: Most values that a condition lists.
MAX_VALUES = 8


class Condition(msgspec.Struct, frozen=True, order=True):
    """One condition: ``feature`` is in ``values``; not in them where ``negated``; ``bound`` is ``>=`` or ``<=`` of
    one value."""

    feature: str
    values: tuple[Value, ...]
    negated: bool = False
    bound: str = ""

    def holds(self, facts: Mapping[str, Value | None]) -> bool:
        """Whether the condition holds; never for a fact that is not known."""
        value = facts.get(self.feature)
        if value is None:
            return False
        if self.bound:
            edge = self.values[0]
            if not isinstance(value, int) or not isinstance(edge, int):
                return False
            return value >= edge if self.bound == ">=" else value <= edge
        return (value in self.values) is not self.negated

    def __str__(self) -> str:
        title = FEATURES[self.feature].title
        if self.bound:
            return f"{title} {self.bound} {self.values[0]}"
        if self.values in ((True,), (False,)):
            return title if self.values[0] is not self.negated else f"not {title}"
        words = [str(v) for v in self.values]
        if len(words) == 1:
            return f"{title} {'!=' if self.negated else '='} {words[0]}"
        return f"{title} {'not in' if self.negated else 'in'} {{{', '.join(words)}}}"


class Rule(msgspec.Struct, frozen=True):
    """``backend`` fails where every condition holds. ``verdicts``: how. ``support``: failing cells that it covers, of
    ``failing``; ``exceptions``: passing cells that it covers, of ``passing``. ``exact``: covers all failing cells and
    no passing one. ``examples``: ids of covered failing cells; ``against``: of the exceptions."""

    backend: str
    conditions: tuple[Condition, ...]
    verdicts: tuple[str, ...]
    support: int
    failing: int
    exceptions: int
    passing: int
    rungs: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    against: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether the backend fails if and only if the rule holds, among the records."""
        return self.support == self.failing and not self.exceptions

    def __str__(self) -> str:
        how = "/".join(self.verdicts)
        where = " and ".join(map(str, self.conditions)) or "always"
        joint = "" if not self.conditions else " iff" if self.exact else " if"
        return f"{self.backend}: {how}{joint} {where}"


class Feature(NamedTuple):
    """What a condition may speak of: how it is called, and its value for a record (None: not known)."""

    title: str
    of: Callable[[Record, str], Value | None]
    ordered: bool = False


def _power_of_two(record: Record, place: str) -> bool:
    block = record.kernel_block or record.cell.block_size
    return block & (block - 1) == 0


def _kernel_block(record: Record, place: str) -> int | None:
    return record.cell.kernel_block or record.kernel_block


def _gqa(record: Record, place: str) -> int | None:
    g = record.cell.geometry
    return g.num_heads // g.num_kv_heads if g.num_kv_heads else None


#: In the order of preference where several say the same.
FEATURES: dict[str, Feature] = {
    "kv_cache_dtype": Feature("KV cache", lambda r, p: r.cell.kv_cache_dtype),
    "block_size": Feature("block", lambda r, p: r.cell.block_size, True),
    "kernel_block": Feature("kernel block", _kernel_block, True),
    "batch": Feature("batch", lambda r, p: r.cell.batch),
    "head_size": Feature("head size", lambda r, p: r.cell.geometry.head_size, True),
    "dtype": Feature("dtype", lambda r, p: r.cell.dtype),
    "place": Feature("architecture", lambda r, p: p),
    "sinks": Feature("sinks", lambda r, p: r.cell.geometry.sinks),
    "window": Feature("sliding window", lambda r, p: r.cell.geometry.sliding_window is not None),
    "causal": Feature("causal", lambda r, p: r.cell.geometry.causal),
    "mla": Feature("MLA", lambda r, p: r.cell.geometry.mla is not None),
    "target": Feature("target", lambda r, p: r.cell.target.partition(":")[0]),
    "gqa": Feature("query heads a KV head", _gqa, True),
    "num_heads": Feature("query heads a rank", lambda r, p: r.cell.geometry.num_heads, True),
    "num_kv_heads": Feature("KV heads a rank", lambda r, p: r.cell.geometry.num_kv_heads, True),
    "k": Feature("k", lambda r, p: r.cell.num_speculative_tokens, True),
    "execution": Feature("execution", lambda r, p: r.cell.execution),
    "scales": Feature("scales", lambda r, p: r.cell.scales),
    "switches": Feature("switches", lambda r, p: summary.switch_words(r.cell.switches) or "none"),
    "runner": Feature("runner", lambda r, p: r.cell.runner),
    "force": Feature("forced", lambda r, p: r.cell.force is not Force.NONE),
    "power_of_two": Feature("kernel block a power of two", _power_of_two),
    "role": Feature("role", lambda r, p: r.cell.role.value),
    "method": Feature("method", lambda r, p: r.cell.method),
    "drafter": Feature("drafter", lambda r, p: r.cell.drafter),
    "tp": Feature("tp", lambda r, p: r.cell.tp, True),
}
_PREFERENCE = {name: i for i, name in enumerate(FEATURES)}

Facts = dict[str, "Value | None"]


class _Part(NamedTuple):
    """A partial rule: its conditions, and the failing and passing cells it covers as bits."""

    conditions: tuple[Condition, ...]
    fails: int
    passes: int

    @property
    def cost(self) -> tuple[int, int, int, int, tuple[Condition, ...]]:
        """Length, values, how far down the list of features, then what passes before what fails; less is plainer.

        A bound says more than was seen, so that it stands for a list of three values or more only.
        """
        values = sum(3 if c.bound else len(c.values) for c in self.conditions)
        features = sum(_PREFERENCE[c.feature] for c in self.conditions)
        listed = sum(not c.negated for c in self.conditions)
        return len(self.conditions), values, features, listed, self.conditions


def facts(record: Record, environment: Environment | None) -> Facts:
    """What conditions may speak of, for one record."""
    where = summary.place(record, environment)
    place = where.architecture or where.title
    return {name: feature.of(record, place) for name, feature in FEATURES.items()}


def explain(records: Iterable[Record], environments: Mapping[str, Environment]) -> tuple[Rule, ...]:
    """Rules for every backend that both has records that tell, and fails in any of them."""
    told: dict[str, list[Record]] = {}
    for record in records:
        if record.verdict is Verdict.PASS or record.verdict in summary.FAILED:
            told.setdefault(record.cell.backend, []).append(record)
    out: list[Rule] = []
    for backend in sorted(told):
        group = sorted(told[backend], key=lambda r: (r.cell_id, r.environment))
        known = [facts(r, environments.get(r.environment)) for r in group]
        failing = [r.verdict in summary.FAILED for r in group]
        if any(failing):
            out += [_check(backend, conditions, group, known) for conditions in find(known, failing)]
    return tuple(out)


def find(known: Sequence[Facts], failing: Sequence[bool]) -> list[tuple[Condition, ...]]:
    """Conjunctions that cover every failing entry, the widest first: each without a passing one where there is
    such a rule of up to ``MAX_CONDITIONS`` conditions, else with as few as possible."""
    fails = sum(1 << i for i, bad in enumerate(failing) if bad)
    passes = ((1 << len(known)) - 1) ^ fails
    if not passes:
        return [()]
    atoms = _atoms(known, fails, passes)
    left = fails
    out: list[tuple[Condition, ...]] = []
    while left and len(out) < MAX_RULES:
        best = _best(atoms, left)
        if best is None:
            break
        out.append(best.conditions)
        left &= ~best.fails
    return out


def _atoms(known: Sequence[Facts], fails: int, passes: int) -> list[_Part]:
    """Every condition worth trying, each set of covered entries once, in its plainest words."""
    found: dict[tuple[int, int], _Part] = {}
    for name, feature in FEATURES.items():
        bits: dict[Value, int] = {}
        for i, entry in enumerate(known):
            value = entry[name]
            if value is not None:
                bits[value] = bits.get(value, 0) | 1 << i
        if len(bits) < 2:
            continue
        order = sorted(bits, key=lambda v: (isinstance(v, str), v))
        for condition in _conditions(name, feature, order, bits, fails, passes):
            covered = sum(bits[v] for v in order if condition.holds({name: v}))
            part = _Part((condition,), covered & fails, covered & passes)
            key = part.fails, part.passes
            if part.fails and (key not in found or part.cost < found[key].cost):
                found[key] = part
    return sorted(found.values(), key=lambda p: p.cost)


def _conditions(
    name: str, feature: Feature, order: Sequence[Value], bits: Mapping[Value, int], fails: int, passes: int
) -> list[Condition]:
    out: list[Condition] = []
    for value in order:
        out.append(Condition(name, (value,)))
        if len(order) > 2:
            out.append(Condition(name, (value,), negated=True))
    if feature.ordered and len(order) > 2:
        out += [Condition(name, (value,), bound=bound) for bound in (">=", "<=") for value in order[1:-1]]
    only_fails = tuple(v for v in order if bits[v] & fails and not bits[v] & passes)
    with_passes = tuple(v for v in order if bits[v] & passes)
    with_fails = tuple(v for v in order if bits[v] & fails)
    for values, negated in ((only_fails, False), (with_passes, True), (with_fails, False)):
        if 1 < len(values) <= MAX_VALUES and len(values) < len(order):
            out.append(Condition(name, values, negated))
    return out


def _best(atoms: Sequence[_Part], left: int) -> _Part | None:
    """The rule that covers most of ``left`` for its length, without a passing entry if that can be had."""
    level = [p for p in atoms if p.fails & left]
    pure: list[_Part] = []
    impure = list(level)
    for length in range(1, MAX_CONDITIONS + 1):
        pure += [p for p in level if not p.passes]
        widest = max(((p.fails & left).bit_count() for p in pure), default=0)
        if length == MAX_CONDITIONS or widest == left.bit_count():
            break
        grow = [p for p in level if p.passes and (p.fails & left).bit_count() > widest]
        grow.sort(key=lambda p: (-(p.fails & left).bit_count() / (1 + p.passes.bit_count()), p.cost))
        level = _extended(grow[:_BEAM], atoms, left, widest)
        impure += level
    if pure:
        return min(pure, key=lambda p: (-(p.fails & left).bit_count() / len(p.conditions), p.cost))

    def share(p: _Part) -> tuple[object, ...]:
        support = (p.fails & left).bit_count()
        return -support / (support + p.passes.bit_count()), -support, p.cost

    return min(impure, key=share) if impure else None


def _extended(parts: Sequence[_Part], atoms: Sequence[_Part], left: int, widest: int) -> list[_Part]:
    found: dict[tuple[int, int], _Part] = {}
    for part in parts:
        for atom in atoms:
            if any(c.feature == atom.conditions[0].feature for c in part.conditions):
                continue
            fails, passes = part.fails & atom.fails, part.passes & atom.passes
            if passes == part.passes or (fails & left).bit_count() <= widest:
                continue
            made = _Part(tuple(sorted((*part.conditions, *atom.conditions), key=_order)), fails, passes)
            if (fails, passes) not in found or made.cost < found[fails, passes].cost:
                found[fails, passes] = made
    return list(found.values())


def _order(condition: Condition) -> int:
    return _PREFERENCE[condition.feature]


def _check(backend: str, conditions: tuple[Condition, ...], group: Sequence[Record], known: Sequence[Facts]) -> Rule:
    """The rule with its support and exceptions, counted by evaluating it on every record."""
    inside = [r for r, entry in zip(group, known, strict=True) if all(c.holds(entry) for c in conditions)]
    bad = [r for r in inside if r.verdict in summary.FAILED]
    good = [r for r in inside if r.verdict is Verdict.PASS]
    failing = sum(r.verdict in summary.FAILED for r in group)
    reasons: dict[str, int] = {}
    for r in bad:
        text = r.reasons[0] if r.reasons else f"{r.failure.type}: {r.failure.message}" if r.failure else ""
        text = " ".join(text.split())[:200]
        reasons[text] = reasons.get(text, 0) + 1
    ranked = sorted((text for text in reasons if text), key=lambda text: (-reasons[text], text))
    return Rule(
        backend,
        conditions,
        tuple(v.value for v in summary.RAN if any(r.verdict is v for r in bad)),
        len(bad),
        failing,
        len(good),
        len(group) - failing,
        tuple(rung.value for rung in sorted({r.rung for r in bad}, key=summary.strength)),
        tuple(ranked[:2]),
        tuple(r.cell_id for r in bad[:3]),
        tuple(r.cell_id for r in good[:3]),
    )
