"""Drafter families: attention geometry of published drafters and targets, one TOML file each.

A file ``matrices/drafters/<key>.toml`` gives the figures of the whole model and, in ``[sources]``, where
each is published. A figure without a source is an error: leave it out, do not guess it. Adding a family
is adding a file.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from . import paths
from .cell import Geometry, MlaGeometry, Role
from .errors import InputError
from .toml.tomlcheck import At, boolean, elements, integer, require, table, text, word
from .toml.tomlfile import TomlFile
from .toml.tomlfile import load as load_toml
from .vocabulary import METHODS

#: The shipped families.
DEFAULT_DIR: Path = paths.drafters_dir()

#: What a file name, and with it a key, may be; it is a token of a cell's id.
KEY_PATTERN = r"[a-z0-9]+(?:[.-][a-z0-9]+)*"


class Family(msgspec.Struct, frozen=True):
    """One family. Heads and widths are those of the whole model, not of a rank.

    ``num_kv_heads`` is 1 with multi-head latent attention, whose cache has one latent vector a token of
    ``head_size = kv_lora_rank + qk_rope_head_dim`` elements. ``num_speculative_tokens`` is k: what a step
    drafts, and for a target what it verifies besides its own token. ``tensor_parallel`` are the degrees it
    is served at. ``forced_block_size`` is the manager block (tokens) that its target insists on.
    ``shared_pool`` says that its KV pool also serves layers of another kind. ``sources`` maps each figure
    to where it is published.
    """

    key: str
    title: str
    method: str
    role: Role
    num_heads: int
    num_kv_heads: int
    head_size: int
    num_speculative_tokens: int
    tensor_parallel: tuple[int, ...]
    sliding_window: int | None = None
    sinks: bool = False
    causal: bool = True
    logits_soft_cap: float | None = None
    mla: MlaGeometry | None = None
    forced_block_size: int | None = None
    shared_pool: bool = False
    sources: dict[str, str] = {}
    notes: str = ""


def _bounded(lowest: int, highest: int) -> Callable[[TomlFile, At, object], int]:
    return lambda doc, at, value: integer(doc, at, value, lowest, highest)


def _soft_cap(doc: TomlFile, at: At, value: object) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise doc.error(at, "must be a number", value=value)
    if not 0 < value <= 1e6:
        raise doc.error(at, "out of range", value=value, allowed=["above 0, up to 1e6"])
    return float(value)


def _degrees(doc: TomlFile, at: At, value: object) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise doc.error(at, "must be a list of integers", value=value)
    found: list[int] = []
    for where, element in elements(doc, at, value):
        degree = integer(doc, where, element, 1, 1024)
        if degree in found:
            raise doc.error(where, "stands twice", value=degree)
        found.append(degree)
    return tuple(found)


_MLA_WIDTHS = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def _mla(doc: TomlFile, at: At, value: object) -> MlaGeometry:
    entry = table(doc, at, value, (*_MLA_WIDTHS, "q_lora_rank"))
    require(doc, at, entry, _MLA_WIDTHS)
    return MlaGeometry(**{key: integer(doc, (*at, key), width, 1, 65536) for key, width in entry.items()})


#: Figures, each of which needs a source, and how one is read.
_FIGURES: dict[str, Callable[[TomlFile, At, object], Any]] = {
    "num_heads": _bounded(1, 4096),
    "num_kv_heads": _bounded(1, 4096),
    "head_size": _bounded(1, 8192),
    "num_speculative_tokens": _bounded(1, 1024),
    "tensor_parallel": _degrees,
    "sliding_window": _bounded(1, 2**31),
    "sinks": boolean,
    "causal": boolean,
    "logits_soft_cap": _soft_cap,
    "mla": _mla,
    "forced_block_size": _bounded(1, 65536),
    "shared_pool": boolean,
}
_REQUIRED = ("title", "method", "role", *list(_FIGURES)[:5], "sources")
KEYS: tuple[str, ...] = ("title", "method", "role", *_FIGURES, "sources", "notes")


def load(directory: str | Path) -> dict[str, Family]:
    """The families of ``directory`` by key, in the order of their names. Raises InputError for any mistake."""
    directory = Path(directory)
    try:
        files = sorted((path for path in directory.iterdir() if path.suffix == ".toml"), key=lambda path: path.stem)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"drafter families cannot be read: {reason}", file=directory) from None
    if not files:
        raise InputError("has no drafter family (a .toml file)", file=directory)
    families = [load_family(path) for path in files]
    return {family.key: family for family in families}


def load_family(path: str | Path) -> Family:
    """The family in one file. Raises InputError naming file, line, key, value and what is allowed."""
    path = Path(path)
    if not re.fullmatch(KEY_PATTERN, path.stem) or len(path.stem) > 60:
        raise InputError(
            "the file's name is the family's key: lower-case letters, digits, '-' and '.'", file=path, value=path.stem
        )
    doc = load_toml(path)
    data = table(doc, (), doc.data, KEYS)
    require(doc, (), data, _REQUIRED)
    figures = {key: read(doc, (key,), data[key]) for key, read in _FIGURES.items() if key in data}
    family = Family(
        key=path.stem,
        title=text(doc, ("title",), data["title"]),
        method=word(doc, ("method",), data["method"], METHODS),
        role=Role(word(doc, ("role",), data["role"], [role.value for role in Role])),
        sources=_sources(doc, data["sources"], figures),
        notes=text(doc, ("notes",), data["notes"]) if "notes" in data else "",
        **figures,
    )
    wrong = problem(family)
    if wrong is not None:
        keys, message, value = wrong
        raise doc.error(keys, message, value=value)
    return family


def _sources(doc: TomlFile, value: object, figures: dict[str, Any]) -> dict[str, str]:
    """Sources of exactly the figures given."""
    entry = table(doc, ("sources",), value, figures)
    require(doc, ("sources",), entry, figures, "every figure needs the place where it is published")
    return {key: text(doc, ("sources", key), source) for key, source in entry.items()}


def problem(family: Family) -> tuple[At, str, object] | None:
    """What in a family contradicts itself: the figure's key path, what is wrong, its value. None if nothing does."""
    if family.method == "none" and family.role is not Role.TARGET:
        return ("role",), "a family without a speculative method is a target", family.role.value
    if family.method in ("eagle", "eagle3", "mtp", "dflash", "dspark", "draft_model") and family.role is Role.TARGET:
        return ("role",), f"method {family.method} drafts, so that its role is drafter", family.role.value
    if family.num_heads % family.num_kv_heads:
        return (
            ("num_kv_heads",),
            f"does not divide the {family.num_heads} query heads",
            family.num_kv_heads,
        )
    if family.mla is not None:
        if family.num_kv_heads != 1:
            return ("num_kv_heads",), "is 1 with latent attention (one latent vector a token)", family.num_kv_heads
        width = family.mla.kv_lora_rank + family.mla.qk_rope_head_dim
        if family.head_size != width:
            return ("head_size",), f"is kv_lora_rank + qk_rope_head_dim = {width} in latent attention", family.head_size
    for index, degree in enumerate(family.tensor_parallel):
        if not _splits(family, degree):
            heads = f"{family.num_heads} query and {family.num_kv_heads} KV heads"
            return ("tensor_parallel", index), f"does not split {heads} evenly", degree
    return None


