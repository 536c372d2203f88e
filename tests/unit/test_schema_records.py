"""The published schema of run files is the one that the types have, and records satisfy it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import samples

from capmatrix import codec
from capmatrix.cell import Cell, Check, Claim, Environment, Failure, Geometry, Kernel, Record
from capmatrix.runlines import EndLine, EnvironmentLine, RecordLine, RunLine, StartedLine
from capmatrix.schema import matrices as schema
from capmatrix.schema import records as schema_records

ROOT = Path(__file__).resolve().parents[2]
DOCS = (ROOT / "docs" / "records.md").read_text(encoding="utf-8")


def test_the_published_schema_is_up_to_date() -> None:
    published = json.loads((ROOT / schema_records.PUBLISHED).read_text(encoding="utf-8"))
    assert published == schema_records.schema(), "write it anew: python -m capmatrix.schema"


def test_every_kind_of_line_is_described() -> None:
    mapping = schema_records.schema()["discriminator"]["mapping"]
    assert set(mapping) == {"run", "environment", "started", "record", "pair", "end"}
    names = set(schema_records.schema()["$defs"])
    assert {ref.rpartition("/")[2] for ref in mapping.values()} <= names
    assert {"Record", "Environment", "Cell", "Kernel", "Check", "Claim", "Failure", "Geometry"} <= names


def validate(line: object) -> list[str]:
    library = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    validator = library.Draft202012Validator(schema_records.schema())
    return [e.message for e in validator.iter_errors(line)]


def test_lines_of_a_run_satisfy_it() -> None:
    records, environments, header = samples.seed_run()
    lines = [
        RunLine(header),
        *map(EnvironmentLine, environments.values()),
        StartedLine(records[0].cell_id),
        *map(RecordLine, (*records[::7], samples.rich_record(), samples.record(failure=samples.failure()))),
        EndLine({"pass": 3}),
    ]
    for line in lines:
        assert validate(json.loads(codec.encode(line))) == []


def test_what_is_no_line_does_not_satisfy_it() -> None:
    good = json.loads(codec.encode(RecordLine(samples.record())))
    assert validate(good) == []
    for key, value in (("verdict", "fine"), ("rung", "seen"), ("attempt", "1"), ("flags", ["odd"]), ("cell", {})):
        assert validate({**good, "record": {**good["record"], key: value}}), key
    assert validate({"kind": "other"})
    assert validate({})


def test_all_schemas_are_written(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "capmatrix.schema", str(tmp_path / "a" / "b")]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert {Path(line).name for line in told.splitlines()} == {*schema.files(), schema_records.PUBLISHED.name}
    for line in told.splitlines():
        assert Path(line).read_text(encoding="utf-8") == (ROOT / "matrices/schema" / Path(line).name).read_text("utf-8")


@pytest.mark.parametrize("kind", [Record, Environment, Cell, Geometry, Kernel, Check, Claim, Failure])
def test_every_field_is_documented(kind: type[msgspec.Struct]) -> None:
    section = DOCS.split(f"\n### {kind.__name__}\n")[1].split("\n### ")[0].split("\n## ")[0]
    for field in msgspec.structs.fields(kind):
        assert f"| `{field.name}` |" in section, f"{kind.__name__}.{field.name}"
