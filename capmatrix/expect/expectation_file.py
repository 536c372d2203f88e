"""Expectation files: TOML to ``Entry``. ``docs/expectations.md`` has the grammar.

Every mistake is one InputError that names file, line, key, value and what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from .. import archs, axes, drafters, paths, targets
from ..axes import AXES, Axis, Value
from ..axes import PROPERTIES as FAMILY_PROPERTIES
from ..cell import Force, Verdict
from ..errors import InputError
from ..toml.tomlcheck import At, boolean, elements, integer, require, table, tables, text, word
from ..toml.tomlfile import TomlFile
from ..toml.tomlfile import load as load_toml
from . import pair_axes, versionrange
from .expectations import (
    CELLS,
    KIND,
    PAIRS,
    PROPERTIES,
    VERSIONS,
    Entry,
    Expectations,
    Match,
    collect,
    places,
    unforced,
)

#: The folder beside matrix files.
DIRECTORY = "expectations"

#: Verdicts that can be expected. Of the others nothing is known, and such cells are skipped anyway.
VERDICTS: tuple[str, ...] = tuple(v.value for v in Verdict if v not in (Verdict.UNAVAILABLE, Verdict.UNVERIFIED))

_FORCE = Axis("force", "Forced cells; left out: none of them.", names=tuple(f.value for f in Force))

#: What a cell is matched by, besides ``cells``. Switches are written out, as no matrix file is in hand.
MATCHERS: dict[str, Axis] = {
    **{name: axis for name, axis in AXES.items() if name != "switches"},
    **{name: axis for name, axis in FAMILY_PROPERTIES.items() if name != "target"},
    "force": _FORCE,
}
#: The same by what an entry is about.
MATCHERS_OF: Mapping[str, Mapping[str, Axis]] = {CELLS: MATCHERS, PAIRS: pair_axes.MATCHERS}
KEYS: tuple[str, ...] = (*MATCHERS, *pair_axes.OWN, "switches", *PROPERTIES)
EXPECT_KEYS: tuple[str, ...] = ("verdict", "reason", "link", CELLS, PAIRS, *KEYS)
FLAKY_KEYS: tuple[str, ...] = ("verdicts", "reason", "link", CELLS, PAIRS, *KEYS)
FILE_KEYS: tuple[str, ...] = ("description", "properties", "scope", "expect", "flaky")

#: A thread, a page, a place in this project's documents, or the plain statement that nobody reported it.
UNREPORTED = "unreported"
LINK_PATTERN = (
    r"^(https://\S+|[A-Za-z0-9][A-Za-z0-9-]*/[A-Za-z0-9._-]+#[0-9]+|docs/[a-z0-9-]+\.md(#[a-z0-9_-]+)?|unreported)$"
)
LINK_FORMS = ("https://...", "owner/repository#number", "docs/<page>.md#<section>", UNREPORTED)

#: Switches as an entry writes them.
SWITCHES_PATTERN = r"^(default|[A-Z][A-Z0-9_]*=[A-Za-z0-9_.]{1,32}( [A-Z][A-Z0-9_]*=[A-Za-z0-9_.]{1,32})*)$"

#: The id of a cell or pair is printable and has no blanks.
ID_PATTERN = r"^[!-~]{1,512}$"

#: Most entries of all files together: their overlaps are looked at pair by pair.
MAX_ENTRIES = 1000


class File(msgspec.Struct, frozen=True):
    """One file. ``properties``: what may become a condition when it is updated; ``scope``: keys of every entry."""

    path: str
    description: str = ""
    properties: tuple[str, ...] = PROPERTIES
    scope: Mapping[str, Any] = {}
    entries: tuple[Entry, ...] = ()


def load(paths: Sequence[Path]) -> Expectations:
    """The expectations of files and of folders of them. Raises InputError for every mistake."""
    return collect(entry for file in load_files(paths) for entry in file.entries)


def load_files(paths: Sequence[Path]) -> list[File]:
    """Each file, read and checked by itself, in order of folders and then names."""
    found: dict[Path, None] = {}
    for path in paths:
        inside = sorted(path.glob("*.toml")) if path.is_dir() else [path]
        found.update(dict.fromkeys(inside))
    files = [from_toml(load_toml(path)) for path in found]
    if sum(len(f.entries) for f in files) > MAX_ENTRIES:
        raise InputError(f"more than {MAX_ENTRIES} entries", file=files[-1].path)
    return files


def beside(matrix_file: Path) -> list[Path]:
    """Where the expectations of a matrix file are unless others are named: the folder beside it, if any."""
    directory = matrix_file.parent / DIRECTORY
    return [directory] if directory.is_dir() else []


def from_toml(doc: TomlFile) -> File:
    """A parsed file. Raises InputError."""
    data = table(doc, (), doc.data, FILE_KEYS)
    names = _names(doc.path)
    properties = PROPERTIES
    if "properties" in data:
        at: At = ("properties",)
        if data["properties"] != []:
            properties = tuple(word(doc, where, v, PROPERTIES) for where, v in elements(doc, at, data["properties"]))
        else:
            properties = ()
    scope = table(doc, ("scope",), data.get("scope", {}), KEYS)
    if scope:
        _match(doc, ("scope",), scope, {}, names, _kind(scope, {}))
    entries = []
    for kind, keys in (("expect", EXPECT_KEYS), ("flaky", FLAKY_KEYS)):
        if kind in data:
            for i, raw in enumerate(tables(doc, (kind,), data[kind], keys)):
                entries.append(_entry(doc, (kind, i), raw, scope, names))
    return File(
        path=str(doc.path),
        description=text(doc, ("description",), data["description"]) if "description" in data else "",
        properties=properties,
        scope=scope,
        entries=tuple(entries),
    )


def _entry(
    doc: TomlFile, at: At, raw: dict[str, Any], scope: dict[str, Any], names: Mapping[str, Collection[str]]
) -> Entry:
    flaky = at[0] == "flaky"
    own = "verdicts" if flaky else "verdict"
    require(doc, at, raw, [own, "reason", "link"])
    found = [Verdict(word(doc, where, v, VERDICTS)) for where, v in elements(doc, (*at, own), raw[own])]
    if flaky and len(set(found)) < 2:
        raise doc.error((*at, own), "a flaky cell has at least two different verdicts", value=raw[own])
    if flaky and len(set(found)) < len(found):
        raise doc.error((*at, own), "stands there twice", value=raw[own])
    if not flaky and len(found) > 1:
        raise doc.error((*at, own), "one verdict; cells with several are listed under [[flaky]]", value=raw[own])
    link = text(doc, (*at, "link"), raw["link"])
    if not re.fullmatch(LINK_PATTERN, link):
        raise doc.error((*at, "link"), "not a link", value=link, allowed=LINK_FORMS)
    kind = _kind(raw, scope)
    _about(doc, at, raw, scope, kind)
    return Entry(
        match=_match(doc, at, raw, scope, names, kind),
        verdicts=tuple(found),
        reason=text(doc, (*at, "reason"), raw["reason"]),
        link=link,
        file=str(doc.path),
        line=doc.line(*at),
        at=at,
        raw=raw,
    )


def _kind(raw: Mapping[str, Any], scope: Mapping[str, Any]) -> str:
    """What an entry is about: what its own keys say, else those of the file's scope, else cells."""
    for keys in (raw, scope):
        if PAIRS in keys or any(name in keys for name in pair_axes.OWN):
            return PAIRS
        if CELLS in keys or any(name in keys for name in MATCHERS if name not in pair_axes.MATCHERS):
            return CELLS
    return CELLS


