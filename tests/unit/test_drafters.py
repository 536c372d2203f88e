"""Drafter families: real figures with their sources, the heads of a rank, and one clear error a mistake."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from capmatrix import drafters
from capmatrix.cell import Geometry, MlaGeometry, Role
from capmatrix.drafters import Family
from capmatrix.errors import InputError
from capmatrix.toml import tomlfile
from capmatrix.vocabulary import METHODS

SHIPPED = drafters.load(drafters.DEFAULT_DIR)

#: A whole family file, every key in it.
GOOD = """\
title = "Mine"
method = "eagle3"
role = "drafter"
num_heads = 32
num_kv_heads = 8
head_size = 128
sliding_window = 1024
sinks = true
causal = false
logits_soft_cap = 50
num_speculative_tokens = 3
tensor_parallel = [
    1,
    4,
]
forced_block_size = 128
shared_pool = true
notes = "A note."

[sources]
num_heads = "org/model config.json"
num_kv_heads = "org/model config.json"
head_size = "org/model config.json"
sliding_window = "org/model config.json"
sinks = "org/model config.json"
causal = "org/model config.json"
logits_soft_cap = "org/model config.json"
num_speculative_tokens = "org/recipes model.yaml"
tensor_parallel = "org/recipes model.yaml"
forced_block_size = "org/recipes model.yaml"
shared_pool = "org/recipes model.yaml"
"""
LATENT = """\
title = "Latent"
method = "mtp"
role = "drafter"
num_heads = 128
num_kv_heads = 1
head_size = 576
num_speculative_tokens = 1
tensor_parallel = [8]

[mla]
kv_lora_rank = 512
qk_nope_head_dim = 128
qk_rope_head_dim = 64
v_head_dim = 128

