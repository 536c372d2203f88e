"""Bisecting a cell: what is run, what is concluded, and how it is told, over a made-up engine."""

from __future__ import annotations

import json
from collections.abc import Callable

import msgspec
import pytest
from samples import cell

from capmatrix import codec
from capmatrix.analysis import sameness
from capmatrix.bisect.cells import Limits, Result, bisect_cell
from capmatrix.bisect.delta import Change
from capmatrix.bisect.knobs import switches
from capmatrix.cell import Cell, Claim, Kernel, Phase, Record, Rung, Verdict
from capmatrix.report import bisect as report

AITER = Change("VLLM_ROCM_USE_AITER", "1")
MHA = Change("VLLM_ROCM_USE_AITER_MHA", "0")
SHUFFLE = Change("VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT", "1")
UNIFIED = Change("VLLM_ROCM_USE_AITER_UNIFIED_ATTENTION", "1")
WIDE = Limits(servers=60, runs=500)


def engine(
    passes: Callable[[dict[str, str], Cell], bool],
    default: Callable[[dict[str, str]], str] = lambda s: "ROCM_ATTN",
) -> tuple[Callable[[Cell], Record], list[Cell]]:
    """A function that runs cells, and the cells that it was given."""
    ran: list[Cell] = []

    def run(given: Cell) -> Record:
        ran.append(given)
        values = dict(given.switches)
        good = passes(values, given)
        return Record(
            codec.cell_id(given),
            given,
            Verdict.PASS if good else Verdict.ERROR,
            Rung.COMPILED,
            Phase.FORWARD,
            "env",
            reasons=() if good else (f"RuntimeError: no kernel at 0x{len(ran):08x}",),
            claims=(Claim("selector", True, f"the default is {default(values)}"),),
            route=(Kernel("kernel_a", "triton", "forward", compile_s=float(len(ran))),),
        )

    return run, ran


def bisected(
    run: Callable[[Cell], Record], limits: Limits = WIDE, given: Cell | None = None, changes: list[Change] | None = None
) -> Result:
    subject = given or cell()
    return bisect_cell(subject, switches(subject) if changes is None else changes, run, lambda *a: None, limits)


def test_one_switch_is_found_and_verified() -> None:
    run, ran = engine(lambda s, c: s.get("VLLM_ROCM_USE_AITER") == "1")
    result = bisected(run)
    assert (result.found.smallest, result.found.proven, result.verified) == (frozenset([AITER]), True, True)
    assert result.passed is not None and result.passed.verdict is Verdict.PASS
    assert result.unsteady == ()  # addresses and compile times are no differences
    assert ran[0] == ran[1] == cell()  # as it is, twice
    assert ran[-1].switches == (("VLLM_ROCM_USE_AITER", "1"),)


def test_what_has_no_effect_is_asked_alone_together_and_beside() -> None:
    def default(values: dict[str, str]) -> str:
        aiter = values.get("VLLM_ROCM_USE_AITER") == "1" and values.get("VLLM_ROCM_USE_AITER_MHA") != "0"
        return "ROCM_AITER_FA" if aiter else "ROCM_ATTN"

    run, _ = engine(lambda s, c: False, default)
    result = bisected(run)
    idle = set(result.idle)
    assert UNIFIED in idle and SHUFFLE in idle
    assert AITER not in idle, "it changes vLLM's default"
    assert MHA not in idle, "beside AITER it changes vLLM's default back"
    assert result.idle[UNIFIED] == [frozenset(), frozenset([AITER])]
    assert result.found.smallest is None and result.found.proven


def test_a_switch_whose_default_is_another_than_the_table_says_is_not_called_idle() -> None:
    """In this version UNIFIED is on unless it is switched off: setting it does nothing, and yet it matters."""
    unified = "VLLM_ROCM_USE_AITER_UNIFIED_ATTENTION"
    run, _ = engine(lambda s, c: False, lambda s: "A" if s.get(unified) == "0" else "B")
    result = bisected(run)
    assert UNIFIED not in result.idle and SHUFFLE in result.idle


def test_two_switches_and_a_block() -> None:
    run, _ = engine(lambda s, c: s.get("VLLM_ROCM_USE_AITER") == "1" and c.block_size == 64, lambda s: str(sorted(s)))
    changes = [*switches(cell()), Change("block_size", "16"), Change("block_size", "64")]
    result = bisected(run, changes=changes)
    assert result.found.smallest == frozenset([AITER, Change("block_size", "64")])
    assert result.found.proven and result.verified


