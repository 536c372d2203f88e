"""JSON schemas of matrix, drafter and published files, made from the tables that the loaders read.

``python -m capmatrix.schema`` writes them. They are
draft 7, which TOML editors understand. A schema checks what one value can show; what takes several values
(an empty product, a rule that matches nothing) is the loader's.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from .. import archs, axes, drafters, matrix, targets, vocabulary
from ..axes import AXES, PROPERTIES, Axis
from ..cell import Role
from ..selection import published
from . import pairs
from .expectations import expectations_schema
from .parts import DRAFT, Schema, integer, named, several, table, text


def matrix_schema(families: Collection[str] | None = None) -> Schema:
    """The schema of matrix files; ``families`` are the drafter names to complete (default: the shipped ones)."""
    known = sorted(drafters.load(drafters.DEFAULT_DIR) if families is None else families)
    return {
        "$schema": DRAFT,
        "title": "capmatrix matrix file",
        "description": "Axes, rules and presets of an attention matrix.",
        "definitions": {
            **{f"axis_{axis.name}": _values(axis, known) for axis in AXES.values()},
            **{f"property_{axis.name}": _values(axis, known, in_exclude=True) for axis in PROPERTIES.values()},
            **{f"excluded_{axis.name}": _values(axis, known, in_exclude=True) for axis in AXES.values()},
            "include": _rules("Adds the product of these values; axes not named keep the product's.", _included()),
            "exclude": _rules("Drops the cells that match all of these.", _excluded()),
            "max_kv_heads": integer(
                1, 1024, "KV heads of a rank kept on an interpreter target, the GQA ratio unchanged."
            ),
        },
        **table(
            {
                "name": text("Name of the matrix (default: the file's)."),
                "description": text("What the matrix is for."),
                "axes": table(
                    {name: _ref(f"axis_{name}") for name in AXES},
                    [axis.name for axis in AXES.values() if axis.default is None],
                    description="Values of each axis; the matrix is their product.",
                ),
                **_product(),
                "preset": named(_preset(), "A named, bounded part of the matrix."),
                "probe": named(_probe(known), "A drafter family with some figures changed, called probe-<name>."),
                "switches": named(_switches(), "A set of environment switches that a worker is started with."),
                "workload": named(_workload(), "A serving load that timing and policies weigh by."),
            },
            ["axes"],
        ),
    }


def drafter_schema() -> Schema:
    """The schema of drafter family files. What figures say together is the loader's to check."""
    figures: Schema = {
        "num_heads": integer(1, 4096, "Query heads of the whole model."),
        "num_kv_heads": integer(1, 4096, "KV heads of the whole model; 1 with latent attention."),
        "head_size": integer(1, 8192, "Head size, in elements."),
        "num_speculative_tokens": integer(1, 1024, "Tokens a step drafts or, for a target, verifies beside its own."),
        "tensor_parallel": {
            **several(integer(1, 1024)),
            "description": "Tensor-parallel degrees it is served at.",
        },
        "sliding_window": integer(1, 2**31, "Sliding window, in tokens."),
        "sinks": {"type": "boolean", "description": "Whether it has attention sinks."},
        "causal": {"type": "boolean", "description": "Whether its attention is causal (default: true)."},
        "logits_soft_cap": {"type": "number", "exclusiveMinimum": 0, "maximum": 1e6},
        "mla": table(
            dict.fromkeys((*matrix.MLA_KEYS, "q_lora_rank"), integer(1, 65536)),
            matrix.MLA_KEYS,
            description="Widths of multi-head latent attention, in elements.",
        ),
        "forced_block_size": integer(1, 65536, "Manager block, in tokens, that its target insists on."),
        "shared_pool": {"type": "boolean", "description": "Whether its KV pool also serves layers of another kind."},
    }
    own: Schema = {
        "title": text("What a table calls it."),
        "method": {
            "enum": list(vocabulary.METHODS),
            "description": "Speculative method; none is a target's own layer.",
        },
        "role": {"enum": [role.value for role in Role], "description": "Whose attention it is."},
        **figures,
        "sources": table(
            dict.fromkeys(figures, text("A published source.")), description="Where each figure is published."
        ),
        "notes": text("What else to know."),
    }
    required = ["title", "method", "role", *list(figures)[:5], "sources"]
    return {"$schema": DRAFT, "title": "capmatrix drafter family", **table(own, required)}


