"""Committed expectations: verdicts that differ from what a backend declares, for cells under conditions. Pure.

An entry is about cells or about pairs (``KIND``, an axis that every match has). It matches a cell by axes,
properties or ids, and its environment by target, architecture and ranges of versions. Of several entries that
match, the one whose match lies inside all the others' decides; an entry that lists cells by id comes before any
that does not. Two entries that could both match something, of which neither lies inside the other and which say
different things, are refused when they are loaded, unless a third says what holds of exactly their overlap: so
precedence never depends on the order of files or entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

import msgspec

from .. import archs, targets
from ..axes import DEFAULT_SWITCHES, Value
from ..cell import Cell, Environment, Force, Record, Verdict
from ..codec import cell_id
from ..errors import InputError
from ..outcome import Expectation
from ..pair import Pair, PairRecord, pair_id
from ..summary import place_of, switch_words
from . import pair_axes, versionrange
from .versionrange import Range

#: Conditions on an environment: versions by distribution, as ``Environment.versions`` has them.
VERSIONS: tuple[str, ...] = ("vllm", "aiter", "triton", "rocm")

#: All properties that a file may allow to become conditions.
PROPERTIES: tuple[str, ...] = ("target", "arch", *VERSIONS)

#: The axis that tells what a match is about, and its two values, which are also the keys that list ids.
KIND = "kind"
CELLS = "cells"
PAIRS = "pairs"

#: A target by its full name with the AMD architecture it speaks for ("" for none).
Place = tuple[str, str]


class Match(msgspec.Struct, frozen=True):
    """What an entry matches. ``axes``: values by axis or property, all must hold; ``cells``: ids, empty for any.

    ``places`` None is every target; ``ranges`` by distribution, a version that is not known lies in none.
    """

    axes: Mapping[str, frozenset[Value]] = {}
    cells: frozenset[str] = frozenset()
    places: frozenset[Place] | None = None
    ranges: Mapping[str, Range] = {}

    def within(self, other: Match) -> bool:
        """Whether whatever this matches, ``other`` matches too, as far as their keys can show."""
        if other.cells and not (self.cells and self.cells <= other.cells):
            return False
        if other.places is not None and (self.places is None or not self.places <= other.places):
            return False
        if not all(name in self.axes and self.axes[name] <= values for name, values in other.axes.items()):
            return False
        return all(name in self.ranges and self.ranges[name].within(r) for name, r in other.ranges.items())

    def intersection(self, other: Match) -> Match | None:
        """What both match; None where nothing can be."""
        axes = dict(self.axes)
        for name, values in other.axes.items():
            axes[name] = axes[name] & values if name in axes else values
        ranges = dict(self.ranges)
        for name, found in other.ranges.items():
            both = ranges[name].intersection(found) if name in ranges else found
            if both is None:
                return None
            ranges[name] = both
        cells = self.cells & other.cells if self.cells and other.cells else self.cells or other.cells
        places = self.places
        if other.places is not None:
            places = other.places if places is None else places & other.places
        empty = places == frozenset() or not all(axes.values()) or bool(self.cells and other.cells and not cells)
        return None if empty else Match(axes, cells, places, ranges)

    def holds(self, subject: Subject) -> bool:
        """Whether a cell in its environment is matched."""
        if self.cells and subject.id not in self.cells:
            return False
        if self.places is not None and subject.place not in self.places:
            return False
        if not all(subject.axes.get(name) in values for name, values in self.axes.items()):
            return False
        for name, found in self.ranges.items():
            version = versionrange.version(subject.versions.get(name, ""))
            if version is None or version not in found:
                return False
        return True


class Entry(msgspec.Struct, frozen=True):
    """One entry of a file. ``verdicts`` has one for ``[[expect]]`` and more for ``[[flaky]]``.

    ``raw`` are the entry's own keys as written (without the file's scope), ``at`` its place in the file.
    """

    match: Match
    verdicts: tuple[Verdict, ...]
    reason: str
    link: str
    file: str = ""
    line: int | None = None
    at: tuple[str | int, ...] = ()
    raw: Mapping[str, object] = {}

    @property
    def where(self) -> str:
        """File and line, for messages."""
        return f"{self.file}:{self.line}" if self.line is not None else self.file


class Subject(msgspec.Struct, frozen=True):
    """A cell or a pair in an environment, as entries see it."""

    id: str
    axes: Mapping[str, Value]
    place: Place
    versions: Mapping[str, str]


class Expectations(msgspec.Struct, frozen=True):
    """The entries of any number of files, by the backends they name ("" for those that name none)."""

    entries: tuple[Entry, ...] = ()
    by_backend: Mapping[Value, tuple[Entry, ...]] = {}

    def entry(self, subject: Subject) -> Entry | None:
        """The entry that decides for a cell or pair; None where it is expected to be as declared."""
        candidates = (*self.by_backend.get(subject.axes.get("backend", ""), ()), *self.by_backend.get("", ()))
        return decisive([e for e in candidates if e.match.holds(subject)])

    def find(self, record: Record | PairRecord, environment: Environment | None) -> Expectation | None:
        """What is expected of a record, for ``outcome.outcome`` and ``pair_outcome.outcome``."""
        if not self.entries:
            return None
        found = self.entry(subject_of(record, environment))
        if found is None:
            return None
        return Expectation(verdicts=found.verdicts, reason=found.reason, link=found.link, where=found.where)


def collect(entries: Iterable[Entry]) -> Expectations:
    """Entries as one set. Raises InputError for an ambiguity or an entry that stands there twice."""
    found = tuple(entries)
    grouped: dict[Value, list[Entry]] = {}
    for entry in found:
        for backend in entry.match.axes.get("backend", frozenset({""})):
            grouped.setdefault(backend, []).append(entry)
    anywhere = grouped.get("", [])
    for backend, group in grouped.items():
        _check(group if backend == "" else [*group, *anywhere])
    return Expectations(found, {backend: tuple(group) for backend, group in grouped.items()})


def decisive(matching: Sequence[Entry]) -> Entry | None:
    """Of entries that all match, the one inside all others; the first of them where several say the same."""
    listed = [e for e in matching if e.match.cells] or list(matching)
    inner = [e for e in listed if not any(_inside(other, e) for other in listed)]
    return inner[0] if inner else None


def subject(cell: Cell, environment: Environment | None) -> Subject:
    """A cell as entries see it; where it ran on this machine's GPU the environment tells the architecture."""
    return _subject(cell_id(cell), axes_of(cell), cell.target, environment)