def test_a_cell_that_passes_needs_nothing() -> None:
    run, ran = engine(lambda s, c: True)
    result = bisected(run)
    assert result.found.smallest == frozenset() and result.verified is None
    assert len(ran) == 2


def test_servers_are_bounded_and_some_are_kept_for_what_has_no_effect() -> None:
    run, ran = engine(lambda s, c: False, lambda s: str(sorted(s)))
    for most in (1, 4, 12, 20):
        ran.clear()
        result = bisected(run, Limits(servers=most, runs=500))
        assert len({codec.server_key(c) for c in ran}) == result.servers <= most
        assert result.found.smallest is None and not result.found.complete


def test_a_failure_that_comes_and_goes_is_said() -> None:
    count = iter(range(1000))
    run, _ = engine(lambda s, c: s.get("VLLM_ROCM_USE_AITER") == "1" or (not s and next(count) == 1))
    result = bisected(run)
    assert "verdict" in result.unsteady and result.verified is False
    assert "the failure comes and goes" in report.render(result, {})


def test_a_target_that_is_not_here_is_not_searched() -> None:
    def run(given: Cell) -> Record:
        return Record(
            codec.cell_id(given), given, Verdict.UNAVAILABLE, Rung.DECLARED, Phase.SELECT, "none-1", ("no GPU",)
        )

    result = bisected(run)
    assert result.servers == 1 and result.found.smallest is None
    assert "could not run here" in report.render(result, {})


def test_times_ids_and_addresses_are_no_differences_and_the_rest_is() -> None:
    run, _ = engine(lambda s, c: False)
    one, other = run(cell()), run(cell())
    assert sameness.differing(sameness.parts(one), sameness.parts(other)) == ()
    changed = msgspec.structs.replace(
        other, kernel_block=32, route=(Kernel("kernel_b", "triton", "forward"),), phase=Phase.COMPILE
    )
    assert sameness.differing(sameness.parts(one), sameness.parts(changed)) == ("verdict", "set-up", "route")


@pytest.fixture
def told() -> Result:
    run, _ = engine(lambda s, c: {s.get("VLLM_ROCM_USE_AITER"), s.get("VLLM_BATCH_INVARIANT")} == {"1"}, str)
    return bisected(run)


def test_text(told: Result) -> None:
    page = report.render(told, {"vllm": "0.32.0"}, width=100, run_file="runs/x.jsonl")
    assert "Smallest set that makes it pass: VLLM_BATCH_INVARIANT=1 VLLM_ROCM_USE_AITER=1\n" in page
    assert "as it is: error (compiled): RuntimeError: no kernel" in page
    assert "every smaller set of the changes that do something was run, and none passes" in page
    assert "VLLM_ROCM_USE_AITER=1 " in page.partition("What each change does alone")[2]
    assert page.rstrip().endswith("records in runs/x.jsonl")
    assert all(len(line) <= 100 for line in page.splitlines()[1:])


def test_without_effect_names_the_version() -> None:
    run, _ = engine(lambda s, c: s.get("VLLM_ROCM_USE_AITER") == "1")
    page = report.render(bisected(run), {"vllm": "0.32.0"})
    idle = page.partition("Without effect on this cell in vllm 0.32.0")[2]
    assert "\n  VLLM_ROCM_USE_AITER_UNIFIED_ATTENTION=1\n" in idle
    assert "asked alone and all together; beside VLLM_ROCM_USE_AITER=1\n" in idle


def test_json(told: Result) -> None:
    data = json.loads(codec.encode(report.data(told, {"vllm": "0.32.0"}, "r.jsonl")))
    assert [c["knob"] for c in data["smallest"]] == ["VLLM_BATCH_INVARIANT", "VLLM_ROCM_USE_AITER"]
    assert data["baseline"]["verdict"] == "error" and data["result"]["verdict"] == "pass"
    assert data["proven"] and data["complete"] and data["verified"]
    assert data["versions"] == {"vllm": "0.32.0"} and data["run_file"] == "r.jsonl"
    assert {row["knob"] for row in data["alone"]} >= {"VLLM_ROCM_USE_AITER"}
