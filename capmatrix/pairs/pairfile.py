"""Pair files: TOML to pairs of a target model and a drafter. ``docs/pairs.md`` has the grammar.

A file has ``[pair.<name>]`` tables, each the product of its values; ``[pairs]`` gives what they all have unless they
say otherwise. Every mistake is one InputError that names file, line, key, value, what is allowed, the nearest name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, cast

import msgspec

from .. import axes, batches, drafters, pair, targets, vocabulary
from ..drafters import Family
from ..errors import InputError
from ..pair import AUTO, SAME, Pair, Side
from ..toml.tomlcheck import At, elements, integer, named, require, table, text, word
from ..toml.tomlfile import TomlFile
from ..toml.tomlfile import load as load_toml
from . import target_models
from .target_models import TargetModel

#: Drafter methods that a pair can have, and the model class that a config of theirs names; MTP's is the target's own.
DRAFTER_CLASSES: dict[str, str] = {
    "eagle": "EagleLlamaForCausalLM",
    "eagle3": "LlamaForCausalLMEagle3",
    "mtp": "",
    "dflash": "DFlashDraftModel",
    "dspark": "Qwen3DSparkModel",
    "draft_model": "Qwen3ForCausalLM",
}

_BACKENDS = (AUTO, *vocabulary.ROCM_BACKENDS, *vocabulary.OTHER_BACKENDS)

Value = str | int
Read = Callable[[TomlFile, At, object], Value]


def _one_of(names: Collection[str]) -> Read:
    return lambda doc, at, value: word(doc, at, value, names)


def _number(lowest: int, highest: int, *names: str) -> Read:
    def read(doc: TomlFile, at: At, value: object) -> Value:
        return word(doc, at, value, names) if isinstance(value, str) else integer(doc, at, value, lowest, highest)

    return read


#: Key -> (how a value is read, what it is where a file does not say). None: it must say.
_KEYS: dict[str, tuple[Read | None, tuple[Value, ...] | None]] = {
    "target_model": (None, None),
    "target_backend": (_one_of(_BACKENDS), (AUTO,)),
    "drafter": (None, None),
    "drafter_backend": (_one_of(_BACKENDS), (AUTO,)),
    "tp": (_number(1, 1024), (1,)),
    "block_size": (_number(1, 65536, AUTO), (AUTO,)),
    "kv_cache_dtype": (_one_of(vocabulary.KV_CACHE_DTYPES), ("auto",)),
    "draft_kv_cache_dtype": (_one_of((SAME, *vocabulary.KV_CACHE_DTYPES)), (SAME,)),
    "num_speculative_tokens": (_number(1, 64, axes.FAMILY), (axes.FAMILY,)),
    "dtype": (_one_of(vocabulary.DTYPES), ("bfloat16",)),
    "runner": (_one_of(pair.RUNNERS), (AUTO,)),
    "switches": (None, (axes.DEFAULT_SWITCHES,)),
}
KEYS = tuple(_KEYS)
#: Keys of ``[pairs]`` and of ``[pair.<name>]``.
COMMON_KEYS = (*KEYS, "batch", "targets")
PAIR_KEYS = ("description", *COMMON_KEYS)
FILE_KEYS = ("name", "description", "pairs", "pair", "switches")

_PAIR_TABLE = re.compile(rb"^\s*\[\s*pair\s*\.", re.MULTILINE)


class Product(msgspec.Struct, frozen=True):
    """One ``[pair.<name>]`` table: values by key; ``batches`` to run where set-up passes, ``targets`` to run on."""

    name: str
    description: str
    values: dict[str, tuple[Value, ...]]
    batches: tuple[str, ...]
    targets: tuple[str, ...]
    line: int | None = None


class PairMatrix(msgspec.Struct, frozen=True):
    """A validated pair file. ``presets`` are its products by name, so that one of them can be asked for."""

    path: str
    name: str
    description: str
    presets: dict[str, Product]
    switches: dict[str, tuple[tuple[str, str], ...]]
    models: dict[str, TargetModel]
    families: dict[str, Family]


def is_pair_file(path: str | Path) -> bool:
    """Whether a TOML file is one of pairs, by its first table that names one; False where it cannot be read."""
    try:
        with Path(path).open("rb") as stream:
            return _PAIR_TABLE.search(stream.read(1 << 20)) is not None
    except OSError:
        return False


def load(path: str | Path) -> PairMatrix:
    """Read, check and return the pair file ``path``.

    Target models and drafter families come from the shipped directories and from ``targets/`` and ``drafters/``
    beside the file. Raises InputError for every mistake.
    """
    doc = load_toml(path)
    data = table(doc, (), doc.data, FILE_KEYS)
    require(doc, (), data, ["pair"])
    models = _with_own(doc.path, "targets", target_models.load, target_models.DEFAULT_DIR)
    families = {
        key: family
        for key, family in _with_own(doc.path, "drafters", drafters.load, drafters.DEFAULT_DIR).items()
        if family.method in DRAFTER_CLASSES
    }
    switches = _switches(doc, data.get("switches", {}))
    names = {"target_model": tuple(models), "drafter": tuple(families), "switches": tuple(switches)}
    common = table(doc, ("pairs",), data.get("pairs", {}), COMMON_KEYS)
    defaults = _values(doc, ("pairs",), common, names)
    products = {}
    for name, entry in named(doc, ("pair",), data["pair"], axes.NAME_PATTERN).items():
        at: At = ("pair", name)
        table(doc, at, entry, PAIR_KEYS)
        require(doc, at, entry, ["description"])
        values = {key: default for key, (_, default) in _KEYS.items() if default is not None}
        values |= defaults | _values(doc, at, entry, names)
        require(doc, at, values, [key for key, (_, default) in _KEYS.items() if default is None])
        both = {**common, **entry}
        products[name] = Product(
            name=name,
            description=text(doc, (*at, "description"), entry["description"]),
            values=values,
            batches=_batches(doc, at, both),
            targets=_targets(doc, at, both),
            line=doc.line(*at),
        )
    matrix = PairMatrix(
        path=str(doc.path),
        name=text(doc, ("name",), data.get("name", doc.path.stem)),
        description=text(doc, ("description",), data["description"]) if "description" in data else "",
        presets=products,
        switches=switches,
        models=models,
        families=families,
    )
    for part in products.values():
        _check(doc, matrix, part)
    return matrix


def _with_own(path: Path, folder: str, read: Callable[[Path], dict[str, Any]], shipped: Path) -> dict[str, Any]:
    found = read(shipped)
    own = path.parent / folder
    if own.is_dir() and not own.samefile(shipped):
        found = {**found, **read(own)}
    return found


def _values(
    doc: TomlFile, at: At, entry: dict[str, Any], names: dict[str, tuple[str, ...]]
) -> dict[str, tuple[Value, ...]]:
    found: dict[str, tuple[Value, ...]] = {}
    for key in KEYS:
        if key not in entry:
            continue
        read = _KEYS[key][0] or _one_of(names[key])
        values: list[Value] = []
        for where, element in elements(doc, (*at, key), entry[key]):
            value = read(doc, where, element)
            if value in values:
                raise doc.error(where, "stands there twice", value=value)
            values.append(value)
        found[key] = tuple(values)
    return found


def _batches(doc: TomlFile, at: At, entry: dict[str, Any]) -> tuple[str, ...]:
    """Batches to run; ``none`` is set-up alone."""
    if "batch" not in entry:
        return ("decode", "verify")
    if entry["batch"] == "none":
        return ()
    return tuple(word(doc, where, name, batches.NAMES) for where, name in elements(doc, (*at, "batch"), entry["batch"]))


def _targets(doc: TomlFile, at: At, entry: dict[str, Any]) -> tuple[str, ...]:
    known = (*targets.KINDS, *(name for name in targets.known() if name not in targets.KINDS))
    if "targets" not in entry:
        return ()
    return tuple(word(doc, where, name, known) for where, name in elements(doc, (*at, "targets"), entry["targets"]))


def _switches(doc: TomlFile, value: object) -> dict[str, tuple[tuple[str, str], ...]]:
    found: dict[str, tuple[tuple[str, str], ...]] = {axes.DEFAULT_SWITCHES: ()}
    for name, entry in named(doc, ("switches",), value, axes.NAME_PATTERN).items():
        at: At = ("switches", name)
        table(doc, at, entry, axes.SWITCH_NAMES)
        for key, setting in entry.items():
            text(doc, (*at, key), setting)
            if not axes.valid_switch(setting):
                raise doc.error((*at, key), "not a valid setting", value=setting, allowed=[axes.SWITCH_VALUE_PATTERN])
        found[name] = tuple(sorted(entry.items()))
    return found


def _check(doc: TomlFile, matrix: PairMatrix, part: Product) -> None:
    """Every target model splits over every degree; an MTP drafter is the target's own kind of attention."""
    at: At = ("pair", part.name)
    for name, tp in product(part.values["target_model"], part.values["tp"]):
        model = matrix.models[cast(str, name)]
        if not target_models.splits(model, cast(int, tp)):
            raise doc.error((*at, "tp"), f"the heads of {name} do not split over this many ranks", value=tp)
    for name, tp in product(part.values["drafter"], part.values["tp"]):
        try:
            drafters.geometry(matrix.families[cast(str, name)], cast(int, tp))
        except InputError as error:
            raise doc.error((*at, "tp"), f"{name}: {error.message}", value=tp, allowed=error.allowed) from None
    for model_name, name in product(part.values["target_model"], part.values["drafter"]):
        said = _unlike(matrix.models[cast(str, model_name)], matrix.families[cast(str, name)])
        if said:
            raise doc.error((*at, "drafter"), said, value=name)


