"""Explaining one cell, and finding it by tokens of its id."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
import samples
from samples import cell, environment, forced, record
from test_markdown import HOSTILE, hostile_record

from capmatrix.cell import Claim, Flag, Phase, Rung, Verdict
from capmatrix.errors import EXIT_USAGE, InputError
from capmatrix.report import lookup, text
from capmatrix.report.explain import explain, render

GOLDEN = Path(__file__).parent / "golden"
RECORDS, ENVIRONMENTS, HEADER = samples.seed_run()


def test_everything_of_a_record_is_there() -> None:
    rich = samples.rich_record()
    page = explain(rich.cell_id, [rich], ENVIRONMENTS, HEADER, width=200)
    for part in (
        rich.cell_id,
        "wrong (interpreted)",
        "the kernels ran in Triton's interpreter on a CPU, and the numbers are right",
        "compare: comparing with the reference",
        "relative L2 0.55 over the bound 0.0042",
        "the writer stores e4m3, the readers view e5m2",
        "fallback:",
        "over-advertised",
        "not applicable: the V2 runner has no allow-list",
        "[9, 2, 16, 64, 128]",
        "LHBNC",
        "UNIFORM_SINGLE_TOKEN_DECODE",
        "torch.accelerator.empty_cache",
        "reduced from the family's own",
        "dtype fp8_e5m2, block 64",
        "build 41 ms",
        "attempt          2",
        "torch 2.13.0+cpu",
        "interpreter: bf16 and fp8 through torch",
    ):
        assert part in page, part


def test_the_route_is_a_table() -> None:
    page = render(samples.rich_record(), None)
    heads = next(line for line in page.splitlines() if "VGPR" in line)
    row = next(line for line in page.splitlines() if "4x16x1" in line)
    shown = {"grid": "4x16x1", "LDS": "32 KiB", "VGPR": "258", "spills": "0 V, 0 S", "compile": "3.41 s"}
    for head, value in shown.items():
        assert row[heads.index(head) :].startswith(value), head
    assert "_C_cache_ops.reshape_and_cache" in page
    assert "PyTorch stand-in" in page


def test_the_numbers_are_a_table() -> None:
    page = render(samples.rich_record(), None)
    heads = next(line for line in page.splitlines() if "rel. L2" in line)
    row = next(line for line in page.splitlines() if line.startswith("  BAD") and "zeroed" in line)
    for head, value in (("rel. L2", "0.55"), ("worst row", "0.81 (row 3)"), ("bound", "0.0042"), ("plain", "0.0017")):
        assert row[heads.index(head) :].startswith(value), head
    assert re.search(r"^  BAD +forward alone +nan +0\.0042 +512$", page, re.M)


def test_manager_and_kernel_block_are_told_apart() -> None:
    split = render(record(kernel_block=32), None)
    assert "32 tokens, manager block 128: the manager's block of 128 is split" in split
    assert "128 tokens, manager block 128\n" in render(record(kernel_block=128), None)
    assert "not resolved; manager block 128" in render(record(verdict=Verdict.ERROR, kernel_block=None), None)


def test_a_rejection_claims_no_rung() -> None:
    page = render(record(verdict=Verdict.REJECTED, reasons=("no sinks",)), None)
    assert "rejected: refused by the backend or the selector" in page
    assert not re.search(r"^  rung", page, re.M)
    assert "manager block" not in page


def test_a_death_shows_signal_and_the_end_of_stderr() -> None:
    alive = samples.failure("Crash", "died")
    dead = msgspec.structs.replace(alive, signal="SIGSEGV", exit_code=-11, stderr_tail="a\nb\n")
    page = render(record(verdict=Verdict.CRASH, failure=dead), None)
    assert "signal SIGSEGV, exit code -11" in page
    assert "    a\n    b\n" in page
    assert "attention.py:412 in forward" in page


def test_under_advertised_is_said() -> None:
    page = render(record(forced(None), flags=(Flag.FORCED_VALIDATION,), claims=(Claim("validation", False),)), None)
    assert "under-advertised" in page
    assert "forced past the backend's own validation" in page


def test_whom_a_record_speaks_for() -> None:
    nvidia = environment("device", hardware={"vendor": "nvidia", "name": "NVIDIA H200"}, identity={"arch": "gfx950"})
    page = render(record(cell(target="device")), nvidia)
    assert re.search(r"speaks for +no AMD architecture by itself", page)
    assert re.search(r"speaks for +gfx942", render(record(), ENVIRONMENTS["env-offline:gfx942"]))


def test_the_command_runs_this_cell_alone() -> None:
    name = record(forced()).cell_id
    header = {"files": ["eagle3-llama.toml"], "matrix": "eagle3-llama", "preset": "seed"}
    page = render(record(forced()), None, header)
    command = f"pytest matrices/eagle3-llama.toml::{name} --target offline:gfx942 --preset seed --force=kernel_block"
    assert command in page


def test_the_command_is_quoted() -> None:
    evil = record(cell(drafter="$(reboot)"), cell_id="x; reboot")
    page = render(evil, None, {"files": ["a b.toml"], "preset": "`reboot`"})
    assert "'matrices/a b.toml::x; reboot' --target offline:gfx942 --preset '`reboot`'" in page


def test_the_same_cell_on_other_targets_is_listed() -> None:
    page = explain("offline:gfx950 TRITON_ATTN b16 fp8 prefill", RECORDS, ENVIRONMENTS, HEADER)
    after = page.split("The same cell elsewhere in this run")[1]
    assert re.search(r"interpreter:gfx950 +prefill +wrong \(interpreted\)", after)
    assert re.search(r"device +verify +unavailable", after)


@pytest.mark.parametrize("evil", HOSTILE)
def test_hostile_text_draws_no_escape(evil: str) -> None:
    page = render(hostile_record(evil), environment("offline:gfx942", commits={evil: evil}), {"matrix": evil})
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u200b\u202a-\u202e\u2066-\u2069\ufeff]", page)
    assert len(page) < 60_000


@pytest.mark.parametrize("width", [80, 100, 160])
def test_prose_fits_the_width(width: int) -> None:
    page = explain(samples.rich_record().cell_id, [samples.rich_record()], ENVIRONMENTS, HEADER, width=width)
    sections = page.split("Route:")[0] + page.split("\nTime\n")[1].split("To run it again")[0]
    assert all(text.width(line) <= width for line in sections.splitlines()[1:])


def test_golden_explain() -> None:
    """What ``capmatrix explain`` prints; ``python tests/unit/golden/update.py`` writes it anew."""
    rich = samples.rich_record()
    expected = (GOLDEN / "explain.txt").read_text(encoding="utf-8")
    assert explain(rich.cell_id, [rich], ENVIRONMENTS, HEADER) == expected


# Finding a cell


@pytest.mark.parametrize(
    "query",
    [
        "offline:gfx942-TRITON_ATTN-b16-fp8-minimax-m3-eagle3-tp4-heads16.16-h128-bf16-verify.q3",
        "matrices/x.toml::offline:gfx942-TRITON_ATTN-b16-fp8-minimax-m3-eagle3-tp4-heads16.16-h128-bf16-verify.q3",
        "offline:gfx942 TRITON_ATTN b16 fp8 verify",
        "verify fp8 b16 gfx942 triton_attn",
        "offline:gfx942 and TRITON_ATTN and b16 and fp8 and q3",
        "gfx942-TRITON_ATTN-b16-fp8 verify.q3",
    ],
)
def test_a_cell_is_found_by_its_tokens(query: str) -> None:
    (found,) = lookup.find(query, RECORDS)
    c = found.cell
    assert (c.target, c.backend, c.block_size, c.kv_cache_dtype, c.batch) == (
        "offline:gfx942", "TRITON_ATTN", 16, "fp8", "verify",
    )  # fmt: skip


def test_a_token_means_the_tightest_match() -> None:
    batches = ("verify", "verify_uneven")
    records = [record(cell(kv_cache_dtype=d, batch=b)) for d in ("fp8", "fp8_e5m2") for b in batches]
    assert lookup.find("fp8 verify", records) == [records[0]]
    assert lookup.find("fp8_e5m2 verify_uneven", records) == [records[3]]
    assert lookup.find("e5m2 verify.q3", records) == [records[2]]


def test_several_matches_are_listed_with_what_tells_them_apart() -> None:
    with pytest.raises(InputError) as error:
        lookup.find("gfx942 ROCM_ATTN b16", RECORDS)
    assert "6 cells match; add one of auto, decode, verify.q3, prefill, fp8" in str(error.value)
    assert str(error.value).count("\n  offline:gfx942-ROCM_ATTN-b16-") == 6
    assert error.value.exit_code == EXIT_USAGE


def test_no_match_lists_the_nearest_ids() -> None:
    with pytest.raises(InputError) as error:
        lookup.find("gfx950 ROCM_AITTER_FA b128", RECORDS)
    assert "none has 'ROCM_AITTER_FA'" in str(error.value)
    listed = str(error.value).splitlines()[1:]
    assert len(listed) == 8
    assert all("gfx950-ROCM_AITER_FA-b128" in line for line in listed)


@pytest.mark.parametrize("query", ["", "  ", "and", "\x1b[31m", "(", "[a-z]*", ".*", "\\", "x" * 10_000])
def test_odd_queries_are_plain_errors(query: str) -> None:
    with pytest.raises(InputError) as error:
        lookup.find(query, RECORDS)
    assert "\x1b" not in str(error.value)
    assert len(str(error.value)) < 4000


def test_an_empty_run_has_no_cell() -> None:
    with pytest.raises(InputError, match="holds no record"):
        lookup.find("x", [])


def test_records_of_one_cell_come_together() -> None:
    twice = [record(), record(verdict=Verdict.ERROR, rung=Rung.COMPILED, phase=Phase.COMPILE)]
    assert lookup.find(twice[0].cell_id, twice) == twice
    assert explain(twice[0].cell_id, twice, {}).count("What is claimed of it") == 2
