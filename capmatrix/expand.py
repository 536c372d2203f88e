"""A matrix, or a preset of it, to cells: the product of its axes, less what rules exclude, plus what they include.

Cells that share a set-up (``codec.setup_key``) stand beside each other, and so do those that share a worker
(``codec.server_key``). The order follows the file: targets as asked, then switch sets, drafters and the other
axes in the order their values are written, the batch last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, reduce
from itertools import product
from math import prod
from operator import and_
from typing import NamedTuple, cast

from . import axes, batches, drafters, targets
from .cell import Cell, Force, Geometry
from .codec import cell_id
from .drafters import Family
from .errors import InputError
from .grid import MAX_CELLS, Axes, Matrix, Product, Rule

ForceArgument = bool | str | Force | Iterable[str | Force] | None

# The axes whose product is taken as it stands; the others depend on the drafter or need an order of their own.
_PLAIN = ("backend", "block_size", "kv_cache_dtype", "dtype", "execution", "runner", "scales")
_PER_DRAFTER = ("tp", "num_speculative_tokens", "batch")

# Kinds of targets where every token costs: short batches, few heads.
_SLOW = ("interpreter", "emulator")


class _Setup(NamedTuple):
    """What cells that share layer and cache have in common, but for target and force."""

    switches: str
    drafter: str
    k: int
    geometry: Geometry
    backend: str
    block_size: int
    kv_cache_dtype: str
    dtype: str
    execution: str
    runner: str
    scales: str


# A set-up's own part of its cells: tensor-parallel degree and batch.
_Member = tuple[int, str]
Groups = dict[_Setup, list[_Member]]


def expand(
    matrix: Matrix, preset: str | None = None, targets: Sequence[str] | None = None, force: ForceArgument = None
) -> list[Cell]:
    """The cells of ``matrix``, or of its preset, on each of ``targets`` (default: ``targets.here()``).

    A preset that names targets runs on those only. ``force`` (``"validation"``, ``"kernel_block"``, several of
    them, or True for both) adds forced cells beside the unforced ones.

    Raises InputError for an unknown preset or target, two equal cells, or when no cell is left.
    """
    part = select(matrix, preset)
    forces = _forces(force)
    cells: list[Cell] = []
    for target in _targets(matrix, part, targets):
        for setup, members in groups(matrix, part, target).items():
            cells += _cells(matrix, target, setup, members, forces)
    if not cells:
        raise _empty(matrix, part)
    return cells


def count(
    matrix: Matrix, preset: str | None = None, targets: Sequence[str] | None = None, force: ForceArgument = None
) -> int:
    """How many cells ``expand`` gives for the same arguments. Raises InputError as it does."""
    part = select(matrix, preset)
    total = sum(
        len(members) for target in _targets(matrix, part, targets) for members in groups(matrix, part, target).values()
    )
    if not total:
        raise _empty(matrix, part)
    return total * len(_forces(force))


def select(matrix: Matrix, preset: str | None) -> Product:
    """The preset called ``preset``, or the whole file for None. Raises InputError for an unknown name."""
    if preset is None:
        return matrix.whole
    if preset not in matrix.presets:
        raise InputError(
            "unknown preset" if matrix.presets else "unknown preset; this file has none",
            file=matrix.path,
            key="preset",
            value=preset,
            allowed=matrix.presets,
        )
    return matrix.presets[preset]


def resolve(part: Product, family: Family) -> Axes:
    """The axes that depend on the drafter, with ``family`` and ``role`` replaced by this family's own values."""

    def values(axis: str, special: str, own: Iterable[axes.Value]) -> tuple[axes.Value, ...]:
        found: dict[axes.Value, None] = {}
        for value in part.axes[axis]:
            found.update(dict.fromkeys(own if value == special else (value,)))
        return tuple(found)

    return {
        "tp": values("tp", axes.FAMILY, family.tensor_parallel),
        "num_speculative_tokens": values("num_speculative_tokens", axes.FAMILY, (family.num_speculative_tokens,)),
        "batch": values("batch", axes.ROLE, batches.needed(family.method, family.role)),
    }


def size(matrix: Matrix, part: Product) -> int:
    """Cells of the product and its includes on one target before rules exclude any: an upper bound, cheap."""
    return sum(_box_size(matrix, box) for box in boxes(part))