def _unlike(model: TargetModel, family: Family) -> str:
    """Why the family cannot draft for the model; empty where it can."""
    if family.method == "mtp" and (family.head_size, family.num_heads) != (model.head_size, model.num_heads):
        return f"an MTP drafter is a layer of its target, and {model.key}'s differ"
    return ""


def one(values: dict[str, Value], target: str) -> Pair:
    """One pair of the shipped models and families, set-up alone; keys not given have their defaults.

    Raises InputError for what is not known or does not fit.
    """
    models, families = target_models.load(target_models.DEFAULT_DIR), drafters.load(drafters.DEFAULT_DIR)
    known = {key: family for key, family in families.items() if family.method in DRAFTER_CLASSES}
    given = {key: default[0] for key, (_, default) in _KEYS.items() if default is not None} | values
    allowed: dict[str, Collection[str]] = {
        "target_model": models,
        "drafter": known,
        "target_backend": _BACKENDS,
        "drafter_backend": _BACKENDS,
        "kv_cache_dtype": vocabulary.KV_CACHE_DTYPES,
        "draft_kv_cache_dtype": (SAME, *vocabulary.KV_CACHE_DTYPES),
        "dtype": vocabulary.DTYPES,
    }
    for key, names in allowed.items():
        if given[key] not in names:
            raise InputError("unknown value", key=key, value=given[key], allowed=names)
    tp = cast(int, given["tp"])
    if not target_models.splits(models[cast(str, given["target_model"])], tp):
        raise InputError("the target's heads do not split over this many ranks", key="tp", value=tp)
    said = _unlike(models[cast(str, given["target_model"])], known[cast(str, given["drafter"])])
    if said:
        raise InputError(said, key="drafter", value=given["drafter"])
    part = Product("one", "one", {key: (value,) for key, value in given.items()}, (), ())
    matrix = PairMatrix("", "", "", {"one": part}, {axes.DEFAULT_SWITCHES: ()}, models, known)
    return next(_pairs(matrix, part, target))


