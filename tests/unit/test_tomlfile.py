"""TOML files with lines: values as tomllib reads them, every key's line, hostile bytes as one clear error."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capmatrix.errors import InputError
from capmatrix.toml import tomlfile

DOCUMENT = '''\
# a comment with [brackets] = and "quotes
title = "one"

[axes]
backend = ["ROCM_ATTN", "TRITON_ATTN"]  # on one line
block_size = [
    16,  # sixteen ] }
    32,

    128,
]
text = """
[not.a.table]
fake = 1
"""
raw = \'\'\'
backend = """
\'\'\'
after = 1

[axes.deep]
a.b . "c d" = true
point = { x = 1, y = { z = [1, 2] }, "q\\u0041" = 3 }

[[include]]
backend = "A"

[[include]]
backend = "B"
when = [
    { block_size = 16 },
    { block_size = 128, dtype = "x" },
]

[include.sub]
k = 1

[[include.rules]]
n = 1
[[include.rules]]
n = 2

[preset.seed]
backend = [
  "X",
  "Y", "Z",
]
'lit eral' = 1979-05-27 07:32:00
empty = []
'''


@pytest.fixture(scope="module")
def document() -> tomlfile.TomlFile:
    return tomlfile.parse(DOCUMENT.encode(), "m.toml")


def line_of(text: str, nth: int = 1) -> int:
    """The line of the nth line of DOCUMENT that contains ``text``."""
    hits = [i for i, line in enumerate(DOCUMENT.splitlines(), 1) if text in line]
    return hits[nth - 1]


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        (("title",), line_of("title")),
        (("axes",), line_of("[axes]")),
        (("axes", "backend"), line_of("on one line")),
        (("axes", "backend", 1), line_of("on one line")),
        (("axes", "block_size"), line_of("block_size = [")),
        (("axes", "block_size", 0), line_of("16,  #")),
        (("axes", "block_size", 2), line_of("    128,")),
        (("axes", "text"), line_of('text = """')),
        (("axes", "raw"), line_of("raw =")),
        (("axes", "after"), line_of("after =")),
        (("axes", "deep"), line_of("[axes.deep]")),
        (("axes", "deep", "a"), line_of("a.b")),
        (("axes", "deep", "a", "b", "c d"), line_of("a.b")),
        (("axes", "deep", "point"), line_of("point")),
        (("axes", "deep", "point", "y", "z", 1), line_of("point")),
        (("axes", "deep", "point", "qA"), line_of("point")),
        (("include",), line_of("[[include]]")),
        (("include", 0), line_of("[[include]]")),
        (("include", 0, "backend"), line_of('"A"')),
        (("include", 1), line_of("[[include]]", 2)),
        (("include", 1, "backend"), line_of('"B"')),
        (("include", 1, "when", 1), line_of("block_size = 128")),
        (("include", 1, "when", 1, "dtype"), line_of("dtype")),
        (("include", 1, "sub", "k"), line_of("k = 1")),
        (("include", 1, "rules", 0, "n"), line_of("n = 1")),
        (("include", 1, "rules", 1), line_of("[[include.rules]]", 2)),
        (("include", 1, "rules", 1, "n"), line_of("n = 2")),
        (("preset",), line_of("[preset.seed]")),
        (("preset", "seed", "backend", 2), line_of('"Z"')),
        (("preset", "seed", "lit eral"), line_of("1979")),
        (("preset", "seed", "empty"), line_of("empty")),
        (("nothing",), None),
        (("axes", "backend", 7), None),
        (("title", "deeper"), None),
        (("include", "backend"), None),
        ((), None),
    ],
)
def test_line(document: tomlfile.TomlFile, keys: tuple[str | int, ...], line: int | None) -> None:
    assert document.line(*keys) == line


def test_data_is_what_tomllib_reads(document: tomlfile.TomlFile) -> None:
    assert document.data == tomlfile.tomllib.loads(DOCUMENT)
    assert document.path == Path("m.toml")


def test_missing_key_points_at_its_table(document: tomlfile.TomlFile) -> None:
    assert document.nearest_line("preset", "seed", "drafter") == line_of("[preset.seed]")
    assert document.nearest_line("nothing") is None


def test_error_names_everything(document: tomlfile.TomlFile) -> None:
    error = document.error(
        ("preset", "seed", "backend", 2), "unknown backend", value="TRITON_ATN", allowed=["ROCM_ATTN", "TRITON_ATTN"]
    )
    assert isinstance(error, InputError)
    text = str(error)
    assert text.startswith(f"m.toml:{line_of(chr(34) + 'Z')}: preset.seed.backend[2]: unknown backend")
    assert "'TRITON_ATN'" in text and "did you mean 'TRITON_ATTN'?" in text and "Allowed: ROCM_ATTN" in text
    whole = document.error((), "empty product")
    assert (whole.line, whole.key) == (None, None)


def test_crlf_and_byte_order_mark() -> None:
    read = tomlfile.parse(b"\xef\xbb\xbfa = 1\r\nb = [\r\n1,\r\n2]\r\n", "w.toml")
    assert read.data == {"a": 1, "b": [1, 2]}
    assert (read.line("b"), read.line("b", 1)) == (2, 4)


def test_dotted() -> None:
    assert tomlfile.dotted(("a", 0, "b c", "d-1")) == "a[0].'b c'.d-1"


@pytest.mark.parametrize(
    ("raw", "line", "words"),
    [
        (b"a = 1\nb = \xff\n", 2, "not UTF-8: byte 0xff at offset 10"),
        (b"a = 1\nb =\n", 2, "not valid TOML"),
        (b"a = 1\nb = [1, 2\n", 2, "not valid TOML"),
        (b"a = 1\n[b\n", 2, "not valid TOML"),
        (b"a\n", 1, "not valid TOML"),
        (b'a = "x\n', 1, "not valid TOML"),
        (b'a = """x\n\n', 2, "not valid TOML"),
        (b"a = 1979-13-45\n", 1, "not valid TOML"),
        (b"a = 1 2\n", 1, "not valid TOML"),
        (b"a = {b = 1\n", 1, "not valid TOML"),
        (b"a = 1\x00\n", 1, "not valid TOML"),
        (b'"\\q" = 1\n', 1, "not valid TOML"),
        (b"a = 1\n\na = 2\n", 3, "a: defined twice, first on line 1"),
        (b"[t]\nx = 1\n[u]\n[t]\n", 4, "t: defined twice, first on line 1"),
        (b"[t]\nx.y = 1\nx.y = 2\n", 3, "t.x.y: defined twice, first on line 2"),
        (b"a.b = 1\n[a]\n", 2, "not valid TOML"),
        (b"a" + b".a" * 100_000 + b" = 1\n", 1, "more than 32 parts"),
        (b"a = 1\nb = " + b"[" * 100_000, 2, "nested more than 32 levels"),
        (b"a = " + b"{a=" * 100_000, 1, "nested more than 32 levels"),
        (b"a = " + b"9" * 100_000, 1, "not valid TOML"),
        (b"[" + b"a." * 100_000 + b"a]\n", 1, "more than 32 parts"),
    ],
    ids=lambda value: repr(value)[:30] if isinstance(value, bytes) else None,
)
def test_broken_text_is_one_clear_error(raw: bytes, line: int, words: str) -> None:
    with pytest.raises(InputError) as caught:
        tomlfile.parse(raw, "bad.toml")
    assert words in str(caught.value)
    assert caught.value.line == line
    assert str(caught.value).startswith(f"bad.toml:{line}: ")
    assert caught.value.exit_code == 2


def test_too_large(tmp_path: Path) -> None:
    big = tmp_path / "big.toml"
    big.write_bytes(b"#" * (tomlfile.MAX_BYTES + 1))
    with pytest.raises(InputError, match="larger than 4 MiB"):
        tomlfile.load(big)
    big.write_bytes(b"#" * tomlfile.MAX_BYTES)
    assert tomlfile.load(big).data == {}


def test_things_that_are_not_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        tomlfile.load(tmp_path / "none.toml")
    with pytest.raises(InputError, match="not a regular file"):
        tomlfile.load(tmp_path)
    with pytest.raises(InputError, match="not a regular file"):
        tomlfile.load("/dev/zero")
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(InputError, match="not a regular file"):
        tomlfile.load(tmp_path / "pipe.toml")
    with pytest.raises(InputError, match="cannot be read"):
        tomlfile.load("a\0b.toml")
    with pytest.raises(InputError, match="cannot be read"):
        tomlfile.load("x" * 5000)


def test_control_characters_of_a_file_name_do_not_reach_the_terminal() -> None:
    with pytest.raises(InputError) as caught:
        tomlfile.parse(b"a = 1\na = 2", "\x1b[31mred.toml")
    assert "\x1b" not in str(caught.value)


def test_error_at_the_end_of_a_large_file_is_found_in_linear_time() -> None:
    """Long strings, comments and flat arrays are stepped over, not searched again and again."""
    raw = b'a = """' + b'x"" ' * 200_000 + b'"""\nb = [' + b"1," * 100_000 + b"]\n# " + b"c" * 200_000 + b"\nd = ?\n"
    start = time.process_time()
    with pytest.raises(InputError) as caught:
        tomlfile.parse(raw, "big.toml")
    assert caught.value.line == 4
    assert time.process_time() - start < 60  # quadratic work takes hours


names = st.text("abc-_1", min_size=1, max_size=3)
leaves = st.one_of(st.integers(-5, 5), st.booleans(), st.sampled_from(["x", "# [no]", 'q"', "l\nm", "]"]))
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3))


def written(value: object, newline: str) -> str:
    """``value`` as TOML, arrays broken over lines where ``newline`` has a line break."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    if isinstance(value, list):
        return "[" + newline + "".join(f"{written(item, newline)},{newline}" for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {written(item, '')}" for key, item in value.items()) + "}"
    return str(value)


@given(st.dictionaries(names, values, max_size=4), st.sampled_from(["", "\n", " # c ]\n "]))
@settings(max_examples=150, deadline=None)
def test_every_key_of_any_document_has_a_line(data: dict[str, object], newline: str) -> None:
    """Each written key's line is where its text stands, and every path inside has a line no earlier."""
    text, starts = "", {}
    for key, value in data.items():
        starts[key] = text.count("\n") + 1
        text += f"{key} = {written(value, newline)}\n"
    read = tomlfile.parse(text.encode(), "any.toml")
    assert read.data == data

    def walk(node: object, path: tuple[str | int, ...], at_least: int) -> None:
        line = read.line(*path)
        assert line is not None and line >= at_least
        items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, item in items:
            walk(item, (*path, key), line)

    for key, value in data.items():
        assert read.line(key) == starts[key]
        walk(value, (key,), starts[key])


@given(st.binary(max_size=60) | st.text("a.[]{}=\"'\\#\n ,1", max_size=40).map(str.encode))
@settings(max_examples=400, deadline=None)
def test_any_bytes_parse_or_give_an_input_error(raw: bytes) -> None:
    try:
        read = tomlfile.parse(raw, "any.toml")
    except InputError as error:
        assert "any.toml" in str(error)
    else:
        assert all(read.line(key) for key in read.data)
