"""Expectation files: what is read, what an entry matches, which of several decides, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from samples import cell, environment, record

from capmatrix import paths
from capmatrix.cell import Environment, Flag, Force, Record, Verdict
from capmatrix.errors import InputError
from capmatrix.expect import expectation_file
from capmatrix.expect.expectations import Expectations, subject
from capmatrix.outcome import Kind, outcome

HEAD = '[[expect]]\nverdict = "wrong"\nreason = "why"\nlink = "vllm-project/vllm#1"\n'
BACKEND = 'backend = "ROCM_ATTN"\n'


def entry(text: str, verdict: str = "wrong") -> str:
    return HEAD.replace('"wrong"', f'"{verdict}"') + text + "\n"


def load(folder: Path, *texts: str) -> Expectations:
    for i, text in enumerate(texts):
        (folder / f"{i}.toml").write_text(text)
    return expectation_file.load([folder])


def found(expected: Expectations, made: Record | None = None, env: Environment | None = None) -> Any:
    made = made or record()
    return expected.find(made, env or environment(made.cell.target))


def verdict(expected: Expectations, made: Record | None = None, env: Environment | None = None) -> str | None:
    got = found(expected, made, env)
    return " or ".join(v.value for v in got.verdicts) if got else None


@pytest.mark.parametrize(
    ("text", "changes", "matches"),
    [
        ("block_size = 128", {}, True),
        ("block_size = [16, 64]", {}, False),
        ('kv_cache_dtype = "fp8"\ndrafter = ["minimax-m3-eagle3", "probe-h256"]', {}, True),
        ('batch = ["verify", "decode"]', {}, True),
        ('batch = "verify"', {}, False),
        ("tp = 4\nhead_size = 128\nmla = false\ncausal = true", {}, True),
        ("sinks = true", {}, False),
        ('method = "eagle3"\nrole = "drafter"', {}, True),
        ('switches = "default"', {}, True),
        ('switches = "VLLM_ROCM_USE_AITER=1"', {}, False),
        ('switches = "VLLM_ROCM_USE_AITER=1"', {"switches": (("VLLM_ROCM_USE_AITER", "1"),)}, True),
        ('force = "validation"', {}, False),
        ('force = "validation"', {"force": Force.VALIDATION}, True),
        ("", {"force": Force.VALIDATION}, False),
        ('target = "offline"', {}, True),
        ('target = ["interpreter", "device"]', {}, False),
        ('target = "interpreter"', {"target": "interpreter:gfx950"}, True),
        ('arch = "gfx942"', {}, True),
        ('arch = ["gfx950", "gfx1201"]', {}, False),
        ('arch = ["gfx950", "gfx1201"]', {"target": "interpreter:gfx950"}, True),
        ('vllm = ">=0.32,<0.33"', {}, True),
        ('vllm = "<0.32"', {}, False),
        ('aiter = ">=0.1.7"\ntriton = "==3.7.1"', {}, True),
        ('rocm = ">=6"', {}, False),
    ],
)
def test_what_an_entry_matches(tmp_path: Path, text: str, changes: dict[str, Any], matches: bool) -> None:
    expected = load(tmp_path, entry(BACKEND + text))
    assert verdict(expected, record(cell(**changes))) == ("wrong" if matches else None)


def test_another_backend_and_ids(tmp_path: Path) -> None:
    made = record()
    expected = load(tmp_path, entry(BACKEND), entry(f'cells = ["{made.cell_id}"]', "crash"))
    assert verdict(expected, record(cell(backend="TRITON_ATTN"))) is None
    assert verdict(expected, made) == "crash"  # listed by id: before anything else
    assert verdict(expected, record(cell(block_size=16))) == "wrong"


def test_conditions_on_the_machine(tmp_path: Path) -> None:
    """An AMD GPU speaks for its architecture; another vendor's under a ROCm identity for none."""
    expected = load(tmp_path, entry(BACKEND + 'arch = "gfx942"\nrocm = ">=7.0,<7.3"'))
    made = record(cell(target="device"))
    amd = environment("device", hardware={"vendor": "amd", "arch": "gfx942"})
    amd = msgspec.structs.replace(amd, versions={**amd.versions, "rocm": "7.2.1"})
    assert verdict(expected, made, amd) == "wrong"
    newer = msgspec.structs.replace(amd, versions={**amd.versions, "rocm": "7.3"})
    assert verdict(expected, made, newer) is None
    posing = msgspec.structs.replace(amd, hardware={"vendor": "nvidia", "name": "H200"}, identity={"arch": "gfx942"})
    assert verdict(expected, made, posing) is None


