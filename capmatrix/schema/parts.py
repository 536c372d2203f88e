"""The pieces that the JSON schemas of capmatrix's files are put together from (draft 7, which TOML editors read)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from .. import axes
from ..toml.tomlcheck import MAX_TEXT

Schema = dict[str, Any]

DRAFT = "http://json-schema.org/draft-07/schema#"


def text(description: str) -> Schema:
    """Text that is not blank."""
    return {"type": "string", "minLength": 1, "maxLength": MAX_TEXT, "pattern": r"\S", "description": description}


def integer(lowest: int, highest: int, description: str = "") -> Schema:
    """A whole number between two bounds, both allowed."""
    schema: Schema = {"type": "integer", "minimum": lowest, "maximum": highest}
    return {**schema, "description": description} if description else schema


def table(properties: Schema, required: Collection[str] = (), description: str = "") -> Schema:
    """A table of these keys and no others."""
    schema: Schema = {"type": "object", "additionalProperties": False, "properties": properties}
    if required:
        schema["required"] = list(required)
    return {"description": description, **schema} if description else schema


def several(element: Schema) -> Schema:
    """A list of different elements, one at least."""
    return {"type": "array", "items": element, "minItems": 1, "uniqueItems": True}


def named(entry: Schema, description: str) -> Schema:
    """A table of entries, each under a name of its own."""
    return {
        "type": "object",
        "description": description,
        "propertyNames": {"pattern": axes.NAME_PATTERN},
        "additionalProperties": entry,
    }
