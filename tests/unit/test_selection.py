"""The default-selection table: what is a candidate, who wins, what an earlier table keeps."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import cell, environment, record

from capmatrix import batches, drafters
from capmatrix.cell import Cell, Environment, Flag, Force, Record, Role, Rung, Timing, Verdict
from capmatrix.codec import cell_id
from capmatrix.grid import Workload
from capmatrix.selection import defaults, defaults_python, evidence, published
from capmatrix.selection import derive as selection
from capmatrix.selection.defaults import Defaults, Key, Other, Row
from capmatrix.store import Run
from capmatrix.toml import tomlfile

FAMILIES = drafters.load(drafters.DEFAULT_DIR)
SEED = published.load(published.find("vllm-47882-minimax-m3-eagle3"))
NEEDED = batches.needed("eagle3", Role.DRAFTER)
KEY = Key("gfx942", "minimax-m3-eagle3", "drafter", 128, "fp8", "bfloat16")
AMD = environment("device", hardware={"vendor": "amd", "name": "AMD Instinct MI300X", "arch": "gfx942"})
NVIDIA = environment("device", id="env-nvidia", hardware={"vendor": "nvidia", "name": "NVIDIA H200"})
WORKLOADS = {"seed": Workload(256, 8192, 1024, 0, 2)}


def run_of(records: list[Record], *environments: Environment) -> Run:
    known = [*environments, environment("offline:gfx942"), environment("interpreter:gfx950"), AMD, NVIDIA]
    return Run(environments={e.id: e for e in reversed(known)}, records=records)


def passing(
    backend: str, target: str = "device", batch_names: tuple[str, ...] = NEEDED, **changes: Any
) -> list[Record]:
    """A pass of every needed batch; ``changes`` are the records'."""
    return [record(cell(target=target, backend=backend, batch=b), **changes) for b in batch_names]


def timed(
    backend: str, verify: float, decode: float, prefill: float = 0.0, spread: float = 0.01, **changes: Any
) -> list[Record]:
    """Passes on the device, their times in µs with a spread."""

    def timing(phase: Any, us: float, tokens: int) -> Timing:
        return Timing(phase, "seed", us, us * (1 - spread), us * (1 + spread), 5, query_tokens=tokens)

    out = []
    for one in passing(backend, **changes):
        times = {
            "verify": (timing("verify", verify, 768),),
            "decode": (timing("decode", decode, 256),),
            "prefill": (timing("prefill", prefill, 8192),) if prefill else (),
        }.get(one.cell.batch, ())
        out.append(msgspec.structs.replace(one, times=times))
    return out


def derive(*runs: Run, tables: Any = (), policy: str = "lightest", **changes: Any) -> Defaults:
    arch = changes.get("arch", "")
    named = [(f"run{i}", run) for i, run in enumerate(runs)]
    found = evidence.gather(named, list(tables), FAMILIES, arch=arch)
    question = selection.Question(policy=policy, families=FAMILIES, workloads=WORKLOADS, **changes)
    return selection.derive(found, question)


def row(table: Defaults, key: Key = KEY) -> Row:
    found = table.find(key)
    assert found is not None
    return found


def other(found: Row, backend: str) -> Other:
    return next(o for o in found.other if o.backend == backend)


# -- the seed ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "backend", "margin"),
    [
        ("lightest", "TRITON_ATTN", -1.74),
        ("fastest", "ROCM_AITER_UNIFIED_ATTN", 1.77),
        ("safest", "TRITON_ATTN", -1.74),
    ],
)
def test_the_seed(policy: str, backend: str, margin: float) -> None:
    found = row(derive(tables=[SEED], policy=policy, arch="any"), KEY._replace(architecture="unknown", dtype="auto"))
    assert (found.backend, found.margin_percent, found.rung) == (backend, margin, "served")
    assert set(found.marks) == {"unrepeated", "gpu not stated"}
    assert other(found, "ROCM_ATTN").times_best == 3.4748
    assert other(found, "ROCM_ATTN").why == "slower"
    refused = other(found, "ROCM_AITER_FA")
    assert (refused.why, "block size 128" in refused.detail) == ("rejected", True)