def expand(matrix: PairMatrix, preset: str | None = None, targets: Sequence[str] | None = None) -> list[Pair]:
    """The pairs of the file, or of one of its tables, on each of ``targets`` (default: ``targets.here()``).

    Pairs of one worker stand together. Raises InputError for an unknown table or target, or when no pair is left.
    """
    from .. import targets as kinds
    from ..expand import on_target

    if preset is not None and preset not in matrix.presets:
        raise InputError("unknown preset", file=matrix.path, key="preset", value=preset, allowed=matrix.presets)
    parts = matrix.presets.values() if preset is None else [matrix.presets[preset]]
    found: dict[str, Pair] = {}
    for target in dict.fromkeys(kinds.here() if targets is None else targets):
        kinds.parse(target)
        for part in parts:
            if part.targets and not on_target(part.targets, target):
                continue
            for made in _pairs(matrix, part, target):
                name = pair.pair_id(made)
                # Two tables may have a pair in common; it is run once, by the one that runs more of it.
                if name not in found or len(made.batches) > len(found[name].batches):
                    found[name] = made
    if not found:
        raise InputError("no pair of this file runs on the targets asked for", file=matrix.path, value=targets)
    by_server: dict[object, list[Pair]] = {}
    for made in found.values():
        by_server.setdefault(pair.server_key(made), []).append(made)
    return [made for group in by_server.values() for made in group]


def count(matrix: PairMatrix, preset: str | None = None, targets: Sequence[str] | None = None) -> int:
    """How many pairs ``expand`` gives."""
    return len(expand(matrix, preset, targets))


def _pairs(matrix: PairMatrix, part: Product, target: str) -> Iterator[Pair]:
    for values in product(*(part.values[key] for key in KEYS)):
        yield _pair(matrix, part, target, dict(zip(KEYS, values, strict=True)))


def _pair(matrix: PairMatrix, part: Product, target: str, at: dict[str, Any]) -> Pair:
    model, family = matrix.models[at["target_model"]], matrix.families[at["drafter"]]
    tp = at["tp"]
    k = at["num_speculative_tokens"]

    def unless(value: Any, word_: str) -> Any:
        return None if value == word_ else value

    return Pair(
        target=target,
        target_model=Side(
            family=model.key,
            architecture=model.architecture,
            geometry=target_models.geometry(model, tp),
            backend=unless(at["target_backend"], AUTO),
            state=target_models.state(model, tp),
        ),
        drafter=Side(
            family=family.key,
            architecture=DRAFTER_CLASSES[family.method],
            geometry=drafters.geometry(family, tp),
            backend=unless(at["drafter_backend"], AUTO),
        ),
        tp=tp,
        method=family.method,
        num_speculative_tokens=family.num_speculative_tokens if k == axes.FAMILY else k,
        block_size=unless(at["block_size"], AUTO),
        kv_cache_dtype=at["kv_cache_dtype"],
        draft_kv_cache_dtype=unless(at["draft_kv_cache_dtype"], SAME),
        dtype=at["dtype"],
        runner=at["runner"],
        batches=part.batches,
        switches=matrix.switches[at["switches"]],
    )