def survives(matrix: Matrix, part: Product) -> bool:
    """Whether any cell of the product is left on some target, stopping at the first."""
    if part.include:
        return True
    return any(next(_box(matrix, part, part, target), None) is not None for target in target_names(part))


def properties(family: Family) -> dict[str, axes.Value]:
    """What an exclude rule may ask of a drafter family: the values of ``axes.PROPERTIES`` but the target."""
    return {
        "method": family.method,
        "role": family.role.value,
        "mla": family.mla is not None,
        "causal": family.causal,
        "sinks": family.sinks,
        "head_size": family.head_size,
    }


def on_target(names: Iterable[object], target: str) -> bool:
    """Whether ``target`` is one of ``names``, each a target or a kind of target."""
    return any(name in (target, target.partition(":")[0]) for name in names)


def target_names(part: Product | None = None) -> list[str]:
    """Known targets, for a preset those that it runs on."""
    return [t for t in targets.known() if part is None or not part.targets or on_target(part.targets, t)]


def _targets(matrix: Matrix, part: Product, asked: Sequence[str] | None) -> list[str]:
    wanted = list(dict.fromkeys(targets.here() if asked is None else asked))
    for target in wanted:
        targets.parse(target)
    kept = [t for t in wanted if not part.targets or on_target(part.targets, t)]
    if not kept:
        raise InputError(
            "no cell: this preset does not run on the targets asked for",
            file=matrix.path,
            line=part.line,
            key=f"preset.{part.name}.targets",
            value=", ".join(wanted),
            allowed=part.targets,
        )
    return kept


def _forces(force: ForceArgument) -> tuple[Force, ...]:
    if force is None or force is False:
        return (Force.NONE,)
    if force is True:
        return (Force.NONE, Force.VALIDATION, Force.KERNEL_BLOCK)
    asked = (force,) if isinstance(force, str) else tuple(force)
    wanted = {Force.NONE}
    for name in asked:
        try:
            wanted.add(Force(name))
        except ValueError:
            raise InputError(
                "unknown kind of force",
                key="force",
                value=name,
                allowed=[f.value for f in Force if f is not Force.NONE],
            ) from None
    return tuple(f for f in Force if f in wanted)


def _empty(matrix: Matrix, part: Product) -> InputError:
    return InputError(
        "no cell is left: the rules exclude the whole product",
        file=matrix.path,
        line=part.line,
        key=f"preset.{part.name}" if part.name else "axes",
    )


def boxes(part: Product) -> list[Product]:
    """The product itself, then one for each include rule: its values, else those of the product's axes."""
    return [part, *(Product("", {**part.axes, **rule.match}, line=rule.line, at=rule.at) for rule in part.include)]


def _box_size(matrix: Matrix, box: Product) -> int:
    plain = prod(len(box.axes[name]) for name in (*_PLAIN, "switches"))
    per_drafter = 0
    for name in box.axes["drafter"]:
        own = resolve(box, matrix.families[cast(str, name)])
        per_drafter += prod(len(own[axis]) for axis in _PER_DRAFTER)
    return plain * per_drafter


def groups(matrix: Matrix, part: Product, target: str) -> Groups:
    """Members by set-up for one target, in the order of the cells."""
    if size(matrix, part) > MAX_CELLS:
        raise InputError(f"more than {MAX_CELLS:,} cells", file=matrix.path, line=part.line)
    found: Groups = {}
    for box in boxes(part):
        for setup, members in _box(matrix, part, box, target):
            known = found.setdefault(setup, members)
            if known is members:
                continue
            for member in members:
                if member in known:
                    raise _duplicate(matrix, target, setup, member, box.line)
                known.append(member)
    if part.include:
        # What is included may come back to an earlier switch set; keep the cells of one worker together.
        rank = {name: i for i, name in enumerate(dict.fromkeys(s.switches for s in found))}
        found = {s: found[s] for s in sorted(found, key=lambda s: rank[s.switches])}
    return found