def test_a_version_that_is_not_known_is_in_no_range(tmp_path: Path) -> None:
    expected = load(tmp_path, entry(BACKEND + 'aiter = ">=0"'))
    env = environment("offline:gfx942")
    assert verdict(expected, None, env) == "wrong"
    for versions in ({}, {"aiter": "unknown"}):
        assert verdict(expected, None, msgspec.structs.replace(env, versions=versions)) is None
    assert expected.find(record(), None) is None


@pytest.mark.parametrize("order", [1, -1])
def test_the_narrower_entry_decides_whatever_the_order(tmp_path: Path, order: int) -> None:
    texts = [
        entry(BACKEND),
        entry(BACKEND + "block_size = 128", "error"),
        entry(BACKEND + 'block_size = 128\nvllm = ">=0.32"', "crash"),
        entry(BACKEND + 'block_size = 128\nvllm = ">=0.32"\narch = "gfx942"', "timeout"),
    ][::order]
    expected = load(tmp_path, *texts)
    assert verdict(expected, record(cell(block_size=16))) == "wrong"
    old = msgspec.structs.replace(environment("offline:gfx942"), versions={"vllm": "0.31"})
    assert verdict(expected, None, old) == "error"
    assert verdict(expected, record(cell(target="offline:gfx950"))) == "crash"
    assert verdict(expected) == "timeout"


def test_an_exception_says_that_it_passes(tmp_path: Path) -> None:
    expected = load(tmp_path, entry(BACKEND) + entry(BACKEND + 'batch = "decode"', "pass"))
    assert outcome(record(), found(expected)).kind is Kind.PASSED
    assert outcome(record(cell(batch="verify")), found(expected, record(cell(batch="verify")))).kind is Kind.FAILED


@pytest.mark.parametrize(
    "second",
    ['kv_cache_dtype = "fp8"', 'batch = "decode"', 'vllm = ">=0.32"', 'arch = "gfx942"', 'target = "offline"'],
)
def test_ambiguous_entries_are_an_error(tmp_path: Path, second: str) -> None:
    one, two = BACKEND + "block_size = 128", BACKEND + second
    with pytest.raises(InputError, match=r"ambiguous: .*0\.toml:1 says wrong") as caught:
        load(tmp_path, entry(one), entry(two, "error"))
    assert caught.value.line == 1 and str(caught.value.file).endswith("1.toml")
    # What both match, said apart, settles it; so do the same verdict, and matches that have nothing in common.
    settled = load(tmp_path, entry(one), entry(two, "error"), entry(f"{one}\n{second}", "crash"))
    assert verdict(settled) == "crash"
    (tmp_path / "2.toml").unlink()
    assert verdict(load(tmp_path, entry(one), entry(two))) == "wrong"
    load(tmp_path, entry(one), entry(two.replace("ROCM_ATTN", "TRITON_ATTN"), "error"))


def test_ranges_and_places_that_do_not_meet_are_not_ambiguous(tmp_path: Path) -> None:
    load(tmp_path, entry(BACKEND + 'vllm = "<0.32"'), entry(BACKEND + 'vllm = ">=0.32"\nbatch = "decode"', "error"))
    one = entry(BACKEND + 'target = "offline:gfx942"\nbatch = "decode"')
    load(tmp_path, one, entry(BACKEND + 'arch = "gfx950"', "error"))


def test_the_same_match_twice_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"matches the same as .*0\.toml:1"):
        load(tmp_path, entry(BACKEND + "block_size = [16, 128]"), entry(BACKEND + "block_size = [128, 16]"))


def test_scope_holds_for_entries_that_do_not_name_the_key(tmp_path: Path) -> None:
    text = '[scope]\ndtype = "bfloat16"\nvllm = ">=0.32"\n' + entry(BACKEND) + entry(BACKEND + 'dtype = "*"', "error")
    expected = load(tmp_path, text)
    assert verdict(expected) == "wrong"
    assert verdict(expected, record(cell(dtype="float16"))) == "error"
    old = msgspec.structs.replace(environment("offline:gfx942"), versions={"vllm": "0.31"})
    assert verdict(expected, None, old) is None


