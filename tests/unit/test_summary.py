"""Summaries over targets and over batches, and whose column a record stands in."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import cell, environment, forced, record

from capmatrix import summary
from capmatrix.cell import RUNGS, Claim, Flag, Force, Phase, Record, Rung, Verdict
from capmatrix.summary import Place

TELLING = (Verdict.PASS, *summary.FAILED)


def rec(verdict: Verdict, rung: Rung = Rung.COMPILED, batch: str = "decode", target: str = "offline:gfx942") -> Record:
    return record(cell(batch=batch, target=target), verdict, rung=rung)


batches = st.sampled_from(["decode", "verify", "mixed"])
records = st.builds(rec, st.sampled_from(Verdict), st.sampled_from(Rung), batches)


# Over batches


def test_the_order_over_batches_is_the_published_one() -> None:
    order = [Verdict(v) for v in ("wrong", "crash", "timeout", "error", "unverified", "pass")]
    for worse, better in itertools.combinations(order, 2):
        for pair in ((worse, better), (better, worse)):
            found = summary.summarise([rec(pair[0], batch="decode"), rec(pair[1], batch="verify")])
            assert found.verdict is worse, pair


@pytest.mark.parametrize("idle", [Verdict.REJECTED, Verdict.UNAVAILABLE])
@pytest.mark.parametrize("ran", summary.RAN)
def test_what_did_not_run_never_enters_a_summary_of_what_ran(idle: Verdict, ran: Verdict) -> None:
    found = summary.summarise([rec(idle, Rung.DECLARED, "decode"), rec(ran, batch="verify")])
    assert found.verdict is ran
    assert found.rung is Rung.COMPILED


def test_where_nothing_ran_it_is_shown() -> None:
    rejected, unavailable = rec(Verdict.REJECTED, Rung.DECLARED), rec(Verdict.UNAVAILABLE, Rung.DECLARED, "verify")
    assert summary.summarise([unavailable]).verdict is Verdict.UNAVAILABLE
    assert summary.summarise([rejected, unavailable]).verdict is Verdict.REJECTED


@given(st.lists(records, min_size=1, max_size=12))
def test_a_pass_is_as_weak_as_its_weakest_batch(group: list[Record]) -> None:
    found = summary.summarise(group)
    if found.verdict is Verdict.PASS:
        assert all(summary.strength(found.rung) <= summary.strength(f.record.rung) for f in found.findings if f.ran)
    assert found.rung in {r.rung for r in group}


@given(st.lists(records, min_size=1, max_size=12))
def test_order_of_records_does_not_matter(group: list[Record]) -> None:
    forward, backward = summary.summarise(group), summary.summarise(group[::-1])
    assert (forward.verdict, forward.rung, forward.flags) == (backward.verdict, backward.rung, backward.flags)


@given(st.lists(records, min_size=1, max_size=12))
def test_a_summary_says_what_some_record_says(group: list[Record]) -> None:
    found = summary.summarise(group)
    assert found.deciding.record in group
    assert found.deciding.record.verdict is found.verdict


def test_a_failure_shows_its_best_evidence() -> None:
    found = summary.summarise(
        [rec(Verdict.WRONG, Rung.INTERPRETED, "decode"), rec(Verdict.WRONG, Rung.EXECUTED, "verify")]
    )
    assert (found.verdict, found.rung) == (Verdict.WRONG, Rung.EXECUTED)


# Over targets


@given(st.lists(st.tuples(st.sampled_from(TELLING), st.sampled_from(Rung)), min_size=1, max_size=6))
def test_the_highest_rung_decides_over_targets(said: list[tuple[Verdict, Rung]]) -> None:
    finding = summary.over_targets(rec(v, r) for v, r in said)
    top = max((r for _, r in said), key=summary.strength)
    assert finding.record.rung is top
    assert finding.record.verdict is summary.worst(v for v, r in said if r is top)
    assert bool(finding.conflicts) == (len({v for v, _ in said}) > 1)
    assert len(finding.others) == len(said) - 1


def test_a_lower_rung_that_disagrees_leaves_a_conflict_mark() -> None:
    low = rec(Verdict.ERROR, Rung.COMPILED)
    high = rec(Verdict.PASS, Rung.INTERPRETED, target="interpreter:gfx942")
    found = summary.summarise([low, high])
    assert (found.verdict, found.rung) == (Verdict.PASS, Rung.INTERPRETED)
    assert Flag.CONFLICT in found.flags
    assert found.deciding.conflicts == (low,)


def test_agreement_leaves_none() -> None:
    found = summary.summarise([rec(Verdict.PASS, Rung.COMPILED), rec(Verdict.PASS, Rung.EXECUTED)])
    assert (found.rung, found.flags) == (Rung.EXECUTED, ())


def test_a_target_that_cannot_tell_hides_no_target_that_can() -> None:
    found = summary.summarise([rec(Verdict.ERROR, Rung.COMPILED), rec(Verdict.UNVERIFIED, Rung.INTERPRETED)])
    assert (found.verdict, found.rung, found.flags) == (Verdict.ERROR, Rung.COMPILED, ())


def test_unavailable_elsewhere_is_no_conflict_but_rejected_is() -> None:
    ran = rec(Verdict.PASS, Rung.EXECUTED)
    assert summary.summarise([ran, rec(Verdict.UNAVAILABLE, Rung.DECLARED)]).flags == ()
    assert summary.summarise([ran, rec(Verdict.REJECTED, Rung.DECLARED)]).flags == (Flag.CONFLICT,)


def test_a_declared_pass_never_stands_above_what_ran() -> None:
    found = summary.summarise([rec(Verdict.PASS, Rung.DECLARED), rec(Verdict.CRASH, Rung.COMPILED)])
    assert found.verdict is Verdict.CRASH


def test_flags_are_those_of_the_deciding_record() -> None:
    low = record(cell(), flags=(Flag.NAN_UNSAFE,))
    high = record(cell(target="interpreter:gfx942"), flags=(Flag.FALLBACK,))
    assert summary.summarise([low, high]).flags == (Flag.FALLBACK,)


def test_nothing_is_no_summary() -> None:
    for empty in (summary.over_batches, summary.over_targets, summary.worst):
        with pytest.raises(ValueError):
            empty(iter(()))


# Places and versions


@pytest.mark.parametrize("target", ["offline:gfx942", "interpreter:gfx942"])
def test_virtual_targets_speak_for_their_architecture(target: str) -> None:
    for env in (None, environment(target), environment(target, hardware={"vendor": "nvidia", "name": "H200"})):
        assert summary.place(record(cell(target=target)), env) == Place("gfx942", "gfx942")


def test_a_device_of_amd_speaks_for_its_architecture() -> None:
    mi300x = {"vendor": "amd", "name": "AMD Instinct MI300X", "arch": "gfx942:sramecc+:xnack-"}
    env = environment("device", hardware=mi300x)
    assert summary.place(record(cell(target="device")), env) == Place("gfx942", "gfx942")


def test_a_rocm_identity_on_nvidia_never_enters_an_amd_column() -> None:
    env = environment("device", hardware={"vendor": "nvidia", "name": "NVIDIA H200"}, identity={"arch": "gfx950"})
    home = summary.place(record(cell(target="device")), env)
    assert home.architecture == ""
    assert home.title == "NVIDIA H200 with a ROCm gfx950 identity"


@pytest.mark.parametrize("hardware", [{}, {"vendor": "intel", "name": "X"}, {"name": "gfx950"}, {"vendor": "amd"}])
def test_a_device_that_nobody_names_speaks_for_no_architecture(hardware: dict[str, str]) -> None:
    env = environment("device", hardware=hardware, identity={} if "vendor" in hardware else {"arch": "gfx950"})
    assert summary.place(record(cell(target="device")), env).architecture == ""
    assert summary.place(record(cell(target="device")), None).architecture == ""


def test_versions_without_build_labels_are_compared() -> None:
    cpu = environment("offline:gfx942")
    rocm = environment("device", versions={**cpu.versions, "torch": "2.13.0+rocm7.1", "rocm": "7.1.1"})
    assert summary.versions(cpu) == summary.versions(rocm)
    assert summary.versions(None) == ()


def test_a_commit_is_part_of_a_version() -> None:
    env = environment("offline:gfx942", commits={"aiter": "a" * 40})
    assert ("aiter", f"0.1.7.post2.dev18 ({'a' * 12})") in summary.versions(env)
    assert summary.versions(env) != summary.versions(environment("offline:gfx942"))
    unknown = environment("offline:gfx942", commits={"aiter": "unknown", "vllm": ""})
    assert summary.versions(unknown) == summary.versions(environment("offline:gfx942"))


def test_a_point_is_a_cell_without_target_batch_and_scaling() -> None:
    offline, interpreted = cell(), cell(target="interpreter:gfx942", batch="verify")
    assert offline.geometry != interpreted.geometry
    assert summary.point(offline) == summary.point(interpreted)
    for other in ({"backend": "TRITON_ATTN"}, {"block_size": 16}, {"kv_cache_dtype": "auto"}, {"tp": 8},
                  {"runner": "v1"}, {"switches": (("A", "1"),)}, {"force": Force.VALIDATION}):  # fmt: skip
        assert summary.point(cell(**other)) != summary.point(offline)


# Declarations


def test_over_advertised() -> None:
    assert summary.over_advertised(record(verdict=Verdict.ERROR))
    assert not summary.over_advertised(record(verdict=Verdict.ERROR, claims=(Claim("validation", False),)))
    assert not summary.over_advertised(record(verdict=Verdict.ERROR, claims=()))
    assert not summary.over_advertised(record())
    assert not summary.over_advertised(record(forced(), Verdict.ERROR))


def test_only_forced_validation_can_be_under_advertised() -> None:
    no = (Claim("validation", False),)
    assert summary.under_advertised(record(forced(None), claims=no))
    assert not summary.under_advertised(record(forced(), claims=no))
    assert not summary.under_advertised(record(forced(None), Verdict.ERROR, claims=no))
    assert not summary.under_advertised(record(forced(None), claims=no, rung=Rung.DECLARED, phase=Phase.SELECT))


def test_rungs_and_verdicts_are_all_ordered() -> None:
    assert sorted(RUNGS, key=summary.strength) == list(RUNGS)
    assert set(summary.RAN) | set(summary.DID_NOT_RUN) == set(Verdict)
