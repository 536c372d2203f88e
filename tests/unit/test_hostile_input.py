"""Files from elsewhere: whatever is in them is one clear error, or is shown without doing anything.

Shipped files are broken in many ways, each way deterministic; whatever is no longer valid must give one message that
names the file, exit 2, and neither a traceback nor a control character.
"""

from __future__ import annotations

import copy
import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import failure, rich_record, seed_run

from capmatrix import cli, codec, paths, runlines
from capmatrix.errors import InputError
from capmatrix.expect import expectation_file
from capmatrix.runlines import EnvironmentLine, RecordLine, RunLine
from capmatrix.toml import tomlfile, tomlwrite

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SHIPPED = paths.matrices_dir()

#: What a value is replaced by.
VALUES: tuple[Any, ...] = (
    -1, 0, 2**63, 10**30, 1.5, float("nan"), float("inf"), True, "", " ", "x" * 5000, "ROCM_ATN", "../../etc/passwd",
    "\x1b[31mred\x07\x9b", "\u202egnp.exe", "<script>alert(1)</script>", "a|b\n# c", "{0.__class__}", "$(id)",
    [], [[]], [1, "a"], ["x", "x"], {}, {"a": 1}, [{"a": 1}], [{}], "*", "family",
)  # fmt: skip

#: Broken files of each kind, at least; 200 and more of them all.
LEAST = 30
EACH = 45

EXPECTATIONS = """\
properties = ["arch", "vllm"]
[scope]
dtype = "bfloat16"
[[expect]]
verdict = "wrong"
backend = ["ROCM_ATTN", "TRITON_ATTN"]
block_size = 128
drafter = "minimax-m3-eagle3"
switches = "VLLM_ROCM_USE_AITER=1"
target = "offline"
vllm = ">=0.32,<0.33"
reason = "r"
link = "vllm-project/vllm#1"
[[flaky]]
verdicts = ["pass", "crash"]
cells = ["a-b"]
reason = "r"
link = "unreported"
"""


def _matrix(folder: Path) -> list[str]:
    return ["cells", str(folder / "it.toml"), "--count", "--target", "offline:gfx942"]


def _beside(kind: str, matrix: str) -> Callable[[Path], list[str]]:
    def words(folder: Path) -> list[str]:
        """The file in question goes where the matrix beside it looks for such files."""
        where = folder / kind
        where.mkdir(exist_ok=True)
        (folder / "it.toml").replace(where / "it.toml")
        (folder / "m.toml").write_text((SHIPPED / matrix).read_text())
        return ["cells", str(folder / "m.toml"), "--count", "--target", "offline:gfx942"]

    return words


def _expect(folder: Path) -> list[str]:
    run = folder / "run.jsonl"
    if not run.exists():
        run.write_bytes(_run_lines(*seed_run()))
    return ["expect", str(run), "-o", str(folder / "it.toml"), "--check"]


#: A kind of file: its text, and the command that reads it.
KINDS: dict[str, tuple[str, Callable[[Path], list[str]]]] = {
    "matrix": ((SHIPPED / "smoke.toml").read_text(), _matrix),
    "matrix of latent attention": ((SHIPPED / "mla.toml").read_text(), _matrix),
    "matrix with rules and probes": ((SHIPPED / "field-reports.toml").read_text(), _matrix),
    "pairs": ((SHIPPED / "pairs.toml").read_text(), _matrix),
    "drafter": ((SHIPPED / "drafters" / "deepseek-mtp.toml").read_text(), _beside("drafters", "smoke.toml")),
    "target model": ((SHIPPED / "targets" / "qwen3-next-80b.toml").read_text(), _beside("targets", "pairs.toml")),
    "published": (
        (SHIPPED / "published" / "vllm-47882-minimax-m3-eagle3.toml").read_text(),
        lambda folder: ["report", str(folder / "it.toml")],
    ),
    "published, derived from": (
        (SHIPPED / "published" / "vllm-56945-qwen3.5-122b.toml").read_text(),
        lambda folder: ["derive", "--published", str(folder / "it.toml")],
    ),
    "expectations": (EXPECTATIONS, _expect),
}


def _run_lines(records: Any, environments: Any, header: Any) -> bytes:
    lines = [RunLine(header), *map(EnvironmentLine, environments.values()), *map(RecordLine, records)]
    return b"".join(codec.encode(line) + b"\n" for line in lines)


