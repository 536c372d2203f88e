"""Rivals in turn: the order of rounds, what a refusal does, and what becomes of records."""

from __future__ import annotations

from typing import Any

import pytest
from samples import cell, record

from capmatrix.cell import Cell, Flag, Phase, Record, Verdict
from capmatrix.codec import cell_id
from capmatrix.grid import Workload
from capmatrix.pytest_plugin import timed
from capmatrix.timings import Sample

SEED = Workload(concurrency=4, input=100, output=10)
ENVIRONMENT = "env-device"


def rival(backend: str, **changes: Any) -> Record:
    one = cell(target="device", backend=backend, batch="decode", **changes)
    return record(one, environment=ENVIRONMENT)


class Workers:
    """Answers as workers do, and remembers what was asked."""

    def __init__(self, **said: Any) -> None:
        self.asked: list[tuple[str, int]] = []
        self.said = said

    def __call__(self, asked: Cell, workload: Workload, repeats: int) -> Sample:
        assert workload is SEED
        self.asked.append((asked.backend, repeats))
        count = sum(backend == asked.backend for backend, _ in self.asked)
        said = self.said.get(asked.backend)
        if callable(said):
            return said(count)  # type: ignore[no-any-return]
        return Sample(tuple(10.0 * count + i for i in range(repeats)), environment=ENVIRONMENT)


def test_each_round_goes_through_all_rivals() -> None:
    workers = Workers()
    found = timed.take([rival("A"), rival("B"), rival("C")], "seed", SEED, workers)
    assert [backend for backend, _ in workers.asked] == list("ABC") * 3
    assert {repeats for _, repeats in workers.asked} == {8}
    assert [f.timing.rounds for f in found.values() if f.timing] == [(13.5, 23.5, 33.5)] * 3
    assert all(f.timing is not None and f.timing.detail == "in turn with 2 rivals" for f in found.values())


def test_a_cell_alone_has_rounds_as_well() -> None:
    (found,) = timed.take([rival("A")], "seed", SEED, Workers()).values()
    assert found.timing is not None and len(found.timing.rounds) == 3 and "no rival" in found.timing.detail


@pytest.mark.parametrize("when", [1, 2, 3])
def test_who_is_refused_is_left_out_and_the_rest_goes_on(when: int) -> None:
    def refusing(count: int) -> Sample:
        return Sample((1.0,), environment=ENVIRONMENT, refused="it died" if count == when else "")

    workers = Workers(B=refusing)
    records = [rival("A"), rival("B"), rival("C")]
    found = timed.take(records, "seed", SEED, workers)
    assert sum(backend == "B" for backend, _ in workers.asked) == when
    assert sum(backend != "B" for backend, _ in workers.asked) == 6
    assert found[records[1].cell_id] == timed.Found(None, "it died")
    assert found[records[0].cell_id].timing is not None and found[records[2].cell_id].timing is not None


def test_what_was_measured_elsewhere_stays_out_of_the_record() -> None:
    workers = Workers(A=lambda count: Sample((1.0,), environment="env-other"), B=lambda count: Sample(refused="no GPU"))
    found = timed.take([rival("A"), rival("B")], "seed", SEED, workers)
    assert [f.foreign for f in found.values()] == [True, True]
    assert [f.refused for f in found.values()] == ["its record is of another environment than this one", "no GPU"]
    assert len(workers.asked) == 2


def test_an_empty_sample_is_no_time() -> None:
    (found,) = timed.take([rival("A")], "seed", SEED, Workers(A=lambda count: Sample(environment=ENVIRONMENT))).values()
    assert found == timed.Found(None, "the engine measured nothing")


def test_a_record_is_completed_and_keeps_its_verdict() -> None:
    before = rival("A")
    (found,) = timed.take([before], "seed", SEED, Workers()).values()
    after = timed.completed(before, "seed", found)
    assert (after.verdict, after.phase, after.attempt) == (Verdict.PASS, Phase.TIME, before.attempt)
    assert after.times == (found.timing,) and after.reasons == before.reasons
    assert timed.lacks(before, "seed") and not timed.lacks(after, "seed") and timed.lacks(after, "long")


def test_a_refusal_is_one_printable_line_and_is_not_tried_again() -> None:
    before = rival("A")
    after = timed.completed(before, "seed", timed.Found(None, "worker died\n of SIGABRT \x1b[31m"))
    assert (after.verdict, after.phase, after.times) == (Verdict.PASS, before.phase, ())
    (line,) = after.reasons
    assert line.startswith("not timed under seed: worker died of SIGABRT") and line.isprintable()
    assert not timed.lacks(after, "seed") and timed.lacks(after, "long")


@pytest.mark.parametrize("verdict", [v for v in Verdict if v is not Verdict.PASS])
def test_what_does_not_pass_is_not_timed(verdict: Verdict) -> None:
    one = cell(target="device", batch="decode")
    assert not timed.lacks(record(one, verdict), "seed")
    assert timed.lacks(record(one, flags=(Flag.NAN_UNSAFE,)), "seed")
    assert not timed.lacks(record(cell(target="device", batch="mixed")), "seed")


def test_groups_hold_rivals_once_and_have_names_of_their_own() -> None:
    cells = [
        cell(target="device", backend=backend, block_size=block, batch=batch, switches=switches)
        for block in (16, 128)
        for backend in ("A", "B")
        for batch in ("decode", "verify", "mixed")
        for switches in ((), (("S", "1"),))
    ]
    found = timed.groups([*cells, *cells, cell(batch="decode")])
    assert [len(group) for group in found] == [4] * 4
    names = [timed.name(group) for group in found]
    assert len(set(names)) == 4
    assert all(name.startswith(timed.PREFIX) and name.endswith("]") and "-A-" not in name for name in names)
    assert {timed.rival(one) for one in found[0]} == {"A", "B", "A S=1", "B S=1"}
    assert all(token in names[0] for token in cell_id(cells[0]).split("-") if token != "A")
