"""What the page's comparison needs of every record, in the order of the page's model."""

from __future__ import annotations

import json
from typing import Any

from samples import PAGED, WRITE, cell, environment, record

from capmatrix.cell import Record, Timing
from capmatrix.report.page import compare, data
from capmatrix.store import Run


def run_of(*records: Record, target: str = "offline:gfx942") -> Run:
    known = environment(target)
    return Run({"created": "2026-11-01T00:00:00Z"}, {known.id: known}, list(records))


def unpacked(packed: list[int]) -> list[int]:
    return [code for code, length in zip(packed[::2], packed[1::2]) for _ in range(length)]


def test_records_stand_in_the_models_order() -> None:
    timing = Timing("decode", "seed", 10.0, 9.0, 11.0, 5)
    runs = [
        ("a", run_of(record(cell(batch="verify")), record(times=(timing,), route=(WRITE, PAGED)))),
        ("b", run_of(record(cell(target="offline:gfx950")), target="offline:gfx950")),
        ("c", run_of(record(route=(PAGED, WRITE)), record(cell(block_size=16), route=(WRITE, PAGED)))),
    ]
    found: dict[str, Any] = json.loads(json.dumps(compare.extra(runs)))
    records = [r for r, _ in data.build(runs).records]
    environments = [found["environments"][code] for code in unpacked(found["environment"])]
    assert environments == [r.environment for r in records]
    routes = unpacked(found["route"])
    ran = [[k.name for k in r.route] for r in records]
    assert [code == 0 for code in routes] == [not route for route in ran]
    assert {(i, j) for i in range(5) for j in range(5) if routes[i] == routes[j]} == {
        (i, j) for i in range(5) for j in range(5) if ran[i] == ran[j]
    }
    assert found["times"] == {str(i): [["decode", "seed", 10.0, 9.0, 11.0]] for i, r in enumerate(records) if r.times}
    assert len(found["times"]) == 1
