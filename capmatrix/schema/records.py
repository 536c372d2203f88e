"""The JSON schema of a run file's lines, generated from the types that decode them.

``python -m capmatrix.schema`` writes it where it is published: ``matrices/schema/record.schema.json``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from .. import runlines
from ..cell import RECORD_VERSION

#: Where the schema stands in the repository.
PUBLISHED = Path("matrices/schema/record.schema.json")

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """The schema of one line: an object whose ``kind`` says which; definitions under ``$defs``."""
    (line,), definitions = msgspec.json.schema_components([runlines.Line], ref_template="#/$defs/{name}")
    for definition in definitions.values():
        text = definition.get("description")
        if text:
            definition["description"] = " ".join(text.replace("``", "").split())
    found = {
        "$schema": _DIALECT,
        "title": f"A line of a capmatrix run file, record version {RECORD_VERSION}",
        "description": "One JSON object a line; see docs/records.md. Readers ignore keys they do not know.",
        **line,
        "$defs": {name: definitions[name] for name in sorted(definitions)},
    }
    # As a reader of the published file has it: lists, where the types have tuples.
    decoded: dict[str, Any] = json.loads(json.dumps(found))
    return decoded


def render() -> str:
    """The published text."""
    return json.dumps(schema(), indent=2, sort_keys=False) + "\n"


def write(directory: Path) -> Path:
    """Write the schema into ``directory``; returns its path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / PUBLISHED.name
    path.write_text(render(), encoding="utf-8")
    return path