def _paths(data: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    pairs = data.items() if isinstance(data, dict) else enumerate(data[:3]) if isinstance(data, list) else ()
    for key, value in pairs:
        yield (*at, key)
        yield from _paths(value, (*at, key))


def _put(data: Any, at: tuple[Any, ...], value: Any) -> Any:
    made = copy.deepcopy(data)
    node = made
    for key in at[:-1]:
        node = node[key]
    node[at[-1]] = value
    return made


def _broken(text: str, count: int) -> Iterator[str]:
    """Values replaced, keys added, then the text itself cut and damaged."""
    data = tomllib.loads(text)
    dice = random.Random(len(text))
    places = list(_paths(data))
    for i in range(count):
        at = places[dice.randrange(len(places))]
        value = VALUES[i % len(VALUES)]
        if i % 7 == 6:
            at = (*at[:-1], "surprise") if isinstance(at[-1], str) else at
        yield tomlwrite.dumps(_put(data, at, value))
    for share in (0.2, 0.5, 0.9):
        yield text[: int(len(text) * share)] + "\n[["
    yield text + "\nkey = " + "[" * 100
    yield text + "\n" + "a." * 100 + "b = 1\n"
    yield text + "\nname = 'again'\nname = 'again'\n"
    yield text.replace("=", "= \x00", 1)


def call(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    status = cli.main(words)
    shown = capsys.readouterr()
    return status, shown.out, shown.err


def harmless(text: str) -> bool:
    """Nothing that a terminal would obey."""
    return all(c in "\n\t" or (ord(c) >= 0x20 and not 0x7F <= ord(c) < 0xA0 and c != "\u202e") for c in text)


@pytest.mark.parametrize("kind", KINDS)
def test_broken_files_are_one_clear_error(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    look_at(*KINDS[kind], tmp_path, capsys)


def test_a_broken_derived_table_is_one_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run.jsonl"
    run.write_bytes(_run_lines(*seed_run()))
    status, text, _ = call(["derive", str(run)], capsys)
    assert status == 0
    look_at(text, lambda folder: ["report", str(folder / "it.toml")], tmp_path, capsys)
    look_at(text, lambda folder: ["diff", str(folder / "it.toml"), str(folder / "it.toml")], tmp_path, capsys)


def look_at(text: str, words: Callable[[Path], list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``text`` is read, and what is broken of it refused."""
    (tmp_path / "it.toml").write_text(text)
    assert call(words(tmp_path), capsys)[0] in (0, 1), "the file is valid to begin with"
    refused = 0
    for broken in _broken(text, EACH):
        (tmp_path / "it.toml").write_text(broken)
        status, out, error = call(words(tmp_path), capsys)
        assert status in (0, 1, 2), broken
        assert "Traceback" not in error and harmless(out + error), broken
        if status == 2:
            refused += 1
            (line,) = [x for x in error.splitlines() if x.startswith("capmatrix: error: ")]
            assert "it.toml" in line, (broken, line)
    assert refused >= LEAST
    for raw in (b"\xff\xfe\x00", text.encode() + b"\n# \xff\n", b"\x00" * 100, b"a = 1\n" * 1_000_000):
        (tmp_path / "it.toml").write_bytes(raw)
        status, _, error = call(words(tmp_path), capsys)
        assert status == 2 and error.count("capmatrix: error: ") == 1 and "it.toml" in error


@given(st.binary(max_size=300))
def test_any_bytes_are_a_table_or_an_input_error(raw: bytes) -> None:
    try:
        doc = tomlfile.parse(raw, "x.toml")
    except InputError as error:
        assert harmless(str(error))
        return
    with_reader(doc)


def with_reader(doc: tomlfile.TomlFile) -> None:
    try:
        expectation_file.from_toml(doc)
    except InputError as error:
        assert harmless(str(error))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(["run", "environment", "started", "record", "end", "pair", "x"]), JSON, JSON)
def test_any_line_is_decoded_or_said_to_be_wrong(kind: str, a: Any, b: Any) -> None:
    keys = {"header": a, "record": b, "environment": a, "cell_id": b, "summary": b, "version": a}
    line = json.dumps({"kind": kind, **keys}, ensure_ascii=False).encode("utf-8", "surrogatepass")
    try:
        runlines.decode(line + b"\n", "r.jsonl", 1)
    except InputError as error:
        assert harmless(str(error))  # a newer version


#: Commands that read runs; RUN stands for the file.
READERS = (
    ("show", "RUN"),
    ("report", "RUN"),
    ("report", "RUN", "--format", "html"),
    ("report", "RUN", "--format", "json"),
    ("explain", "ROCM_ATTN b128 auto decode gfx942", "RUN"),
    ("diff", "RUN", "RUN"),
    ("rules", "RUN"),
    ("derive", "RUN"),
    ("expect", "RUN", "-o", "OUT", "--check"),
)

NO_RUNS: dict[str, bytes] = {
    "empty": b"",
    "a word": b"precious\n",
    "a list": b"[]\n" * 3,
    "another tool's lines": b'{"event": "start"}\n' * 3,
    "headless header": b'{"kind": "run"}\n',
    "unknown kinds": b'{"kind": "verdict", "cell": "x"}\n',
    "binary": bytes(range(256)) * 20,
    "deep": b'{"kind": "run", "header": ' + b"[" * 5000 + b"]" * 5000 + b"}\n",
    "newer": b'{"kind": "run", "header": {}, "version": 99}\n',
    "pickle": b"\x80\x04\x95\x1c\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
}


@pytest.mark.parametrize("what", NO_RUNS)
def test_what_is_no_run_file(what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "it.jsonl"
    path.write_bytes(NO_RUNS[what])
    for reader in READERS:
        words = [{"RUN": str(path), "OUT": str(tmp_path / "o.toml")}.get(w, w) for w in reader]
        status, out, error = call(words, capsys)
        assert status == 2, (reader, error)
        assert error.count("capmatrix: error: ") == 1 and "it.jsonl" in error and "Traceback" not in error
        assert harmless(out + error)


EVIL = 'a|p|\n# new\x1b[31m\x07\x9b [x](javascript:a) <img src=x onerror=1> "onmouseover="1 `t` \u202e ../../etc/passwd'


def _evil_runs() -> Iterator[tuple[str, bytes]]:
    """A run with each text of its header, environment, cell and record replaced, one at a time."""
    records, environments, header = seed_run()
    bad = msgspec.structs.replace(rich_record(), failure=failure(), environment=records[0].environment)
    first = [bad, *records[:5]]
    lines = [json.loads(line) for line in _run_lines(first, environments, header).splitlines()]
    spots = [
        (i, at)
        for i, line in enumerate(lines)
        if i in (0, 1, 4)
        for at in _paths(line)
        if at != ("kind",) and isinstance(_get(line, at), str)
    ]
    for i, at in spots:
        changed = [_put(line, at, EVIL) if n == i else line for n, line in enumerate(lines)]
        yield ".".join(map(str, at)), b"".join(json.dumps(line).encode() + b"\n" for line in changed)


def _get(data: Any, at: tuple[Any, ...]) -> Any:
    for key in at:
        data = data[key]
    return data


def test_texts_of_a_run_do_nothing_where_they_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "it.jsonl"
    tried = 0
    for where, content in _evil_runs():
        path.write_bytes(content)
        for reader in READERS if tried % 4 == 0 else READERS[:4]:
            words = [{"RUN": str(path), "OUT": str(tmp_path / "o.toml")}.get(w, w) for w in reader]
            status, out, error = call(words, capsys)
            assert status in (0, 1, 2) and "Traceback" not in error, (where, reader)
            assert harmless(out + error), (where, reader)
            if reader[0] == "report" and "html" in reader:
                assert "<img" not in out and '"onmouseover' not in out, where
            if reader == READERS[1]:
                # In Markdown texts stand in code spans: no line begins with what they hold, no link is made of it.
                for line in out.splitlines():
                    assert not line.startswith("# new") and _outside_code(line).find("](javascript") < 0, (where, line)
                    assert "<img" not in _outside_code(line), (where, line)
        tried += 1
    assert tried >= 30
    assert {p.name for p in tmp_path.iterdir()} == {"it.jsonl"}


def _outside_code(line: str) -> str:
    """A line of Markdown without its code spans: runs of backquotes and what stands between two of one length."""
    out, at = "", 0
    while at < len(line):
        if line[at] != "`":
            out += line[at]
            at += 1
            continue
        end = at
        while end < len(line) and line[end] == "`":
            end += 1
        fence = line[at:end]
        close = end
        while True:
            close = line.find(fence, close)
            if close < 0:
                return out + line[at:]
            after = close + len(fence)
            if line[close - 1] != "`" and line[after : after + 1] != "`":
                break
            close = after
        at = after
    return out


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../up.toml", "/etc/x.toml", "a/../../up.toml", "", "x.jsonl", 5, None]
)
def test_a_run_does_not_say_where_files_are_written(
    name: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "up.toml").write_text("[axes]\n")
    inside = tmp_path / "inside" / "a"
    inside.mkdir(parents=True)
    monkeypatch.chdir(inside.parent)
    records, environments, header = seed_run()
    run = inside.parent / "r.jsonl"
    run.write_bytes(_run_lines(records, environments, {**header, "files": [name]}))
    status, _, error = call(["expect", str(run)], capsys)
    assert status == 2 and error.count("capmatrix: error: ") == 1
    assert not (tmp_path / "expectations").exists() and not (inside / "expectations").exists()


def test_damaged_lines_are_named_and_the_rest_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a killed writer leaves is no reason to refuse a run: the line is said, the rest counts."""
    whole = _run_lines(*seed_run()).splitlines(keepends=True)
    path = tmp_path / "it.jsonl"
    dice = random.Random(5)
    for i in range(20):
        at = dice.randrange(5, len(whole))
        line = whole[at]
        misspelt = line.replace(b'"verdict"', b'"x"')
        damaged = (line[: len(line) // 2] + b"\n", b"\x00" * 50 + b"\n", b"{}\n", misspelt)[i % 4]
        path.write_bytes(b"".join([*whole[:at], damaged, *whole[at + 1 :]]))
        status, _, error = call(["show", str(path)], capsys)
        assert status == 0 and f"it.jsonl: line {at + 1}: " in error and harmless(error)
        assert len(error.splitlines()) == 1
