"""JSON schemas of pair files and of target models, from the tables that their loaders read."""

from __future__ import annotations

import msgspec

from .. import axes, batches, drafters, pair, targets, vocabulary
from ..pair import StateGeometry
from ..pairs import pairfile, target_models
from .parts import DRAFT, Schema, integer, named, several, table, text


def pairs_schema() -> Schema:
    """The schema of pair files; names of models and families are those that are shipped."""
    models = sorted(target_models.load(target_models.DEFAULT_DIR))
    families = sorted(
        key for key, family in drafters.load(drafters.DEFAULT_DIR).items() if family.method in pairfile.DRAFTER_CLASSES
    )
    backend: Schema = {"enum": [pair.AUTO, *vocabulary.ROCM_BACKENDS, *vocabulary.OTHER_BACKENDS]}
    values: Schema = {
        "target_model": {"enum": models},
        "target_backend": backend,
        "drafter": {"enum": families},
        "drafter_backend": backend,
        "tp": integer(1, 1024),
        "block_size": _or(integer(1, 65536), pair.AUTO),
        "kv_cache_dtype": {"enum": list(vocabulary.KV_CACHE_DTYPES)},
        "draft_kv_cache_dtype": {"enum": [pair.SAME, *vocabulary.KV_CACHE_DTYPES]},
        "num_speculative_tokens": _or(integer(1, 64), axes.FAMILY),
        "dtype": {"enum": list(vocabulary.DTYPES)},
        "runner": {"enum": list(pair.RUNNERS)},
        "switches": {"type": "string", "pattern": axes.NAME_PATTERN},
        "batch": {"enum": ["none", *batches.NAMES]},
        "targets": {"enum": list(dict.fromkeys([*targets.KINDS, *targets.known()]))},
    }
    common = {key: _one_or_list(values[key]) for key in pairfile.COMMON_KEYS}
    one = table({"description": text("What the pairs are for."), **common}, ["description"])
    setting: Schema = {"type": "string", "pattern": axes.SWITCH_VALUE_PATTERN}
    return {
        "$schema": DRAFT,
        "title": "capmatrix pair file",
        "description": "Targets and drafters in one engine.",
        **table(
            {
                "name": text("Name of the file's pairs (default: the file's)."),
                "description": text("What the pairs are for."),
                "pairs": table(common),
                "pair": named(one, "The product of its values, and a preset."),
                "switches": named(table(dict.fromkeys(axes.SWITCH_NAMES, setting)), "Environment switches."),
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
        **{key: integer(1, 1 << 24) for key in ("num_heads", "num_kv_heads", "head_size", "num_layers")},
        "sliding_window": integer(1, 1 << 24),
        "sinks": {"type": "boolean"},
        "mla": table(dict.fromkeys((*widths, "q_lora_rank"), integer(1, 65536)), widths),
        "state": table(dict.fromkeys(state, integer(1, 65536)), state),
        "tensor_parallel": _one_or_list(integer(1, 1024)),
    }
    own = {
        "title": text("What the model is called."),
        **figures,
        "sources": table(dict.fromkeys(figures, text("A published source."))),
        "notes": text("What else to know."),
    }
    required = ["title", "architecture", "num_heads", "num_kv_heads", "head_size", "num_layers", "tensor_parallel"]
    return {"$schema": DRAFT, "title": "capmatrix target model", **table(own, [*required, "sources"])}


def _or(number: Schema, word: str) -> Schema:
    return {"anyOf": [number, {"const": word}]}


def _one_or_list(one: Schema) -> Schema:
    return {"anyOf": [one, several(one)]}