[sources]
num_heads = "org/model config.json"
num_kv_heads = "org/engine model.py"
head_size = "org/engine model.py"
num_speculative_tokens = "org/recipes model.yaml"
tensor_parallel = "org/recipes model.yaml"
mla = "org/model config.json"
"""


def written(folder: Path, text: str, name: str = "mine.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def line_of(text: str, start: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if line.strip().startswith(start))


# --- the shipped families


def test_the_families_asked_for_are_there() -> None:
    assert len(SHIPPED) >= 12
    assert {family.method for family in SHIPPED.values()} == set(METHODS)
    assert {
        "minimax-m3-eagle3",
        "minimax-m3-eagle3-gqa",
        "eagle-llama2-7b",
        "eagle3-llama3.1-8b",
        "eagle3-llama3.3-70b",
        "gpt-oss-eagle3",
        "qwen3-eagle3-h80",
        "qwen3-next-mtp",
        "deepseek-mtp",
    } <= set(SHIPPED)


@pytest.mark.parametrize("family", SHIPPED.values(), ids=lambda family: family.key)
def test_every_figure_has_a_source_that_can_be_found(family: Family) -> None:
    """Each source names a repository, a thread, a page or a file of an installed package."""
    data = tomlfile.load(drafters.DEFAULT_DIR / f"{family.key}.toml").data
    figures = set(data) - {"title", "method", "role", "notes", "sources"}
    assert set(family.sources) == figures
    for figure, source in family.sources.items():
        assert re.search(r"\w+/[\w.-]+(#\d+| [\w./-]+)|https://|vllm 0\.\d+|transformers 5", source), (figure, source)
    assert family.notes and family.title


@pytest.mark.parametrize("family", SHIPPED.values(), ids=lambda family: family.key)
def test_every_degree_gives_every_rank_whole_heads(family: Family) -> None:
    for tp in family.tensor_parallel:
        g = drafters.geometry(family, tp)
        assert g.num_heads * tp == family.num_heads
        assert g.num_kv_heads == max(1, family.num_kv_heads // tp)
        assert g.num_heads % g.num_kv_heads == 0
        assert not g.scaled


@pytest.mark.parametrize(
    ("key", "tp", "heads", "kv_heads", "head_size"),
    [
        ("minimax-m3-eagle3", 4, 16, 16, 128),
        ("minimax-m3-eagle3", 8, 8, 8, 128),
        ("minimax-m3-eagle3-gqa", 4, 16, 1, 128),
        ("minimax-m3-eagle3-gqa", 8, 8, 1, 128),
        ("eagle3-llama3.1-8b", 1, 32, 8, 128),
        ("gpt-oss-eagle3", 1, 64, 8, 64),
        ("qwen3-eagle3-h80", 4, 16, 2, 80),
        ("qwen3-next-mtp", 2, 8, 1, 256),
        ("deepseek-mtp", 8, 16, 1, 576),
    ],
)
def test_heads_of_a_rank(key: str, tp: int, heads: int, kv_heads: int, head_size: int) -> None:
    g = drafters.geometry(SHIPPED[key], tp)
    assert (g.num_heads, g.num_kv_heads, g.head_size) == (heads, kv_heads, head_size)


def test_what_makes_a_family_special() -> None:
    assert SHIPPED["minimax-m3-eagle3"].forced_block_size == 128
    assert SHIPPED["qwen3-next-mtp"].forced_block_size == 544
    assert SHIPPED["qwen3-next-mtp"].shared_pool and not SHIPPED["minimax-m3-eagle3"].shared_pool
    assert not SHIPPED["dflash-qwen3.6-27b"].causal
    assert SHIPPED["dflash-qwen3.6-27b-swa"].sliding_window == 2048
    assert not SHIPPED["dspark-qwen3-8b"].causal
    assert SHIPPED["deepseek-mtp"].mla == MlaGeometry(512, 128, 64, 128, q_lora_rank=1536)
    assert SHIPPED["target-gpt-oss"].sinks and SHIPPED["target-gpt-oss"].sliding_window == 128
    assert SHIPPED["ngram-qwen3-8b"].role is Role.TARGET


# --- geometry


def family(num_heads: int, num_kv_heads: int) -> Family:
    return Family("f", "F", "eagle3", Role.DRAFTER, num_heads, num_kv_heads, 128, 2, (1,))


@given(kv=st.integers(1, 64), ratio=st.integers(1, 16), tp=st.integers(1, 64), limit=st.integers(1, 8))
def test_scaling_keeps_the_gqa_ratio_and_the_limit(kv: int, ratio: int, tp: int, limit: int) -> None:
    """For any family that splits: scaled heads keep the ratio of the rank, never exceed the limit, never grow."""
    some = family(kv * ratio, kv)
    try:
        full = drafters.geometry(some, tp)
    except InputError as error:
        assert tp not in [int(n) for n in error.allowed]
        return
    scaled = drafters.geometry(some, tp, limit)
    assert scaled.num_kv_heads == min(full.num_kv_heads, limit)
    assert scaled.num_heads // scaled.num_kv_heads == full.num_heads // full.num_kv_heads
    assert scaled.num_heads % scaled.num_kv_heads == 0
    assert scaled.scaled is (full.num_kv_heads > limit)
    assert (scaled == full) is not scaled.scaled


def test_geometry_carries_the_layer_and_only_scales_heads(tmp_path: Path) -> None:
    mine = drafters.load_family(written(tmp_path, GOOD))
    assert drafters.geometry(mine, 1, 2) == Geometry(
        num_heads=8,
        num_kv_heads=2,
        head_size=128,
        sliding_window=1024,
        sinks=True,
        causal=False,
        logits_soft_cap=50.0,
        scaled=True,
    )


@pytest.mark.parametrize("tp", [3, 0, -1, 64])
def test_heads_that_do_not_split_are_an_error_with_the_degrees_that_do(tp: int) -> None:
    with pytest.raises(InputError, match="do not split over this many ranks") as caught:
        drafters.geometry(family(32, 8), tp)
    assert caught.value.allowed == ["1", "2", "4", "8", "16", "32"]
    assert caught.value.value == tp


# --- a new family is a file


def test_adding_a_file_adds_a_family(tmp_path: Path) -> None:
    for path in drafters.DEFAULT_DIR.glob("*.toml"):
        written(tmp_path, path.read_text(encoding="utf-8"), path.name)
    written(tmp_path, GOOD)
    written(tmp_path, "not a family", "README.md")
    found = drafters.load(tmp_path)
    assert set(found) == {*SHIPPED, "mine"}
    assert list(found) == sorted(found)
    mine = found["mine"]
    assert (mine.key, mine.title, mine.role, mine.tensor_parallel) == ("mine", "Mine", Role.DRAFTER, (1, 4))
    assert mine.sources["num_heads"] == "org/model config.json"
    assert mine.notes == "A note."


def test_optional_figures_are_left_out_and_not_guessed(tmp_path: Path) -> None:
    latent = drafters.load_family(written(tmp_path, LATENT))
    assert (latent.sliding_window, latent.forced_block_size, latent.logits_soft_cap) == (None, None, None)
    assert (latent.causal, latent.sinks, latent.shared_pool, latent.notes) == (True, False, False, "")
    assert latent.mla == MlaGeometry(512, 128, 64, 128)


# --- mistakes: (what to change in GOOD, by what), then what the one error says

MISTAKES = {
    "unknown key": ("sinks = true", "sink = true", "sink: unknown key", "did you mean 'sinks'?"),
    "missing key": ('title = "Mine"\n', "", "title: is missing", ""),
    "missing sources": (GOOD[GOOD.index("[sources]") :], "", "sources: is missing", ""),
    "unknown method": ('"eagle3"', '"eagel3"', "method: unknown value (got 'eagel3')", "did you mean 'eagle3'?"),
    "method of a wrong type": ('"eagle3"', "3", "method: must be a string (got 3)", "Allowed: eagle, eagle3"),
    "unknown role": ('"drafter"', '"draft"', "role: unknown value (got 'draft')", "did you mean 'drafter'?"),
    "role against method": ('"drafter"', '"target"', "role: method eagle3 drafts", "(got 'target')"),
    "drafter without a method": ('"eagle3"', '"none"', "role: a family without a speculative method", "target"),
    "blank title": ('"Mine"', '" "', "title: must not be blank", ""),
    "title of a wrong type": ('"Mine"', "7", "title: must be a string (got 7)", ""),
    "heads of a wrong type": ("num_heads = 32", 'num_heads = "32"', "num_heads: must be an integer (got '32')", ""),
    "heads a float": ("num_heads = 32", "num_heads = 32.0", "num_heads: must be an integer (got 32.0)", ""),
    "heads a boolean": ("num_heads = 32", "num_heads = true", "num_heads: must be an integer (got True)", ""),
    "no heads": ("num_heads = 32", "num_heads = 0", "num_heads: out of range (got 0)", "1 to 4096"),
    "negative head size": ("head_size = 128", "head_size = -128", "head_size: out of range (got -128)", ""),
    "endless window": ("= 1024", "= 99999999999999", "sliding_window: out of range", ""),
    "KV heads that do not divide": (
        "num_kv_heads = 8",
        "num_kv_heads = 5",
        "num_kv_heads: does not divide the 32",
        "5",
    ),
    "more KV heads than heads": ("num_kv_heads = 8", "num_kv_heads = 64", "num_kv_heads: does not divide", "64"),
    "degree that does not split": ("    4,", "    3,", "tensor_parallel[1]: does not split 32 query and 8 KV", "3"),
    "degree twice": ("    4,", "    1,", "tensor_parallel[1]: stands twice (got 1)", ""),
    "no degree": ("[\n    1,\n    4,\n]", "[]", "tensor_parallel: has no value", ""),
    "degrees not a list": ("[\n    1,\n    4,\n]", "4", "tensor_parallel: must be a list of integers (got 4)", ""),
    "degree of a wrong type": ("    4,", '    "4",', "tensor_parallel[1]: must be an integer (got '4')", ""),
    "flag of a wrong type": ("sinks = true", "sinks = 1", "sinks: must be true or false (got 1)", ""),
    "soft cap of a wrong type": ("= 50", '= "50"', "logits_soft_cap: must be a number (got '50')", ""),
    "soft cap not a number": ("= 50", "= nan", "logits_soft_cap: out of range (got nan)", ""),
    "soft cap infinite": ("= 50", "= inf", "logits_soft_cap: out of range (got inf)", ""),
    "block of zero": (
        "forced_block_size = 128",
        "forced_block_size = 0",
        "forced_block_size: out of range (got 0)",
        "",
    ),
    "notes of a wrong type": ('"A note."', "[]", "notes: must be a string", ""),
    "figure without a source": (
        'sinks = "org/model config.json"\n',
        "",
        "sources.sinks: is missing: every figure needs the place where it is published",
        "",
    ),
    "source without a figure": ("sinks = true\n", "", "sources.sinks: unknown key (got 'sinks')", "Allowed: num_heads"),
    "blank source": ('sinks = "org/model config.json"', 'sinks = ""', "sources.sinks: must not be blank", ""),
    "source of a wrong type": ('sinks = "org/model config.json"', "sinks = 1", "sources.sinks: must be a string", ""),
    "sources not a table": ("[sources]", "[[sources]]", "sources: must be a table", ""),
    "key twice": ("sinks = true", "sinks = true\nsinks = true", "sinks: defined twice, first on line 8", ""),
    "broken TOML": ("sinks = true", "sinks = ", "not valid TOML", ""),
    "mla not a table": ("sinks = true", "mla = 512", "mla: must be a table (got 512)", ""),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_error_with_its_place(tmp_path: Path, mistake: str) -> None:
    old, new, says, also = MISTAKES[mistake]
    assert GOOD.count(old) >= 1
    path = written(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(InputError) as caught:
        drafters.load(tmp_path)
    text = str(caught.value)
    assert says in text and also in text
    assert text.startswith(str(path)) and text.count(str(path)) == 1
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("old", "new", "start"),
    [
        ("    4,", "    3,", "3,"),
        ("num_heads = 32", "num_heads = 0", "num_heads = 0"),
        ('sinks = "org/model config.json"', "sinks = 1", "sinks = 1"),
        ('sinks = "org/model config.json"\n', "", "[sources]"),
    ],
)
def test_the_line_is_that_of_the_mistake(tmp_path: Path, old: str, new: str, start: str) -> None:
    text = GOOD.replace(old, new, 1)
    path = written(tmp_path, text)
    with pytest.raises(InputError) as caught:
        drafters.load_family(path)
    assert caught.value.line == line_of(text, start)
    assert str(caught.value).startswith(f"{path}:{caught.value.line}: ")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("num_kv_heads = 1", "num_kv_heads = 128", "num_kv_heads: is 1 with latent attention"),
        ("head_size = 576", "head_size = 192", "head_size: is kv_lora_rank + qk_rope_head_dim = 576"),
        ("v_head_dim = 128\n", "", "mla.v_head_dim: is missing"),
        ("kv_lora_rank = 512", "kv_lora_rank = 0", "mla.kv_lora_rank: out of range"),
        ("v_head_dim", "v_head_size", "mla.v_head_size: unknown key"),
        ('mla = "org/model config.json"\n', "", "sources.mla: is missing"),
    ],
)
def test_mistakes_of_latent_attention(tmp_path: Path, old: str, new: str, says: str) -> None:
    path = written(tmp_path, LATENT.replace(old, new, 1))
    with pytest.raises(InputError, match=re.escape(says)):
        drafters.load_family(path)


@pytest.mark.parametrize(
    "name", ["Mine.toml", "my family.toml", "-k.toml", "a_b.toml", ".toml.toml", "é.toml", "x" * 61 + ".toml"]
)
def test_a_file_name_that_cannot_be_a_key(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, GOOD, name)
    with pytest.raises(InputError, match="the file's name is the family's key"):
        drafters.load_family(path)


def test_folders_without_families(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no drafter family"):
        drafters.load(tmp_path)
    with pytest.raises(InputError, match="drafter families cannot be read: No such file"):
        drafters.load(tmp_path / "none")
    with pytest.raises(InputError, match="drafter families cannot be read: Not a directory"):
        drafters.load(written(tmp_path, GOOD))
    with pytest.raises(InputError, match="drafter families cannot be read"):
        drafters.load("a\0b")


def test_not_utf_8(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_bytes(GOOD.encode().replace(b"Mine", b"M\xffne"))
    with pytest.raises(InputError, match="not UTF-8") as caught:
        drafters.load(tmp_path)
    assert caught.value.line == 1


@given(at=st.integers(0, len(GOOD) - 1), length=st.integers(0, 30), insert=st.text(max_size=6))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_damage_gives_a_family_or_one_error(tmp_path: Path, at: int, length: int, insert: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes((GOOD[:at] + insert + GOOD[at + length :]).encode("utf-8", "surrogatepass"))
    try:
        mine = drafters.load_family(path)
    except InputError as error:
        assert str(error).startswith(str(path))
    else:
        assert drafters.problem(mine) is None
        assert all(drafters.geometry(mine, tp, 4).num_kv_heads <= 4 for tp in mine.tensor_parallel)
