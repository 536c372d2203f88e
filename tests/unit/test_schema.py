"""The published JSON schemas: in step with the code, accepting what ships, rejecting what is wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from matrix_files import FAMILIES, GOOD, write

from capmatrix import drafters, matrix, paths, vocabulary
from capmatrix.errors import InputError
from capmatrix.pairs import pairfile
from capmatrix.schema import matrices as schema

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MATRICES = [path for path in sorted(paths.matrices_dir().glob("*.toml")) if not pairfile.is_pair_file(path)]
DRAFTERS = sorted(paths.drafters_dir().glob("*.toml"))


def validator(made: schema.Schema) -> Any:
    kind = jsonschema.validators.validator_for(made)
    kind.check_schema(made)
    return kind(made)


@pytest.fixture(scope="module")
def of_matrix() -> Any:
    return validator(schema.matrix_schema())


@pytest.fixture(scope="module")
def of_example() -> Any:
    return validator(schema.matrix_schema(FAMILIES))


@pytest.fixture(scope="module")
def of_drafter() -> Any:
    return validator(schema.drafter_schema())


@pytest.mark.parametrize("name", ["matrix.schema.json", "drafter.schema.json"])
def test_the_committed_schema_is_the_one_the_code_makes(name: str) -> None:
    committed = (paths.matrices_dir() / "schema" / name).read_text(encoding="utf-8")
    assert committed == schema.files()[name], "run: python -m capmatrix.schema"


def test_schemas_are_written_where_asked(tmp_path: Path) -> None:
    written = schema.write(tmp_path / "new")
    assert {path.name: path.read_text(encoding="utf-8") for path in written} == schema.files()


@pytest.mark.parametrize("path", MATRICES, ids=lambda p: p.name)
def test_shipped_matrices_validate(path: Path, of_matrix: Any) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.splitlines()[0] == "#:schema ./schema/matrix.schema.json"
    assert [e.message for e in of_matrix.iter_errors(tomllib.loads(text))] == []


@pytest.mark.parametrize("path", DRAFTERS, ids=lambda p: p.name)
def test_shipped_drafters_validate(path: Path, of_drafter: Any) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.splitlines()[0] == "#:schema ../schema/drafter.schema.json"
    assert [e.message for e in of_drafter.iter_errors(tomllib.loads(text))] == []


def test_the_example_validates(of_example: Any) -> None:
    assert [e.message for e in of_example.iter_errors(tomllib.loads(GOOD))] == []


#: Mistakes that one value shows, so that an editor can.
BROKEN = [
    ('"TRITON_ATTN"]', '"TRITON_ATN"]'),
    ("[16, 128]", "[0, 128]"),
    ("[16, 128]", "[16, 65537]"),
    ("[16, 128]", '["16"]'),
    ("[16, 128]", "[true]"),
    ("[16, 128]", "[16, 16]"),
    ("[16, 128]", "[]"),
    ("block_size = [16, 128]\n", ""),
    ("block_size = [16, 128]", 'block_size = "*"'),
    ("block_size = [16, 128]", "blocksize = [16, 128]"),
    ('["auto", "fp8"]', '["auto", "fp9"]'),
    ('"mha", "gqa"', '"mhaa", "gqa"'),
    ('["decode", "verify"]', '["decode", "verfy"]'),
    ("tp = 4", "tp = 0"),
    ("tp = 4", 'tp = "famly"'),
    ("tp = 4", 'dtype = "bf16"'),
    ("tp = 4", "num_speculative_tokens = 65"),
    ('"interpreter:gfx950"]', '"interpreter:gfx951"]'),
    ('description = "A few cells."\n', ""),
    ("[preset.seed]\n", "[presets.seed]\n"),
    ("[preset.seed]", '[preset."my seed"]'),
    ('reason = "an example of a rule"\n', ""),
    ('block_size = 544\nbackend = "ROCM_ATTN"\n', ""),
    ("block_size = 544", "head_size = 544"),
    ('method = "dflash"', 'method = "dflas"'),
    ("block_size = 128\nreason", 'tp = "family"\nreason'),
    ("max_kv_heads = 2", "max_kv_heads = 0"),
    ('"An example."', '" "'),
    ("[[include]]", "[include]"),
    ("VLLM_ROCM_USE_AITER =", "LD_PRELOAD ="),
    ('AITER = "0"', "AITER = 0"),
    ('AITER = "0"', 'AITER = "0 1"'),
    ('VLLM_ROCM_USE_AITER = "0"\n', ""),
    ("input = 8192\n", ""),
    ("input = 8192", "input = -1"),
    ("concurrency = 256", "concurency = 256"),
    ('like = "gqa"\n', ""),
    ('like = "gqa"', 'like = "gqq"'),
    ("head_size = 32", "headsize = 32"),
    ("head_size = 32\nnum_heads = 8\nnum_kv_heads = 4\n", ""),
]


@pytest.mark.parametrize(("old", "new"), BROKEN)
def test_schema_and_loader_reject_the_same(tmp_path: Path, of_example: Any, old: str, new: str) -> None:
    assert old in GOOD
    text = GOOD.replace(old, new, 1)
    assert not of_example.is_valid(tomllib.loads(text))
    with pytest.raises(InputError):
        matrix.load(write(tmp_path, text))


def test_a_probe_may_be_named_before_a_schema_knows_it(of_example: Any) -> None:
    assert of_example.is_valid(tomllib.loads(GOOD.replace('"probe-small"]', '"probe-other"]')))


def family(tmp_path: Path, key: str, value: str) -> tuple[dict[str, Any], InputError | None]:
    """A family with one figure set, and what its loader says."""
    text = FAMILIES["latent" if key.startswith("mla.") else "mha"]
    name = key.partition(".")[2] or key
    lines = [line for line in text.splitlines() if not line.startswith(f"{name} =")]
    if key.startswith("mla."):
        lines = [
            f"mla.{w} = {value if w == name else 64}" if "mla =" in line else line
            for line in lines
            for w in (schema.matrix.MLA_KEYS if "mla =" in line else ("",))
        ]
    else:
        lines.append(f"{key} = {value}")
    figures = [k for k in drafters.KEYS if k not in ("title", "method", "role", "sources", "notes")]
    given = [k for k in figures if any(line.split(" =")[0].split(".")[0] == k for line in lines)]
    path = tmp_path / "one.toml"
    path.write_text("\n".join([*lines, "[sources]", *(f'{k} = "made up"' for k in given)]), encoding="utf-8")
    try:
        drafters.load_family(path)
    except InputError as error:
        return tomllib.loads(path.read_text(encoding="utf-8")), error
    return tomllib.loads(path.read_text(encoding="utf-8")), None


def test_the_drafter_schema_has_the_loaders_keys(of_drafter: Any) -> None:
    assert tuple(of_drafter.schema["properties"]) == drafters.KEYS
    assert of_drafter.schema["properties"]["method"]["enum"] == list(vocabulary.METHODS)


def integer_figures() -> list[tuple[str, int, int]]:
    properties = schema.drafter_schema()["properties"]
    figures = {
        **properties,
        **{f"mla.{k}": v for k, v in properties["mla"]["properties"].items() if k != "q_lora_rank"},
    }
    return [(k, v["minimum"], v["maximum"]) for k, v in figures.items() if v.get("type") == "integer"]


@pytest.mark.parametrize(("key", "lowest", "highest"), integer_figures())
def test_the_drafter_schema_has_the_loaders_bounds(
    tmp_path: Path, of_drafter: Any, key: str, lowest: int, highest: int
) -> None:
    for value in (lowest - 1, highest + 1):
        data, error = family(tmp_path, key, str(value))
        assert error is not None
        assert "out of range" in error.message
        assert not of_drafter.is_valid(data)
    for value in (lowest, highest):
        data, error = family(tmp_path, key, str(value))
        assert error is None or "out of range" not in error.message
        assert of_drafter.is_valid(data)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("method", '"eagle4"'),
        ("role", '"driver"'),
        ("title", '""'),
        ("num_heads", "true"),
        ("num_heads", '"64"'),
        ("tensor_parallel", "[]"),
        ("tensor_parallel", "[4, 4]"),
        ("tensor_parallel", "4"),
        ("tensor_parallel", "[0]"),
        ("sinks", "1"),
        ("causal", '"yes"'),
        ("logits_soft_cap", "0"),
        ("logits_soft_cap", '"30"'),
        ("mla", "{ kv_lora_rank = 512 }"),
        ("head_width", "128"),
    ],
)
def test_broken_families_are_rejected_by_both(tmp_path: Path, of_drafter: Any, key: str, value: str) -> None:
    data, error = family(tmp_path, key, value)
    assert error is not None
    assert not of_drafter.is_valid(data)


def test_schemas_are_plain_json() -> None:
    for text in schema.files().values():
        assert json.loads(text)["$schema"].startswith("http://json-schema.org/draft-07")
