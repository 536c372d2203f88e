"""JSON schemas of pair files and of target models, from the tables that their loaders read."""

from __future__ import annotations

from typing import Any

import msgspec

from . import axes, batches, drafters, pair, pairfile, target_models, targets, vocabulary
from .pair import StateGeometry
from .tomlcheck import MAX_TEXT

Schema = dict[str, Any]

_DRAFT = "http://json-schema.org/draft-07/schema#"


def pairs_schema() -> Schema:
    """The schema of pair files; names of models and families are those that are shipped."""
    models = sorted(target_models.load(target_models.DEFAULT_DIR))
    families = sorted(
        key for key, family in drafters.load(drafters.DEFAULT_DIR).items() if family.method in pairfile.DRAFTER_CLASSES
    )
    backend: Schema = {"enum": [pairfile.AUTO, *vocabulary.ROCM_BACKENDS, *vocabulary.OTHER_BACKENDS]}
    values: Schema = {
        "target_model": {"enum": models},
        "target_backend": backend,
        "drafter": {"enum": families},
        "drafter_backend": backend,
        "tp": _integer(1, 1024),
        "block_size": _or(_integer(1, 65536), pairfile.AUTO),
        "kv_cache_dtype": {"enum": list(vocabulary.KV_CACHE_DTYPES)},
        "draft_kv_cache_dtype": {"enum": [pairfile.SAME, *vocabulary.KV_CACHE_DTYPES]},
        "num_speculative_tokens": _or(_integer(1, 64), axes.FAMILY),
        "dtype": {"enum": list(vocabulary.DTYPES)},
        "runner": {"enum": list(pair.RUNNERS)},
        "switches": {"type": "string", "pattern": axes.NAME_PATTERN},
        "batch": {"enum": ["none", *batches.NAMES]},
        "targets": {"enum": list(dict.fromkeys([*targets.KINDS, *targets.known()]))},
    }
    common = {key: _one_or_list(values[key]) for key in pairfile.COMMON_KEYS}
    one = _table({"description": _text("What the pairs are for."), **common}, ["description"])
    setting: Schema = {"type": "string", "pattern": axes.SWITCH_VALUE_PATTERN}
    return {
        "$schema": _DRAFT,
        "title": "capmatrix pair file",
        "description": "Targets and drafters in one engine.",
        **_table(
            {
                "name": _text("Name of the file's pairs (default: the file's)."),
                "description": _text("What the pairs are for."),
                "pairs": _table(common),
                "pair": _named(one, "The product of its values, and a preset."),
                "switches": _named(_table(dict.fromkeys(axes.SWITCH_NAMES, setting)), "Environment switches."),
            },
            ["pair"],
        ),
    }


def target_schema() -> Schema:
    """The schema of target models' files."""
    widths = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    state = [field.name for field in msgspec.structs.fields(StateGeometry)]
    figures: Schema = {
        "architecture": {"enum": list(target_models.ARCHITECTURES), "description": "vLLM's model class."},
        **{key: _integer(1, 1 << 24) for key in ("num_heads", "num_kv_heads", "head_size", "num_layers")},
        "sliding_window": _integer(1, 1 << 24),
        "sinks": {"type": "boolean"},
        "mla": _table(dict.fromkeys((*widths, "q_lora_rank"), _integer(1, 65536)), widths),
        "state": _table(dict.fromkeys(state, _integer(1, 65536)), state),
        "tensor_parallel": _one_or_list(_integer(1, 1024)),
    }
    own = {
        "title": _text("What the model is called."),
        **figures,
        "sources": _table(dict.fromkeys(figures, _text("A published source."))),
        "notes": _text("What else to know."),
    }
    required = ["title", "architecture", "num_heads", "num_kv_heads", "head_size", "num_layers", "tensor_parallel"]
    return {"$schema": _DRAFT, "title": "capmatrix target model", **_table(own, [*required, "sources"])}


def _text(description: str) -> Schema:
    return {"type": "string", "minLength": 1, "maxLength": MAX_TEXT, "pattern": r"\S", "description": description}


def _integer(lowest: int, highest: int) -> Schema:
    return {"type": "integer", "minimum": lowest, "maximum": highest}


def _or(number: Schema, word: str) -> Schema:
    return {"anyOf": [number, {"const": word}]}


def _one_or_list(one: Schema) -> Schema:
    return {"anyOf": [one, {"type": "array", "items": one, "minItems": 1, "uniqueItems": True}]}


def _table(properties: Schema, required: Any = ()) -> Schema:
    made: Schema = {"type": "object", "additionalProperties": False, "properties": properties}
    return {**made, "required": list(required)} if required else made


def _named(entry: Schema, description: str) -> Schema:
    return {
        "type": "object",
        "description": description,
        "propertyNames": {"pattern": axes.NAME_PATTERN},
        "additionalProperties": entry,
    }
