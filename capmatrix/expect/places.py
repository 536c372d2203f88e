"""A set of targets and architectures as the shortest conditions that say just it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ..toml.tomlwrite import plain

if TYPE_CHECKING:
    from .entries import Grid
    from .expectations import Place


def keys(indices: Iterable[Any] | None, grid: Grid) -> list[dict[str, Any]]:
    """The ``target`` and ``arch`` keys of one entry or more; one without any for all places.

    A kind of target, or an architecture by itself, is named only where two places that were seen speak for it.
    """
    if indices is None:
        return [{}]
    chosen = [grid.places[int(i)] for i in sorted(indices)]
    for form in (_by_kind, _by_arch, _by_name):
        found = form(chosen, grid)
        if found is not None:
            return [found]
    return [_one(place) for place in chosen]


def _by_kind(chosen: Sequence[Place], grid: Grid) -> dict[str, Any] | None:
    kinds = {_kind(p) for p in chosen}
    alike = [p for p in grid.places if _kind(p) in kinds]
    shared = all(sum(_kind(p) == kind for p in chosen) > 1 for kind in kinds)
    return {"target": plain(kinds)} if grid.by_target and shared and set(alike) == set(chosen) else None


def _by_arch(chosen: Sequence[Place], grid: Grid) -> dict[str, Any] | None:
    names = {p[1] for p in chosen}
    alike = [p for p in grid.places if p[1] in names]
    shared = not grid.by_target or all(sum(p[1] == name for p in chosen) > 1 for name in names)
    usable = grid.by_arch and shared and "" not in names and set(alike) == set(chosen)
    return {"arch": plain(names)} if usable else None


def _by_name(chosen: Sequence[Place], grid: Grid) -> dict[str, Any] | None:
    """Targets by their full names, which tell all but the GPUs that ``device`` can be."""
    names = {p[0] for p in chosen}
    alike = [p for p in grid.places if p[0] in names]
    return {"target": plain(names)} if grid.by_target and set(alike) == set(chosen) else None


def _one(place: Place) -> dict[str, Any]:
    name, arch = place
    return {"target": name, "arch": arch} if name and arch else {"target": name} if name else {"arch": arch}


def _kind(place: Place) -> str:
    return place[0].partition(":")[0]