def test_an_unstated_gpu_is_matched_only_when_asked_for() -> None:
    assert derive(tables=[SEED]).row == ()
    assert "GPU not stated" in derive(tables=[SEED]).left_out[0]
    assert [r.architecture for r in derive(tables=[SEED], arch="any").row] == ["unknown"]
    joined = derive(run_of(passing("TRITON_ATTN")), tables=[SEED], arch="any")
    assert [r.architecture for r in joined.row] == ["gfx942"]
    assert "gpu not stated" in row(joined).marks


def test_the_margin_decides_what_is_as_good() -> None:
    found = derive(tables=[SEED], arch="any", margin_percent=1.0).row[0]
    assert found.backend == "ROCM_AITER_UNIFIED_ATTN"
    assert other(found, "TRITON_ATTN").why == "slower"


# -- candidates ----------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", NEEDED)
@pytest.mark.parametrize("verdict", [Verdict.WRONG, Verdict.CRASH, Verdict.TIMEOUT, Verdict.ERROR])
def test_a_backend_that_fails_a_needed_batch_is_no_candidate(batch: str, verdict: Verdict) -> None:
    records = passing("TRITON_ATTN") + passing("ROCM_ATTN")
    broken = [msgspec.structs.replace(r, verdict=verdict) if _is(r, "ROCM_ATTN", batch) else r for r in records]
    found = row(derive(run_of(broken)))
    assert found.backend == "TRITON_ATTN"
    assert other(found, "ROCM_ATTN").why == "failed"
    assert batch in other(found, "ROCM_ATTN").detail


def _is(r: Record, backend: str, batch: str) -> bool:
    return r.cell.backend == backend and r.cell.batch == batch


def test_a_batch_that_the_role_does_not_need_bars_nothing() -> None:
    extra = record(cell(target="device", backend="TRITON_ATTN", batch="long_decode"), Verdict.CRASH)
    assert "long_decode" not in NEEDED
    assert row(derive(run_of([*passing("TRITON_ATTN"), extra]))).backend == "TRITON_ATTN"


def test_one_condition_that_fails_is_enough() -> None:
    bad = record(cell(target="device", backend="TRITON_ATTN", batch="decode", execution="full"), Verdict.ERROR)
    found = row(derive(run_of([*passing("TRITON_ATTN"), bad])))
    assert found.backend == ""
    assert "full" in other(found, "TRITON_ATTN").detail


def test_nan_unsafe_bars_only_where_the_pool_is_shared() -> None:
    assert not FAMILIES["minimax-m3-eagle3"].shared_pool
    assert FAMILIES["dflash-qwen3.6-27b"].shared_pool
    flagged = passing("TRITON_ATTN", flags=(Flag.NAN_UNSAFE,))
    assert row(derive(run_of(flagged))).backend == "TRITON_ATTN"
    moved = []
    for name in batches.needed("dflash", Role.DRAFTER):
        c = cell(target="device", backend="TRITON_ATTN", batch=name, drafter="dflash-qwen3.6-27b", method="dflash")
        moved.append(record(c, flags=(Flag.NAN_UNSAFE,)))
    found = row(derive(run_of(moved)), KEY._replace(drafter="dflash-qwen3.6-27b"))
    assert found.backend == ""
    assert other(found, "TRITON_ATTN").why == "barred"


def test_nvidia_records_enter_no_row() -> None:
    records = [msgspec.structs.replace(r, environment=NVIDIA.id) for r in passing("TRITON_ATTN")]
    table = derive(run_of(records))
    assert table.row == ()
    assert table.left_out == (
        "5 records: NVIDIA H200 with a ROCm gfx942 identity: not an AMD GPU, so that it enters no row",
    )


def test_what_is_very_slow_on_another_vendors_gpu_is_a_hint() -> None:
    def elsewhere(*records: Record) -> list[Record]:
        return [msgspec.structs.replace(r, environment=NVIDIA.id) for r in records]

    slow = elsewhere(*timed("ROCM_ATTN", 620, 100), *timed("TRITON_ATTN", 100, 100))
    table = derive(run_of(slow))
    assert table.row == ()
    (hint,) = table.hints
    assert "ROCM_ATTN takes 6.2 times TRITON_ATTN's time in verify" in hint
    assert derive(run_of(elsewhere(*timed("ROCM_ATTN", 490, 100), *timed("TRITON_ATTN", 100, 100)))).hints == ()
    assert derive(run_of(timed("ROCM_ATTN", 9000, 100) + timed("TRITON_ATTN", 100, 100))).hints == ()