def test_flaky_cells(tmp_path: Path) -> None:
    made = record()
    listed = f'[[flaky]]\nverdicts = ["pass", "timeout"]\nreason = "r"\nlink = "unreported"\ncells = ["{made.cell_id}"]'
    expected = load(tmp_path, listed)
    for got, wanted in (
        (Verdict.PASS, Kind.PASSED),
        (Verdict.TIMEOUT, Kind.XFAILED),
        (Verdict.WRONG, Kind.FAILED),
    ):
        made = record(verdict=got)
        assert outcome(made, found(expected, made)).kind is wanted


def test_outcomes_name_the_entry(tmp_path: Path) -> None:
    expected = load(tmp_path, entry(BACKEND))
    text = outcome(record(), found(expected)).text
    assert text.startswith("unexpected pass, expected wrong (why, vllm-project/vllm#1, ") and "0.toml:1)" in text
    made = record(verdict=Verdict.WRONG)
    assert outcome(made, found(expected, made)).kind is Kind.XFAILED
    for untold in (Verdict.UNVERIFIED, Verdict.UNAVAILABLE):
        made = record(verdict=untold)
        assert outcome(made, found(expected, made)).kind is Kind.SKIPPED


def test_force_outranks_no_expectation(tmp_path: Path) -> None:
    expected = load(tmp_path, entry(BACKEND + 'force = "validation"', "pass"))
    made = record(cell(force=Force.VALIDATION), Verdict.ERROR, flags=(Flag.FORCED_VALIDATION,))
    assert outcome(made, found(expected, made)).kind is Kind.FAILED


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("expect = 1", ["expect", "array of tables"]),
        ("[[expect]]\n", ["expect[0].verdict", "is missing"]),
        ('[[expect]]\nverdict = "wrong"\nlink = "unreported"\nbackend = "ROCM_ATTN"', ["reason", "is missing"]),
        ('[[expect]]\nverdict = "wrong"\nreason = "r"\nbackend = "ROCM_ATTN"', ["link", "is missing"]),
        (HEAD, ["neither which backend nor which cells"]),
        (HEAD + 'backend = "ROCM_ATN"', [":5:", "did you mean 'ROCM_ATTN'?"]),
        (HEAD + 'backnd = "ROCM_ATTN"', ["unknown key", "did you mean 'backend'?"]),
        (HEAD + BACKEND + "block_size = 0", ["block_size", "out of range"]),
        (HEAD + BACKEND + 'block_size = "128"', ["block_size", "must be an integer"]),
        (HEAD + BACKEND + "block_size = []", ["block_size", "no value"]),
        (HEAD + BACKEND + 'drafter = "minimax-m3-eagle"', ["drafter", "did you mean 'minimax-m3-eagle3'?"]),
        (HEAD + BACKEND + 'tp = "family"', ["tp", "must be an integer"]),
        (HEAD + BACKEND + "mla = 1", ["mla", "true or false"]),
        (HEAD + BACKEND + 'switches = "VLLM_ROCM_USE_AITR=1"', ["unknown switch", "VLLM_ROCM_USE_AITER"]),
        (HEAD + BACKEND + 'switches = "1"', ["not a set of switches"]),
        (HEAD + BACKEND + 'switches = "VLLM_ROCM_USE_AITER=1 VLLM_ROCM_USE_AITER=0"', ["stands there twice"]),
        (HEAD + BACKEND + 'target = "offline:gfx9"', ["target", "unknown value"]),
        (HEAD + BACKEND + 'arch = "gfx94"', ["arch", "did you mean 'gfx942'?"]),
        (HEAD + BACKEND + 'arch = "gfx942"\ntarget = "offline:gfx950"', ["no such target has this architecture"]),
        (HEAD + BACKEND + 'vllm = "0.32"', ["not a range of versions", ">=0.31,<0.33"]),
        (HEAD + BACKEND + 'vllm = ">0.33,<0.32"', ["no version is in this range"]),
        (HEAD + BACKEND + "vllm = 0.32", ["must be a string"]),
        (HEAD + BACKEND + 'cells = ["a b"]', ["not a cell id"]),
        (HEAD + BACKEND + "cells = 3", ["not a cell id"]),
        (HEAD.replace("wrong", "wrnog") + BACKEND, ["verdict", "did you mean 'wrong'?"]),
        (HEAD.replace("wrong", "unverified") + BACKEND, ["verdict", "unknown value"]),
        (HEAD.replace('"wrong"', '["wrong", "pass"]') + BACKEND, ["listed under [[flaky]]"]),
        (HEAD.replace("vllm-project/vllm#1", "somewhere") + BACKEND, ["link", "not a link"]),
        (HEAD.replace("vllm-project/vllm#1", "javascript:alert(1)") + BACKEND, ["link", "not a link"]),
        (HEAD.replace('"why"', '" "') + BACKEND, ["reason", "blank"]),
        ('[[flaky]]\nverdicts = ["pass"]\nreason = "r"\nlink = "unreported"\n' + BACKEND, ["at least two"]),
        ('[[flaky]]\nverdicts = ["pass", "pass"]\nreason = "r"\nlink = "unreported"\n' + BACKEND, ["at least two"]),
        ('properties = ["python"]', ["properties", "unknown value"]),
        ('[scope]\nverdict = "wrong"', ["scope.verdict", "unknown key"]),
        ('[scope]\nvllm = "new"', ["scope.vllm", "not a range"]),
        ('description = ""', ["description", "blank"]),
    ],
)
def test_mistakes(tmp_path: Path, text: str, parts: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        load(tmp_path, text)
    for part in ("0.toml", *parts):
        assert part in str(caught.value)


def test_too_many_entries(tmp_path: Path) -> None:
    listed = "".join(entry(f'cells = ["c{i}"]') for i in range(expectation_file.MAX_ENTRIES + 1))
    with pytest.raises(InputError, match="more than 1000 entries"):
        load(tmp_path, listed)


def test_families_beside_the_matrices_are_known(tmp_path: Path) -> None:
    (tmp_path / "drafters").mkdir()
    family = (paths.drafters_dir() / "minimax-m3-eagle3.toml").read_text()
    (tmp_path / "drafters" / "mine.toml").write_text(family)
    folder = tmp_path / "expectations"
    folder.mkdir()
    assert load(folder, entry(BACKEND + 'drafter = "mine"')).entries
    with pytest.raises(InputError, match="unknown value"):
        load(tmp_path, entry(BACKEND + 'drafter = "mine"'))


def test_beside_a_matrix(tmp_path: Path) -> None:
    assert expectation_file.beside(tmp_path / "m.toml") == []
    (tmp_path / "expectations").mkdir()
    assert expectation_file.beside(tmp_path / "m.toml") == [tmp_path / "expectations"]


def test_shipped_expectations_load_and_give_reasons() -> None:
    expected = expectation_file.load([paths.matrices_dir() / "expectations"])
    assert expected.entries
    for one in expected.entries:
        assert one.reason and one.link


def test_a_subject_has_every_axis_that_an_entry_may_name() -> None:
    axes = subject(cell(), environment("offline:gfx942")).axes
    assert {*axes} == {*expectation_file.MATCHERS, "switches", "kind"}


def test_the_schema_is_in_step() -> None:
    from capmatrix.schema import matrices as schema

    committed = (paths.matrices_dir() / "schema" / "expectations.schema.json").read_text(encoding="utf-8")
    assert committed == schema.files()["expectations.schema.json"], "run: python -m capmatrix.schema"
    properties = schema.expectations_schema()["properties"]
    assert tuple(properties) == expectation_file.FILE_KEYS
    assert {*properties["expect"]["items"]["properties"]} == {*expectation_file.EXPECT_KEYS}
    assert {*properties["flaky"]["items"]["properties"]} == {*expectation_file.FLAKY_KEYS}
    assert {*properties["scope"]["properties"]} == {*expectation_file.KEYS}


def test_shipped_files_follow_the_schema() -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    from capmatrix.schema import matrices as schema
    from capmatrix.toml import tomlfile

    check = jsonschema.Draft7Validator(schema.expectations_schema())
    files = sorted((paths.matrices_dir() / "expectations").glob("*.toml"))
    assert files
    for path in files:
        assert path.read_text(encoding="utf-8").startswith("#:schema ../schema/expectations.schema.json\n")
        assert [e.message for e in check.iter_errors(tomlfile.load(path).data)] == []
