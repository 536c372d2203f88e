"""New entries for observations that no entry explains: merged over axes, with the fewest conditions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from packaging.version import Version

from ..axes import Value
from ..toml.tomlwrite import plain
from . import boxes, places, versionrange
from .boxes import Box, Point
from .expectations import VERSIONS, Place
from .observe import Observation

#: Axes that an entry is written with, in the order of a file.
AXES: tuple[str, ...] = (
    "backend",
    "block_size",
    "kv_cache_dtype",
    "drafter",
    "tp",
    "num_speculative_tokens",
    "batch",
    "dtype",
    "execution",
    "runner",
    "scales",
    "switches",
    "force",
)

#: Values that a new file states once for all its entries, where every cell that was seen has them.
DEFAULTS: Mapping[str, Value] = {
    "dtype": "bfloat16",
    "execution": "eager",
    "runner": "v2",
    "scales": "non_unit",
    "switches": "default",
}

#: Along which axes entries are merged, first the first.
_MERGE = (
    "batch",
    "num_speculative_tokens",
    "tp",
    "drafter",
    "place",
    *VERSIONS,
    "scales",
    "dtype",
    "execution",
    "runner",
    "switches",
    "force",
    "kv_cache_dtype",
    "block_size",
    "backend",
)

#: What always stays in an entry: which backend, block and KV cache dtype it speaks of.
_ALWAYS = ("backend", "block_size", "kv_cache_dtype", "force")

Raw = dict[str, Any]


class Grid(msgspec.Struct, frozen=True):
    """The coordinates of observations: axes that vary or that always count, and the properties a file allows.

    ``places``: targets and architectures that were seen, of which ``by_target`` and ``by_arch`` say what may count.
    ``versions``: those seen of each distribution that counts, ascending; a coordinate is an index into them.
    """

    axes: tuple[str, ...]
    places: tuple[Place, ...]
    by_target: bool
    by_arch: bool
    versions: Mapping[str, tuple[Version, ...]]

    def point(self, observation: Observation) -> Point:
        """Where an observation lies."""
        subject = observation.subject
        found: dict[str, Value] = {name: subject.axes[name] for name in self.axes if name in subject.axes}
        if self.by_target or self.by_arch:
            found["place"] = self.places.index(self.seen_as(subject.place))
        for name in self.versions:
            found[name] = self.versions[name].index(_version(observation, name))
        return found

    def seen_as(self, place: Place) -> Place:
        """As much of a place as counts."""
        return (place[0] if self.by_target else "", place[1] if self.by_arch else "")


def grid(observations: Sequence[Observation], properties: Iterable[str]) -> Grid:
    """The coordinates of these observations, of which only ``properties`` may become conditions."""
    axes = [name for name in AXES if name != "num_speculative_tokens"]
    tokens: dict[Value, set[Value]] = {}
    for one in observations:
        tokens.setdefault(one.subject.axes["drafter"], set()).add(one.subject.axes["num_speculative_tokens"])
    if any(len(values) > 1 for values in tokens.values()):
        axes.insert(axes.index("tp") + 1, "num_speculative_tokens")
    allowed = set(properties)
    counts = Grid(tuple(axes), (), "target" in allowed, "arch" in allowed, {})
    places = tuple(sorted({counts.seen_as(o.subject.place) for o in observations}))
    versions = {}
    for name in (n for n in VERSIONS if n in allowed):
        seen = [versionrange.version(o.subject.versions.get(name, "")) for o in observations]
        known = sorted({v for v in seen if v is not None})
        if len(known) > 1 and None not in seen:
            versions[name] = tuple(known)
    return msgspec.structs.replace(counts, places=places, versions=versions)


def entries(new: Sequence[Observation], every: Sequence[Observation], place: Grid, link: str, reason: str) -> list[Raw]:
    """Entries, as keys and values of a file, for ``new``, which match none of ``every`` that is not the same."""
    labels = dict.fromkeys(o.label for o in new)
    found: list[Raw] = []
    for label in labels:
        own = [o for o in new if o.label == label]
        points = [place.point(o) for o in own]
        others = [place.point(o) for o in every if o.label != label]
        merged = boxes.of(points, _MERGE)
        wide = [_widened(box, points, others) for box in merged]
        for box in boxes.merge(boxes.without_inner(wide), _MERGE):
            for part in _contiguous(box, place):
                conditions = places.keys(part.get("place"), place)
                found += [_raw(part, where, place, own[0], link, reason) for where in conditions]
    return found


def verdict_keys(observation: Observation) -> Raw:
    """The first keys of an entry: ``verdict``, or ``verdicts`` of a flaky cell."""
    values = [v.value for v in observation.wanted or observation.seen]
    return {"verdict": values[0]} if len(values) == 1 else {"verdicts": values}


def _widened(box: Box, own: Sequence[Point], others: Sequence[Point]) -> Box:
    for axis in [a for a in _MERGE if a in box and a not in _ALWAYS]:
        box = boxes.widen(box, axis, own, others) or box
    return box


def _contiguous(box: Box, place: Grid) -> list[Box]:
    """A box whose versions are ranges: one part for each run of neighbouring versions."""
    parts = [box]
    for name in place.versions:
        split: list[Box] = []
        for part in parts:
            if name not in part:
                split.append(part)
                continue
            runs: list[list[int]] = []
            for index in sorted(int(v) for v in part[name]):
                if runs and index == runs[-1][-1] + 1:
                    runs[-1].append(index)
                else:
                    runs.append([index])
            split += [{**part, name: frozenset(run)} for run in runs]
        parts = split
    return parts


def _raw(box: Box, where: Raw, place: Grid, shown: Observation, link: str, reason: str) -> Raw:
    raw: Raw = verdict_keys(shown)
    for name in AXES:
        if name in box and not (name == "force" and box[name] == {"none"}):
            raw[name] = plain(box[name])
    raw.update(where)
    for name, known in place.versions.items():
        text = _range(known, [int(v) for v in box[name]]) if name in box else ""
        if text:
            raw[name] = text
    raw["reason"] = reason or shown.reason
    raw["link"] = link
    return raw


def _range(known: Sequence[Version], indices: Sequence[int]) -> str:
    """Neighbouring versions as a range, open towards versions that were not seen."""
    low, high = min(indices), max(indices)
    parts = [f">={known[low]}"] if low else []
    if high + 1 < len(known):
        parts.append(f"<{known[high + 1]}")
    return ",".join(parts)


def _version(observation: Observation, name: str) -> Version:
    found = versionrange.version(observation.subject.versions.get(name, ""))
    assert found is not None
    return found


#: How a conflict is told: observations at one point of the grid that want different things.
Conflict = tuple[Observation, Observation]


def conflicts(observations: Sequence[Observation], place: Grid) -> list[Conflict]:
    """Pairs that differ though nothing that may become a condition tells them apart, one for each point."""
    first: dict[object, Observation] = {}
    found: dict[object, Conflict] = {}
    for one in observations:
        key = frozenset(place.point(one).items())
        other = first.setdefault(key, one)
        if other.wanted != one.wanted:
            found.setdefault(key, (other, one))
    return list(found.values())