def test_forced_cells_are_no_defaults() -> None:
    forced = [
        record(cell(target="device", backend="ROCM_AITER_FA", batch=b, force=Force.KERNEL_BLOCK, kernel_block=128))
        for b in NEEDED
    ]
    assert derive(run_of(forced)).row == ()


def test_unverified_and_missing_are_not_passes() -> None:
    unverified = [record(cell(target="device", backend="ROCM_ATTN", batch=b), Verdict.UNVERIFIED) for b in NEEDED]
    part = passing("ROCM_AITER_FA", batch_names=NEEDED[:2])
    found = row(derive(run_of([*passing("TRITON_ATTN"), *unverified, *part])))
    assert found.backend == "TRITON_ATTN"
    assert other(found, "ROCM_ATTN").why == "unverified"
    assert other(found, "ROCM_AITER_FA").why == "incomplete"
    assert NEEDED[-1] in other(found, "ROCM_AITER_FA").detail


def test_a_switch_that_is_needed_is_said() -> None:
    on = (("VLLM_ROCM_USE_AITER", "1"),)
    with_it = [record(cell(target="device", backend="ROCM_AITER_FA", batch=b, switches=on)) for b in NEEDED]
    assert row(derive(run_of(with_it))).switches == ("VLLM_ROCM_USE_AITER=1",)
    without = [record(cell(target="device", backend="ROCM_AITER_FA", batch=b), Verdict.REJECTED) for b in NEEDED]
    found = row(derive(run_of([*with_it, *without])))
    assert found.backend == ""
    assert "passes with VLLM_ROCM_USE_AITER=1" in other(found, "ROCM_AITER_FA").detail


def test_every_backend_seen_on_the_architecture_is_accounted_for() -> None:
    elsewhere = record(cell(target="device", backend="FLEX_ATTENTION", block_size=16))
    found = row(derive(run_of([*passing("TRITON_ATTN"), elsewhere])))
    assert other(found, "FLEX_ATTENTION").why == "not run"


# -- rungs ---------------------------------------------------------------------------------------


def test_evidence_below_executed_is_provisional_and_overrides_nothing() -> None:
    compiled = passing("ROCM_ATTN", "offline:gfx942")
    alone = row(derive(run_of(compiled)))
    assert (alone.backend, alone.rung, alone.provisional) == ("ROCM_ATTN", "compiled", True)
    both = row(derive(run_of([*compiled, *passing("ROCM_AITER_UNIFIED_ATTN")])))
    assert (both.backend, both.provisional) == ("ROCM_AITER_UNIFIED_ATTN", False)
    assert other(both, "ROCM_ATTN").why == "weaker"


def test_the_higher_rung_decides_and_the_lower_is_shown() -> None:
    wrong = [record(cell(backend="TRITON_ATTN", batch=b), Verdict.WRONG) for b in NEEDED]
    found = row(derive(run_of([*passing("TRITON_ATTN"), *wrong])))
    assert found.backend == "TRITON_ATTN"
    assert "conflict" in found.marks
    assert any("stands against wrong (compiled" in text for text in found.conflicts)


def test_runs_that_disagree_on_one_rung_are_judged_by_the_worst() -> None:
    bad = [msgspec.structs.replace(r, verdict=Verdict.WRONG) for r in passing("TRITON_ATTN")]
    found = row(derive(run_of(passing("TRITON_ATTN")), run_of(bad)))
    assert found.backend == ""
    assert found.conflicts


def test_newer_versions_decide_on_one_rung() -> None:
    newer = msgspec.structs.replace(AMD, id="env-newer", versions={**AMD.versions, "vllm": "0.33.0"})
    bad = [msgspec.structs.replace(r, verdict=Verdict.ERROR) for r in passing("TRITON_ATTN")]
    fixed = [msgspec.structs.replace(r, environment=newer.id) for r in passing("TRITON_ATTN")]
    for runs in ((run_of(bad), run_of(fixed, newer)), (run_of(fixed, newer), run_of(bad))):
        found = row(derive(*runs))
        assert (found.backend, found.versions["vllm"]) == ("TRITON_ATTN", "0.33.0")