def _splits(family: Family, tp: int) -> bool:
    """Whether every one of ``tp`` ranks gets the same heads; KV heads are repeated where there are too few."""
    kv = family.num_kv_heads
    return tp >= 1 and family.num_heads % tp == 0 and (kv % tp == 0 or tp % kv == 0)


def geometry(family: Family, tp: int, max_kv_heads: int | None = None) -> Geometry:
    """The geometry of one of ``tp`` ranks, as vLLM splits heads (``ModelConfig.get_num_kv_heads``).

    With ``max_kv_heads``, a rank with more KV heads gets only so many, and query heads in the same ratio
    (``scaled``): attention per head stays what it was. Raises InputError if the heads do not split evenly.
    """
    if not _splits(family, tp):
        allowed = [n for n in range(1, family.num_heads + 1) if _splits(family, n)]
        raise InputError(
            f"the heads of {family.key} do not split over this many ranks", key="tp", value=tp, allowed=allowed
        )
    num_heads = family.num_heads // tp
    num_kv_heads = max(1, family.num_kv_heads // tp)
    scaled = max_kv_heads is not None and num_kv_heads > max_kv_heads >= 1
    if max_kv_heads is not None and scaled:
        num_heads = num_heads // num_kv_heads * max_kv_heads
        num_kv_heads = max_kv_heads
    return Geometry(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=family.head_size,
        sliding_window=family.sliding_window,
        sinks=family.sinks,
        causal=family.causal,
        logits_soft_cap=family.logits_soft_cap,
        mla=family.mla,
        scaled=scaled,
    )