def pair_subject(pair: Pair, environment: Environment | None) -> Subject:
    """A pair as entries see it."""
    axes = {KIND: PAIRS, **pair_axes.axes_of(pair), "switches": switches_text(pair.switches)}
    return _subject(pair_id(pair), axes, pair.target, environment)


def subject_of(record: Record | PairRecord, environment: Environment | None) -> Subject:
    """The cell or pair of a record, as entries see it."""
    if isinstance(record, Record):
        return subject(record.cell, environment)
    return pair_subject(record.pair, environment)


def _subject(name: str, axes: Mapping[str, Value], target: str, environment: Environment | None) -> Subject:
    kind, _, arch = target.partition(":")
    if kind == "device":
        arch = place_of(target, environment).architecture
    return Subject(
        id=name,
        axes=axes,
        place=(target, arch),
        versions=environment.versions if environment is not None else {},
    )


def axes_of(cell: Cell) -> dict[str, Value]:
    """A cell's value for every axis and property that an entry may name."""
    geometry = cell.geometry
    return {
        KIND: CELLS,
        "backend": cell.backend,
        "block_size": cell.block_size,
        "kv_cache_dtype": cell.kv_cache_dtype,
        "drafter": cell.drafter,
        "tp": cell.tp,
        "num_speculative_tokens": cell.num_speculative_tokens,
        "dtype": cell.dtype,
        "batch": cell.batch,
        "execution": cell.execution,
        "runner": cell.runner,
        "scales": cell.scales,
        "switches": switches_text(cell.switches),
        "force": cell.force.value,
        "method": cell.method,
        "role": cell.role.value,
        "mla": geometry.mla is not None,
        "causal": geometry.causal,
        "sinks": geometry.sinks,
        "head_size": geometry.head_size,
    }


def switches_text(pairs: Iterable[tuple[str, str]]) -> str:
    """Environment switches as an entry writes them: ``A=1 B=0``, or ``default`` for none."""
    return switch_words(sorted(pairs)) or DEFAULT_SWITCHES


def places(target_names: Iterable[str] | None, arch_names: Iterable[str] | None) -> frozenset[Place]:
    """The places that targets (or kinds of them) and architectures, either None for all, leave over."""
    wanted = None if target_names is None else set(target_names)
    found: set[Place] = set()
    for name in targets.known():
        kind, _, arch = name.partition(":")
        if wanted is not None and name not in wanted and kind not in wanted:
            continue
        if kind != "device":
            speaks_for = [arch]
        elif arch:
            speaks_for = [""]  # another vendor's GPU posing as it
        else:
            speaks_for = ["", *archs.ARCHS]
        found.update((name, a) for a in speaks_for)
    if arch_names is not None:
        allowed = set(arch_names)
        found = {p for p in found if p[1] in allowed}
    return frozenset(found)


def unforced(axes: Mapping[str, frozenset[Value]]) -> dict[str, frozenset[Value]]:
    """``axes`` with forced cells left out unless they are asked for: forcing is another experiment."""
    return {"force": frozenset({Force.NONE.value}), **axes}


def _inside(a: Entry, b: Entry) -> bool:
    """Whether ``a`` is strictly inside ``b``."""
    return a is not b and a.match.within(b.match) and not b.match.within(a.match)


def _check(entries: Sequence[Entry]) -> None:
    for a, b in combinations(entries, 2):
        if a.match == b.match:
            raise _twice(a, b)
        if set(a.verdicts) == set(b.verdicts) or bool(a.match.cells) != bool(b.match.cells):
            continue
        if a.match.within(b.match) or b.match.within(a.match):
            continue
        both = a.match.intersection(b.match)
        if both is None:
            continue
        if not any(_inside(c, a) and _inside(c, b) and both.within(c.match) for c in entries):
            says = " or ".join(v.value for v in a.verdicts)
            raise InputError(
                f"ambiguous: {a.where} says {says} of some of the same cells, and neither matches only a part of what "
                "the other does; narrow one, or add an entry for what both match",
                file=b.file,
                line=b.line,
                key=_key(b),
                value=" or ".join(v.value for v in b.verdicts),
            )


def _twice(a: Entry, b: Entry) -> InputError:
    return InputError(f"matches the same as {a.where}", file=b.file, line=b.line, key=_key(b))


def _key(entry: Entry) -> str:
    from ..toml.tomlfile import dotted

    return dotted(entry.at)