# -- measurements --------------------------------------------------------------------------------


def test_estimated_step_time_weighs_phases() -> None:
    # k = 2: a verify and one decode a step; 1024 steps; prefill of 256 x 8192 tokens in calls of 8192.
    records = timed("TRITON_ATTN", 100, 50, 4000) + timed("ROCM_ATTN", 300, 100, 500)
    found = row(derive(run_of(records), policy="fastest"))
    assert found.decided_by == "estimated step time"
    assert (found.backend, found.value) == ("ROCM_ATTN", 1024 * 400 + 256 * 500)
    slower = (1024 * 150 + 256 * 4000) / (1024 * 400 + 256 * 500)
    assert other(found, "TRITON_ATTN").times_best == pytest.approx(slower, abs=1e-4)


def test_a_split_by_phase_is_shown_where_winners_differ() -> None:
    records = timed("TRITON_ATTN", 100, 50, 4000) + timed("ROCM_ATTN", 300, 100, 500)
    assert row(derive(run_of(records))).phases == {
        "prefill": "ROCM_ATTN",
        "verify": "TRITON_ATTN",
        "decode": "TRITON_ATTN",
    }
    assert row(derive(run_of(timed("TRITON_ATTN", 1, 1, 1) + timed("ROCM_ATTN", 2, 2, 2)))).phases == {}


def test_an_unmeasured_backend_never_beats_a_measured_one() -> None:
    slow = timed("ROCM_AITER_UNIFIED_ATTN", 9e9, 9e9)
    for policy in ("lightest", "fastest"):
        found = row(derive(run_of([*slow, *passing("TRITON_ATTN")]), policy=policy))
        assert found.backend == "ROCM_AITER_UNIFIED_ATTN"
        assert other(found, "TRITON_ATTN").why == "unmeasured"


def test_noise_makes_equals() -> None:
    records = timed("TRITON_ATTN", 115, 115, spread=0.1) + timed("ROCM_AITER_UNIFIED_ATTN", 100, 100, spread=0.1)
    found = row(derive(run_of(records)))
    assert found.backend == "TRITON_ATTN"
    assert (found.margin_low_percent, found.margin_high_percent) == (-28.85, 6.28)
    clear = timed("TRITON_ATTN", 115, 115) + timed("ROCM_AITER_UNIFIED_ATTN", 100, 100)
    assert row(derive(run_of(clear))).backend == "ROCM_AITER_UNIFIED_ATTN"


def test_acceptance_that_would_turn_the_order_is_shown() -> None:
    # By prefill ROCM_ATTN, by steps TRITON_ATTN: how many steps there are decides.
    records = timed("TRITON_ATTN", 100, 100, 900) + timed("ROCM_ATTN", 200, 200, 300)
    found = row(derive(run_of(records), policy="fastest"))
    assert found.backend == "TRITON_ATTN"
    assert any("were every draft accepted, ROCM_ATTN would be first" in text for text in found.conflicts)


def test_serving_outranks_step_times() -> None:
    table = msgspec.structs.replace(SEED, arch="gfx942")
    records = timed("TRITON_ATTN", 1, 1) + timed("ROCM_AITER_UNIFIED_ATTN", 100, 100)
    found = row(derive(run_of(records), tables=[table], policy="fastest"))
    assert (found.backend, found.decided_by) == ("ROCM_AITER_UNIFIED_ATTN", "serving throughput")
    assert any("TRITON_ATTN is 100.00x as fast" in text for text in found.conflicts)


def test_the_heaviest_load_decides_unless_one_is_asked_for() -> None:
    light = [
        msgspec.structs.replace(
            r,
            load=msgspec.structs.replace(r.load, concurrency=1),
            figures={"output_tok_s_per_gpu": 1000.0 if r.backend == "ROCM_ATTN" else 10.0},
        )
        for r in SEED.results
        if r.status == "pass"
    ]
    table = msgspec.structs.replace(SEED, results=(*light, *SEED.results))
    found = derive(tables=[table], arch="any").row[0]
    assert found.backend == "TRITON_ATTN"
    assert any("ROCM_ATTN is 100.00x as fast" in text for text in found.conflicts)
    small = {"small": Workload(1, 8192, 1024)}
    question = selection.Question(families=FAMILIES, workloads=small, workload="small")
    asked = selection.derive(evidence.gather([], [table], FAMILIES, arch="any"), question).row[0]
    assert asked.backend == "ROCM_ATTN"


