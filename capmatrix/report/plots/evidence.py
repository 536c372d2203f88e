"""Whose figures a plot shows, and what they do not say: the same words in every caption."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ... import summary
from ...cell import RUNGS, Cell, Environment, Record
from ...vocabulary import KV_CACHE_DTYPES
from .. import text

#: The largest figure of a record that is drawn: a record may hold anything.
MOST = 1e15


class Source(NamedTuple):
    """A place and the versions measured there: what must agree before figures share a plot.

    ``gpu`` is the GPU's name where times are plotted: one architecture has several products. Elsewhere it is empty.
    """

    place: str
    gpu: str
    architecture: str
    versions: tuple[tuple[str, str], ...]

    @property
    def title(self) -> str:
        """The place, and its GPU where that is not said already."""
        return self.place if not self.gpu or self.gpu in self.place else f"{self.place} ({self.gpu})"

    @property
    def stack(self) -> str:
        """The versions in words."""
        return ", ".join(f"{text.one_line(n, 40)} {text.one_line(v, 60)}" for n, v in self.versions)


class Sources:
    """Where records were made; each target and environment is looked at once."""

    def __init__(self, environments: Mapping[str, Environment]) -> None:
        self.environments = environments
        self._known: dict[tuple[str, str, bool], Source] = {}

    def of(self, record: Record, *, gpu: bool = False) -> Source:
        """The place and versions of ``record``; ``gpu``: and the product."""
        key = record.cell.target, record.environment, gpu
        if key not in self._known:
            environment = self.environments.get(record.environment)
            place = summary.place(record, environment)
            name = str(environment.hardware.get("name", "") or "") if gpu and environment else ""
            shown = text.one_line(place.title, 120), text.one_line(name, 80)
            self._known[key] = Source(*shown, place.architecture, summary.versions(environment))
        return self._known[key]


@functools.lru_cache(maxsize=4096)
def short(name: str) -> str:
    """The name of a backend or kernel as one printable line."""
    return text.one_line(name, 100)


def sane(*values: float | None) -> bool:
    """Whether a record's figures can be drawn: none missing, negative, infinite or beyond anything real."""
    return all(v is not None and 0 <= v <= MOST for v in values)


def no_amd(where: Source) -> str:
    """What is to be said of figures that speak for no AMD architecture; "" for those that do."""
    if where.architecture:
        return ""
    return f"{where.title} is no AMD GPU: no evidence of an AMD architecture; an order may carry over, a gap does not."


def rungs(records: Iterable[Record]) -> str:
    """The rungs of ``records``, strongest first."""
    found = {r.rung for r in records}
    return " and ".join(r.value for r in reversed(RUNGS) if r in found)


def kv_rank(name: str) -> tuple[int, str]:
    """Order of KV cache dtypes in a table."""
    return (KV_CACHE_DTYPES.index(name) if name in KV_CACHE_DTYPES else len(KV_CACHE_DTYPES), name)


def geometry(cells: Iterable[Cell]) -> str:
    """Heads of the cells, where they are all alike; how many kinds there are, where not."""
    kinds = sorted({text.heads(c) for c in cells})
    return kinds[0] if len(kinds) == 1 else f"{len(kinds)} head geometries"


def name(taken: set[str], *parts: str) -> str:
    """A name for files, ids and links that is not ``taken`` yet; it is from then on."""
    joined = "-".join(re.sub(r"[^a-z0-9.]+", "-", part.lower()).strip("-.") for part in parts if part)
    base = joined.strip("-.")[:100].strip("-.") or "plot"
    found, number = base, 1
    while found in taken:
        number += 1
        found = f"{base}-{number}"
    taken.add(found)
    return found


def sentences(*parts: str) -> str:
    """Those that say something, as one text."""
    return " ".join(part for part in parts if part)
