"""Measured times beside the support table: the model, a terminal's lines and Markdown's."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import cell, record

from capmatrix.cell import Record, Timing, Verdict
from capmatrix.report import markdown, terminal, times
from capmatrix.report.dialect import GITHUB, MKDOCS


def timed(backend: str, us: float, workload: str = "seed", phase: str = "decode", **changes: object) -> Record:
    one = cell(**{"target": "device", "backend": backend, "batch": phase, "kv_cache_dtype": "auto", **changes})
    timing = Timing(phase, workload, us, us * 0.99, us * 1.01, 24)  # type: ignore[arg-type]
    return record(one, times=(timing,))


SEED = [
    timed("ROCM_ATTN", 109150, block_size=128),
    timed("TRITON_ATTN", 4491, block_size=128),
    timed("ROCM_AITER_UNIFIED_ATTN", 3994, block_size=128),
    timed("ROCM_ATTN", 15033, block_size=16),
    timed("TRITON_ATTN", 4656, block_size=16),
]


def test_each_is_set_beside_the_fastest_of_its_block() -> None:
    (found,) = times.tables(SEED)
    assert found.columns == ("decode, KV auto",) and found.repeats == 24
    assert found.widest == pytest.approx(0.02)
    said = {(block, backend): entries[0] for block, backend, entries in found.rows}
    assert said[128, "ROCM_AITER_UNIFIED_ATTN"] == (3994, 1.0, False)
    assert said[128, "ROCM_ATTN"] is not None and said[128, "ROCM_ATTN"].very_slow
    assert said[16, "ROCM_ATTN"] is not None and not said[16, "ROCM_ATTN"].very_slow


def test_a_terminal_says_how_slow() -> None:
    out = times.lines(SEED, 100, amd=False)
    assert "not an AMD GPU's" in " ".join(out) and "not an AMD" not in " ".join(times.lines(SEED, 100, amd=True))
    (line,) = [line for line in out if line.startswith("  b128 ROCM_ATTN")]
    assert line.split()[2:] == ["109,150", "27x", "SLOW"]
    (line,) = [line for line in out if line.startswith("  b128 TRITON_ATTN")]
    assert line.split()[2:] == ["4,491", "1.12x"]
    (line,) = [line for line in out if line.startswith("  b16 ROCM_ATTN")]
    assert line.split()[2:] == ["15,033", "3.2x"]
    assert all(len(line) <= 100 for line in out)


def test_markdown_says_it_too() -> None:
    out = times.markdown(SEED, GITHUB, amd=True)
    assert "| 128 | `ROCM_ATTN` | 109,150 **27x, very slow** |" in out
    assert "| 128 | `ROCM_AITER_UNIFIED_ATTN` | 3,994 |" in out


def test_the_tables_stand_in_both_reports() -> None:
    assert "27x SLOW" in terminal.render(SEED, {})
    assert "**27x, very slow**" in markdown.render(SEED, {})
    plain = [msgspec.structs.replace(one, times=()) for one in SEED]
    assert "Times in" not in terminal.render(plain, {}) + markdown.render(plain, {})


def test_a_replay_that_vllm_would_not_make_is_marked() -> None:
    (one,) = timed("TRITON_ATTN", 4491, block_size=128).times
    marked = msgspec.structs.replace(one, detail="graph replay; vLLM would run this batch eagerly; x")
    records = [*SEED[:1], msgspec.structs.replace(SEED[1], times=(marked,))]
    out = times.lines(records, 100, amd=False)
    assert "*: replayed from a graph that vLLM would not capture" in " ".join(" ".join(out).split())
    assert [line.split()[2] for line in out if line.startswith("  b128")] == ["109,150", "4,491*"]
    assert "| 128 | `TRITON_ATTN` | 4,491\\* |" in times.markdown(records, GITHUB, amd=False)
    assert "*" not in "".join(times.lines(SEED, 100, amd=False))


def test_profiles_phases_and_dtypes_stand_apart() -> None:
    more = [
        *SEED,
        timed("TRITON_ATTN", 20, "one-short", block_size=128),
        timed("TRITON_ATTN", 5735, phase="verify", block_size=128),
        timed("TRITON_ATTN", 5768, block_size=128, kv_cache_dtype="fp8"),
    ]
    first, second = times.tables(more)
    assert (first.workload, second.workload) == ("one-short", "seed")
    assert second.columns == ("decode, KV auto", "verify, KV auto", "decode, KV fp8", "verify, KV fp8")
    (row,) = [entries for block, backend, entries in second.rows if (block, backend) == (128, "TRITON_ATTN")]
    assert [entry and entry.us for entry in row] == [4491, 5735, 5768, None]


def test_only_sound_times_of_passing_cells_are_shown() -> None:
    failed = msgspec.structs.replace(SEED[0], verdict=Verdict.WRONG)
    odd = [timed("A", us) for us in (float("nan"), float("inf"), -1.0, 0.0)]
    assert times.tables([failed, *odd]) == []


def test_no_more_tables_than_a_reader_bears() -> None:
    many = [timed("TRITON_ATTN", 10, f"w{i}") for i in range(times.MOST + 3)]
    assert "3 more tables of times: see the run file." in times.lines(many, 80, amd=True)


@given(st.text(max_size=40), st.text(max_size=40), st.integers(40, 200))
def test_names_of_records_do_nothing(drafter: str, workload: str, width: int) -> None:
    one = timed("TRITON_ATTN", 12.5, workload, drafter=drafter)
    for line in times.lines([one], width, amd=False):
        assert line.isprintable()
    for dialect in (GITHUB, MKDOCS):
        for line in times.markdown([one], dialect, amd=False):
            assert "\n" not in line and "<script" not in line.replace("`<script", "")


@given(st.lists(st.sampled_from([8, 10, 30, 120]), min_size=1, max_size=9), st.integers(10, 130))
def test_every_column_is_drawn_once(widths: list[int], room: int) -> None:
    assert [i for some in times._blocks(widths, room) for i in some] == list(range(len(widths)))
