"""Matrix files: TOML to a validated ``Matrix``. ``docs/matrix-files.md`` has the grammar.

Every mistake is one InputError that names file, line, key, value, what is allowed and the nearest valid name.
``expand`` and ``count`` (from ``expand``) turn a matrix into cells.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec

from . import axes, drafters, targets
from .axes import AXES, PROPERTIES, Axis, Value
from .cell import MlaGeometry
from .drafters import Family
from .expand import count, expand
from .grid import Axes, Matrix, Product, Rule, Switches, Workload
from .rules import check_product, check_rules
from .toml.tomlcheck import At, boolean, elements, integer, named, require, table, tables, text, word
from .toml.tomlfile import TomlFile
from .toml.tomlfile import load as load_toml

__all__ = ["Matrix", "count", "expand", "load"]

#: Keys of a file, of its tables, and of a probe, for the loader and the schema.
PRODUCT_KEYS = ("include", "exclude", "max_kv_heads")
FILE_KEYS = ("name", "description", "axes", *PRODUCT_KEYS, "preset", "probe", "switches", "workload")
PRESET_KEYS = ("description", "targets", *PRODUCT_KEYS, *AXES)
INCLUDE_KEYS = ("reason", *AXES)
EXCLUDE_KEYS = ("reason", *AXES, *PROPERTIES)
WORKLOAD_KEYS = tuple(field.name for field in msgspec.structs.fields(Workload))

#: Bounds of a workload profile's figures: requests, then tokens.
WORKLOAD_BOUNDS = {
    "concurrency": (1, 1 << 20),
    "input": (1, 1 << 24),
    "output": (1, 1 << 24),
    "context": (0, 1 << 24),
    "speculative_tokens": (0, 64),
}

#: What a probe may change of its family, in heads, elements, tokens: lowest and highest value. A sliding
#: window of 0 is none. The last four belong to multi-head latent attention.
PROBE_INTEGERS = {
    "num_heads": (1, 4096),
    "num_kv_heads": (1, 4096),
    "head_size": (1, 4096),
    "sliding_window": (0, 1 << 24),
    "kv_lora_rank": (1, 65536),
    "qk_nope_head_dim": (1, 4096),
    "qk_rope_head_dim": (0, 4096),
    "v_head_dim": (1, 4096),
}
PROBE_BOOLEANS = ("sinks", "causal")
PROBE_KEYS = ("like", "reason", "tensor_parallel", *PROBE_INTEGERS, *PROBE_BOOLEANS)
MLA_KEYS = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


class _Names(NamedTuple):
    """The file in hand and the values of its open axes."""

    doc: TomlFile
    open: dict[str, tuple[str, ...]]
    every_drafter: tuple[str, ...]


def load(path: str | Path) -> Matrix:
    """Read, check and return the matrix file ``path``.

    Drafter families come from the shipped directory and from ``drafters/`` beside the file, whose families
    replace shipped ones of the same key. Raises InputError for every mistake, in the file or in a family.
    """
    doc = load_toml(path)
    data = table(doc, (), doc.data, FILE_KEYS)
    families = _families(doc.path)
    every = tuple(families)
    families = {**families, **_probes(doc, data.get("probe", {}), families)}
    switches = _switches(doc, data.get("switches", {}))
    target_names = (*targets.KINDS, *(t for t in targets.known() if t not in targets.KINDS))
    names = _Names(doc, {"drafter": tuple(families), "switches": tuple(switches), "target": target_names}, every)
    require(doc, (), data, ["axes"])
    given = _axes(names, ("axes",), table(doc, ("axes",), data["axes"], AXES))
    require(doc, ("axes",), given, [a.name for a in AXES.values() if a.default is None])
    whole = Product(
        name="",
        axes={axis.name: given.get(axis.name, axis.default or ()) for axis in AXES.values()},
        line=doc.line("axes"),
        **_product(names, (), data),
    )
    presets = {
        name: _preset(names, ("preset", name), entry, whole)
        for name, entry in named(doc, ("preset",), data.get("preset", {}), axes.NAME_PATTERN).items()
    }
    matrix = Matrix(
        path=str(doc.path),
        name=text(doc, ("name",), data.get("name", doc.path.stem)),
        description=text(doc, ("description",), data["description"]) if "description" in data else "",
        whole=whole,
        presets=presets,
        workloads={
            name: _workload(doc, ("workload", name), entry)
            for name, entry in named(doc, ("workload",), data.get("workload", {}), axes.NAME_PATTERN).items()
        },
        switches=switches,
        families=families,
    )
    for part in (whole, *presets.values()):
        check_product(doc, matrix, part)
    check_rules(doc, matrix)
    return matrix


def _families(path: Path) -> dict[str, Family]:
    families = drafters.load(drafters.DEFAULT_DIR)
    own = path.parent / "drafters"
    if own.is_dir() and not own.samefile(drafters.DEFAULT_DIR):
        families = {**families, **drafters.load(own)}
    return families


def _probes(doc: TomlFile, value: object, families: dict[str, Family]) -> dict[str, Family]:
    """``[probe.<name>]`` tables as families called ``probe-<name>``: a family with some figures changed."""
    found = {}
    for name, entry in named(doc, ("probe",), value, axes.NAME_PATTERN).items():
        at = ("probe", name)
        table(doc, at, entry, PROBE_KEYS)
        require(doc, at, entry, ["like", "reason"])
        like = families[word(doc, (*at, "like"), entry["like"], families)]
        reason = text(doc, (*at, "reason"), entry["reason"])
        changed: dict[str, Any] = {}
        for key, (lowest, highest) in PROBE_INTEGERS.items():
            if key in entry:
                changed[key] = integer(doc, (*at, key), entry[key], lowest, highest)
        changed.update({key: boolean(doc, (*at, key), entry[key]) for key in PROBE_BOOLEANS if key in entry})
        if "tensor_parallel" in entry:
            own = (*at, "tensor_parallel")
            degrees = [integer(doc, where, v, 1, 1024) for where, v in elements(doc, own, entry["tensor_parallel"])]
            changed["tensor_parallel"] = tuple(_distinct(doc, own, degrees))
        if not changed:
            raise doc.error(at, f"changes nothing of {like.key}", allowed=PROBE_KEYS[2:])
        widths = {key: changed.pop(key) for key in MLA_KEYS if key in changed}
        if widths and like.mla is None:
            key = next(iter(widths))
            raise doc.error((*at, key), f"{like.key} has no latent attention", value=widths[key])
        if widths:
            mla = changed["mla"] = msgspec.structs.replace(cast(MlaGeometry, like.mla), **widths)
            changed.setdefault("head_size", mla.kv_lora_rank + mla.qk_rope_head_dim)
        if changed.get("sliding_window") == 0:
            changed["sliding_window"] = None
        key = axes.PROBE + name
        family = msgspec.structs.replace(
            like, key=key, title=f"{like.title}, changed", sources={}, notes=reason, **changed
        )
        wrong = drafters.problem(family)
        if wrong is not None:
            where, message, wrong_value = wrong
            raise doc.error((*at, *where), message, value=wrong_value)
        found[key] = family
    return found


def _switches(doc: TomlFile, value: object) -> dict[str, Switches]:
    """``[switches.<name>]`` tables as sorted pairs, and the set without any."""
    found: dict[str, Switches] = {axes.DEFAULT_SWITCHES: ()}
    for name, entry in named(doc, ("switches",), value, axes.NAME_PATTERN).items():
        at = ("switches", name)
        table(doc, at, entry, axes.SWITCH_NAMES)
        for key, setting in entry.items():
            text(doc, (*at, key), setting)
            if not axes.valid_switch(setting):
                raise doc.error((*at, key), "not a valid setting", value=setting, allowed=[axes.SWITCH_VALUE_PATTERN])
        if name in found:
            raise doc.error(at, "the set without switches has that name", value=name)
        pairs = tuple(sorted(entry.items()))
        for other, known in found.items():
            if pairs == known:
                raise doc.error(at, f"is the same set as {other!r}", value=name)
        found[name] = pairs
    return found


def _axes(names: _Names, at: At, entry: dict[str, Any]) -> Axes:
    return {key: _values(names, (*at, key), AXES[key], value) for key, value in entry.items() if key in AXES}


def _values(names: _Names, at: At, axis: Axis, value: object, in_exclude: bool = False) -> tuple[Value, ...]:
    """The values of one axis: one, a list of them, or ``"*"``. ``in_exclude``: only values that a cell can have."""
    doc = names.doc
    allowed: Collection[str] = names.open.get(axis.name, axis.names or ())
    every = names.every_drafter if axis.name == "drafter" else axis.every
    if value == axes.EVERY and every and not in_exclude:
        return every
    if in_exclude:
        allowed = [name for name in allowed if name not in (axes.FAMILY, axes.ROLE)]
    found = [_value(doc, where, axis, element, allowed) for where, element in elements(doc, at, value)]
    return _distinct(doc, at, found)


def _value(doc: TomlFile, at: At, axis: Axis, value: object, allowed: Collection[str]) -> Value:
    if axis.boolean:
        return boolean(doc, at, value)
    if axis.highest is None:
        return word(doc, at, value, allowed)
    if isinstance(value, str) and allowed:
        return word(doc, at, value, allowed)
    return integer(doc, at, value, axis.lowest or 0, axis.highest)


def _distinct(doc: TomlFile, at: At, values: list[Any]) -> tuple[Any, ...]:
    seen: set[Any] = set()
    for i, value in enumerate(values):
        if value in seen:
            raise doc.error((*at, i), "stands there twice", value=value)
        seen.add(value)
    return tuple(values)


def _rules(names: _Names, at: At, entry: dict[str, Any], kind: str) -> tuple[Rule, ...]:
    """The include or exclude rules of the file or of a preset."""
    if kind not in entry:
        return ()
    doc, at = names.doc, (*at, kind)
    keys, known = (INCLUDE_KEYS, AXES) if kind == "include" else (EXCLUDE_KEYS, {**AXES, **PROPERTIES})
    rules = []
    for i, rule in enumerate(tables(doc, at, entry[kind], keys)):
        here = (*at, i)
        require(doc, here, rule, ["reason"], f"say why these cells are {kind}d")
        reason = text(doc, (*here, "reason"), rule["reason"])
        match = {
            key: _values(names, (*here, key), known[key], value, in_exclude=kind == "exclude")
            for key, value in rule.items()
            if key != "reason"
        }
        if not match:
            raise doc.error(here, "names no axis", allowed=keys[1:])
        rules.append(Rule(match, reason, line=doc.line(*here), at=here))
    return tuple(rules)


def _product(names: _Names, at: At, entry: dict[str, Any]) -> dict[str, Any]:
    """What the file and a preset have in common: rules and the interpreter's bound."""
    found: dict[str, Any] = {kind: _rules(names, at, entry, kind) for kind in ("include", "exclude")}
    if "max_kv_heads" in entry:
        found["max_kv_heads"] = integer(names.doc, (*at, "max_kv_heads"), entry["max_kv_heads"], 1, 1024)
    return found


