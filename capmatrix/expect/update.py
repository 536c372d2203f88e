"""An expectation file brought up to date with runs: the least that has to change does. Pure.

1. An entry that a run contradicts loses the values (ids, batches, blocks ...) or the environments (architectures,
   targets, versions) that only contradicting cells have; one that every cell contradicts goes.
2. What no entry explains then extends an entry of the same cause by one value, or gets entries of its own.
3. Should new entries be ambiguous beside those that stayed, their cells are listed by id, which always decides.

Reasons, links and the order of entries stay as they are. Cells that no run has are left as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from ..axes import Value
from ..errors import InputError
from ..toml.tomlwrite import plain
from . import entries as new_entries
from . import versionrange
from .entries import WORDS, Conflict, Raw, Words
from .expectation_file import File
from .expectations import CELLS, PAIRS, VERSIONS, Entry, collect, decisive
from .observe import Observation

#: Reads raw file contents: a file's entries again after a change.
Parse = Callable[[Mapping[str, Any]], File]


class Update(msgspec.Struct, frozen=True):
    """``data`` is the file's new contents; the rest says in lines what changed and what could not be."""

    data: dict[str, Any]
    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()

    @property
    def changes(self) -> bool:
        """Whether anything has to change, or should and cannot."""
        return bool(self.added or self.changed or self.removed or self.conflicts)


def merged(first: Update, then: Update) -> Update:
    """Two updates of one file, one after the other, as one."""
    return Update(
        data=then.data,
        added=first.added + then.added,
        changed=first.changed + then.changed,
        removed=first.removed + then.removed,
        conflicts=first.conflicts + then.conflicts,
    )


def update(
    file: File,
    others: Sequence[Entry],
    observations: Sequence[Observation],
    parse: Parse,
    *,
    link: str,
    reason: str = "",
) -> Update:
    """``file`` as it has to be for ``observations``, which are all of cells or all of pairs.

    ``others`` are entries of other files that hold beside it.
    ``link`` and ``reason`` are those of new entries (reason empty: what the first cell's record says).
    """
    place = new_entries.grid(observations, file.properties)
    words = WORDS[place.kind]
    torn = new_entries.conflicts(observations, place)
    points = {frozenset(place.point(a).items()) for a, _ in torn}
    usable = [o for o in observations if frozenset(place.point(o).items()) not in points]
    changed: list[str] = []
    removed: list[str] = []
    kept: list[Raw] = []
    for entry in file.entries:
        decided = [o for o in usable if _decider(o, (*file.entries, *others)) is entry]
        wrong = [o for o in decided if not o.satisfied(entry)]
        right = [o for o in decided if o.satisfied(entry)]
        narrowed = _narrow(entry, right, wrong, file.properties, words) if wrong else dict(entry.raw)
        if narrowed is None:
            removed.append(f"{entry.where}: {_says(entry.raw)} ({entry.reason})")
            continue
        if narrowed != dict(entry.raw):
            changed.append(f"{entry.where}: {_says(narrowed)} ({entry.reason})")
        kept.append(narrowed)
    data = _data(file, kept, observations, words)
    current = parse(data)
    extended = _extend(data, current, others, usable, parse, words)
    changed += [f"{file.path}: {_says(raw)} ({raw['reason']})" for raw in extended]
    current = parse(data)
    left = [o for o in usable if not o.satisfied(_decider(o, (*current.entries, *others)))]
    added = _new(left, usable, place, data, link, reason)
    data = _with(data, added)
    if added and not _clear(parse(data), others):
        data = _with(_without(data, added), listed := _listed(left, link, reason, place.kind))
        added = listed
    return Update(
        data=data,
        added=tuple(f"{_says(raw)} ({raw['reason']})" for raw in added),
        changed=tuple(changed),
        removed=tuple(removed),
        conflicts=tuple(_conflict(pair, file) for pair in torn),
    )


def _decider(observation: Observation, entries: Sequence[Entry]) -> Entry | None:
    return decisive([e for e in entries if e.match.holds(observation.subject)])


