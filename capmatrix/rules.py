"""Whether the products and rules of a matrix file do what they say: sizes, emptiness, rules that match nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import cast

from . import drafters
from .axes import AXES, Value
from .errors import InputError
from .expand import boxes, groups, properties, resolve, size, survives, target_names
from .grid import MAX_CELLS, Matrix, Product, Rule
from .toml.tomlcheck import At
from .toml.tomlfile import TomlFile

# What a cell can be, axis by axis, for one drafter of one product.
_Domain = dict[str, set[Value]]


def check_product(doc: TomlFile, matrix: Matrix, part: Product) -> None:
    """Raise InputError where a product is too large, impossible for a drafter, empty, or has a cell twice."""
    at: At = ("preset", part.name) if part.name else ("axes",)
    total = size(matrix, part)
    if total > MAX_CELLS:
        raise doc.error(at, "too many cells before any is excluded", value=total, allowed=[f"up to {MAX_CELLS}"])
    for box in boxes(part):
        for name in box.axes["drafter"]:
            family = matrix.families[cast(str, name)]
            for tp in cast("Sequence[int]", resolve(box, family)["tp"]):
                try:
                    drafters.geometry(family, tp, part.max_kv_heads)
                except InputError as error:
                    where = (*(box.at or at), "tp")
                    raise doc.error(where, f"{name}: {error.message}", value=tp, allowed=error.allowed) from None
    if not survives(matrix, part):
        raise doc.error(at, "no cell is left: the rules exclude the whole product")
    if _may_repeat(part):
        groups(matrix, part, target_names(part)[0])


def check_rules(doc: TomlFile, matrix: Matrix) -> None:
    """Raise InputError for an exclude rule, or a value in one, that matches no cell of any product it holds for."""
    everything = (matrix.whole, *matrix.presets.values())
    _check_excludes(doc, matrix, matrix.whole.exclude, everything)
    for preset in matrix.presets.values():
        _check_excludes(doc, matrix, preset.exclude[len(matrix.whole.exclude) :], (preset,))
        _check_shadows(doc, preset.exclude)
    _check_shadows(doc, matrix.whole.exclude)


def _may_repeat(part: Product) -> bool:
    """Whether an include rule may add a cell that the product or another include rule has."""
    shared = [name for name in AXES if name not in ("tp", "num_speculative_tokens", "batch")]
    return any(all(set(a.axes[name]) & set(b.axes[name]) for name in shared) for a, b in combinations(boxes(part), 2))


def _check_excludes(doc: TomlFile, matrix: Matrix, rules: Sequence[Rule], parts: Sequence[Product]) -> None:
    if not rules:
        return
    domains = [domain for part in parts for domain in _domains(matrix, part)]
    for rule in rules:
        for axis, values in rule.match.items():
            possible = dict.fromkeys(v for domain in domains for v in sorted(domain[axis], key=str))
            for i, value in enumerate(values):
                if value not in possible:
                    where = (*rule.at, axis, i) if len(values) > 1 else (*rule.at, axis)
                    raise doc.error(where, "no cell has this value", value=value, allowed=possible)
        if not any(all(domain[axis].intersection(values) for axis, values in rule.match.items()) for domain in domains):
            raise doc.error(rule.at, "the rule matches no cell: no cell has these values together")


def _domains(matrix: Matrix, part: Product) -> Iterator[_Domain]:
    names = target_names(part)
    at_all: set[Value] = {*names, *(name.partition(":")[0] for name in names)}
    for drafter in part.axes["drafter"]:
        family = matrix.families[cast(str, drafter)]
        domain: _Domain = {axis: set(values) for axis, values in part.axes.items()}
        domain.update({axis: set(values) for axis, values in resolve(part, family).items()})
        domain.update({name: {value} for name, value in properties(family).items()})
        domain.update({"drafter": {drafter}, "target": at_all})
        yield domain


def _check_shadows(doc: TomlFile, rules: Sequence[Rule]) -> None:
    """A later rule must drop something that the earlier ones, each by itself, do not."""
    for j, rule in enumerate(rules):
        for earlier in rules[:j]:
            if all(axis in rule.match and set(rule.match[axis]) <= set(v) for axis, v in earlier.match.items()):
                raise doc.error(
                    rule.at, f"the rule matches no cell that is left: the one on line {earlier.line} excludes them"
                )
