"""What changed between two runs, or two derived tables, and what of it fails a build."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from samples import PAGED, WRITE, cell, environment, record

from capmatrix import cli
from capmatrix.analysis import diff
from capmatrix.cell import Claim, Environment, Flag, Record, Rung, Timing, Verdict
from capmatrix.codec import encode
from capmatrix.report import diff as report
from capmatrix.selection import defaults
from capmatrix.selection.defaults import Defaults, Other, Row
from capmatrix.store import Run


def run_of(*records: Record, environments: tuple[Environment, ...] = ()) -> Run:
    known = [environment("offline:gfx942"), *environments]
    return Run(environments={e.id: e for e in known}, records=list(records))


def only(old: Record, new: Record, **changes: Any) -> diff.Diff:
    return diff.of_runs(run_of(old), run_of(new), **changes)


def kinds(found: diff.Diff) -> set[str]:
    return {change.kind for change in found.changes}


# -- verdicts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "kind", "regressed"),
    [
        (Verdict.PASS, Verdict.WRONG, "regression", True),
        (Verdict.PASS, Verdict.CRASH, "regression", True),
        (Verdict.PASS, Verdict.TIMEOUT, "regression", True),
        (Verdict.PASS, Verdict.ERROR, "regression", True),
        (Verdict.PASS, Verdict.REJECTED, "regression", True),
        (Verdict.PASS, Verdict.UNVERIFIED, "lost", False),
        (Verdict.PASS, Verdict.UNAVAILABLE, "lost", False),
        (Verdict.ERROR, Verdict.PASS, "fix", False),
        (Verdict.REJECTED, Verdict.PASS, "fix", False),
        (Verdict.UNVERIFIED, Verdict.PASS, "verdict", False),
        (Verdict.ERROR, Verdict.WRONG, "verdict", False),
        (Verdict.UNAVAILABLE, Verdict.ERROR, "verdict", False),
    ],
)
def test_a_change_of_verdict(old: Verdict, new: Verdict, kind: str, regressed: bool) -> None:
    found = only(record(verdict=old), record(verdict=new))
    assert (kinds(found), found.regressed, found.same) == ({kind}, regressed, 0)


def test_the_same_run_has_no_change() -> None:
    one = run_of(record(), record(cell(batch="verify"), Verdict.WRONG))
    found = diff.of_runs(one, one)
    assert (found.changes, found.same) == ((), 2)
    assert not found.regressed


def test_a_change_says_where_it_ended_and_why() -> None:
    found = only(record(), record(verdict=Verdict.WRONG, reasons=("forward: off",)))
    assert found.changes[0].subject == record().cell_id
    assert found.changes[0].text == "pass (compiled) -> wrong (compiled) at forward: forward: off"


def test_rungs_marks_and_kernels() -> None:
    old = record(route=(WRITE, PAGED))
    assert kinds(only(old, msgspec.structs.replace(old, rung=Rung.EXECUTED))) == {"rung"}
    marked = only(old, msgspec.structs.replace(old, flags=(Flag.NAN_UNSAFE,)))
    assert (kinds(marked), marked.changes[0].text) == ({"mark"}, "gained nan_unsafe")
    other = msgspec.structs.replace(old, route=(WRITE, msgspec.structs.replace(PAGED, name="other")), kernel_block=32)
    assert only(old, other).changes[0].text == (
        "kernel block 128 -> 32; _C_cache_ops.reshape_and_cache, kernel_paged_attention_2d -> "
        "_C_cache_ops.reshape_and_cache, other"
    )


def test_cells_that_only_one_has() -> None:
    extra = record(cell(batch="mixed"))
    assert kinds(diff.of_runs(run_of(record()), run_of(record(), extra))) == {"added"}
    assert kinds(diff.of_runs(run_of(record(), extra), run_of(record()))) == {"removed"}


# -- times ---------------------------------------------------------------------------------------


def timed(low: float, median: float, high: float) -> Record:
    return record(times=(Timing("decode", "seed", median, low, high, 5),))


@pytest.mark.parametrize(
    ("new", "kind"),
    [
        ((118, 120, 122), "slower"),
        ((78, 80, 82), "faster"),
        ((101, 104, 106), ""),  # parted, but within the margin
        ((99, 120, 140), ""),  # beyond the margin, but within the noise
    ],
)
def test_a_time_changes_beyond_noise_and_margin(new: tuple[float, float, float], kind: str) -> None:
    found = only(timed(99, 100, 100.5), timed(*new))
    assert kinds(found) == ({kind} if kind else set())
    assert found.regressed is (kind == "slower")


def test_times_of_two_machines_are_not_compared() -> None:
    old, new = timed(99, 100, 101), timed(199, 200, 201)
    machines = [environment("offline:gfx942", hardware={"name": name}) for name in ("MI300X", "MI325X")]
    runs = [Run(environments={m.id: m}, records=[r]) for m, r in zip(machines, (old, new), strict=True)]
    assert "slower" not in kinds(diff.of_runs(*runs))


# -- defaults and environments -------------------------------------------------------------------


def test_vllms_own_default_that_changed_is_said_once() -> None:
    def claiming(default: str, batch: str) -> Record:
        return record(cell(batch=batch), claims=(Claim("selector", True, "", {"default": default}),))

    old = run_of(claiming("ROCM_ATTN", "decode"), claiming("ROCM_ATTN", "verify"))
    new = run_of(claiming("TRITON_ATTN", "decode"), claiming("TRITON_ATTN", "verify"))
    found = diff.of_runs(old, new).of("default")
    assert [change.text for change in found] == ["vLLM's own: ROCM_ATTN -> TRITON_ATTN"]


def test_environment_differences() -> None:
    newer = environment("offline:gfx942", versions={"vllm": "0.33.0"}, switches={})
    found = diff.of_runs(run_of(record()), run_of(record(), environments=(newer,)))
    texts = [change.text for change in found.of("environment")]
    assert "vllm: 0.32.0 -> 0.33.0" in texts
    assert "torch: 2.13.0+cpu -> none" in texts
    assert "switch VLLM_ROCM_USE_AITER: 1 -> none" in texts
    elsewhere = environment("interpreter:gfx950")
    found = diff.of_runs(run_of(record()), run_of(record(), environments=(elsewhere,)))
    assert [c.text for c in found.of("environment")] == ["only in the new one"]


# -- tables --------------------------------------------------------------------------------------

BASE: dict[str, Any] = {
    "architecture": "gfx942", "drafter": "d", "role": "drafter", "block_size": 128, "kv_cache_dtype": "fp8",
    "dtype": "bfloat16", "backend": "ROCM_ATTN", "reason": "faster", "policy": "lightest", "rung": "executed",
    "other": (Other("TRITON_ATTN", "slower"),),
}  # fmt: skip


def table(**changes: Any) -> Defaults:
    return Defaults("lightest", 5.0, row=(Row(**{**BASE, **changes}),))


def test_a_default_that_changed_is_no_regression_by_itself() -> None:
    new = table(backend="TRITON_ATTN", other=(Other("ROCM_ATTN", "slower"),))
    found = diff.of_tables(table(), new)
    assert kinds(found) == {"default"}
    assert found.changes[0].text == "ROCM_ATTN -> TRITON_ATTN (faster)"
    assert not found.regressed


def test_a_candidate_that_now_fails_is() -> None:
    new = table(backend="TRITON_ATTN", other=(Other("ROCM_ATTN", "failed", "wrong at compare"),))
    found = diff.of_tables(table(), new)
    assert [c.text for c in found.of("regression")] == ["ROCM_ATTN failed: wrong at compare"]
    assert diff.of_tables(new, table()).of("fix")[0].text == "ROCM_ATTN was failed, now a candidate"
    gone = table(backend="", other=(Other("ROCM_ATTN", "unverified"), Other("TRITON_ATTN", "slower")))
    assert "ROCM_ATTN -> no backend is a candidate" in [c.text for c in diff.of_tables(table(), gone).of("regression")]


def test_rows_rungs_marks_versions_and_policies() -> None:
    new = table(rung="compiled", marks=("provisional",), versions={"vllm": "0.33.0"})
    assert kinds(diff.of_tables(table(), new)) == {"rung", "mark", "environment"}
    assert kinds(diff.of_tables(table(), table(block_size=16))) == {"added", "removed"}
    other = msgspec.structs.replace(table(), policy="fastest")
    assert [c.text for c in diff.of_tables(table(), other).changes] == ["lightest -> fastest"]


# -- the command ---------------------------------------------------------------------------------


def write(path: Path, *records: Record) -> str:
    lines = [encode({"kind": "run", "header": {}, "version": 1})]
    lines += [encode({"kind": "environment", "environment": environment("offline:gfx942")})]
    lines += [encode({"kind": "record", "record": r}) for r in records]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return str(path)


def test_the_exit_status_tells_regressions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = write(tmp_path / "good.jsonl", record())
    bad = write(tmp_path / "bad.jsonl", record(verdict=Verdict.CRASH))
    assert cli.main(["diff", good, good]) == 0
    assert cli.main(["diff", good, bad]) == 1
    assert "Regressions:" in capsys.readouterr().out
    assert cli.main(["diff", bad, good]) == 0
    assert cli.main(["diff", good, bad, "--format", "md", "-o", str(tmp_path / "a.md")]) == 1
    text = (tmp_path / "a.md").read_text(encoding="utf-8")
    assert text.startswith("## ❌ Regressions: `good.jsonl` → `bad.jsonl`\n")
    assert "<details open><summary>Regressions (1)</summary>" in text


def test_tables_are_compared_with_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = tmp_path / "one.toml", tmp_path / "two.json"
    one.write_text(defaults.to_toml(table()), encoding="utf-8")
    two.write_text(defaults.to_json(table(backend="", other=())), encoding="utf-8")
    assert cli.main(["diff", str(one), str(two)]) == 1
    assert "no backend is a candidate" in capsys.readouterr().out
    run = write(tmp_path / "a.jsonl", record())
    assert cli.main(["diff", str(one), run]) == 2
    assert "one is a run and the other a derived table" in capsys.readouterr().err


def test_markdown_fits_a_comment_and_holds_nothing_alive() -> None:
    evil = "x" * 300 + "`|<img src=x>@all \x1b[31m"
    old = [record(cell(drafter=f"d{i}")) for i in range(400)]
    new = [msgspec.structs.replace(r, verdict=Verdict.WRONG, reasons=(evil,)) for r in old]
    found = diff.of_runs(run_of(*old), run_of(*new))
    text = report.markdown(found, "a", "b")
    assert len(text) <= 65_536
    assert "\x1b" not in text and "\x1b" not in report.text(found, "a", "b")
    assert "and 3" in text