def _narrow(
    entry: Entry, right: Sequence[Observation], wrong: Sequence[Observation], properties: Sequence[str], words: Words
) -> Raw | None:
    """The entry without what only contradicting cells have; as it was where that cannot be said, None if all goes."""
    raw = dict(entry.raw)
    listed = _ids_key(raw)
    if listed:
        gone = {o.subject.id for o in wrong}
        ids = [i for i in _many(raw[listed]) if i not in gone]
        return {**raw, listed: ids} if ids else None
    for name in words.narrow:
        values = _many(raw.get(name, []))
        bad = {o.subject.axes[name] for o in wrong}
        good = {o.subject.axes[name] for o in right}
        rest = [v for v in values if v not in bad]
        if rest and not bad & good and _whole(raw, name, wrong, words):
            return {**raw, name: plain(rest)}
    if right:
        return _by_environment(raw, right, wrong, properties) or raw
    return None if _whole(raw, "", wrong, words) else raw


def _ids_key(raw: Mapping[str, Any]) -> str:
    """The key under which an entry lists ids; empty where it lists none."""
    return next((key for key in (CELLS, PAIRS) if key in raw), "")


def _whole(raw: Raw, axis: str, wrong: Sequence[Observation], words: Words) -> bool:
    """Whether contradicting cells have every value of every other axis that the entry lists."""
    for name in dict.fromkeys((*words.narrow, *words.always)):
        values = _many(raw.get(name, []))
        if name != axis and not set(values) <= {o.subject.axes[name] for o in wrong}:
            return False
    return True


def _by_environment(
    raw: Raw, right: Sequence[Observation], wrong: Sequence[Observation], properties: Sequence[str]
) -> Raw | None:
    """The entry with a condition that keeps ``right`` and leaves ``wrong`` out, of the first property that can."""
    for name, index in (("arch", 1), ("target", 0)):
        good = {o.subject.place[index] for o in right}
        bad = {o.subject.place[index] for o in wrong}
        if name in properties and not good & bad and "" not in good:
            known = [v for v in _many(raw.get(name, [])) if v not in bad] if name == "arch" else []
            return {**raw, name: plain(known or good)}
    for name in VERSIONS:
        if name not in properties:
            continue
        good_versions = [versionrange.version(o.subject.versions.get(name, "")) for o in right]
        bad_versions = [versionrange.version(o.subject.versions.get(name, "")) for o in wrong]
        if None in good_versions or None in bad_versions:
            continue
        low, high = min(v for v in good_versions if v), max(v for v in good_versions if v)
        first, last = min(v for v in bad_versions if v), max(v for v in bad_versions if v)
        if high >= first and low <= last:
            continue
        bound = versionrange.parse(f"<{first}" if high < first else f">={low}")
        before = versionrange.parse(raw[name]) if name in raw else versionrange.Range()
        both = before.intersection(bound)
        if both is not None:
            return {**raw, name: str(both)}
    return None


def _extend(
    data: dict[str, Any],
    file: File,
    others: Sequence[Entry],
    observations: Sequence[Observation],
    parse: Parse,
    words: Words,
) -> list[Raw]:
    """Lists of entries made longer by values that fail for a cause which the entry has; changes ``data`` in place."""
    found: list[Raw] = []
    for index, entry in enumerate(file.entries):
        if _ids_key(entry.raw):
            continue
        causes = {o.label for o in observations if entry.match.holds(o.subject) and o.satisfied(entry)}
        for name in words.narrow:
            if name not in entry.raw:
                continue
            axes = {k: v for k, v in entry.match.axes.items() if k != name}
            slab = msgspec.structs.replace(entry.match, axes=axes)
            inside = [o for o in observations if slab.holds(o.subject) and not entry.match.holds(o.subject)]
            values: dict[Value, bool] = {}
            for one in inside:
                free = _decider(one, (*file.entries, *others)) is None and one.label in causes
                value = one.subject.axes[name]
                values[value] = values.get(value, True) and free
            new = [v for v, ok in values.items() if ok]
            if not new:
                continue
            kind, at = str(entry.at[0]), int(entry.at[1])
            longer = {**data[kind][at], name: plain([*_many(entry.raw[name]), *new])}
            tried = {**data, kind: [longer if i == at else raw for i, raw in enumerate(data[kind])]}
            if _clear(parse(tried), others):
                data[kind] = tried[kind]
                found.append(longer)
                file = parse(data)
                entry = file.entries[index]
    return found


