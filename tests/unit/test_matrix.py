"""Matrix files: what the grammar says, and that every mistake is one error at the right line."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from matrix_files import GOOD, line_of, write, write_families

from capmatrix import matrix, vocabulary
from capmatrix.drafters import DEFAULT_DIR
from capmatrix.drafters import load as load_families
from capmatrix.errors import InputError
from capmatrix.grid import Matrix, Workload
from capmatrix.toml import tomlcheck


@pytest.fixture
def example(tmp_path: Path) -> Matrix:
    return matrix.load(write(tmp_path))


def test_a_file_says_what_it_says(example: Matrix) -> None:
    assert (example.name, example.description) == ("example", "An example.")
    assert example.whole.axes["block_size"] == (16, 128)
    assert example.whole.max_kv_heads == 2
    assert example.switches == {"default": (), "aiter-off": (("VLLM_ROCM_USE_AITER", "0"),)}
    assert example.workloads == {"seed": Workload(concurrency=256, input=8192, output=1024, speculative_tokens=2)}
    assert list(example.presets) == ["seed"]


def test_axes_left_out_have_their_defaults(example: Matrix) -> None:
    axes = example.whole.axes
    left_out = {"tp", "num_speculative_tokens", "dtype", "execution", "runner", "scales"}
    assert {name: axes[name] for name in left_out} == {
        "tp": ("family",),
        "num_speculative_tokens": ("family",),
        "dtype": ("bfloat16",),
        "execution": ("eager",),
        "runner": ("v2",),
        "scales": ("non_unit",),
    }


def test_a_preset_replaces_axes_and_keeps_the_others(example: Matrix) -> None:
    seed, whole = example.presets["seed"], example.whole
    assert seed.axes["block_size"] == (16,)
    assert seed.axes["backend"] == whole.axes["backend"]
    assert seed.targets == ("offline", "interpreter:gfx950")
    assert seed.max_kv_heads == 4


def test_a_preset_keeps_the_exclude_rules_and_not_the_include_rules(example: Matrix) -> None:
    seed, whole = example.presets["seed"], example.whole
    assert [r.reason for r in seed.exclude] == [*(r.reason for r in whole.exclude), "a rule of the preset"]
    assert [r.reason for r in seed.include] == ["one more batch"]


def test_a_probe_is_its_family_with_some_figures_changed(example: Matrix) -> None:
    probe, family = example.families["probe-small"], example.families["gqa"]
    assert (probe.key, probe.head_size, probe.num_heads, probe.num_kv_heads) == ("probe-small", 32, 8, 4)
    assert (probe.method, probe.num_speculative_tokens) == (family.method, family.num_speculative_tokens)
    assert probe.notes == "a small head"
    assert probe.sources == {}


def test_a_latent_probe_keeps_head_size_and_widths_together(tmp_path: Path) -> None:
    text = GOOD + '\n[probe.nope]\nlike = "latent"\nqk_rope_head_dim = 32\nreason = "narrow"\n'
    probe = matrix.load(write(tmp_path, text)).families["probe-nope"]
    assert probe.mla is not None
    assert (probe.mla.kv_lora_rank, probe.mla.qk_rope_head_dim, probe.head_size) == (512, 32, 544)


def test_a_star_is_every_value(tmp_path: Path) -> None:
    text = GOOD.replace('["ROCM_ATTN", "TRITON_ATTN"]', '"*"').replace('["mha", "gqa", "probe-small"]', '"*"')
    loaded = matrix.load(write(tmp_path, text))
    assert loaded.whole.axes["backend"] == vocabulary.ROCM_BACKENDS
    assert {*load_families(DEFAULT_DIR), "mha", "gqa", "layer", "latent"} == set(loaded.whole.axes["drafter"])


def test_a_single_value_is_a_list_of_one(tmp_path: Path) -> None:
    one = matrix.load(write(tmp_path, GOOD.replace("block_size = [16, 128]", "block_size = [16, 128,]")))
    other = matrix.load(write(tmp_path, GOOD.replace('switches = "default"', 'switches = ["default"]')))
    assert one.presets["seed"].axes == other.presets["seed"].axes


def test_the_name_is_the_files_unless_said(tmp_path: Path) -> None:
    assert matrix.load(write(tmp_path, GOOD.replace('name = "example"\n', ""), "other.toml")).name == "other"


def test_families_beside_the_file_replace_shipped_ones(tmp_path: Path) -> None:
    path = write(tmp_path)
    shipped = next(iter(load_families(DEFAULT_DIR)))
    own = (tmp_path / "drafters" / "mha.toml").read_text(encoding="utf-8").replace('"MHA"', '"Mine"')
    (tmp_path / "drafters" / f"{shipped}.toml").write_text(own, encoding="utf-8")
    assert matrix.load(path).families[shipped].title == "Mine"


class Mistake(NamedTuple):
    """``GOOD`` with ``old`` replaced by ``new`` is wrong at the line where ``at`` first stands, in ``key``."""

    old: str
    new: str
    at: str
    key: str
    says: str
    nearest: str | None = None


APPEND = "[workload.seed]"

MISTAKES = {
    "unknown backend": Mistake(
        '"TRITON_ATTN"]', '"TRITON_ATN"]', "TRITON_ATN", "axes.backend[1]", "unknown value", "TRITON_ATTN"
    ),
    "backend in lower case": Mistake(
        '["ROCM_ATTN",', '["rocm_attn",', "rocm_attn", "axes.backend[0]", "unknown", "ROCM_ATTN"
    ),
    "backend is a number": Mistake('["ROCM_ATTN",', "[3,", "[3,", "axes.backend[0]", "must be a string"),
    "backend is a list in a list": Mistake(
        '["ROCM_ATTN",', '[["ROCM_ATTN"],', "[[", "axes.backend[0]", "must be a string"
    ),
    "no backend": Mistake('["ROCM_ATTN", "TRITON_ATTN"]', "[]", "backend = []", "axes.backend", "no value"),
    "backend twice": Mistake('"TRITON_ATTN"]', '"ROCM_ATTN"]', '"ROCM_ATTN"]', "axes.backend[1]", "twice"),
    "backend is left out": Mistake(
        'backend = ["ROCM_ATTN", "TRITON_ATTN"]\n', "", "[axes]", "axes.backend", "is missing"
    ),
    "block size 0": Mistake("[16, 128]", "[0, 128]", "[0,", "axes.block_size[0]", "out of range"),
    "block size too large": Mistake("[16, 128]", "[16, 65537]", "65537", "axes.block_size[1]", "out of range"),
    "block size beyond 64 bits": Mistake("[16, 128]", f"[16, {10**30}]", "10000", "axes.block_size[1]", ""),
    "block size is a string": Mistake("[16, 128]", '["16", 128]', '["16"', "axes.block_size[0]", "must be an integer"),
    "block size is true": Mistake("[16, 128]", "[true, 128]", "[true", "axes.block_size[0]", "must be an integer"),
    "block size is a float": Mistake("[16, 128]", "[16.0, 128]", "[16.0", "axes.block_size[0]", "must be an integer"),
    "block size is a star": Mistake(
        "block_size = [16, 128]", 'block_size = "*"', '"*"', "axes.block_size", "must be an integer"
    ),
    "block size twice": Mistake("[16, 128]", "[16,\n  128,\n  16]", "  16]", "axes.block_size[2]", "twice"),
    "block size is a table": Mistake(
        "block_size = [16, 128]",
        "block_size = { from = 16 }",
        "block_size = {",
        "axes.block_size",
        "must be an integer",
    ),
    "unknown KV dtype": Mistake(
        '["auto", "fp8"]', '["auto", "fp8_e4m"]', "fp8_e4m", "axes.kv_cache_dtype[1]", "unknown", "fp8_e4m3"
    ),
    "unknown drafter": Mistake('"gqa", "probe', '"gqaa", "probe', "gqaa", "axes.drafter[1]", "unknown value", "gqa"),
    "unknown probe": Mistake(
        '"probe-small"]', '"probe-smal"]', '"probe-smal"]', "axes.drafter[2]", "unknown", "probe-small"
    ),
    "unknown batch": Mistake(
        '["decode", "verify"]', '["decode", "verfy"]', "verfy", "axes.batch[1]", "unknown value", "verify"
    ),
    "unknown axis": Mistake(
        "block_size = [16, 128]", "blocksize = [16, 128]", "blocksize", "axes.blocksize", "unknown key", "block_size"
    ),
    "a property is no axis": Mistake(
        'batch = ["decode", "verify"]', 'role = "drafter"', "role =", "axes.role", "unknown key"
    ),
    "tp of 0": Mistake("tp = 4", "tp = 0", "tp = 0", "preset.seed.tp", "out of range"),
    "tp that does not divide": Mistake("tp = 4", "tp = 5", "tp = 5", "preset.seed.tp", "do not split"),
    "tp in words": Mistake("tp = 4", 'tp = "famly"', "famly", "preset.seed.tp", "unknown value", "family"),
    "unknown dtype": Mistake("tp = 4", 'dtype = "bf16"', "bf16", "preset.seed.dtype", "unknown value"),
    "unknown execution": Mistake("tp = 4", 'execution = "eagr"', "eagr", "preset.seed.execution", "unknown", "eager"),
    "unknown runner": Mistake("tp = 4", 'runner = "v3"', "v3", "preset.seed.runner", "unknown value"),
    "unknown scales": Mistake("tp = 4", 'scales = "nonunit"', "nonunit", "preset.seed.scales", "unknown", "non_unit"),
    "negative k": Mistake(
        "tp = 4", "num_speculative_tokens = -1", "= -1", "preset.seed.num_speculative_tokens", "out of"
    ),
    "unknown switch set": Mistake(
        '"aiter-off"]', '"aiteroff"]', "aiteroff", "axes.switches[1]", "unknown", "aiter-off"
    ),
    "unknown switch": Mistake(
        "VLLM_ROCM_USE_AITER =",
        "VLLM_ROCM_AITER =",
        "VLLM_ROCM_AITER",
        "switches.aiter-off.VLLM_ROCM_AITER",
        "unknown key",
        "VLLM_ROCM_USE_AITER",
    ),
    "a switch that is none of vLLM's": Mistake(
        "VLLM_ROCM_USE_AITER =", "LD_PRELOAD =", "LD_PRELOAD", "switches.aiter-off.LD_PRELOAD", "unknown key"
    ),
    "the runner is no switch": Mistake(
        "VLLM_ROCM_USE_AITER =",
        "VLLM_USE_V2_MODEL_RUNNER =",
        "VLLM_USE_V2",
        "switches.aiter-off.VLLM_USE_V2_MODEL_RUNNER",
        "unknown key",
    ),
    "a switch's value is a number": Mistake(
        'AITER = "0"', "AITER = 0", "AITER = 0", "switches.aiter-off.VLLM_ROCM_USE_AITER", "must be a string"
    ),
    "a switch's value has a space": Mistake(
        'AITER = "0"', 'AITER = "0 1"', '"0 1"', "switches.aiter-off.VLLM_ROCM_USE_AITER", "not a valid"
    ),
    "an empty switch set": Mistake(
        'VLLM_ROCM_USE_AITER = "0"\n', "", "[switches.aiter-off]", "switches.aiter-off", "same set"
    ),
    "a switch set twice": Mistake(
        APPEND, '[switches.b]\nVLLM_ROCM_USE_AITER = "0"\n' + APPEND, "[switches.b]", "switches.b", "same set"
    ),
    "the default set redefined": Mistake(
        "[switches.aiter-off]", "[switches.default]", "[switches.default]", "switches.default", "without switches"
    ),
    "unknown top-level key": Mistake(
        "max_kv_heads = 2", "max_heads = 2", "max_heads", "max_heads", "unknown key", "max_kv_heads"
    ),
    "unknown top-level table": Mistake(
        "[preset.seed]\n", "[presets.seed]\n", "[presets.seed]", "presets", "unknown key", "preset"
    ),
    "axes is no table": Mistake("[axes]\n", "[[axes]]\n", "[[axes]]", "axes", "must be a table"),
    "a preset is no table": Mistake(
        "[preset.seed]\n", "[[preset.seed]]\n", "[[preset.seed]]", "preset.seed", "must be a table"
    ),
    "name is no string": Mistake('name = "example"', "name = 3", "name = 3", "name", "must be a string"),
    "description is blank": Mistake('"An example."', '" "', '" "', "description", "blank"),
    "max_kv_heads is 0": Mistake(
        "max_kv_heads = 2", "max_kv_heads = 0", "max_kv_heads = 0", "max_kv_heads", "out of range"
    ),
    "preset without description": Mistake(
        'description = "A few cells."\n', "", "[preset.seed]", "preset.seed.description", "missing"
    ),
    "unknown key of a preset": Mistake("tp = 4", "tpp = 4", "tpp", "preset.seed.tpp", "unknown key", "tp"),
    "unknown target": Mistake(
        '"interpreter:gfx950"]',
        '"interpreter:gfx951"]',
        "gfx951",
        "preset.seed.targets[1]",
        "unknown",
        "interpreter:gfx950",
    ),
    "a preset's name has a space": Mistake(
        "[preset.seed]", '[preset."my seed"]', "my seed", "preset.'my seed'", "name"
    ),
    "rule without a reason": Mistake(
        'reason = "an example of a rule"\n', "", "[[exclude]]", "exclude[0].reason", "missing"
    ),
    "rule with a reason alone": Mistake(
        'block_size = 544\nbackend = "ROCM_ATTN"\n', "", "[[include]]", "include[0]", "no axis"
    ),
    "unknown axis in a rule": Mistake(
        "block_size = 544", "block = 544", "block = 544", "include[0].block", "unknown key", "block_size"
    ),
    "unknown value in a rule": Mistake(
        'method = "dflash"', 'method = "dflas"', "dflas", "exclude[1].method", "unknown", "dflash"
    ),
    "a property in an include rule": Mistake(
        "block_size = 544", "head_size = 544", "head_size = 544", "include[0].head_size", "unknown key"
    ),
    "family in an exclude rule": Mistake(
        "block_size = 128\nreason", 'tp = "family"\nreason', 'tp = "family"', "exclude[0].tp", ""
    ),
    "a star in an exclude rule": Mistake(
        'backend = "ROCM_ATTN"\nblock_size = 128', 'backend = "*"', 'backend = "*"', "exclude[0].backend", "unknown"
    ),
    "rule whose value no cell has": Mistake(
        "block_size = 128\nreason",
        "block_size = 64\nreason",
        "block_size = 64",
        "exclude[0].block_size",
        "no cell has this value",
    ),
    "rule one of whose values no cell has": Mistake(
        "block_size = 128\nreason",
        "block_size = [16, 64]\nreason",
        "[16, 64]",
        "exclude[0].block_size[1]",
        "no cell has",
    ),
    "rule whose property no cell has": Mistake(
        'method = "dflash"', 'method = "mtp"', 'method = "mtp"', "exclude[1].method", "no cell has"
    ),
    "rule whose values no cell has together": Mistake(
        'kv_cache_dtype = "fp8"\ntarget',
        'tp = 8\nkv_cache_dtype = "fp8"\ntarget',
        "[[exclude]]\nmethod",
        "exclude[1]",
        "no cell has these values together",
    ),
    "rule that an earlier one makes idle": Mistake(
        "[[include]]",
        '[[exclude]]\nbackend = "ROCM_ATTN"\nblock_size = 128\nbatch = "decode"\nreason = "again"\n\n[[include]]',
        '[[exclude]]\nbackend = "ROCM_ATTN"\nblock_size = 128\nbatch',
        "exclude[2]",
        "excludes them",
    ),
    "rule of a preset that matches nothing there": Mistake(
        'kv_cache_dtype = "fp8"\nreason = "a rule of',
        'block_size = 128\nreason = "a rule of',
        'block_size = 128\nreason = "a rule of',
        "preset.seed.exclude[0].block_size",
        "no cell has",
    ),
    "rules that leave nothing": Mistake(
        '[[preset.seed.include]]\nbatch = "boundary"\nkv_cache_dtype = "auto"',
        "[[preset.seed.exclude]]\nblock_size = 16",
        "[preset.seed]",
        "preset.seed",
        "no cell is left",
    ),
    "include that adds what is there": Mistake(
        "block_size = 544", "block_size = 16", "[[include]]", "include", "already there"
    ),
    "include is one table": Mistake("[[include]]", "[include]", "[include]", "include", "array of tables"),
    "include of a preset is one table": Mistake(
        "[[preset.seed.include]]",
        "[preset.seed.include]",
        "[preset.seed.include]",
        "preset.seed.include",
        "array of tables",
    ),
    "workload without an input": Mistake("input = 8192\n", "", "[workload.seed]", "workload.seed.input", "missing"),
    "unknown key of a workload": Mistake(
        "concurrency = 256", "concurency = 256", "concurency", "workload.seed.concurency", "unknown key", "concurrency"
    ),
    "workload figure is negative": Mistake(
        "input = 8192", "input = -1", "input = -1", "workload.seed.input", "out of range"
    ),
    "workload figure is a string": Mistake(
        "input = 8192", 'input = "8k"', '"8k"', "workload.seed.input", "must be an integer"
    ),
    "probe like nothing": Mistake('like = "gqa"', 'like = "gqq"', "gqq", "probe.small.like", "unknown value", "gqa"),
    "probe without like": Mistake('like = "gqa"\n', "", "[probe.small]", "probe.small.like", "missing"),
    "probe without a reason": Mistake(
        'reason = "a small head"\n', "", "[probe.small]", "probe.small.reason", "missing"
    ),
    "probe that changes nothing": Mistake(
        "head_size = 32\nnum_heads = 8\nnum_kv_heads = 4\n", "", "[probe.small]", "probe.small", "changes nothing"
    ),
    "probe whose heads do not divide": Mistake(
        "num_heads = 8", "num_heads = 9", "num_kv_heads = 4", "probe.small.num_kv_heads", "does not divide"
    ),
    "probe with latent widths for plain attention": Mistake(
        "head_size = 32", "kv_lora_rank = 512", "kv_lora_rank", "probe.small.kv_lora_rank", "no latent attention"
    ),
    "probe with an unknown figure": Mistake(
        "head_size = 32", "headsize = 32", "headsize", "probe.small.headsize", "unknown key", "head_size"
    ),
    "a key twice": Mistake("tp = 4", "tp = 4\ntp = 8", "tp = 8", "preset.seed.tp", "twice"),
    "a table twice": Mistake(
        APPEND, "[switches.aiter-off]\n" + APPEND, "[switches.aiter-off]\n[work", "switches.aiter-off", "twice"
    ),
    "an unclosed string": Mistake('name = "example"', 'name = "example', 'name = "example', "", "not valid TOML"),
    "an unclosed list": Mistake("[16, 128]", "[16, 128", "", "", "not valid TOML"),
    "no value": Mistake("tp = 4", "tp =", "tp =", "", "not valid TOML"),
    "an escape that is none": Mistake('"An example."', r'"\q"', r"\q", "", "not valid TOML"),
    "too many cells": Mistake(
        "block_size = [16, 128]",
        f'block_size = {list(range(1, 4097))}\nnum_speculative_tokens = {list(range(32))}\ndtype = "*"',
        "[axes]",
        "axes",
        "too many cells",
    ),
    "too many values": Mistake(
        "block_size = [16, 128]",
        f"block_size = {list(range(1, 4200))}",
        "block_size = [1,",
        "axes.block_size",
        "more than",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_error_at_its_line(tmp_path: Path, name: str) -> None:
    mistake = MISTAKES[name]
    assert GOOD.count(mistake.old) >= 1, "the example has changed"
    text = GOOD.replace(mistake.old, mistake.new, 1)
    path = write(tmp_path, text)
    with pytest.raises(InputError) as caught:
        matrix.load(path)
    error = caught.value
    assert error.file == str(path)
    assert error.exit_code == 2
    if mistake.at:
        assert error.line == line_of(text, mistake.at), str(error)
    if mistake.key:
        assert error.key == mistake.key
    assert mistake.says in error.message
    if mistake.nearest is not None:
        assert error.nearest == mistake.nearest
    assert "\n" not in str(error)


def test_there_are_enough_mistakes() -> None:
    assert len(MISTAKES) >= 80


BYTES = {
    "not UTF-8": (GOOD.encode().replace(b"An example", b"An ex\xe4mple"), line_of(GOOD, "An example"), "not UTF-8"),
    "UTF-16": (GOOD.encode("utf-16"), 1, "not UTF-8"),
    "a NUL": (GOOD.encode().replace(b"An example", b"An ex\0mple"), line_of(GOOD, "An example"), "not valid TOML"),
    "empty": (b"", None, "is missing"),
    "comments alone": (b"# nothing here\n", None, "is missing"),
    "too large": (b"#" * (5 * 1024 * 1024), None, "larger than"),
    "deep": (b"name = " + b"[" * 5000, 1, ""),
    "gzip": (b"\x1f\x8b\x08\x00\x00\x00\x00\x00", 1, "not UTF-8"),
    "JSON": (b'{"axes": {"backend": ["ROCM_ATTN"]}}', 1, "not valid TOML"),
}


@pytest.mark.parametrize("name", BYTES)
def test_bytes_that_are_no_matrix(tmp_path: Path, name: str) -> None:
    data, line, says = BYTES[name]
    write_families(tmp_path)
    path = tmp_path / "bad.toml"
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        matrix.load(path)
    assert (caught.value.file, caught.value.line) == (str(path), line)
    assert says in caught.value.message


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        matrix.load(tmp_path / "none.toml")
    with pytest.raises(InputError, match="not a regular file"):
        matrix.load(tmp_path)


def test_a_mistake_in_a_family_names_the_familys_file(tmp_path: Path) -> None:
    path = write(tmp_path)
    family = tmp_path / "drafters" / "mha.toml"
    family.write_text(
        family.read_text(encoding="utf-8").replace("head_size = 128", 'head_size = "big"'), encoding="utf-8"
    )
    with pytest.raises(InputError) as caught:
        matrix.load(path)
    assert (caught.value.file, caught.value.key) == (str(family), "head_size")


def test_an_error_shows_no_terminal_escape(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace('"TRITON_ATTN"]', r'"\u001b[31mred"]'))
    with pytest.raises(InputError) as caught:
        matrix.load(path)
    assert "\x1b" not in str(caught.value)


# Pieces of matrix files and of nonsense, to be put together at random.
_scalars = st.one_of(
    st.integers(-(2**70), 2**70),
    st.booleans(),
    st.floats(),
    st.sampled_from(
        ["ROCM_ATTN", "fp8", "mha", "probe-small", "family", "role", "*", "", "decode", "offline", "default"]
    ),
    st.text(max_size=8),
)
_values = st.recursive(
    _scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(matrix.PRESET_KEYS), inner, max_size=3)
    ),
    max_leaves=8,
)


def _toml(value: object) -> str:
    """A value as inline TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escaped = "".join(c if c.isalnum() and c.isascii() else f"\\U{ord(c):08x}" for c in value)
        return f'"{escaped}"'
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(v)}" for key, v in value.items()) + "}"
    return str(value)