# -- published results beside records -------------------------------------------------------------


def test_a_failing_record_bars_what_was_served_and_says_so() -> None:
    table = msgspec.structs.replace(SEED, arch="gfx942")
    wrong = [record(cell(target="device", backend="TRITON_ATTN", batch=b), Verdict.WRONG) for b in NEEDED]
    found = row(derive(run_of(wrong), tables=[table]))
    assert found.backend == "ROCM_AITER_UNIFIED_ATTN"
    assert other(found, "TRITON_ATTN").why == "failed"
    assert any("served in vllm-47882-minimax-m3-eagle3#2" in text for text in found.conflicts)


def test_execution_after_a_published_refusal_outranks_it() -> None:
    table = msgspec.structs.replace(SEED, arch="gfx942")
    later = row(derive(run_of(passing("ROCM_AITER_FA")), tables=[table]))
    assert other(later, "ROCM_AITER_FA").why == "unmeasured"
    compiled = row(derive(run_of(passing("ROCM_AITER_FA", "offline:gfx942")), tables=[table]))
    assert other(compiled, "ROCM_AITER_FA").why == "rejected"
    assert later.conflicts and compiled.conflicts


# -- the earlier table ---------------------------------------------------------------------------


def previous(backend: str, **changes: Any) -> Defaults:
    base: dict[str, Any] = {"reason": "measured", "policy": "lightest", "rung": "executed"}
    return Defaults("lightest", 5.0, row=(Row(*KEY, backend=backend, **{**base, **changes}),))


@pytest.mark.parametrize(("factor", "kept"), [(0.97, True), (0.90, False)])
def test_a_small_win_changes_no_default(factor: float, kept: bool) -> None:
    records = timed("ROCM_AITER_UNIFIED_ATTN", 100, 100) + timed("TRITON_ATTN", 100 * factor, 100 * factor)
    found = row(
        derive(run_of(records), policy="fastest", previous=_policy(previous("ROCM_AITER_UNIFIED_ATTN"), "fastest"))
    )
    assert (found.backend == "ROCM_AITER_UNIFIED_ATTN") is kept
    assert ("kept" in found.marks) is kept
    if kept:
        assert other(found, "TRITON_ATTN").why == "kept"
        assert found.records and all("ROCM_AITER_UNIFIED_ATTN" in ref for ref in found.records)


def _policy(table: Defaults, policy: str) -> Defaults:
    return msgspec.structs.replace(table, policy=policy)


def test_a_lighter_equal_displaces_nothing_by_itself() -> None:
    records = timed("ROCM_AITER_UNIFIED_ATTN", 100, 100) + timed("TRITON_ATTN", 101, 101)
    assert row(derive(run_of(records))).backend == "TRITON_ATTN"
    held = row(derive(run_of(records), previous=previous("ROCM_AITER_UNIFIED_ATTN")))
    assert held.backend == "ROCM_AITER_UNIFIED_ATTN"


def test_another_policy_may_choose_anew() -> None:
    records = timed("ROCM_AITER_UNIFIED_ATTN", 100, 100) + timed("TRITON_ATTN", 101, 101)
    found = row(derive(run_of(records), previous=_policy(previous("ROCM_AITER_UNIFIED_ATTN"), "fastest")))
    assert found.backend == "TRITON_ATTN"


def test_one_unrepeated_serving_run_displaces_nothing() -> None:
    table = msgspec.structs.replace(SEED, arch="gfx942")
    before = previous("ROCM_ATTN", value=1.0)
    assert row(derive(run_of(passing("ROCM_ATTN")), tables=[table])).backend == "TRITON_ATTN"
    held = row(derive(run_of(passing("ROCM_ATTN")), tables=[table], previous=before))
    assert (held.backend, "kept" in held.marks) == ("ROCM_ATTN", True)
    twice = [msgspec.structs.replace(r, repeats=3) for r in SEED.results]
    repeated = msgspec.structs.replace(table, results=tuple(twice))
    assert row(derive(run_of(passing("ROCM_ATTN")), tables=[repeated], previous=before)).backend == "TRITON_ATTN"