def published_schema(families: Collection[str] | None = None) -> Schema:
    """The schema of published comparisons; ``families`` as for ``matrix_schema``."""
    known = sorted(drafters.load(drafters.DEFAULT_DIR) if families is None else families)
    load: Schema = {
        "concurrency": integer(*published.WORKLOAD_BOUNDS["concurrency"], "Requests at a time."),
        "prompts": integer(*published.WORKLOAD_BOUNDS["prompts"], "Requests in all."),
        "input": integer(*published.WORKLOAD_BOUNDS["input"], "Tokens of a request's prompt."),
        "output": integer(*published.WORKLOAD_BOUNDS["output"], "Tokens generated for a request."),
        "context": integer(*published.WORKLOAD_BOUNDS["context"], "Tokens already cached."),
        "speculative_tokens": integer(*published.WORKLOAD_BOUNDS["speculative_tokens"], "Tokens drafted a step."),
        "dataset": text("What the prompts are."),
    }
    figure: Schema = {"type": "number", "minimum": 0, "exclusiveMaximum": 1e12}
    result: Schema = {
        "backend": {"enum": list(published.BACKENDS)},
        "status": {"enum": list(published.STATUSES), "description": "pass: requests were answered."},
        "reason": text("What happened, in the source's words; for every status but pass."),
        "variant": text("What else differs between the rows."),
        "repeats": integer(1, 1 << 20, "Runs that the figures summarise (default: 1)."),
        "spread": {**figure, "description": "Half-width given for the first figure that ranks, in its unit."},
        **{key: {**figure, "description": metric.title} for key, metric in published.METRICS.items()},
        **load,
    }
    own: Schema = {
        "title": text("What was compared."),
        "source": text("The thread or page, such as vllm-project/vllm#47882."),
        "url": {"type": "string", "pattern": "^https://"},
        "date": {
            "type": "string",
            "pattern": r"^\d{4}-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?$",
            "description": "When it was published.",
        },
        "read": {"enum": list(published.READ), "description": "How much of the source was read (default: in full)."},
        "stack": text("Versions, images, commits."),
        "hardware": text("The GPUs, or: not stated."),
        "arch": {"enum": [*archs.ARCHS, published.UNKNOWN], "description": "unknown where the GPU is not stated."},
        "model": text("The target model."),
        "draft_model": text("The drafter."),
        "drafter": {"enum": known, "description": "The family whose attention is compared."},
        "role": {"enum": [role.value for role in Role], "description": "Whose attention is compared."},
        "tp": integer(1, 1024, "Tensor-parallel degree."),
        "block_size": integer(1, 65536, "The manager block, in tokens."),
        "kv_cache_dtype": {"enum": list(vocabulary.KV_CACHE_DTYPES)},
        "dtype": {"enum": [*vocabulary.DTYPES, "auto"], "description": "auto: left to the checkpoint."},
        "baseline": {"enum": list(published.BACKENDS), "description": "What improvement is over."},
        "command": text("How the server was started."),
        "notes": text("What else to know."),
        "workload": table(load, description="The load, where all results share it."),
        "result": {"type": "array", "minItems": 1, "items": table(result, ["backend", "status"])},
    }
    own["compare"] = {
        "enum": list(published.RANKING),
        "description": "The figure to compare by (default: the first that every passing result has).",
    }
    required = ["title", "source", "date", "stack", "hardware", "arch", "role", "result"]
    return {"$schema": DRAFT, "title": "capmatrix published comparison", **table(own, required)}