def _preset(names: _Names, at: At, entry: dict[str, Any], whole: Product) -> Product:
    """A preset's axes replace the file's; the file's exclude rules hold in it, its include rules do not."""
    doc = names.doc
    table(doc, at, entry, PRESET_KEYS)
    require(doc, at, entry, ["description"])
    own = _product(names, at, entry)
    own.setdefault("max_kv_heads", whole.max_kv_heads)
    own["exclude"] = whole.exclude + own["exclude"]
    on: tuple[str, ...] = ()
    if "targets" in entry:
        on = cast("tuple[str, ...]", _values(names, (*at, "targets"), PROPERTIES["target"], entry["targets"]))
    return Product(
        name=cast(str, at[-1]),
        axes={**whole.axes, **_axes(names, at, entry)},
        targets=on,
        description=text(doc, (*at, "description"), entry["description"]),
        line=doc.line(*at),
        **own,
    )


def _workload(doc: TomlFile, at: At, entry: dict[str, Any]) -> Workload:
    table(doc, at, entry, WORKLOAD_KEYS)
    require(doc, at, entry, ["concurrency", "input", "output"])
    values: dict[str, Any] = {}
    for key, value in entry.items():
        here = (*at, key)
        if key == "description":
            values[key] = text(doc, here, value)
        else:
            lowest, highest = WORKLOAD_BOUNDS[key]
            values[key] = integer(doc, here, value, lowest, highest)
    return Workload(**values)