def _about(doc: TomlFile, at: At, raw: dict[str, Any], scope: dict[str, Any], kind: str) -> None:
    """An entry says which backend, and names nothing that what it is about does not have."""
    matchers = MATCHERS_OF[kind]
    other = CELLS if kind == PAIRS else PAIRS
    for key in raw:
        if key == other or (key in {**MATCHERS, **pair_axes.MATCHERS} and key not in matchers):
            allowed = [kind, *matchers, "switches", *PROPERTIES]
            raise doc.error((*at, key), f"an entry about {kind} has no such key", value=raw[key], allowed=allowed)
    if kind == PAIRS:
        if not {PAIRS, "target_model", "drafter", "target_backend", "drafter_backend"} & {*raw, *scope}:
            raise doc.error(at, "says neither which model or backend nor which pairs")
    elif not {"backend", CELLS} & {*raw, *scope}:
        raise doc.error(at, "says neither which backend nor which cells")


def _match(
    doc: TomlFile,
    at: At,
    raw: dict[str, Any],
    scope: dict[str, Any],
    names: Mapping[str, Collection[str]],
    kind: str,
) -> Match:
    """What an entry matches, with the keys of ``scope`` that it does not name itself; ``"*"`` is any value.

    Keys of ``scope`` that what the entry is about does not have say nothing of it.
    """
    matchers = MATCHERS_OF[kind]
    merged = {key: ((*at, key), value) for key, value in raw.items()}
    for key, value in scope.items():
        merged.setdefault(key, (("scope", key), value))
    merged = {key: pair for key, pair in merged.items() if pair[1] != axes.EVERY}
    found: dict[str, frozenset[Value]] = {KIND: frozenset({kind})}
    ranges = {}
    for key, (where, value) in merged.items():
        if key in matchers:
            found[key] = _values(doc, where, matchers[key], value, names)
        elif key == "switches":
            found[key] = frozenset(_switches(doc, w, v) for w, v in elements(doc, where, value))
        elif key in VERSIONS:
            ranges[key] = _range(doc, where, value)
    chosen = _words(doc, merged, "target", [*targets.KINDS, *targets.known()])
    arch = _words(doc, merged, "arch", archs.ARCHS)
    where_run = None if chosen is None and arch is None else places(chosen, arch)
    if where_run is not None and not where_run:
        raise doc.error((*at, "arch"), "no such target has this architecture", value=sorted(arch or ()))
    ids: frozenset[str] = frozenset()
    if kind in raw:
        ids = frozenset(_id(doc, w, v) for w, v in elements(doc, (*at, kind), raw[kind]))
    # Ids say by themselves whether a cell is forced, and pairs never are.
    return Match(found if ids or kind == PAIRS else unforced(found), ids, where_run, ranges)