def _new(
    left: Sequence[Observation],
    every: Sequence[Observation],
    place: new_entries.Grid,
    data: Mapping[str, Any],
    link: str,
    reason: str,
) -> list[Raw]:
    scope = data.get("scope", {})
    made = new_entries.entries(left, every, place, link, reason)
    return [{k: v for k, v in raw.items() if scope.get(k) != v} for raw in made]


def _listed(left: Sequence[Observation], link: str, reason: str, kind: str) -> list[Raw]:
    """Entries that list cells, or pairs, by id, one for each cause."""
    made = []
    for label in dict.fromkeys(o.label for o in left):
        own = [o for o in left if o.label == label]
        raw: Raw = {**new_entries.verdict_keys(own[0]), kind: sorted({o.subject.id for o in own})}
        made.append({**raw, "reason": reason or own[0].reason, "link": link})
    return made


def _data(file: File, kept: Sequence[Raw], observations: Sequence[Observation], words: Words) -> dict[str, Any]:
    """A file's contents; a file without entries gets a scope of what all cells have in common."""
    scope = dict(file.scope)
    if not scope and not file.entries:
        for name, value in words.defaults.items():
            if observations and all(o.subject.axes[name] == value for o in observations):
                scope[name] = value
    data: dict[str, Any] = {}
    if file.description:
        data["description"] = file.description
    data["properties"] = list(file.properties)
    if scope:
        data["scope"] = scope
    return _with(data, kept)


def _with(data: Mapping[str, Any], entries: Sequence[Raw]) -> dict[str, Any]:
    found = {key: list(value) if key in ("expect", "flaky") else value for key, value in data.items()}
    for raw in entries:
        found.setdefault("flaky" if "verdicts" in raw else "expect", []).append(raw)
    order = ("description", "properties", "scope", "expect", "flaky")
    return {key: found[key] for key in order if found.get(key) is not None}


def _without(data: Mapping[str, Any], entries: Sequence[Raw]) -> dict[str, Any]:
    found = {k: [r for r in v if r not in entries] if k in ("expect", "flaky") else v for k, v in data.items()}
    return {key: value for key, value in found.items() if value != [] or key == "properties"}


def _clear(file: File, others: Sequence[Entry]) -> bool:
    try:
        collect([*file.entries, *others])
    except InputError:
        return False
    return True


def _many(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _says(raw: Mapping[str, Any]) -> str:
    """An entry in a line."""
    verdicts = " or ".join(_many(raw["verdicts"] if "verdicts" in raw else raw["verdict"]))
    listed = _ids_key(raw)
    where = [f"{len(_many(raw[listed]))} {listed} by id"] if listed else []
    for key, value in raw.items():
        if key not in ("verdict", "verdicts", "reason", "link", listed):
            where.append(f"{key} {', '.join(map(str, _many(plain(_many(value)))))}")
    return f"{verdicts}: {'; '.join(where)}"


def _conflict(pair: Conflict, file: File) -> str:
    a, b = ("/".join(v.value for v in o.seen) for o in pair)
    differ = [
        f"{name} {x} and {y}"
        for name, x, y in (
            ("target", pair[0].subject.place[0], pair[1].subject.place[0]),
            *((n, pair[0].subject.versions.get(n, "?"), pair[1].subject.versions.get(n, "?")) for n in VERSIONS),
        )
        if x != y
    ]
    return (
        f"{pair[0].subject.id}: {a}, and {b} elsewhere ({'; '.join(differ) or pair[1].subject.id}); "
        f"properties of {file.path} allow {', '.join(file.properties) or 'none'} to become conditions"
    )
