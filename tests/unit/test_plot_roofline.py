"""Rooflines: what a call did, counted against the definition, and the roofs that are known."""

from __future__ import annotations

import pytest
from plot_figures import RESULTS, drawn, gpu, lines, marks, only, parsed, texts, tick, timed, timing

from capmatrix import store
from capmatrix.cell import Geometry
from capmatrix.grid import Workload
from capmatrix.report.plots import limits
from capmatrix.report.plots.work import work
from capmatrix.selection import workloads


def test_what_a_call_did_is_what_the_benchmark_counts() -> None:
    """Against the definition: lengths of the profile, bytes of keys, values, query and output."""
    profiles = workloads.shipped()
    seen = 0
    for r in store.read(RESULTS / "h200-gfx950-timed.jsonl.gz").records:
        g, element = r.cell.geometry, 1 if r.cell.kv_cache_dtype == "fp8" else 2
        for t in r.times:
            profile = profiles[t.workload]
            query = {"decode": 1, "verify": 1 + r.cell.num_speculative_tokens, "prefill": 2048}[t.phase]
            start, n = profile.context + profile.input, profile.concurrency
            lengths = [start + query + profile.output * i // max(1, n - 1) for i in range(n)]
            if t.phase == "prefill":
                lengths = [max(2048, start)] * min(n, 4)
            new = query * len(lengths)
            kept = 2 * (sum(lengths) + new) * g.num_kv_heads * g.head_size * element
            pairs = sum(length - query + 1 + i for length in lengths for i in range(query))
            done = work(r, t, profiles)
            assert done is not None
            # The share that they follow from has four decimals in these records: little of a short call's.
            rounded = 0.01 + 5e-5 / (t.share_of_roofline or 1)
            assert done.moved == pytest.approx(kept + 4 * new * g.num_heads * g.head_size, rel=rounded)
            assert done.operations == pytest.approx(4 * g.num_heads * g.head_size * pairs, rel=rounded)
            assert done.bandwidth == pytest.approx(4.2e12, rel=0.03)
            seen += 1
    assert seen == 36 * 4


@pytest.mark.parametrize(("window", "causal"), [(None, True), (100, True), (4000, True), (None, False), (100, False)])
def test_operations_count_what_each_new_token_sees(window: int | None, causal: bool) -> None:
    geometry = Geometry(16, 16, 128, sliding_window=window, causal=causal)
    r = timed(timing("prefill", query_tokens=2 * 3000, detail="2 requests"), batch="prefill", geometry=geometry)
    done = work(r, r.times[0], {"seed": Workload(concurrency=2, input=5000, output=1)})
    assert done is not None
    sees = [min(5000 - 3000 + 1 + i if causal else 5000, window or 5000) for i in range(3000)]
    assert done.operations == pytest.approx(4 * 16 * 128 * 2 * sum(sees))


def test_a_roofline_has_the_roofs_that_are_known() -> None:
    figure = only("roofline", drawn(timed(timing())))
    root = parsed(figure)
    said = texts(root)
    assert "1,307 TFLOP/s, bf16 dense, data sheet" in said and "dashed: 5.3 TB/s, data sheet" in said
    assert "solid: 4 TB/s read here" in said
    assert "MI300X data sheet" in figure.caption
    # At half of what was read, the call lies under the solid roof by a factor of two.
    ((x, y),) = marks(root, "ROCM_ATTN, block 128, decode: 2 TB/s, 50% of what was read here")
    ((x0, y0, x1, y1),) = lines(root, "cm-limit cm-roof")
    above = y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    decade = tick(root, "10")[0] - tick(root, "100")[0]
    assert (y - above) / decade == pytest.approx(0.301, abs=0.01)


@pytest.mark.parametrize("name", ["AMD Instinct MI300X", "AMD Instinct MI350X", "unknown"])
def test_roofs_stay_within_their_panel(name: str) -> None:
    times = timing(), timing("verify", query_tokens=768), timing(median=400_000.0, share_of_roofline=0.01)
    root = parsed(only("roofline", drawn(*map(timed, times), where=gpu(name))))
    ((left, top, _, bottom, right, _),) = lines(root, "cm-axis")
    roofs = lines(root, "cm-limit cm-roof") + lines(root, "cm-limit cm-dash cm-roof")
    assert len(roofs) == (1 if name == "unknown" else 2)
    for x0, y0, x1, y1 in roofs:
        assert left - 0.02 <= x0 < x1 <= right + 0.02
        assert top - 0.02 <= y1 < y0 <= bottom + 0.02


def test_a_roof_that_is_not_known_is_said_and_not_drawn() -> None:
    figure = only("roofline", drawn(timed(timing()), where=gpu("AMD Instinct MI999X")))
    assert "No data sheet of this GPU is known here" in figure.caption
    assert "compute roof: not known here" in texts(parsed(figure))
    assert figure.svg.count("cm-roof") == 1
    half = only("roofline", drawn(timed(timing()), where=gpu("AMD Instinct MI350X")))
    assert half.svg.count("cm-roof") == 2 and "compute roof is not known" in half.caption


def test_a_time_that_does_not_tell_what_was_moved_is_not_drawn() -> None:
    silent = timed(timing(share_of_roofline=None), backend="TRITON_ATTN")
    assert [f.kind for f in drawn(silent)] == ["time"]
    assert "1 time not drawn" in only("roofline", drawn(timed(timing()), silent)).caption
    prefill = timed(timing("prefill", query_tokens=8192, detail="4 requests, 4.00 TB/s read here"), batch="prefill")
    assert [f.kind for f in drawn(prefill)] == ["time"], "its workload profile is not given"
    assert [f.kind for f in drawn(prefill, workloads=workloads.shipped())] == ["time", "roofline"]


def test_products_are_found_by_their_name_alone() -> None:
    assert limits.product(gpu("AMD Instinct MI300X OAM")) is limits.PRODUCTS[0]
    assert limits.product(gpu("AMD Instinct MI300XY")) is None
    assert limits.product(None) is None
    assert all(p.source and p.bandwidth for p in limits.PRODUCTS)