def test_an_earlier_default_that_now_fails_goes() -> None:
    bad = [record(cell(target="device", backend="ROCM_ATTN", batch=b), Verdict.CRASH) for b in NEEDED]
    found = row(derive(run_of([*bad, *passing("TRITON_ATTN")]), previous=previous("ROCM_ATTN")))
    assert found.backend == "TRITON_ATTN"


def test_weaker_evidence_displaces_nothing() -> None:
    bad = [record(cell(backend="ROCM_ATTN", batch=b), Verdict.ERROR) for b in NEEDED]
    found = row(derive(run_of([*bad, *passing("TRITON_ATTN", "offline:gfx942")]), previous=previous("ROCM_ATTN")))
    assert found.backend == "ROCM_ATTN"
    assert {"kept", "conflict"} <= set(found.marks)
    silent = row(derive(run_of(passing("TRITON_ATTN", "offline:gfx942")), previous=previous("ROCM_ATTN")))
    assert (silent.backend, "carried" in silent.marks) == ("ROCM_ATTN", True)


def test_without_a_measurement_the_earlier_default_stays_unless_the_evidence_is_stronger() -> None:
    both = run_of([*passing("TRITON_ATTN"), *passing("ROCM_AITER_UNIFIED_ATTN")])
    assert row(derive(both, previous=previous("ROCM_AITER_UNIFIED_ATTN"))).backend == "ROCM_AITER_UNIFIED_ATTN"
    weak = run_of([*passing("TRITON_ATTN"), *passing("ROCM_AITER_UNIFIED_ATTN", "offline:gfx942")])
    earlier = previous("ROCM_AITER_UNIFIED_ATTN", rung="compiled")
    assert row(derive(weak, previous=earlier)).backend == "TRITON_ATTN"
    absent = run_of(passing("TRITON_ATTN"))
    assert row(derive(absent, previous=previous("ROCM_AITER_UNIFIED_ATTN"))).backend == "ROCM_AITER_UNIFIED_ATTN"
    assert row(derive(absent, previous=earlier)).backend == "TRITON_ATTN"


def test_rows_without_evidence_now_are_carried() -> None:
    before = previous("ROCM_ATTN")
    assert "carried" in row(derive(previous=before)).marks
    assert derive(previous=before, arch="gfx950").row == ()


# -- files ---------------------------------------------------------------------------------------


def sample_table() -> Defaults:
    records = timed("TRITON_ATTN", 100, 50, 4000) + timed("ROCM_ATTN", 300, 100, 500)
    return derive(run_of(records), tables=[SEED], arch="any")


def test_toml_and_json_read_back(tmp_path: Any) -> None:
    table = sample_table()
    for name, text in (("a.toml", defaults.to_toml(table)), ("a.json", defaults.to_json(table))):
        (tmp_path / name).write_text(text, encoding="utf-8")
        assert defaults.load(tmp_path / name) == table


def test_the_python_mapping_runs() -> None:
    table = derive(run_of([*passing("TRITON_ATTN"), *_other_block(passing("ROCM_ATTN", "offline:gfx942"))]))
    scope: dict[str, Any] = {}
    exec(compile(defaults_python.draw(table, FAMILIES), "defaults.py", "exec"), scope)
    assert scope["default_backend"](*KEY) == "TRITON_ATTN"
    assert scope["default_backend"](*KEY._replace(block_size=16)) is None
    assert scope["PROVISIONAL"] == {tuple(KEY._replace(block_size=16)): "ROCM_ATTN"}
    assert scope["FAMILIES"]["minimax-m3-eagle3"]["num_kv_heads"] == 64


def test_text_of_records_cannot_leave_its_string() -> None:
    evil = "x\"'): raise SystemExit #\n\u2028"
    records = [record(msgspec.structs.replace(r.cell, drafter=evil)) for r in passing("TRITON_ATTN")]
    table = derive(run_of(records))
    scope: dict[str, Any] = {}
    exec(compile(defaults_python.draw(table, FAMILIES), "defaults.py", "exec"), scope)
    assert list(scope["DEFAULTS"]) == [tuple(KEY._replace(drafter=evil))]
    assert tomlfile.parse(defaults.to_toml(table).encode(), "a.toml").data["row"][0]["drafter"] == evil


