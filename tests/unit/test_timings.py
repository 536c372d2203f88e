"""What rounds of repeats together say of a time."""

from __future__ import annotations

import json
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import cell, record

from capmatrix import codec, timings
from capmatrix.cell import Geometry, MlaGeometry, Record, Timing
from capmatrix.timings import Sample, interval, shares, summary

TIMES = st.floats(0.5, 1e6)
ROUNDS = st.lists(st.lists(TIMES, min_size=1, max_size=12), min_size=1, max_size=5)


def covered(n: int, rank: int) -> float:
    """How surely the values of rank ``rank`` from either end of ``n`` hold the median between them."""
    return 1 - 2 * sum(math.comb(n, i) for i in range(rank + 1)) / 2**n


@pytest.mark.parametrize("n", range(1, 70))
def test_the_interval_is_the_narrowest_that_is_sure_enough(n: int) -> None:
    low, high = interval(list(range(n)))
    assert high == n - 1 - low and 0 <= low <= high
    assert covered(n, int(low)) >= 0.95 or low == 0
    assert int(low) + 1 > (n - 1) / 2 or covered(n, int(low) + 1) < 0.95


def test_the_interval_of_24_repeats_is_that_of_the_binomial_table() -> None:
    assert interval([float(i) for i in range(24)]) == (6.0, 17.0)
    assert [interval(list(range(n))) for n in (1, 2, 5, 6)] == [(0, 0), (0, 1), (0, 4), (0, 5)]


@given(ROUNDS)
def test_a_summary_holds_what_its_rounds_say(rounds: list[list[float]]) -> None:
    found = summary(cell(), "seed", [Sample(tuple(one)) for one in rounds])
    times = [t for one in rounds for t in one]
    medians = [statistics.median(one) for one in rounds]
    assert found.median_us == round(statistics.median(times), 2) and found.repeats == len(times)
    assert found.rounds == tuple(round(m, 2) for m in medians)
    assert found.low_us <= found.median_us <= found.high_us
    # No two rounds of a cell lie further apart than its interval says.
    assert found.low_us <= min(found.rounds) and max(found.rounds) <= found.high_us
    low, high = interval(times)
    assert found.drifted == (min(medians) < low or max(medians) > high)
    if not found.drifted:
        assert (found.low_us, found.high_us) == (round(low, 2), round(high, 2))


@given(ROUNDS, st.randoms(use_true_random=False))
def test_the_order_within_a_round_says_nothing(rounds: list[list[float]], random: object) -> None:
    mixed = [list(one) for one in rounds]
    for one in mixed:
        random.shuffle(one)  # type: ignore[attr-defined]
    first, second = (summary(cell(), "seed", [Sample(tuple(one)) for one in r]) for r in (rounds, mixed))
    assert first == second


def test_a_round_apart_from_the_others_widens_the_interval() -> None:
    steady = [Sample(tuple(100 + i / 10 for i in range(8)))] * 2
    apart = Sample(tuple(120 + i / 10 for i in range(8)))
    calm, drifted = summary(cell(), "w", [*steady, steady[0]]), summary(cell(), "w", [*steady, apart])
    assert not calm.drifted and calm.high_us - calm.low_us < 1
    assert drifted.drifted and (drifted.rounds[2], drifted.high_us) == (120.35, 120.35)
    assert drifted.median_us < 101


def test_what_belongs_to_the_call_is_kept() -> None:
    one = Sample(
        (10.0, 20.0, 30.0), "graph replay", 256, 768, 8_000_000, 4e12, (100.0, 50.0, 60.0), 2, {"sm_mhz": 1980.0},
        host_us=(5.0, 7.0, 6.0), gpu="GPU-1",
    )  # fmt: skip
    two = Sample((20.0,), "graph replay", 256, 768, 8_000_000, 4.5e12, (70.0,), 3, {"sm_mhz": 1755.0, "power_w": 600.0})
    found = summary(cell(batch="verify"), "seed", [one, two], "in turn with 2 rivals")
    assert (found.phase, found.workload, found.requests, found.query_tokens) == ("verify", "seed", 256, 768)
    assert found.detail == "graph replay; in turn with 2 rivals"
    assert found.bandwidth_tb_s == 4.5 and found.share_of_roofline == pytest.approx(8e6 / 4.5e12 / 20e-6, rel=1e-3)
    assert (found.metadata_us, found.metadata_synchronisations) == (65.0, 3)
    assert found.clocks == {"sm_mhz": (1755.0, 1980.0), "power_w": (600.0, 600.0)}
    assert (found.host_us, found.gpu) == (6.0, "GPU-1")


def test_what_was_not_measured_is_left_out() -> None:
    found = summary(cell(batch="prefill"), "seed", [Sample((3.0,), moved_bytes=None, bandwidth=4e12)])
    assert found.share_of_roofline is None and found.bandwidth_tb_s == 4.0
    assert (found.metadata_us, found.metadata_synchronisations, found.clocks) == (None, None, {})
    assert summary(cell(), "seed", [Sample((3.0,), moved_bytes=5)]).share_of_roofline is None


@given(st.integers(1, 200), st.integers(1, 9))
def test_repeats_are_shared_evenly(repeats: int, rounds: int) -> None:
    found = shares(repeats, rounds)
    assert len(found) == rounds and min(found) >= 1 and max(found) - min(found) <= 1
    assert sum(found) == max(repeats, rounds)


def test_a_run_has_at_least_three_rounds() -> None:
    assert len(shares()) >= 3 and sum(shares()) == 24


LATENT = Geometry(16, 1, 576, mla=MlaGeometry(512, 128, 64, 128))


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"target": "device", "batch": "decode"}, True),
        ({"target": "device:gfx950", "batch": "prefill"}, True),
        ({"target": "device", "batch": "mixed"}, False),
        ({"target": "offline:gfx942", "batch": "decode"}, False),
        ({"target": "emulator:gfx942", "batch": "decode"}, False),
        ({"target": "device", "batch": "verify", "geometry": LATENT}, True),
        ({"target": "device", "batch": "prefill", "geometry": LATENT}, False),
    ],
)
def test_what_is_timed(changes: dict[str, object], wanted: bool) -> None:
    assert timings.applies(cell(**changes)) is wanted


def test_rivals_differ_in_backend_and_switches_alone() -> None:
    mine = timings.rivals_key(cell())
    assert timings.rivals_key(cell(backend="TRITON_ATTN", switches=(("A", "1"),))) == mine
    for change in ({"block_size": 16}, {"batch": "verify"}, {"kv_cache_dtype": "auto"}, {"execution": "full"}):
        assert timings.rivals_key(cell(**change)) != mine, change


def test_records_of_before_are_read() -> None:
    old = {"phase": "decode", "workload": "seed", "median_us": 4.0, "low_us": 3.0, "high_us": 5.0, "repeats": 24}
    plain = json.loads(codec.encode(record()))
    found = codec.decode(json.dumps({**plain, "times": [{**old, "detail": "4.28 TB/s read here"}]}), Record)
    (time,) = found.times
    assert time == Timing("decode", "seed", 4.0, 3.0, 5.0, 24, detail="4.28 TB/s read here")
    assert (time.rounds, time.drifted, time.requests, time.bandwidth_tb_s, time.clocks) == ((), False, 0, None, {})
    assert codec.decode(codec.encode(found), Record) == found