def _box(matrix: Matrix, part: Product, box: Product, target: str) -> Iterator[tuple[_Setup, list[_Member]]]:
    """Set-ups of one box with their members. Exclude rules hold for the product, not for what is included."""
    rules = part.exclude if box is part else ()
    everything = (1 << len(rules)) - 1
    on_this = _mask_of(rules, "target", target, lambda values: on_target(values, target)) & everything
    plain = [box.axes[name] for name in _PLAIN]
    plain_masks = [[_mask_of(rules, name, v) for v in box.axes[name]] for name in _PLAIN]
    max_kv_heads = part.max_kv_heads if target.startswith(_SLOW) else None
    for switches in box.axes["switches"]:
        for drafter in box.axes["drafter"]:
            family = matrix.families[cast(str, drafter)]
            own = resolve(box, family)
            outer = on_this & _mask_of(rules, "switches", switches) & _mask_of(rules, "drafter", drafter)
            for name, value in properties(family).items():
                outer &= _mask_of(rules, name, value)
            for k in own["num_speculative_tokens"]:
                here = outer & _mask_of(rules, "num_speculative_tokens", k)
                first = k == own["num_speculative_tokens"][0]
                names = [b for b in own["batch"] if first or _depends_on_k(cast(str, b))]
                for geometry, degrees in _by_geometry(family, own["tp"], max_kv_heads).items():
                    members = [
                        ((tp, name), _mask_of(rules, "tp", tp) & _mask_of(rules, "batch", name))
                        for tp in degrees
                        for name in names
                    ]
                    every = [member for member, _ in members]
                    for values, masks in zip(product(*plain), product(*plain_masks)):
                        setup = _Setup(switches, drafter, k, geometry, *values)  # type: ignore[arg-type]
                        mask = reduce(and_, masks, here)
                        left = [m for m, matched in members if not mask & matched] if mask else every
                        if left:
                            yield setup, cast("list[_Member]", left[:])


def _mask_of(rules: Sequence[Rule], axis: str, value: object, test: object = None) -> int:
    """Bit i is set where rule i does not name ``axis`` or allows ``value``; a cell that keeps a bit is excluded."""
    mask = 0
    for i, rule in enumerate(rules):
        values = rule.match.get(axis)
        if values is None or (test(values) if callable(test) else value in values):
            mask |= 1 << i
    return mask


def _by_geometry(family: Family, degrees: Iterable[object], max_kv_heads: int | None) -> Mapping[Geometry, list[int]]:
    """Degrees by the geometry of one rank: those that come out equal share a set-up."""
    found: dict[Geometry, list[int]] = {}
    for tp in cast("Iterable[int]", degrees):
        found.setdefault(drafters.geometry(family, tp, max_kv_heads), []).append(tp)
    return found


@cache
def _depends_on_k(name: str) -> bool:
    """Whether a batch's requests change with k; one that does not is run for the first k only."""

    def requests(k: int) -> object:
        return batches.build(name, block_size=16, num_speculative_tokens=k, lengths="full").requests

    return requests(1) != requests(4)


def _cells(
    matrix: Matrix, target: str, setup: _Setup, members: Iterable[_Member], forces: Iterable[Force]
) -> Iterator[Cell]:
    family = matrix.families[setup.drafter]
    lengths = "short" if target.startswith(_SLOW) else "full"
    switches = matrix.switches[setup.switches]
    for force in forces:
        kernel_block = setup.block_size if force is Force.KERNEL_BLOCK else None
        for tp, batch in members:
            yield Cell(
                target=target,
                backend=setup.backend,
                block_size=setup.block_size,
                kv_cache_dtype=setup.kv_cache_dtype,
                drafter=setup.drafter,
                tp=tp,
                role=family.role,
                method=family.method,
                geometry=setup.geometry,
                num_speculative_tokens=setup.k,
                batch=batch,
                dtype=setup.dtype,
                execution=setup.execution,
                runner=setup.runner,
                scales=setup.scales,
                lengths=lengths,
                force=force,
                kernel_block=kernel_block,
                forced_block=family.forced_block_size,
                switches=switches,
            )


def _duplicate(matrix: Matrix, target: str, setup: _Setup, member: _Member, line: int | None) -> InputError:
    cell = next(iter(_cells(matrix, target, setup, [member], [Force.NONE])))
    return InputError(
        f"the rule adds a cell that is already there: {cell_id(cell)}", file=matrix.path, line=line, key="include"
    )
