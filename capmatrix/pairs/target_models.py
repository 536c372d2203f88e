"""Target models that pairs name: one TOML file each, with the figures of the whole model and their sources.

A file ``matrices/targets/<key>.toml``. Geometry is that of the full-attention layers; what else a model class needs
(sparse layers, experts) is the engine's to fill in (``engine/pair_models.py``).
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from .. import paths
from ..cell import Geometry, MlaGeometry
from ..drafters import KEY_PATTERN
from ..errors import InputError
from ..pair import StateGeometry
from ..toml.tomlcheck import At, boolean, elements, integer, require, table, text, word
from ..toml.tomlfile import TomlFile
from ..toml.tomlfile import load as load_toml

#: The shipped target models.
DEFAULT_DIR: Path = paths.matrices_dir() / "targets"

#: Model classes of vLLM that a tiny model can be made of; ``engine/pair_models.py`` has a builder for each.
ARCHITECTURES: tuple[str, ...] = (
    "LlamaForCausalLM",
    "Qwen3ForCausalLM",
    "GptOssForCausalLM",
    "DeepseekV3ForCausalLM",
    "MiniMaxM3SparseForConditionalGeneration",
    "Qwen3NextForCausalLM",
    "Qwen3_5ForConditionalGeneration",
)

_MLA_WIDTHS = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_STATE_FIGURES = tuple(field.name for field in msgspec.structs.fields(StateGeometry))
_INTEGERS = ("num_heads", "num_kv_heads", "head_size", "num_layers", "sliding_window")
_FIGURES = ("architecture", *_INTEGERS, "sinks", "mla", "state", "tensor_parallel")
KEYS = ("title", *_FIGURES, "sources", "notes")
_REQUIRED = ("title", "architecture", *_INTEGERS[:4], "tensor_parallel", "sources")


class TargetModel(msgspec.Struct, frozen=True):
    """One target model; heads, layers and states of the whole model. ``sources`` maps each figure to its place."""

    key: str
    title: str
    architecture: str
    num_heads: int
    num_kv_heads: int
    head_size: int
    num_layers: int
    tensor_parallel: tuple[int, ...]
    sliding_window: int | None = None
    sinks: bool = False
    mla: MlaGeometry | None = None
    state: StateGeometry | None = None
    sources: dict[str, str] = {}
    notes: str = ""


def load(directory: str | Path) -> dict[str, TargetModel]:
    """The target models of ``directory`` by key. Raises InputError for any mistake."""
    directory = Path(directory)
    if not directory.is_dir():
        raise InputError("no directory of target models", file=directory)
    files = sorted(path for path in directory.iterdir() if path.suffix == ".toml")
    if not files:
        raise InputError("has no target model (a .toml file)", file=directory)
    return {path.stem: load_model(path) for path in files}


def load_model(path: str | Path) -> TargetModel:
    """The model in one file. Raises InputError naming file, line, key, value and what is allowed."""
    path = Path(path)
    if not re.fullmatch(KEY_PATTERN, path.stem):
        raise InputError("the file's name is the model's key: lower-case letters, digits, '-', '.'", file=path)
    doc = load_toml(path)
    data = table(doc, (), doc.data, KEYS)
    require(doc, (), data, _REQUIRED)
    integers = {key: integer(doc, (key,), data[key], 1, 1 << 24) for key in _INTEGERS if key in data}
    degrees = tuple(
        integer(doc, at, value, 1, 1024) for at, value in elements(doc, ("tensor_parallel",), data["tensor_parallel"])
    )
    model = TargetModel(
        key=path.stem,
        title=text(doc, ("title",), data["title"]),
        architecture=word(doc, ("architecture",), data["architecture"], ARCHITECTURES),
        tensor_parallel=degrees,
        sinks=boolean(doc, ("sinks",), data["sinks"]) if "sinks" in data else False,
        mla=_mla(doc, data["mla"]) if "mla" in data else None,
        state=_state(doc, data["state"]) if "state" in data else None,
        sources=_sources(doc, data),
        notes=text(doc, ("notes",), data["notes"]) if "notes" in data else "",
        **integers,
    )
    for index, degree in enumerate(degrees):
        if not splits(model, degree):
            raise doc.error(("tensor_parallel", index), "does not split the heads evenly", value=degree)
    return model


def _mla(doc: TomlFile, value: object) -> MlaGeometry:
    at: At = ("mla",)
    entry = table(doc, at, value, (*_MLA_WIDTHS, "q_lora_rank"))
    require(doc, at, entry, _MLA_WIDTHS)
    return MlaGeometry(**{key: integer(doc, (*at, key), width, 1, 65536) for key, width in entry.items()})


def _state(doc: TomlFile, value: object) -> StateGeometry:
    at: At = ("state",)
    entry = table(doc, at, value, _STATE_FIGURES)
    require(doc, at, entry, _STATE_FIGURES)
    return StateGeometry(**{key: integer(doc, (*at, key), figure, 1, 65536) for key, figure in entry.items()})


def _sources(doc: TomlFile, data: dict[str, object]) -> dict[str, str]:
    given = [key for key in _FIGURES if key in data]
    entry = table(doc, ("sources",), data["sources"], given)
    require(doc, ("sources",), entry, given, "every figure needs the place where it is published")
    return {key: text(doc, ("sources", key), source) for key, source in entry.items()}


def splits(model: TargetModel, tp: int) -> bool:
    """Whether every one of ``tp`` ranks gets the same heads and states; KV heads are repeated where too few."""
    kv = model.num_kv_heads
    states = () if model.state is None else (model.state.num_key_heads, model.state.num_value_heads)
    return tp >= 1 and all(n % tp == 0 for n in (model.num_heads, *states)) and (kv % tp == 0 or tp % kv == 0)


def geometry(model: TargetModel, tp: int) -> Geometry:
    """Attention of one of ``tp`` ranks, as vLLM splits heads."""
    return Geometry(
        num_heads=model.num_heads // tp,
        num_kv_heads=max(1, model.num_kv_heads // tp) if model.mla is None else 1,
        head_size=model.head_size,
        sliding_window=model.sliding_window,
        sinks=model.sinks,
        mla=model.mla,
    )


def state(model: TargetModel, tp: int) -> StateGeometry | None:
    """Recurrent layers of one of ``tp`` ranks; None where the model has none."""
    if model.state is None:
        return None
    return msgspec.structs.replace(
        model.state,
        num_key_heads=model.state.num_key_heads // tp,
        num_value_heads=model.state.num_value_heads // tp,
    )
