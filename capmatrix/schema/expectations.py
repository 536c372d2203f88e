"""The JSON schema of expectation files, made from the tables that their loader reads."""

from __future__ import annotations

from collections.abc import Collection

from .. import archs, axes, drafters, targets
from ..axes import Axis
from ..drafters import KEY_PATTERN
from ..expect import expectation_file, expectations, pair_axes, versionrange
from .parts import DRAFT, Schema, several, table, text


def expectations_schema(families: Collection[str] | None = None) -> Schema:
    """The schema; ``families`` are the drafter names to complete (default: the shipped ones)."""
    known = sorted(drafters.load(drafters.DEFAULT_DIR) if families is None else families)
    # Cells and pairs share names; a pair's value may also be that nothing was given.
    both = {**expectation_file.MATCHERS, **pair_axes.MATCHERS}
    matchers: Schema = {
        **{name: _many(_one(axis, known), axis.title) for name, axis in both.items()},
        "switches": _many(
            {"type": "string", "pattern": expectation_file.SWITCHES_PATTERN},
            "Environment switches, NAME=value and a blank between two; default: none of them.",
        ),
        "target": _many({"enum": list(dict.fromkeys([*targets.KINDS, *targets.known()]))}, "Target, or kind of it."),
        "arch": _many({"enum": list(archs.ARCHS)}, "AMD architecture that the evidence speaks for."),
        **{
            name: {
                "anyOf": [{"type": "string", "pattern": versionrange.PATTERN}, {"const": axes.EVERY}],
                "description": f"Range of {name} versions, such as >=0.31,<0.33.",
            }
            for name in expectations.VERSIONS
        },
    }
    verdict: Schema = {"enum": list(expectation_file.VERDICTS)}
    common: Schema = {
        "reason": text("Why it is so, in a line."),
        "link": {
            "type": "string",
            "pattern": expectation_file.LINK_PATTERN,
            "description": "https://..., owner/repository#number, docs/<page>.md#<section>, or: unreported.",
        },
        "cells": _described({"type": "string", "pattern": expectation_file.ID_PATTERN}, "Cells by id."),
        "pairs": _described({"type": "string", "pattern": expectation_file.ID_PATTERN}, "Pairs by id."),
        **matchers,
    }
    flaky = {**_described(verdict, "The verdicts it has been seen with."), "minItems": 2}
    return {
        "$schema": DRAFT,
        "title": "capmatrix expectations",
        "description": "Verdicts that differ from what backends declare.",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "description": text("What the file is about."),
            "properties": {
                "type": "array",
                "uniqueItems": True,
                "items": {"enum": list(expectations.PROPERTIES)},
                "description": "What capmatrix expect may turn into conditions (default: all).",
            },
            "scope": {**table(matchers), "description": "Holds for every entry that does not name the key itself."},
            "expect": {
                "type": "array",
                "minItems": 1,
                "items": table({"verdict": verdict, **common}, ["verdict", "reason", "link"]),
            },
            "flaky": {
                "type": "array",
                "minItems": 1,
                "items": table({"verdicts": flaky, **common}, ["verdicts", "reason", "link"]),
            },
        },
    }


def _one(axis: Axis, families: Collection[str]) -> Schema:
    if axis.boolean:
        return {"type": "boolean"}
    if axis.name == "drafter":
        return {"anyOf": [{"enum": list(families)}, {"type": "string", "pattern": f"^{axes.PROBE}"}]}
    if axis.name == "target_model":
        return {"type": "string", "pattern": KEY_PATTERN}
    words = [name for name in axis.names or () if name not in (axes.FAMILY, axes.ROLE)]
    if axis.highest is None:
        return {"enum": words}
    number: Schema = {"type": "integer", "minimum": axis.lowest or 0, "maximum": axis.highest}
    return {"anyOf": [number, {"enum": words}]} if words else number


def _many(value: Schema, description: str) -> Schema:
    """One value, a list of them, or ``"*"`` for any."""
    several = {"type": "array", "items": value, "minItems": 1}
    return {"anyOf": [value, several, {"const": axes.EVERY}], "description": description}


def _described(value: Schema, description: str) -> Schema:
    return {**several(value), "description": description}