def _other_block(records: list[Record]) -> list[Record]:
    return [record(msgspec.structs.replace(r.cell, block_size=16)) for r in records]


@pytest.mark.parametrize("text", ["", "policy = 1\nmargin_percent = 5.0", 'policy = "x"\nmargin_percent = 5\nrow = 3'])
def test_a_bad_table_is_an_input_error(text: str, tmp_path: Any) -> None:
    from capmatrix.errors import InputError

    (tmp_path / "a.toml").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"a\.toml"):
        defaults.load(tmp_path / "a.toml")


def test_a_newer_table_is_refused(tmp_path: Any) -> None:
    from capmatrix.errors import InputError

    (tmp_path / "a.json").write_text('{"policy": "x", "margin_percent": 1, "version": 99}', encoding="utf-8")
    with pytest.raises(InputError, match="newer capmatrix"):
        defaults.load(tmp_path / "a.json")


# -- properties ----------------------------------------------------------------------------------

BACKENDS = ("ROCM_ATTN", "TRITON_ATTN", "ROCM_AITER_UNIFIED_ATTN")


@st.composite
def outcomes(draw: st.DrawFn) -> list[Record]:
    out = []
    for backend, batch, target in itertools.product(BACKENDS, NEEDED, ("device", "offline:gfx942")):
        verdict = draw(
            st.sampled_from([Verdict.PASS] * 6 + [Verdict.WRONG, Verdict.UNVERIFIED, Verdict.REJECTED, None])
        )
        if verdict is not None:
            one = record(cell(target=target, backend=backend, batch=batch), verdict)
            if verdict is Verdict.PASS and target == "device" and batch in ("verify", "decode") and draw(st.booleans()):
                us = draw(st.floats(1, 1e4))
                one = msgspec.structs.replace(one, times=(Timing(batch, "seed", us, us * 0.9, us * 1.1, 3),))  # type: ignore[arg-type]
            out.append(one)
    return out


@settings(max_examples=60, deadline=None)
@given(outcomes(), st.randoms(use_true_random=False), st.sampled_from(["lightest", "fastest", "safest"]))
def test_the_same_records_give_the_same_bytes(records: list[Record], rng: Any, policy: str) -> None:
    first = defaults.to_toml(derive(run_of(records), policy=policy))
    shuffled = list(records)
    rng.shuffle(shuffled)
    assert defaults.to_toml(derive(run_of(shuffled), policy=policy)) == first
    tomlfile.parse(first.encode(), "a.toml")


@settings(max_examples=120, deadline=None)
@given(outcomes(), st.sampled_from(["lightest", "fastest", "safest"]), st.sampled_from(["", *BACKENDS]))
def test_no_default_fails_and_every_backend_is_accounted_for(records: list[Record], policy: str, old: str) -> None:
    table = derive(
        run_of(records), policy=policy, previous=_policy(previous(old, rung="declared"), policy) if old else None
    )
    for found in table.row:
        names = [o.backend for o in found.other] + ([found.backend] if found.backend else [])
        assert sorted(names) == sorted(set(names))
        assert {r.cell.backend for r in records if r.verdict is not None} <= set(names) or "carried" in found.marks
        if not found.backend or "carried" in found.marks:
            continue
        executed = [r for r in records if r.cell.backend == found.backend and r.cell.target == "device"]
        assert not any(r.verdict is Verdict.WRONG for r in executed)
        measured = [o for o in found.other if o.times_best is not None]
        if policy == "fastest" and found.times_fastest is not None and "kept" not in found.marks:
            assert found.times_fastest == 1.0
            assert all(o.times_best >= 1.0 for o in measured if o.times_best is not None)
        if policy == "lightest" and found.times_fastest is not None and "kept" not in found.marks:
            assert found.times_fastest <= 1.06 or found.margin_low_percent is not None


def test_cells_of_one_key_share_ids_with_no_other() -> None:
    ids = {cell_id(r.cell) for r in passing("TRITON_ATTN")}
    assert len(ids) == len(NEEDED)
    assert isinstance(passing("TRITON_ATTN")[0].cell, Cell)
    assert passing("TRITON_ATTN")[0].rung is Rung.EXECUTED
