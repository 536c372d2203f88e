"""What is shown of a time beside the time itself."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from plot_figures import timed, timing
from samples import cell, record

from capmatrix.analysis import compare, sources
from capmatrix.cell import Timing
from capmatrix.grid import Workload
from capmatrix.report import compare_cell, explain
from capmatrix.report.plots.work import work
from capmatrix.report.timing_facts import timing_facts
from capmatrix.store import Run

FULL = Timing(
    "verify", "seed", 4305.0, 4300.0, 4320.0, 24, 0.97, 768, "graph replay; in turn with 2 rivals",
    rounds=(4304.5, 4305.5, 4319.0), drifted=True, requests=256, bandwidth_tb_s=4.28, metadata_us=61.5,
    metadata_synchronisations=1, clocks={"sm_mhz": (1755.0, 1980.0), "power_w": (512.0, 512.0)},
    host_us=12.5, gpu="GPU-1",
)  # fmt: skip


def test_everything_that_is_recorded_is_said() -> None:
    assert dict(timing_facts(FULL)) == {
        "rounds": "4,304, 4,306, 4,319 us; drifted: the interval was widened for them",
        "metadata build": "61.5 us on the host, 1 synchronisation",
        "call": "12.5 us on the host, no part of the time",
        "gpu": "GPU-1",
        "bandwidth": "4.28 TB/s moved in the same process",
        "power w": "512",
        "sm mhz": "1755 to 1980",
        "requests": "256",
        "conditions": "graph replay; in turn with 2 rivals",
    }


def test_what_is_not_recorded_is_not_said() -> None:
    assert timing_facts(Timing("decode", "seed", 1.0, 1.0, 1.0, 24)) == []
    steady = msgspec.structs.replace(FULL, drifted=False, metadata_synchronisations=None)
    said = dict(timing_facts(steady))
    assert "drifted" not in said["rounds"] and said["metadata build"] == "61.5 us on the host"


def test_text_of_records_obeys_nobody() -> None:
    evil = "\x1b[31m\u202e\n" + "x" * 900
    for name, line in timing_facts(msgspec.structs.replace(FULL, detail=evil, clocks={evil: (1.0, 2.0)})):
        assert name.isprintable() and line.isprintable() and len(name) <= 60 and len(line) <= 400


def test_explain_shows_times() -> None:
    page = explain.render(record(cell(batch="verify"), times=(FULL,)), None)
    (row,) = [line for line in page.splitlines() if line.startswith("  verify")]
    assert "4,305 us (4,300 to 4,320), 24 repeats, 97% of the roofline measured here;" in row
    for name, line in timing_facts(FULL):
        assert f"      {name}: {line}" in page.splitlines()
    assert "Times of one call" not in explain.render(record(), None)


@pytest.mark.parametrize(
    ("share", "shown"),
    [(0.003, "0.3%"), (0.0296, "3%"), (0.0312, "3.1%"), (0.0996, "10%"), (0.456, "46%"), (0.0, "0%")],
)
def test_a_small_share_is_not_called_none(share: float, shown: str) -> None:
    page = explain.render(record(times=(msgspec.structs.replace(FULL, share_of_roofline=share),)), None)
    assert f", {shown} of the roofline measured here" in page


def test_a_batch_without_a_graph_is_said_to_run_eagerly() -> None:
    of_before = msgspec.structs.replace(FULL, detail="graph replay; vLLM would run this batch NONE; x")
    assert dict(timing_facts(of_before))["conditions"] == "graph replay; vLLM would run this batch eagerly; x"


def test_a_comparison_of_one_cell_shows_what_both_say() -> None:
    other = msgspec.structs.replace(FULL, rounds=(), metadata_us=99.0)
    runs = [Run({}, {}, [record(times=(t,))]) for t in (FULL, other)]
    given = sources.gather((f"{i}.jsonl", run) for i, run in enumerate(runs))
    (entry,) = compare.compare(given, {"run": "0.jsonl"}, {"run": "1.jsonl"}).entries
    (rows,) = [s.rows for s in compare_cell.sections(entry) if s.title.startswith("Times")]
    found = {row.label: (row.left, row.right) for row in rows}
    assert found["rounds"][0].startswith("4,304, ") and found["rounds"][1] in ("", "-")
    assert found["metadata build"] == tuple(f"{us} us on the host, 1 synchronisation" for us in ("61.5", "99"))
    assert found["requests"] == ("256", "256")


LOAD = {"seed": Workload(concurrency=2, input=5000, output=1)}


@pytest.mark.parametrize(("phase", "tokens"), [("decode", 256), ("prefill", 512)])
def test_a_roofline_takes_fields_before_words(phase: str, tokens: int) -> None:
    new = timing(phase, query_tokens=tokens, requests=256, bandwidth_tb_s=4.0, detail="1 requests, 9.99 TB/s read here")
    old = timing(phase, query_tokens=tokens, detail="graph replay; 256 requests, 4.00 TB/s read here")
    found = [work(timed(t, batch=phase), t, LOAD) for t in (new, old)]
    assert found[0] is not None and found[0] == found[1] and found[0].bandwidth == 4e12


@pytest.mark.parametrize("changes", [{"bandwidth_tb_s": 0.0}, {"bandwidth_tb_s": -1.0}, {"bandwidth_tb_s": 1e300}])
def test_a_bandwidth_that_is_none_draws_nothing(changes: dict[str, Any]) -> None:
    one = timing(**changes)
    assert work(timed(one), one, LOAD) is None
