"""A crash that comes only after other cells is traced to the cell that causes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from fake_engine import cell

from capmatrix import codec
from capmatrix.cell import Cell, Phase, Record, Rung, Verdict
from capmatrix.workers import blame
from capmatrix.workers.limits import Limits
from capmatrix.workers.pool import Pool

MakePool = Callable[..., Pool]


def test_finds_the_cell_that_poisons(make_pool: MakePool) -> None:
    """Alone the cell passes; its record names the one earlier cell that kills it."""
    pool = make_pool()
    for i in range(5):
        pool.run(cell("OK", block=16 * (i + 1)))
    culprit = cell("POISON", argument="well")
    assert pool.run(culprit).verdict is Verdict.PASS
    pool.run(cell("OK", block=256))
    record = pool.run(cell("DIES_OF_POISON"))
    assert record.verdict is Verdict.PASS
    assert "only after other cells in one worker: crash (worker died of SIGABRT" in record.reasons[1]
    assert record.reasons[2].startswith(f"caused by {codec.cell_id(culprit)}:")
    assert pool.run(cell("OK")).verdict is Verdict.PASS


def test_says_when_it_takes_several(make_pool: MakePool) -> None:
    """Two cells that only together kill a third are not blamed one by one."""
    pool = make_pool()
    for argument in ("one", "two", "two"):
        pool.run(cell("POISON", argument=argument))
    record = pool.run(cell("DIES_OF_TWO_POISONS"))
    assert record.verdict is Verdict.PASS
    assert "no single one of the 3 cells" in record.reasons[2]


def test_crash_of_its_own_is_confirmed(make_pool: MakePool) -> None:
    """A cell that dies alone too keeps its verdict."""
    pool = make_pool()
    pool.run(cell("OK"))
    record = pool.run(cell("ABORT"))
    assert record.verdict is Verdict.CRASH
    assert record.reasons[-1].startswith("the same alone in a fresh worker")
    assert len(pool.run(cell("ABORT")).reasons) == 1  # nothing ran before it


def test_not_asked_for(make_pool: MakePool) -> None:
    """With retry_alone off a crash after other cells stands as it is."""
    pool = make_pool(retry_alone=False)
    pool.run(cell("POISON"))
    record = pool.run(cell("DIES_OF_POISON"))
    assert (record.verdict, len(record.reasons)) == (Verdict.CRASH, 1)


def outcome(c: Cell, verdict: Verdict) -> Record:
    return Record(codec.cell_id(c), c, verdict, Rung.COMPILED, Phase.FORWARD, "e", (f"it is {verdict.value}",))


def test_bisection_is_bounded() -> None:
    """At most so many replays, and what is known then is said."""
    before = [cell("OK", block=16 * (i + 1)) for i in range(64)]
    victim = cell("OK", argument="victim")
    sizes: list[int] = []

    def replay(cells: Sequence[Cell]) -> Record:
        sizes.append(len(cells) - 1)
        return outcome(victim, Verdict.CRASH if before[40] in cells else Verdict.PASS)

    def reasons(limits: Limits) -> tuple[str, ...]:
        sizes.clear()
        return blame.investigate(outcome(victim, Verdict.CRASH), before, replay, limits).reasons

    assert codec.cell_id(before[40]) in reasons(Limits())[-1]
    assert sizes == [0, 64, 32, 16, 8, 4, 2, 1, 1]
    assert reasons(Limits(bisect_attempts=3))[-1].startswith("one of 16 cells causes it")
    assert sizes == [0, 64, 32, 16]
    assert "stopped there" in reasons(Limits(bisect_s=-1.0))[-1]


def test_what_is_not_seen_again_is_said() -> None:
    """A crash that the same cells do not bring back is called that, and laid at no cell's door."""
    victim = cell("OK")

    def reasons(failed: Record, before: list[Cell]) -> tuple[str, ...]:
        found = blame.investigate(failed, before, lambda cells: outcome(victim, Verdict.PASS), Limits())
        assert found.verdict is Verdict.PASS
        return found.reasons[1:]

    assert reasons(outcome(victim, Verdict.CRASH), [victim]) == (
        "once, after 1 other cell in one worker: crash (it is crash)",
        "not seen again, neither alone nor after the same 1 other cell",
    )
    slow = msgspec.structs.replace(outcome(victim, Verdict.TIMEOUT), phase=Phase.COMPILE)
    once, again = reasons(slow, [victim, victim])
    assert once == "once, after 2 other cells in one worker: timeout (it is timeout)"
    assert again.startswith("not seen again, neither alone nor after the same 2 other cells; what was compiled by then")
    assert not any("what was compiled" in r for r in reasons(outcome(victim, Verdict.TIMEOUT), [victim]))
