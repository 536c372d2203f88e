"""Whether two timed runs agree, and what is recorded that may be why not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from samples import PAGED, WRITE, cell, environment, record

from capmatrix.analysis import agreement as room
from capmatrix.analysis import compare, sources
from capmatrix.cell import Environment, Record, Timing
from capmatrix.report import agreement as said
from capmatrix.report import compare as report
from capmatrix.store import Run

GPU = {"name": "NVIDIA H200", "power_cap_w": 700.0}


def where(**changes: Any) -> Environment:
    return msgspec.structs.replace(environment("device", hardware=GPU), **changes)


def timing(median: float, **changes: Any) -> Timing:
    base = Timing(
        "decode", "seed", median, median - 1, median + 1, 24, rounds=(median,) * 3, bandwidth_tb_s=4.28, gpu="GPU-1"
    )
    return msgspec.structs.replace(base, **{"clocks": {"sm_mhz": (1980.0, 1980.0), "power_w": (1.0, 2.0)}, **changes})


def timed(median: float, backend: str = "TRITON_ATTN", route: tuple[Any, ...] = (), **changes: Any) -> Record:
    one = cell(target="device", backend=backend, batch="decode")
    return record(one, environment="env-device", times=(timing(median, **changes),), route=route)


def beside(
    left: list[Record], right: list[Record], one: Environment | None = None, two: Environment | None = None
) -> compare.Comparison:
    runs = [Run({}, {"env-device": e or where()}, found) for e, found in ((one, left), (two, right))]
    given = sources.gather((f"{i}.jsonl", run) for i, run in enumerate(runs))
    return compare.compare(given, {"run": "0.jsonl"}, {"run": "1.jsonl"})


def agreed(*given: Any) -> room.Agreement:
    found = room.agreement(beside(*given))
    assert found is not None
    return found


def why(*given: Any) -> tuple[str, ...]:
    (one,) = agreed(*given).apart
    return one.why


def test_times_agree_where_their_intervals_meet() -> None:
    left = [timed(100, "A"), timed(100, "B"), timed(100, "C"), timed(100, "D")]
    right = [timed(102, "A"), timed(98, "B"), timed(102.5, "C"), timed(80, "D")]
    found = agreed(left, right)
    assert found.agree == 2
    assert [(one.entry.right.record.cell.backend) for one in found.apart if one.entry.right] == ["D", "C"]
    text = report.text(beside(left, right))
    said_of_all = (
        "2 of 4 times on the same hardware agree within their intervals; 2 do not, 1 of them among what changed"
    )
    assert said_of_all in " ".join(text.split())
    assert "why, as far as recorded: nothing that is recorded differs" in text
    marked = report.markdown(beside(left, right))
    assert "2 of 4 times" in marked and "nothing that is recorded differs" in marked


@pytest.mark.parametrize("everything", [False, True])
def test_every_time_is_said_once(everything: bool) -> None:
    left = [timed(100, "A"), timed(100, "B"), timed(100, "C")]
    right = [timed(101, "A"), timed(103, "B"), timed(80, "C")]
    text = " ".join(report.text(beside(left, right), everything=everything).split())
    marked = report.markdown(beside(left, right), everything=everything)
    for median in ("101 (100 to 102)", "103 (102 to 104)", "80 (79 to 81)"):
        assert text.count(f"-> {median}") == 1
        assert marked.count(median) == 1
    assert text.count("why, as far as recorded") == 2
    assert text.index("why, as far as recorded") < text.index("Faster (1)") < text.index("-> 80 (79 to 81)")


@pytest.mark.parametrize(
    ("left", "right", "shown"),
    [
        (timing(10000), timing(10030, low_us=10020, high_us=10040), "1.003 (1.002 to 1.004)"),
        (timing(10000), timing(10002), "1.0002 (1 to 1.0004)"),
        (timing(100000), timing(99969), "0.9997 (0.9997 to 0.9997)"),
        (timing(100), timing(150), "1.5 (1.48 to 1.53), slower"),
        (timing(100), timing(100), "1 (0.98 to 1.02)"),
    ],
)
def test_a_ratio_that_is_not_1_is_not_called_1(left: Timing, right: Timing, shown: str) -> None:
    records = [record(cell(target="device"), environment="env-device", times=(t,)) for t in (left, right)]
    (times,) = beside(records[:1], records[1:]).entries[0].times
    assert report.ratio(times) == shown


def test_times_that_one_side_lacks_are_counted() -> None:
    left = [timed(100, "A"), timed(100, "B"), timed(100, "C")]
    right = [timed(100, "A"), record(cell(target="device", backend="B", batch="decode"), environment="env-device")]
    found = beside(left, right)
    assert room.lacking(found) == (2, 0)
    for said_of_them in (report.text(found), report.markdown(found)):
        assert "2 times of the left have none on the right." in said_of_them
        assert "of the right" not in said_of_them
    assert "1 time of the right has none on the left." in report.text(beside([record()], [timed(100)]))


def test_all_that_agree_need_no_list() -> None:
    found = beside([timed(100)], [timed(100)])
    assert "1 of 1 time on the same hardware agree within their intervals." in report.text(found)
    assert "as far as recorded" not in report.text(found) + report.markdown(found)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"clocks": {"sm_mhz": (1700.0, 1755.0)}}, "sm_mhz 1980 -> 1700 to 1755"),
        ({"gpu": "GPU-2"}, "another GPU of its kind: GPU-1 -> GPU-2"),
        ({"bandwidth_tb_s": 3.9}, "4.28 -> 3.9 TB/s moved in the same process"),
        ({"drifted": True, "rounds": (90.0, 80.0, 1200.0)}, "the rounds of the right drifted, 80 to 1,200 us"),
        ({"rounds": ()}, "the right has no rounds: what its interval leaves out is not known"),
        ({"rounds": (), "drifted": True}, "the right has no rounds: what its interval leaves out is not known"),
    ],
)
def test_what_a_time_says_of_itself_may_be_why(changes: dict[str, Any], reason: str) -> None:
    assert why([timed(100)], [timed(80, **changes)]) == (reason,)


@pytest.mark.parametrize(
    "changes",
    [
        {"clocks": {"sm_mhz": (1965.0, 1970.0)}},
        {"clocks": {"sm_mhz": (1500.0, 2000.0)}},
        {"clocks": {"power_w": (500.0, 600.0)}},
        {"clocks": {}},
        {"clocks": {"sm_mhz": (-5.0, 0.0)}},
        {"bandwidth_tb_s": 4.27},
        {"bandwidth_tb_s": None},
    ],
)
def test_what_hardly_differs_is_no_reason(changes: dict[str, Any]) -> None:
    assert why([timed(100)], [timed(80, **changes)]) == ()


def test_environments_and_kernels_may_be_why() -> None:
    other = where(hardware={**GPU, "power_cap_w": 500.0}, versions={**where().versions, "triton": "3.8.0"})
    found = why([timed(100, route=(WRITE,))], [timed(80, route=(WRITE, PAGED))], where(), other)
    assert any(line.startswith(WRITE.name) and PAGED.name in line for line in found)
    assert {"power_cap_w 700.0 -> 500.0", "triton 3.7.1 -> 3.8.0"} <= set(found)


def test_other_hardware_other_axes_and_no_times_are_not_judged() -> None:
    other = where(hardware={"name": "another"})
    assert room.agreement(beside([timed(100)], [timed(80)], where(), other)) is None
    assert room.agreement(beside([record()], [record()])) is None
    one = sources.gather([("0.jsonl", Run({}, {"env-device": where()}, [timed(100, "A"), timed(80, "B")]))])
    assert room.agreement(compare.compare(one, {"backend": "A"}, {"backend": "B"})) is None


def test_long_lists_are_cut_and_counted() -> None:
    left = [timed(100, f"B{i}") for i in range(said.SHOWN + 5)]
    right = [timed(103, f"B{i}") for i in range(said.SHOWN + 5)]
    assert "  and 5 more" in report.text(beside(left, right)).splitlines()
    changed = report.text(beside(left, [timed(80, f"B{i}") for i in range(said.SHOWN + 5)]))
    assert "35 do not: see below, among what changed." in " ".join(changed.split())
    assert "  and 5 more cells" in changed.splitlines()
    versions = {f"library{i}": "1" for i in range(20)}
    (one,) = agreed([timed(100)], [timed(80)], where(), where(versions={**where().versions, **versions})).apart
    assert said.why(one).endswith("; and 14 more")
