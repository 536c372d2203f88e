"""Pair files: what they expand to, what is shipped, and one clear error a mistake."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from capmatrix import paths
from capmatrix.errors import InputError
from capmatrix.pair import pair_id
from capmatrix.pairs import pairfile, target_models
from capmatrix.pairs.pairfile import PairMatrix
from capmatrix.schema import matrices as schema
from capmatrix.schema import pairs as schema_pairs

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

OFFLINE = ("offline:gfx942",)
SHIPPED = paths.matrices_dir() / "pairs.toml"

GOOD = """\
name = "mine"

[pairs]
kv_cache_dtype = "fp8"

[pair.seed]
description = "The seed."
target_model = "minimax-m3"
target_backend = "TRITON_ATTN"
drafter = "minimax-m3-eagle3"
drafter_backend = ["auto", "ROCM_AITER_FA"]
tp = 4
block_size = [128, "auto"]

[pair.other]
description = "Another."
target_model = "llama3.1-8b"
drafter = "eagle3-llama3.1-8b"
kv_cache_dtype = "auto"
draft_kv_cache_dtype = "fp8"
runner = "v1"
switches = "aiter"
batch = "none"
targets = ["offline"]

[switches.aiter]
VLLM_ROCM_USE_AITER = "1"
"""


def loaded(tmp_path: Path, text: str = GOOD) -> PairMatrix:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return pairfile.load(path)


def test_a_table_is_the_product_of_its_values(tmp_path: Path) -> None:
    found = pairfile.expand(loaded(tmp_path), "seed", OFFLINE)
    assert [(p.drafter.backend, p.block_size) for p in found] == [
        (None, 128),
        (None, None),
        ("ROCM_AITER_FA", 128),
        ("ROCM_AITER_FA", None),
    ]
    first = found[0]
    assert (first.kv_cache_dtype, first.draft_kv_cache_dtype, first.runner) == ("fp8", None, "auto")
    assert (first.method, first.num_speculative_tokens) == ("eagle3", 2)
    assert first.batches == ("decode", "verify")
    assert (first.target_model.geometry.num_heads, first.target_model.geometry.num_kv_heads) == (16, 1)
    assert (first.drafter.geometry.num_heads, first.drafter.geometry.num_kv_heads) == (16, 16)


def test_what_a_table_says_outranks_what_all_have(tmp_path: Path) -> None:
    (found,) = pairfile.expand(loaded(tmp_path), "other", OFFLINE)
    assert (found.kv_cache_dtype, found.draft_kv_cache_dtype, found.runner) == ("auto", "fp8", "v1")
    assert found.switches == (("VLLM_ROCM_USE_AITER", "1"),)
    assert found.batches == ()


def test_tables_run_on_their_own_targets_and_workers_stay_together(tmp_path: Path) -> None:
    matrix = loaded(tmp_path)
    on_both = pairfile.expand(matrix, None, ["offline:gfx942", "interpreter:gfx950"])
    assert {p.target for p in on_both if p.runner == "v1"} == {"offline:gfx942"}
    assert len(on_both) == 4 + 4 + 1
    servers = [(p.target, p.switches) for p in on_both]
    assert servers == sorted(servers, key=servers.index)
    with pytest.raises(InputError, match="no pair of this file runs"):
        pairfile.expand(matrix, "other", ["interpreter:gfx950"])
    with pytest.raises(InputError, match="unknown preset"):
        pairfile.expand(matrix, "sead", OFFLINE)


def test_a_pair_of_two_tables_is_there_once_with_what_runs_more(tmp_path: Path) -> None:
    again = GOOD + '[pair.less]\ndescription = "x"\ntarget_model = "minimax-m3"\ntarget_backend = "TRITON_ATTN"\n'
    again += 'drafter = "minimax-m3-eagle3"\ntp = 4\nblock_size = 128\nbatch = "none"\n'
    found = pairfile.expand(loaded(tmp_path, again), None, OFFLINE)
    ids = [pair_id(p) for p in found]
    assert len(ids) == len(set(ids)) == 5
    assert all(p.batches for p in found if p.target_model.family == "minimax-m3")


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('target_model = "minimax-m3"', 'target_model = "minimax-m4"', "minimax-m3"),
        ('drafter = "minimax-m3-eagle3"', 'drafter = "minimax-m3-eagel3"', "minimax-m3-eagle3"),
        ('drafter = "minimax-m3-eagle3"', 'drafter = "target-llama3.1-8b"', "unknown value"),
        ('target_backend = "TRITON_ATTN"', 'target_backend = "TRITON_ATN"', "TRITON_ATTN"),
        ('runner = "v1"', 'runner = "v3"', "auto, v1, v2"),
        ('switches = "aiter"', 'switches = "aitr"', "aiter"),
        ("tp = 4", "tp = 3", "do not split"),
        ("tp = 4", 'tp = "4"', "tp"),
        ("block_size = [128,", "block_size = [0,", "out of range"),
        ('block_size = [128, "auto"]', "block_size = [128, 128]", "stands there twice"),
        ('description = "The seed."\n', "", "description"),
        ('target_model = "llama3.1-8b"\n', "", "target_model"),
        ('batch = "none"', 'batch = ["decod"]', "decode"),
        ('targets = ["offline"]', 'targets = ["offlin"]', "offline"),
        ("[pairs]", "[pears]", "pairs"),
        ('VLLM_ROCM_USE_AITER = "1"', 'VLLM_ROCM_USE_AITR = "1"', "VLLM_ROCM_USE_AITER"),
        ('kv_cache_dtype = "fp8"\n\n[pair.seed]', 'kv_cache_dtype = "fp9"\n\n[pair.seed]', "fp8"),
    ],
)
def test_a_mistake_is_one_message_at_its_line(tmp_path: Path, before: str, after: str, said: str) -> None:
    assert before in GOOD
    with pytest.raises(InputError) as caught:
        loaded(tmp_path, GOOD.replace(before, after))
    text = str(caught.value)
    assert said in text
    assert f"{tmp_path / 'mine.toml'}:" in text


def test_an_mtp_drafter_must_be_its_target_s(tmp_path: Path) -> None:
    text = GOOD.replace('drafter = "eagle3-llama3.1-8b"', 'drafter = "qwen3-next-mtp"').replace("tp = 4", "tp = 4")
    text = text.replace('runner = "v1"', 'runner = "v1"\ntp = 2')
    with pytest.raises(InputError, match="an MTP drafter is a layer of its target"):
        loaded(tmp_path, text)


def test_target_models_beside_a_file_count(tmp_path: Path) -> None:
    (tmp_path / "targets").mkdir()
    text = (target_models.DEFAULT_DIR / "llama3.1-8b.toml").read_text(encoding="utf-8")
    (tmp_path / "targets" / "mine.toml").write_text(text.replace("num_kv_heads = 8", "num_kv_heads = 4"))
    found = loaded(tmp_path, GOOD.replace('target_model = "llama3.1-8b"', 'target_model = "mine"'))
    (pair,) = pairfile.expand(found, "other", OFFLINE)
    assert (pair.target_model.family, pair.target_model.geometry.num_kv_heads) == ("mine", 4)


def test_pair_files_are_told_from_matrices(tmp_path: Path) -> None:
    assert pairfile.is_pair_file(SHIPPED)
    assert not pairfile.is_pair_file(SHIPPED.with_name("smoke.toml"))
    assert not pairfile.is_pair_file(tmp_path / "none.toml")


def test_what_ships() -> None:
    matrix = pairfile.load(SHIPPED)
    everything = pairfile.expand(matrix, None, ["offline:gfx942", "offline:gfx950", "interpreter:gfx950"])
    assert len(everything) <= 700
    assert all(part.description for part in matrix.presets.values())
    architectures = {p.target_model.architecture for p in everything}
    assert architectures == set(target_models.ARCHITECTURES)  # dense, latent, sparse, windows, hybrids
    assert {p.method for p in everything} == set(pairfile.DRAFTER_CLASSES)
    assert {p.runner for p in everything} == {"auto", "v1", "v2"}
    assert {None, 16, 64, 128, 544} <= {p.block_size for p in everything}
    assert {None, "auto", "fp8"} <= {p.draft_kv_cache_dtype for p in everything}
    assert any(p.drafter.backend is None for p in everything) and any(p.drafter.backend for p in everything)
    seed = pairfile.expand(matrix, "seed", OFFLINE)
    assert {p.drafter.backend for p in seed} == {
        None,
        "ROCM_ATTN",
        "TRITON_ATTN",
        "ROCM_AITER_FA",
        "ROCM_AITER_UNIFIED_ATTN",
    }


def test_the_manual_names_every_key() -> None:
    manual = (paths.matrices_dir().parent / "docs" / "pairs.md").read_text(encoding="utf-8")
    for key in pairfile.PAIR_KEYS:
        assert f"`{key}`" in manual, key
    assert tomllib.loads(GOOD)  # the example of these tests is TOML at all


def test_schemas_are_published_and_what_ships_satisfies_them() -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    folder = paths.matrices_dir() / "schema"
    for name in ("pairs.schema.json", "target.schema.json"):
        assert (folder / name).read_text(encoding="utf-8") == schema.files()[name], "run: python -m capmatrix.schema"
    files = [(SHIPPED, schema_pairs.pairs_schema(), "./schema/pairs.schema.json")]
    files += [
        (path, schema_pairs.target_schema(), "../schema/target.schema.json")
        for path in sorted(target_models.DEFAULT_DIR.glob("*.toml"))
    ]
    for path, made, place in files:
        text = path.read_text(encoding="utf-8")
        assert text.splitlines()[0] == f"#:schema {place}"
        assert [e.message for e in jsonschema.Draft7Validator(made).iter_errors(tomllib.loads(text))] == [], path.name
    wrong = tomllib.loads(GOOD.replace("TRITON_ATTN", "TRITON_ATN"))
    assert list(jsonschema.Draft7Validator(schema_pairs.pairs_schema()).iter_errors(wrong))


def test_every_shipped_target_has_a_source_for_every_figure() -> None:
    for key, model in target_models.load(target_models.DEFAULT_DIR).items():
        assert {"architecture", "num_heads", "num_kv_heads", "head_size", "num_layers", "tensor_parallel"} <= set(
            model.sources
        ), key


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('head_size = "citsjtu', 'head_sise = "citsjtu', "head_sise"),
        ("num_heads = 32", "num_heads = 0", "out of range"),
        ("tensor_parallel = [1]", "tensor_parallel = [5]", "does not split"),
        ('architecture = "LlamaForCausalLM"', 'architecture = "LamaForCausalLM"', "LlamaForCausalLM"),
    ],
)
def test_a_mistake_in_a_target_model(tmp_path: Path, before: str, after: str, said: str) -> None:
    text = (target_models.DEFAULT_DIR / "llama3.1-8b.toml").read_text(encoding="utf-8")
    assert before in text
    path = tmp_path / "mine.toml"
    path.write_text(text.replace(before, after), encoding="utf-8")
    with pytest.raises(InputError, match=said):
        target_models.load_model(path)