def _only_input_errors(path: Path) -> None:
    try:
        loaded = matrix.load(path)
        matrix.count(loaded)
    except InputError as error:
        assert str(error)


_settings = settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@_settings
@given(st.data())
def test_no_wrong_value_escapes_as_another_error(tmp_path: Path, data: st.DataObject) -> None:
    lines = GOOD.splitlines()
    at = data.draw(st.sampled_from([i for i, line in enumerate(lines) if " = " in line]))
    key = lines[at].partition(" = ")[0]
    lines[at] = f"{key} = {_toml(data.draw(_values))}"
    _only_input_errors(write(tmp_path, "\n".join(lines)))


@_settings
@given(st.data())
def test_no_damage_escapes_as_another_error(tmp_path: Path, data: st.DataObject) -> None:
    raw = bytearray(GOOD.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw) - 1))
        kind = data.draw(st.sampled_from(["cut", "drop", "put", "move"]))
        if kind == "cut":
            del raw[at:]
        elif kind == "drop":
            del raw[at : at + data.draw(st.integers(1, 60))]
        elif kind == "put":
            raw[at:at] = data.draw(
                st.one_of(st.binary(max_size=6), st.sampled_from([b"[[", b"]", b'"""', b"=", b"\n[axes]\n", b"."]))
            )
        else:
            raw[at:at] = raw[: data.draw(st.integers(0, 200))]
        if not raw:
            break
    write_families(tmp_path)
    path = tmp_path / "damaged.toml"
    path.write_bytes(bytes(raw))
    _only_input_errors(path)


@_settings
@given(st.binary(max_size=200))
def test_no_bytes_escape_as_another_error(tmp_path: Path, raw: bytes) -> None:
    write_families(tmp_path)
    path = tmp_path / "bytes.toml"
    path.write_bytes(raw)
    _only_input_errors(path)


def test_texts_are_bounded(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace("An example.", "x" * (tomlcheck.MAX_TEXT + 1)))
    with pytest.raises(InputError, match="longer than"):
        matrix.load(path)
