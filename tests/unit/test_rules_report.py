"""Rules of failing regions, and disputes with declarations, vLLM's table and published results."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import cell, environment, record, seed_run

from capmatrix import cli
from capmatrix.analysis import declaration_lines, dispute, regions
from capmatrix.cell import Claim, Force, Record, Verdict
from capmatrix.codec import encode
from capmatrix.errors import InputError
from capmatrix.report import rules as report
from capmatrix.selection import published

BLOCKS = (16, 32, 64, 128, 256)
KV = ("auto", "fp8", "fp8_e5m2")
BATCHES = ("decode", "verify", "prefill")
DOCS = """
## Standard

| Backend | Version | Dtypes | KV Dtypes | Block Sizes | Head Sizes | Sink |
| ------- | ------- | ------ | --------- | ----------- | ---------- | ---- |
| `ROCM_AITER_FA` | | fp16, bf16 | `auto`, `fp8` | 16, 32 | 64, 128, 256 | ❌ |
| `ROCM_ATTN` | | fp16, bf16, fp32 | `auto`, `fp8`, `fp8_e5m2` | %16 | 32, 64, 128 | ❌ |
| `FLASH_ATTN` | FA2* | fp16, bf16 | `auto` | %16 | Any | ❌ |
| `FLASH_ATTN` | FA3* | fp16, bf16 | `auto`, `fp8` | %16 | Any | ✅ |