def _values(doc: TomlFile, at: At, axis: Axis, value: object, names: Mapping[str, Collection[str]]) -> frozenset[Value]:
    return frozenset(_value(doc, where, axis, element, names) for where, element in elements(doc, at, value))


def _value(doc: TomlFile, at: At, axis: Axis, value: object, names: Mapping[str, Collection[str]]) -> Value:
    if axis.boolean:
        return boolean(doc, at, value)
    if axis.name in names:
        is_probe = isinstance(value, str) and re.fullmatch(axes.PROBE + axes.NAME_PATTERN[1:], value)
        if axis.name == "drafter" and is_probe:
            return str(value)
        return word(doc, at, value, names[axis.name])
    words = [n for n in axis.names or () if n not in (axes.FAMILY, axes.ROLE)]
    if axis.highest is None or (words and isinstance(value, str)):
        return word(doc, at, value, words)
    return integer(doc, at, value, axis.lowest or 0, axis.highest)


def _switches(doc: TomlFile, at: At, value: object) -> str:
    given = text(doc, at, value)
    if not re.fullmatch(SWITCHES_PATTERN, given):
        raise doc.error(at, "not a set of switches", value=given, allowed=["default", "NAME=value NAME=value"])
    if given == axes.DEFAULT_SWITCHES:
        return given
    pairs = [part.partition("=") for part in given.split(" ")]
    for name, _, _ in pairs:
        if name not in axes.SWITCH_NAMES:
            raise doc.error(at, "unknown switch", value=name, allowed=axes.SWITCH_NAMES)
    if len({name for name, _, _ in pairs}) < len(pairs):
        raise doc.error(at, "a switch stands there twice", value=given)
    return " ".join(sorted(given.split(" ")))


def _range(doc: TomlFile, at: At, value: object) -> versionrange.Range:
    given = text(doc, at, value)
    try:
        return versionrange.parse(given)
    except versionrange.RangeError as error:
        raise doc.error(at, str(error), value=given, allowed=[">=0.31,<0.33", "==0.32.0"]) from None


def _words(doc: TomlFile, merged: Mapping[str, tuple[At, Any]], key: str, allowed: Iterable[str]) -> set[str] | None:
    if key not in merged:
        return None
    at, value = merged[key]
    known = list(dict.fromkeys(allowed))
    return {word(doc, where, v, known) for where, v in elements(doc, at, value)}


def _id(doc: TomlFile, at: At, value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(ID_PATTERN, value):
        raise doc.error(at, "not a cell id", value=value)
    return value


def _names(path: Path) -> dict[str, tuple[str, ...]]:
    """Shipped drafters and target models and, for a file of an ``expectations`` folder, those beside its matrices."""
    found = {
        "drafter": set(drafters.load(drafters.DEFAULT_DIR)),
        "target_model": _stems(paths.matrices_dir() / "targets"),
    }
    if path.absolute().parent.name == DIRECTORY:
        beside = path.absolute().parent.parent
        own = beside / "drafters"
        if own.is_dir() and not own.samefile(drafters.DEFAULT_DIR):
            found["drafter"] |= set(drafters.load(own))
        found["target_model"] |= _stems(beside / "targets")
    return {key: tuple(sorted(names)) for key, names in found.items()}


def _stems(folder: Path) -> set[str]:
    """A target model's key is its file's name."""
    return {path.stem for path in folder.glob("*.toml")}
