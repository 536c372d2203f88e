"""New entries for observations that no entry explains: merged over axes, with the fewest conditions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from packaging.version import Version

from ..axes import Value
from ..toml.tomlwrite import plain
from . import boxes, places, versionrange
from .boxes import Box, Point
from .expectations import CELLS, PAIRS, VERSIONS, Place
from .observe import Observation


class Words(NamedTuple):
    """How entries about cells, or about pairs, are written.

    ``axes``: in the order of a file. ``defaults``: what a new file states once for all its entries, where everything
    that was seen has it. ``merge``: along which axes entries are merged, first the first. ``always``: what always
    stays in an entry. ``narrow``: by which one that is partly contradicted is narrowed, first the first.
    """

    axes: tuple[str, ...]
    defaults: Mapping[str, Value]
    merge: tuple[str, ...]
    always: tuple[str, ...]
    narrow: tuple[str, ...]


#: By what entries are about.
WORDS: Mapping[str, Words] = {
    CELLS: Words(
        axes=(
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
        ),
        defaults={
            "dtype": "bfloat16",
            "execution": "eager",
            "runner": "v2",
            "scales": "non_unit",
            "switches": "default",
        },
        merge=(
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
        ),
        always=("backend", "block_size", "kv_cache_dtype", "force"),
        narrow=("batch", "tp", "drafter", "block_size", "kv_cache_dtype", "scales", "dtype", "execution", "runner"),
    ),
    PAIRS: Words(
        axes=(
            "target_model",
            "target_backend",
            "drafter",
            "drafter_backend",
            "block_size",
            "kv_cache_dtype",
            "draft_kv_cache_dtype",
            "tp",
            "num_speculative_tokens",
            "dtype",
            "runner",
            "switches",
        ),
        defaults={"dtype": "bfloat16", "switches": "default"},
        merge=(
            "num_speculative_tokens",
            "tp",
            "place",
            *VERSIONS,
            "dtype",
            "switches",
            "block_size",
            "draft_kv_cache_dtype",
            "runner",
            "kv_cache_dtype",
            "drafter_backend",
            "target_backend",
            "drafter",
            "target_model",
        ),
        always=("target_model", "target_backend", "drafter", "drafter_backend", "kv_cache_dtype", "runner"),
        narrow=(
            "num_speculative_tokens",
            "tp",
            "block_size",
            "draft_kv_cache_dtype",
            "runner",
            "kv_cache_dtype",
            "drafter_backend",
            "target_backend",
            "drafter",
            "target_model",
            "dtype",
        ),
    ),
}

Raw = dict[str, Any]


class Grid(msgspec.Struct, frozen=True):
    """The coordinates of observations: axes that vary or that always count, and the properties a file allows.

    ``kind`` says whether they are of cells or of pairs.
    ``places``: targets and architectures that were seen, of which ``by_target`` and ``by_arch`` say what may count.
    ``versions``: those seen of each distribution that counts, ascending; a coordinate is an index into them.
    """

    kind: str
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
    """The coordinates of these observations, all of one kind; only ``properties`` of them may become conditions."""
    kind = kind_of(observations)
    axes = [name for name in WORDS[kind].axes if name != "num_speculative_tokens"]
    tokens: dict[Value, set[Value]] = {}
    for one in observations:
        tokens.setdefault(one.subject.axes["drafter"], set()).add(one.subject.axes["num_speculative_tokens"])
    if any(len(values) > 1 for values in tokens.values()):
        axes.insert(axes.index("tp") + 1, "num_speculative_tokens")
    allowed = set(properties)
    counts = Grid(kind, tuple(axes), (), "target" in allowed, "arch" in allowed, {})
    places = tuple(sorted({counts.seen_as(o.subject.place) for o in observations}))
    versions = {}
    for name in (n for n in VERSIONS if n in allowed):
        seen = [versionrange.version(o.subject.versions.get(name, "")) for o in observations]
        known = sorted({v for v in seen if v is not None})
        if len(known) > 1 and None not in seen:
            versions[name] = tuple(known)
    return msgspec.structs.replace(counts, places=places, versions=versions)


def kind_of(observations: Sequence[Observation]) -> str:
    """What observations, all of one kind, are of; cells where there are none."""
    return observations[0].kind if observations else CELLS


def entries(new: Sequence[Observation], every: Sequence[Observation], place: Grid, link: str, reason: str) -> list[Raw]:
    """Entries, as keys and values of a file, for ``new``, which match none of ``every`` that is not the same."""
    labels = dict.fromkeys(o.label for o in new)
    found: list[Raw] = []
    for label in labels:
        own = [o for o in new if o.label == label]
        points = [place.point(o) for o in own]
        others = [place.point(o) for o in every if o.label != label]
        words = WORDS[place.kind]
        merged = boxes.of(points, words.merge)
        wide = [_widened(box, points, others, words) for box in merged]
        for box in boxes.merge(boxes.without_inner(wide), words.merge):
            for part in _contiguous(box, place):
                conditions = places.keys(part.get("place"), place)
                found += [_raw(part, where, place, own[0], link, reason) for where in conditions]
    return found


def verdict_keys(observation: Observation) -> Raw:
    """The first keys of an entry: ``verdict``, or ``verdicts`` of a flaky cell."""
    values = [v.value for v in observation.wanted or observation.seen]
    return {"verdict": values[0]} if len(values) == 1 else {"verdicts": values}


def _widened(box: Box, own: Sequence[Point], others: Sequence[Point], words: Words) -> Box:
    for axis in [a for a in words.merge if a in box and a not in words.always]:
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
    for name in WORDS[place.kind].axes:
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