| Backend | Description |
| ------- | ----------- |
| cuDNN | not a support table |
"""


def grid(fails: Any, backend: str = "ROCM_AITER_FA", **changes: Any) -> list[Record]:
    """Records over blocks, KV dtypes and batches; ``fails`` says which are errors."""
    out = []
    for block, kv, batch in itertools.product(BLOCKS, KV, BATCHES):
        c = cell(backend=backend, block_size=block, kv_cache_dtype=kv, batch=batch, **changes)
        out.append(record(c, Verdict.ERROR if fails(c) else Verdict.PASS, reasons=("boom",) if fails(c) else ()))
    return out


def _at(block: int, fails: bool) -> list[Record]:
    return [record(cell(block_size=block), Verdict.ERROR if fails else Verdict.PASS)]


def explain(records: list[Record]) -> tuple[regions.Rule, ...]:
    return regions.explain(records, {})


# -- rules ---------------------------------------------------------------------------------------


def test_the_kernel_block_rule() -> None:
    def forced(block: int, kernel: int, batch: str) -> Record:
        c = cell(backend="ROCM_AITER_FA", block_size=block, force=Force.KERNEL_BLOCK, kernel_block=kernel, batch=batch)
        return record(c, Verdict.PASS if kernel <= 32 else Verdict.ERROR, kernel_block=kernel)

    free = [msgspec.structs.replace(r, kernel_block=min(r.cell.block_size, 32)) for r in grid(lambda c: False)]
    tried = [forced(128, kernel, batch) for kernel in (16, 32, 64, 128) for batch in BATCHES]
    (rule,) = explain([*free, *tried])
    assert str(rule) == "ROCM_AITER_FA: error iff kernel block not in {16, 32}"
    assert (rule.support, rule.failing, rule.exceptions, rule.exact) == (6, 6, 0, True)


def test_the_shorter_wording_is_taken() -> None:
    (rule,) = explain(grid(lambda c: c.block_size not in (16, 32)))
    assert str(rule) == "ROCM_AITER_FA: error iff block not in {16, 32}"
    many = [r for b in (16, 32, 48, 64, 80, 96, 112, 128) for r in _at(b, b >= 80)]
    assert [str(r) for r in explain(many)] == ["ROCM_ATTN: error iff block >= 80"]
    (rule,) = explain(grid(lambda c: c.block_size != 16))
    assert str(rule) == "ROCM_AITER_FA: error iff block != 16"


def test_two_conditions() -> None:
    (rule,) = explain(grid(lambda c: c.kv_cache_dtype == "fp8_e5m2" and c.batch == "verify"))
    assert str(rule) == "ROCM_AITER_FA: error iff KV cache = fp8_e5m2 and batch = verify"
    assert rule.reasons == ("boom",)


def test_two_regions_take_two_rules() -> None:
    found = explain(grid(lambda c: c.kv_cache_dtype == "fp8_e5m2" or c.block_size == 256))
    assert [str(r) for r in found] == [
        "ROCM_AITER_FA: error if KV cache = fp8_e5m2",
        "ROCM_AITER_FA: error if block = 256",
    ]
    assert {r.failing for r in found} == {21}
    assert [r.support for r in found] == [15, 9]


def test_a_backend_that_always_fails() -> None:
    (rule,) = explain(grid(lambda c: True))
    assert str(rule) == "ROCM_AITER_FA: error always"


def test_no_rule_without_a_failure() -> None:
    assert explain(grid(lambda c: False)) == ()


def test_what_nothing_separates_has_exceptions() -> None:
    one = record(cell(batch="decode"), Verdict.WRONG)
    again = msgspec.structs.replace(record(cell(batch="decode")), environment="other")
    rules = explain([one, again, record(cell(batch="verify"))])
    assert [(r.support, r.exceptions, r.exact) for r in rules] == [(1, 1, False)]
    assert rules[0].against == (again.cell_id,)


def test_refused_and_unverified_cells_neither_support_nor_contradict() -> None:
    records = grid(lambda c: c.block_size == 256)
    silent = [
        msgspec.structs.replace(r, verdict=v) for r in records[:9] for v in (Verdict.REJECTED, Verdict.UNVERIFIED)
    ]
    (rule,) = explain([*records, *silent])
    assert (rule.failing, rule.passing) == (9, 36)


def test_backends_and_order_do_not_mix() -> None:
    records = [*grid(lambda c: c.block_size == 256), *grid(lambda c: c.kv_cache_dtype == "fp8", "ROCM_ATTN")]
    first = explain(records)
    random.Random(1).shuffle(records)
    assert explain(records) == first
    assert [r.backend for r in first] == ["ROCM_AITER_FA", "ROCM_ATTN"]


@settings(max_examples=60, deadline=None)
@given(
    st.sets(st.sampled_from(BLOCKS), min_size=1, max_size=4),
    st.sets(st.sampled_from(KV), min_size=1, max_size=2),
    st.sets(st.sampled_from(BATCHES), min_size=1, max_size=2),
)
def test_a_planted_region_is_found_exactly(blocks: set[int], kvs: set[str], batch_names: set[str]) -> None:
    def fails(c: Any) -> bool:
        return c.block_size in blocks and c.kv_cache_dtype in kvs and c.batch in batch_names

    records = grid(fails)
    found = explain(records)
    assert all(rule.exceptions == 0 for rule in found)
    covered = set()
    for rule in found:
        inside = [r for r in records if all(c.holds(regions.facts(r, None)) for c in rule.conditions)]
        assert len(inside) == rule.support
        covered |= {r.cell_id for r in inside}
    assert covered == {r.cell_id for r in records if r.verdict is Verdict.ERROR}
    assert len(found) == 1


@settings(max_examples=40, deadline=None)
@given(st.lists(st.booleans(), min_size=45, max_size=45))
def test_any_pattern_is_described_truthfully(pattern: list[bool]) -> None:
    bad = iter(pattern)
    records = grid(lambda c: False)
    records = [msgspec.structs.replace(r, verdict=Verdict.WRONG if next(bad) else Verdict.PASS) for r in records]
    for rule in explain(records):
        inside = [r for r in records if all(c.holds(regions.facts(r, None)) for c in rule.conditions)]
        assert rule.support == sum(r.verdict is Verdict.WRONG for r in inside) > 0
        assert rule.exceptions == sum(r.verdict is Verdict.PASS for r in inside)


def test_a_large_run_is_explained_quickly() -> None:
    records = []
    for drafter, dtype in itertools.product([f"d{i}" for i in range(20)], ("bfloat16", "float16")):
        records += grid(lambda c: c.block_size == 128 and c.kv_cache_dtype != "auto", drafter=drafter, dtype=dtype)
    assert len(records) == 1800
    (rule,) = explain(records)
    assert str(rule) == "ROCM_AITER_FA: error iff KV cache != auto and block = 128"


# -- declarations --------------------------------------------------------------------------------


def test_over_advertised_names_the_region_and_the_line() -> None:
    records = grid(lambda c: c.kv_cache_dtype == "fp8_e5m2", "ROCM_ATTN")
    (found,) = dispute.declarations(records, {})
    assert found.kind == "over-advertised"
    assert found.ran == "15 cells (compiled) fail where KV cache = fp8_e5m2"
    if declaration_lines.package() is not None:
        assert "rocm_attn.py" in found.says and "supported_kv_cache_dtypes" in found.says


def test_under_advertised() -> None:
    refused = Claim("validation", False, "", {"reasons": ["block size not supported"]})
    forced = [
        record(cell(backend="ROCM_AITER_FA", block_size=b, force=Force.VALIDATION), claims=(refused,))
        for b in (64, 128)
    ]
    (found,) = dispute.declarations(forced, {})
    assert (found.kind, "block size not supported" in found.says) == ("under-advertised", True)
    assert found.ran.startswith("2 cells (compiled) pass with validation forced")


def test_a_declaration_line_is_found_in_the_text(tmp_path: Path) -> None:
    folder = tmp_path / "v1/attention/backends"
    folder.mkdir(parents=True)
    (folder / "registry.py").write_text(
        'class AttentionBackendEnum:\n    A = (\n        "vllm.v1.attention.backends.a.B"\n    )\n    C = ""\n', "utf-8"
    )
    (folder / "a.py").write_text(
        "import nothing_here\n\nclass B:\n    supported_dtypes: list = []\n\n    @staticmethod\n"
        "    def get_supported_kernel_block_sizes():\n        return [16]\n",
        "utf-8",
    )
    line = declaration_lines.line
    assert line("A", "dtype", tmp_path) == "vllm/v1/attention/backends/a.py:4 supported_dtypes"
    assert line("A", "block_size", tmp_path) == "vllm/v1/attention/backends/a.py:7 get_supported_kernel_block_sizes"
    assert line("A", "head_size", tmp_path) == "vllm/v1/attention/backends/a.py:3 B (inherited)"
    assert line("C", "dtype", tmp_path) == line("D", "dtype", tmp_path) == ""
    assert line("A", "dtype", tmp_path / "none") == ""


# -- vLLM's table --------------------------------------------------------------------------------


def test_the_table_is_parsed() -> None:
    found = dispute.parse_docs(DOCS, "d.md")
    assert set(found.rows) == {"ROCM_AITER_FA", "ROCM_ATTN", "FLASH_ATTN"}
    assert found.rows["ROCM_AITER_FA"][0].line == 6
    assert found.rows["ROCM_AITER_FA"][0].cells["block"] == "16, 32"
    assert len(found.rows["FLASH_ATTN"]) == 2


@pytest.mark.parametrize(
    ("column", "text", "value", "answer"),
    [
        ("block", "16, 32", 32, True),
        ("block", "16, 32", 64, False),
        ("block", "%16", 544, True),
        ("block", "%16", 8, False),
        ("block", "Any", 7, True),
        ("block", "sixteen", 16, None),
        ("kv_cache_dtype", "`auto`, `fp8`", "fp8", True),
        ("kv_cache_dtype", "`auto`, `fp8`", "fp8_e5m2", False),
        ("dtype", "fp16, bf16", "bfloat16", True),
        ("dtype", "fp16, bf16", "float32", False),
        ("sinks", "❌", True, False),
        ("sinks", "❌", False, True),
        ("sinks", "✅", True, True),
        ("head_size", "64, 128", 80, False),
    ],
)
def test_what_a_column_takes(column: str, text: str, value: object, answer: bool | None) -> None:
    assert dispute.accepts(column, text, value) is answer


def disputes(records: list[Record]) -> list[tuple[str, str, str]]:
    found = dispute.documents(dispute.parse_docs(DOCS, "d.md"), records, {})
    return [(d.backend, d.kind, d.edit) for d in found]


def test_a_documented_value_that_always_fails() -> None:
    records = grid(lambda c: c.kv_cache_dtype == "fp8_e5m2", "ROCM_ATTN")
    assert disputes(records) == [("ROCM_ATTN", "documented too much", "remove fp8_e5m2 from KV Dtypes")]


def test_a_documented_value_that_sometimes_fails_is_the_rules_to_tell() -> None:
    assert disputes(grid(lambda c: c.kv_cache_dtype == "fp8_e5m2" and c.block_size == 64, "ROCM_ATTN")) == []


def test_a_backend_that_always_fails_blames_no_value() -> None:
    assert disputes(grid(lambda c: True, "ROCM_ATTN")) == []


def test_an_undocumented_value_that_passes() -> None:
    records = [r for r in grid(lambda c: False) if r.cell.block_size <= 64 and r.cell.kv_cache_dtype != "fp8_e5m2"]
    assert disputes(records) == [("ROCM_AITER_FA", "documented too little", "add 64 to Block Sizes")]


def test_a_block_is_held_to_the_table_as_the_kernels_got_it() -> None:
    split = [record(cell(backend="ROCM_AITER_FA", block_size=128, batch=batch), kernel_block=32) for batch in BATCHES]
    assert disputes(split) == []


def test_a_backend_without_a_row() -> None:
    assert disputes([record(cell(backend="TRITON_ATTN"))]) == [("TRITON_ATTN", "undocumented", "add a row")]
    assert disputes([record(cell(backend="TRITON_ATTN"), Verdict.WRONG)]) == []


def test_another_document_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no support table"):
        dispute.parse_docs("# Nothing\n| a | b |\n|---|---|\n| 1 | 2 |\n", "x.md")
    with pytest.raises(InputError, match="cannot be read"):
        dispute.load_docs(tmp_path / "none.md")


# -- published results ---------------------------------------------------------------------------


def test_published_results_that_records_contradict() -> None:
    seed = published.load(published.find("vllm-47882-minimax-m3-eagle3"))
    records = [
        record(cell(backend="ROCM_AITER_FA"), kernel_block=32),
        record(cell(backend="TRITON_ATTN"), Verdict.WRONG),
        record(cell(backend="ROCM_ATTN", block_size=16), Verdict.WRONG),
    ]
    found = dispute.published([seed], records, {})
    assert [(d.backend, d.kind) for d in found] == [
        ("ROCM_AITER_FA", "published as failing"),
        ("TRITON_ATTN", "published as working"),
    ]
    assert "pass as kernel blocks of 32" in found[0].ran


# -- the command ---------------------------------------------------------------------------------


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records, environments, _ = seed_run()
    lines = [encode({"kind": "run", "header": {}, "version": 1})]
    lines += [encode({"kind": "environment", "environment": e}) for e in environments.values()]
    lines += [encode({"kind": "record", "record": r}) for r in records]
    run, docs = tmp_path / "a.jsonl", tmp_path / "d.md"
    run.write_bytes(b"\n".join(lines) + b"\n")
    docs.write_text(DOCS, encoding="utf-8")
    seed = "vllm-47882-minimax-m3-eagle3"
    assert cli.main(["rules", str(run), "--docs", str(docs), "--published", seed]) == 0
    out = capsys.readouterr().out
    assert "TRITON_ATTN: wrong iff KV cache = fp8 and batch = prefill" in out
    assert "2 of 2 failing cells (interpreted); 0 of 34 passing ones are exceptions" in out
    assert "TRITON_ATTN, undocumented" in out
    assert cli.main(["rules", str(run), "--format", "md", "-o", str(tmp_path / "a.md")]) == 0
    assert "## Declarations" in (tmp_path / "a.md").read_text(encoding="utf-8")
    assert cli.main(["rules", str(run), "--docs", str(run)]) == 2


def test_text_of_records_is_shown_harmlessly() -> None:
    evil = record(cell(drafter="`<b>|"), Verdict.WRONG, reasons=("\x1b[31m`x`<script>",))
    made = report.Report(explain([evil, record()]), dispute.declarations([evil, record()], {}))
    for drawn in (report.text(made), report.markdown(made)):
        assert "\x1b" not in drawn
    assert environment("device").id == "env-device"