def files() -> dict[str, str]:
    """Name and text of each published schema."""
    made = {
        "matrix.schema.json": matrix_schema(),
        "drafter.schema.json": drafter_schema(),
        "published.schema.json": published_schema(),
        "pairs.schema.json": pairs.pairs_schema(),
        "target.schema.json": pairs.target_schema(),
        "expectations.schema.json": expectations_schema(),
    }
    return {name: json.dumps(schema, indent=2, ensure_ascii=False) + "\n" for name, schema in made.items()}


def write(directory: Path) -> list[Path]:
    """Write the schemas into ``directory``; returns their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for name, written_out in files().items():
        path = directory / name
        path.write_text(written_out, encoding="utf-8")
        written.append(path)
    return written


def _ref(name: str) -> Schema:
    return {"$ref": f"#/definitions/{name}"}


def _one(axis: Axis, families: Sequence[str], in_exclude: bool) -> Schema:
    """A single value of an axis."""
    if axis.boolean:
        return {"type": "boolean"}
    if axis.name == "drafter":
        return {"anyOf": [{"enum": list(families)}, {"type": "string", "pattern": f"^{axes.PROBE}"}]}
    if axis.name == "switches":
        return {"type": "string", "pattern": axes.NAME_PATTERN}
    if axis.name == "target":
        return {"enum": list(dict.fromkeys([*targets.KINDS, *targets.known()]))}
    words = [w for w in axis.names or () if not (in_exclude and w in (axes.FAMILY, axes.ROLE))]
    if axis.highest is None:
        return {"enum": words}
    number = integer(axis.lowest or 0, axis.highest)
    return {"anyOf": [number, {"enum": words}]} if words else number


def _values(axis: Axis, families: Sequence[str], in_exclude: bool = False) -> Schema:
    """One value, a list of different ones, or every one."""
    one = _one(axis, families, in_exclude)
    forms = [one, several(one)]
    if (axis.every or axis.name == "drafter") and not in_exclude:
        forms.append({"const": axes.EVERY})
    return {"description": axis.title, "anyOf": forms}


def _product() -> Schema:
    return {name: _ref(name) for name in matrix.PRODUCT_KEYS}


def _rules(description: str, properties: Schema) -> Schema:
    rule = table(properties, ["reason"], description=description)
    return {"type": "array", "minItems": 1, "items": {**rule, "minProperties": 2}}


def _included() -> Schema:
    return {"reason": text("Why these cells are added."), **{name: _ref(f"axis_{name}") for name in AXES}}


def _excluded() -> Schema:
    return {
        "reason": text("Why these cells are dropped."),
        **{name: _ref(f"excluded_{name}") for name in AXES},
        **{name: _ref(f"property_{name}") for name in PROPERTIES},
    }


def _preset() -> Schema:
    own = {
        "description": text("What the preset is for."),
        "targets": {**_ref("property_target"), "description": "Targets it runs on (default: all)."},
        **_product(),
        **{name: _ref(f"axis_{name}") for name in AXES},
    }
    return table(own, ["description"])


def _probe(families: Iterable[str]) -> Schema:
    own: Schema = {
        "like": {"enum": list(families), "description": "The drafter family it starts from."},
        "reason": text("What the changed figures are to show."),
        "tensor_parallel": {
            "anyOf": [integer(1, 1024), several(integer(1, 1024))],
            "description": "Tensor-parallel degrees (default: the family's).",
        },
        **{name: integer(*bounds) for name, bounds in matrix.PROBE_INTEGERS.items()},
        **{name: {"type": "boolean"} for name in matrix.PROBE_BOOLEANS},
    }
    return {**table(own, ["like", "reason"]), "minProperties": 3}


def _switches() -> Schema:
    value = {"type": "string", "pattern": axes.SWITCH_VALUE_PATTERN}
    return {**table(dict.fromkeys(axes.SWITCH_NAMES, value)), "minProperties": 1}


def _workload() -> Schema:
    figures = {name: integer(*bounds) for name, bounds in matrix.WORKLOAD_BOUNDS.items()}
    return table({"description": text("What the load is."), **figures}, ["concurrency", "input", "output"])
