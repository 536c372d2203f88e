"""Expectations of pairs: the files and the grammar of cells, with a pair's own keys; written and updated from runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from samples import cell, environment
from samples import record as cell_record

from capmatrix import cli, codec
from capmatrix.cell import Geometry, Phase, Rung, Verdict
from capmatrix.errors import InputError
from capmatrix.expect import expectation_file
from capmatrix.expect.expectations import Expectations, pair_subject
from capmatrix.outcome import Kind
from capmatrix.pair import Pair, PairRecord, Side, pair_id
from capmatrix.pairs import pair_outcome
from capmatrix.runlines import EnvironmentLine, PairLine, RecordLine, RunLine
from capmatrix.toml import tomlfile

HEAD = '[[expect]]\nverdict = "error"\nreason = "why"\nlink = "vllm-project/vllm#1"\n'
SAID = "V1's proposer raises: Unsupported attention metadata type"


def pair(target: str = "offline:gfx942", drafter_backend: str | None = None, **changes: Any) -> Pair:
    base = Pair(
        target=target,
        target_model=Side("llama3.1-8b", "LlamaForCausalLM", Geometry(32, 8, 128)),
        drafter=Side("eagle3-llama3.1-8b", "LlamaForCausalLMEagle3", Geometry(32, 8, 128), drafter_backend),
        tp=1,
        method="eagle3",
        num_speculative_tokens=3,
    )
    return msgspec.structs.replace(base, **changes)


def record(made: Pair | None = None, verdict: Verdict = Verdict.PASS, **changes: Any) -> PairRecord:
    made = made or pair()
    base = PairRecord(
        pair_id=pair_id(made),
        pair=made,
        verdict=verdict,
        rung=Rung.DECLARED,
        phase=Phase.FORWARD,
        environment=f"env-{made.target}",
        reasons=() if verdict is Verdict.PASS else (SAID,),
        layout="LBHNC",
    )
    return msgspec.structs.replace(base, **changes)


def load(folder: Path, text: str) -> Expectations:
    (folder / "m.toml").write_text(text)
    return expectation_file.load([folder])


def kind(expected: Expectations, made: PairRecord) -> Kind:
    return pair_outcome.outcome(made, expected.find(made, environment(made.pair.target))).kind


@pytest.mark.parametrize(
    ("text", "changes", "matches"),
    [
        ('target_model = "llama3.1-8b"', {}, True),
        ('target_model = "minimax-m3"', {}, False),
        ('drafter_backend = "auto"', {}, True),
        ('drafter_backend = "ROCM_ATTN"', {}, False),
        ('drafter_backend = ["ROCM_ATTN", "auto"]\ndrafter = "eagle3-llama3.1-8b"', {}, True),
        ('target_backend = "auto"\nblock_size = "auto"', {}, True),
        ('target_backend = "auto"\nblock_size = ["auto", 128]', {"block_size": 128}, True),
        ('target_backend = "auto"\nblock_size = "auto"', {"block_size": 128}, False),
        ('target_model = "llama3.1-8b"\nrunner = "v1"', {}, False),
        ('target_model = "llama3.1-8b"\nrunner = ["v1", "auto"]', {}, True),
        ('target_model = "llama3.1-8b"\ndraft_kv_cache_dtype = "same"', {}, True),
        ('target_model = "llama3.1-8b"\ndraft_kv_cache_dtype = "fp8"', {"draft_kv_cache_dtype": "fp8"}, True),
        ('target_model = "llama3.1-8b"\nnum_speculative_tokens = 1', {}, False),
        ('target_model = "llama3.1-8b"\nswitches = "VLLM_ROCM_USE_AITER=1"', {}, False),
        ('target_model = "llama3.1-8b"\narch = "gfx950"', {}, False),
        ('target_model = "llama3.1-8b"\ntarget = "offline"\nvllm = ">=0.31,<0.33"', {}, True),
        (f'pairs = ["{pair_id(pair())}"]', {}, True),
        (f'pairs = ["{pair_id(pair())}"]', {"tp": 2}, False),
    ],
)
def test_what_an_entry_matches(tmp_path: Path, text: str, changes: dict[str, Any], matches: bool) -> None:
    made = record(pair(**changes), Verdict.ERROR)
    assert kind(load(tmp_path, HEAD + text), made) is (Kind.XFAILED if matches else Kind.FAILED)


@pytest.mark.parametrize(
    ("verdict", "expected", "found"),
    [
        ("error", Verdict.ERROR, Kind.XFAILED),
        ("error", Verdict.PASS, Kind.FAILED),
        ("error", Verdict.REJECTED, Kind.FAILED),
        ("error", Verdict.UNVERIFIED, Kind.SKIPPED),
        ("pass", Verdict.PASS, Kind.PASSED),
        ("pass", Verdict.REJECTED, Kind.FAILED),
        ("rejected", Verdict.REJECTED, Kind.SKIPPED),
        ("rejected", Verdict.PASS, Kind.FAILED),
    ],
)
def test_what_is_not_expected_is_red(tmp_path: Path, verdict: str, expected: Verdict, found: Kind) -> None:
    text = HEAD.replace('"error"', f'"{verdict}"') + 'drafter_backend = "auto"'
    assert kind(load(tmp_path, text), record(verdict=expected)) is found


def test_the_reason_and_the_link_are_told(tmp_path: Path) -> None:
    expected = load(tmp_path, HEAD + 'drafter_backend = "auto"')
    failed = record(verdict=Verdict.ERROR)
    said = pair_outcome.outcome(failed, expected.find(failed, environment("offline:gfx942"))).text
    assert "as expected" in said and "vllm-project/vllm#1" in said and "m.toml:1" in said and SAID in said
    passed = record()
    said = pair_outcome.outcome(passed, expected.find(passed, environment("offline:gfx942"))).text
    assert said.startswith("unexpected pass, expected error")


def test_entries_of_cells_and_of_pairs_keep_apart(tmp_path: Path) -> None:
    """Also where a scope holds keys that only cells have; and neither is ambiguous beside the other."""
    scope = '[scope]\ndtype = "bfloat16"\nexecution = "eager"\nrunner = "auto"\n'
    of_cells = HEAD.replace('"error"', '"wrong"') + 'backend = "ROCM_ATTN"\nrunner = "v2"\n'
    of_pairs = HEAD + 'drafter = "eagle3-llama3.1-8b"\ndrafter_backend = "auto"\n'
    with pytest.raises(InputError, match="scope"):  # a cell's runner is never left to vLLM
        load(tmp_path, scope + of_cells + of_pairs)
    expected = load(tmp_path, scope.replace('runner = "auto"\n', "") + of_cells + of_pairs)
    assert kind(expected, record(verdict=Verdict.ERROR)) is Kind.XFAILED
    assert kind(expected, record(pair(dtype="float16"), Verdict.ERROR)) is Kind.FAILED
    found = expected.find(cell_record(cell(backend="ROCM_ATTN")), environment("offline:gfx942"))
    assert found is not None and found.verdicts == (Verdict.WRONG,)
    assert expected.find(cell_record(cell(backend="TRITON_ATTN")), environment("offline:gfx942")) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('drafter_backend = "auto"\nbackend = "ROCM_ATTN"', "an entry about pairs has no such key"),
        ('drafter_backend = "auto"\nbatch = "decode"', "an entry about pairs has no such key"),
        ('drafter_backend = "auto"\ncells = ["x"]', "an entry about pairs has no such key"),
        ('drafter_backend = "ROCM_ATN"', "did you mean 'ROCM_ATTN'"),
        ('target_model = "minimax-m4"', "did you mean 'minimax-m3'"),
        ('backend = "ROCM_ATTN"\nblock_size = "auto"', "block_size"),
        ('drafter_backend = "auto"\nblock_size = "aut"', "did you mean 'auto'"),
        ('draft_kv_cache_dtype = "same"', "says neither which model or backend nor which pairs"),
        ('pairs = ["a b"]', "not a cell id"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        load(tmp_path, HEAD + text)
    assert said in str(caught.value) and "m.toml" in str(caught.value)


def test_a_subject_has_every_axis_that_an_entry_may_name() -> None:
    axes = pair_subject(pair(), environment("offline:gfx942")).axes
    assert {*axes} == {*expectation_file.MATCHERS_OF["pairs"], "switches", "kind"}


def run_file(path: Path, made: list[PairRecord], *cells: Any, vllm: str = "") -> str:
    lines: list[Any] = [RunLine({"matrix": "pairs"})]
    for target in dict.fromkeys(one.pair.target for one in made):
        found = environment(target)
        if vllm:
            found = msgspec.structs.replace(found, versions={**found.versions, "vllm": vllm})
        lines.append(EnvironmentLine(found))
    lines += [*map(PairLine, made), *map(RecordLine, cells)]
    path.write_bytes(b"\n".join(map(codec.encode, lines)) + b"\n")
    return str(path)


def grid(fails: Any) -> list[PairRecord]:
    found = []
    for target in ("offline:gfx942", "offline:gfx950"):
        for runner in ("v1", "v2"):
            for kv in ("auto", "turboquant_k8v4"):
                for k in (1, 3):
                    made = pair(target, runner=runner, kv_cache_dtype=kv, num_speculative_tokens=k)
                    found.append(record(made, Verdict.ERROR if fails(made) else Verdict.PASS))
    return found


def unsupported(made: Pair) -> bool:
    return made.runner == "v1" and made.kv_cache_dtype == "turboquant_k8v4" and made.num_speculative_tokens > 1


def test_a_run_s_failures_are_written_and_explain_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "expectations" / "m.toml"
    records = grid(unsupported)
    run = run_file(tmp_path / "r.jsonl", records)
    assert cli.main(["expect", run, "-o", str(file), "--link", "vllm-project/vllm#53983"]) == 0
    assert "1 added, 0 changed, 0 removed for 16 pairs" in capsys.readouterr().err
    (entry,) = tomlfile.load(file).data["expect"]
    assert entry == {
        "verdict": "error",
        "target_model": "llama3.1-8b",
        "target_backend": "auto",
        "drafter": "eagle3-llama3.1-8b",
        "drafter_backend": "auto",
        "kv_cache_dtype": "turboquant_k8v4",
        "num_speculative_tokens": 3,
        "runner": "v1",
        "reason": SAID,
        "link": "vllm-project/vllm#53983",
    } | {key: entry[key] for key in ("block_size", "draft_kv_cache_dtype", "tp") if key in entry}
    expected = expectation_file.load([file])
    for one in records:
        assert kind(expected, one) is (Kind.XFAILED if one.verdict is Verdict.ERROR else Kind.PASSED)
    assert cli.main(["expect", run, "-o", str(file), "--check"]) == 0


def test_what_was_fixed_goes_and_what_broke_joins(tmp_path: Path) -> None:
    file = tmp_path / "expectations" / "m.toml"
    before = run_file(tmp_path / "a.jsonl", grid(unsupported))
    assert cli.main(["expect", before, "-o", str(file)]) == 0
    text = file.read_text().replace(f'reason = "{SAID}"', 'reason = "a person wrote this"')
    file.write_text(text)
    fixed = run_file(tmp_path / "b.jsonl", grid(lambda made: unsupported(made) and "gfx950" in made.target))
    assert cli.main(["expect", fixed, "-o", str(file), "--check"]) == 1
    assert cli.main(["expect", fixed, "-o", str(file)]) == 0
    (entry,) = tomlfile.load(file).data["expect"]
    assert (entry["arch"], entry["reason"]) == ("gfx950", "a person wrote this")
    gone = run_file(tmp_path / "c.jsonl", grid(lambda made: False))
    assert cli.main(["expect", gone, "-o", str(file)]) == 0
    assert "expect" not in tomlfile.load(file).data


def test_a_run_of_cells_and_pairs_updates_one_file(tmp_path: Path) -> None:
    file = tmp_path / "expectations" / "m.toml"
    broken = cell_record(cell(target="offline:gfx942"), Verdict.WRONG, reasons=("off",))
    run = run_file(tmp_path / "r.jsonl", grid(unsupported), broken)
    assert cli.main(["expect", run, "-o", str(file)]) == 0
    of_cells, of_pairs = tomlfile.load(file).data["expect"]
    assert of_cells["verdict"] == "wrong" and "backend" in of_cells
    assert of_pairs["verdict"] == "error" and of_pairs["drafter_backend"] == "auto"
    expected = expectation_file.load([file])
    assert kind(expected, grid(unsupported)[3]) is Kind.XFAILED
    assert cli.main(["expect", run, "-o", str(file), "--check"]) == 0


def test_verdicts_that_come_and_go_are_flaky(tmp_path: Path) -> None:
    file = tmp_path / "expectations" / "m.toml"
    made = record(verdict=Verdict.CRASH, repeats=(Verdict.CRASH, Verdict.PASS, Verdict.PASS))
    run = run_file(tmp_path / "r.jsonl", [made])
    assert pair_outcome.outcome(made).kind is Kind.FAILED
    assert cli.main(["expect", run, "-o", str(file)]) == 0
    (entry,) = tomlfile.load(file).data["flaky"]
    assert entry["verdicts"] == ["pass", "crash"]
    assert kind(expectation_file.load([file]), made) is Kind.XFAILED
