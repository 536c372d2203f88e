"""Two selections of records side by side: what is aligned, what differs, and how that is said."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from samples import PAGED, WRITE, cell, environment, failure, record, rich_record

from capmatrix import cli
from capmatrix.analysis import compare as room
from capmatrix.analysis import selectors, sources
from capmatrix.cell import Check, Claim, Environment, Flag, Record, Rung, Timing, Verdict
from capmatrix.codec import cell_id, encode
from capmatrix.errors import InputError
from capmatrix.report import compare as report
from capmatrix.report import compare_cell
from capmatrix.store import Run

EVIL = "`|<img src=x>@all \x1b[31m\u202e"


def run_of(*records: Record, environments: tuple[Environment, ...] = (), created: str = "", **changes: Any) -> Run:
    known = [environment(t) for t in ("offline:gfx942", "offline:gfx950", "interpreter:gfx950")]
    header = {"created": created} if created else {}
    return Run(header, {e.id: e for e in (*known, *environments)}, list(records), **changes)


def compared(*runs: Run, left: dict[str, str] | None = None, right: dict[str, str] | None = None, **how: Any) -> Any:
    given = sources.gather((f"{i}.jsonl", run) for i, run in enumerate(runs))
    return room.compare(given, left or {"run": "0.jsonl"}, right or {"run": "1.jsonl"}, **how)


def without_code(text: str) -> str:
    """Markdown without its code spans, in which nothing is markup."""
    return re.sub(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", text)


def sides(found: room.Comparison) -> dict[str, tuple[str, str]]:
    """By the name of an entry: the verdicts of both sides, "" for none."""
    return {
        e.name: tuple(s.record.verdict.value if s else "" for s in (e.left, e.right))  # type: ignore[misc]
        for e in found.entries
    }


# -- alignment -----------------------------------------------------------------------------------


def test_runs_are_aligned_on_the_whole_cell() -> None:
    verify = cell(batch="verify")
    found = compared(run_of(record(), record(verify)), run_of(record(verdict=Verdict.WRONG)))
    assert sides(found) == {record().cell_id: ("pass", "wrong"), cell_id(verify): ("pass", "")}
    assert [e.kind for e in found.entries] == ["regression", "left"]
    assert found.ordered


def test_architectures_are_aligned_within_a_kind_of_target() -> None:
    other = cell(target="offline:gfx950")
    interpreted = cell(target="interpreter:gfx950")
    run = run_of(record(), record(other, Verdict.ERROR), record(interpreted))
    found = compared(run, left={"arch": "gfx942"}, right={"arch": "gfx950"})
    ending = "ROCM_ATTN-b128-fp8-minimax-m3-eagle3-tp4"
    assert sides(found) == {
        f"offline-{ending}-heads16.16-h128-bf16-decode": ("pass", "error"),
        f"interpreter-{ending}-heads2.2-h128-bf16-decode": ("", "pass"),
    }
    assert not found.ordered


def test_targets_are_aligned_though_a_slow_one_has_fewer_heads() -> None:
    run = run_of(record(cell(target="offline:gfx950")), record(cell(target="interpreter:gfx950"), Verdict.WRONG))
    found = compared(run, left={"target": "offline:gfx950"}, right={"target": "interpreter:gfx950"})
    assert sides(found) == {"ROCM_ATTN-b128-fp8-minimax-m3-eagle3-tp4-h128-bf16-decode": ("pass", "wrong")}


@pytest.mark.parametrize(
    ("key", "left", "right"),
    [
        ("backend", "ROCM_ATTN", "TRITON_ATTN"),
        ("block_size", "128", "16"),
        ("kv_cache_dtype", "fp8", "auto"),
        ("drafter", "minimax-m3-eagle3", "other"),
        ("tp", "4", "8"),
        ("batch", "decode", "prefill"),
        ("execution", "eager", "full"),
        ("runner", "v2", "v1"),
        ("scales", "non_unit", "unit"),
        ("dtype", "bfloat16", "float16"),
        ("switches", "none", "A=1 B=0"),
    ],
)
def test_any_axis_can_be_what_is_compared(key: str, left: str, right: str) -> None:
    value: Any = {"switches": (("A", "1"), ("B", "0"))}.get(key, int(right) if right.isdigit() else right)
    run = run_of(record(), record(cell(**{key: value}), Verdict.CRASH))
    found = compared(run, left={key: left}, right={key: right})
    assert list(sides(found).values()) == [("pass", "crash")]
    assert found.dropped == (key,)


def test_a_record_of_another_vendors_gpu_is_no_amd_architectures() -> None:
    posing = environment(
        "device:gfx950", hardware={"vendor": "nvidia", "name": "NVIDIA H200"}, identity={"arch": "gfx950"}
    )
    run = run_of(record(), record(cell(target="device:gfx950")), environments=(posing,))
    with pytest.raises(InputError) as raised:
        compared(run, left={"arch": "gfx942"}, right={"arch": "gfx950"})
    assert raised.value.allowed == ["NVIDIA H200 with a ROCm gfx950 identity", "gfx942"]


def test_versions_align_whatever_run_they_are_of_and_the_newest_counts() -> None:
    newer = environment("offline:gfx942", versions={"vllm": "0.33.0", "triton": "3.7.1"})
    early = run_of(record(verdict=Verdict.CRASH), environments=(newer,), created="2026-11-02T00:00:00Z")
    late = run_of(record(verdict=Verdict.ERROR), environments=(newer,), created="2026-11-03T00:00:00Z")
    old = run_of(record(), created="2026-11-01T00:00:00Z")
    found = compared(late, early, old, left={"vllm": "0.32.0"}, right={"vllm": "0.33.0"})
    assert list(sides(found).values()) == [("pass", "error")]
    assert (found.left.older, found.right.older, found.ordered) == (0, 1, True)
    assert [(f.name, f.left, f.right, f.entries) for f in found.facts if f.name == "vllm"] == [
        ("vllm", "0.32.0", "0.33.0", 1)
    ]


def test_within_a_run_the_strongest_evidence_counts() -> None:
    amd = environment("device", hardware={"vendor": "amd", "name": "MI300X", "arch": "gfx942"})
    strong = record(cell(target="device"), environment=amd.id)
    weak = record(cell(target="device:x"), Verdict.CRASH, environment=amd.id, rung=Rung.DECLARED)
    run = run_of(strong, weak, record(cell(target="device:y", backend="T"), environment=amd.id), environments=(amd,))
    for records in (run.records, run.records[::-1]):
        again = msgspec.structs.replace(run, records=list(records))
        found = compared(again, left={"arch": "gfx942", "backend": "ROCM_ATTN"}, right={"backend": "T"})
        assert [e.left.record.verdict for e in found.entries if e.left] == [Verdict.PASS]


def test_where_holds_for_both_sides() -> None:
    both = [record(cell(backend=b, batch=x)) for b in ("A", "B") for x in ("decode", "prefill")]
    found = compared(run_of(*both), left={"backend": "A"}, right={"backend": "B"}, where={"batch": "prefill"})
    assert [e.name.rpartition("-")[2] for e in found.entries] == ["prefill"]


def test_a_cell_begun_and_not_finished_is_no_failure() -> None:
    found = compared(run_of(record()), run_of(record(cell(batch="verify")), started=[record().cell_id]))
    assert {e.kind for e in found.entries} == {"left", "right"}
    assert found.right.unfinished == {record().cell_id}
    assert "begun, not finished" in report.text(found)


# -- selectors -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["arch"], "not of the form KEY=VALUE"),
        (["arch="], "not of the form KEY=VALUE"),
        (["archs=gfx942"], "did you mean 'arch'"),
        (["arch=gfx942", "arch=gfx950"], "arch is chosen twice"),
    ],
)
def test_selectors_are_checked(words: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        selectors.parse(words, "--left")
    assert selectors.parse(["arch=gfx942", "switches=A=1"], "--left") == {"arch": "gfx942", "switches": "A=1"}


def test_a_selector_that_fits_nothing_names_the_values_there_are() -> None:
    run = run_of(record(), record(cell(block_size=16)), record(cell(block_size=2, backend="T")))
    with pytest.raises(InputError) as raised:
        compared(run, left={"block_size": "64"}, right={"block_size": "16"})
    assert raised.value.allowed == ["2", "16", "128"]
    with pytest.raises(InputError, match="no record with backend=ROCM_ATTN has block_size=2") as raised:
        compared(run, left={"backend": "ROCM_ATTN", "block_size": "2"}, right={"block_size": "16"})
    assert raised.value.allowed == ["16", "128"]


def test_a_version_may_be_named_without_its_commit() -> None:
    known = environment("offline:gfx942", versions={"aiter": "0.1.20+cpu"}, commits={"aiter": "e4048607a535ace3a2b5"})
    item = sources.Sourced(sources.Source("a", "", Run()), record(), known)
    assert selectors.KEYS["aiter"](item) == "0.1.20 (e4048607a535)"
    for value in ("0.1.20", "0.1.20 (e4048607a535)"):
        assert selectors.select([item], {"aiter": value}, "--left") == [item]
    assert selectors.KEYS["aiter"](item._replace(environment=None)) == "none"
    unknown = environment("offline:gfx942", commits={"aiter": "unknown"})
    assert selectors.KEYS["aiter"](item._replace(environment=unknown)) == "0.1.7.post2.dev18"


def test_both_sides_may_not_be_the_same() -> None:
    with pytest.raises(InputError, match="both sides are the same"):
        compared(run_of(record()), left={"arch": "gfx942"}, right={"arch": "gfx942"})


# -- what differs --------------------------------------------------------------------------------


def timing(median: float, spread: float = 1.0) -> Timing:
    return Timing("decode", "seed", median, median - spread, median + spread, 9)


def test_times_have_a_ratio_and_what_it_lies_between() -> None:
    found = compared(run_of(record(times=(timing(100),))), run_of(record(times=(timing(150),))))
    (times,) = found.entries[0].times
    assert (times.ratio, times.kind, found.entries[0].kind) == (1.5, "slower", "slower")
    assert times.low == pytest.approx(149 / 101) and times.high == pytest.approx(151 / 99)
    within = compared(run_of(record(times=(timing(100),))), run_of(record(times=(timing(103),))))
    assert (within.entries[0].times[0].kind, within.entries[0].kind) == ("", "same")
    assert "ratio 1.03" in report.text(within)


def test_times_of_two_gpus_have_a_ratio_and_no_judgement() -> None:
    other = environment("offline:gfx942", hardware={"name": "another"})
    found = compared(run_of(record(times=(timing(100),))), run_of(record(times=(timing(150),)), environments=(other,)))
    assert (found.entries[0].times[0].ratio, found.entries[0].times[0].kind, found.entries[0].kind) == (1.5, "", "same")


@pytest.mark.parametrize("times", [(), (timing(0),), (Timing("verify", "seed", 1, 1, 1, 1),)])
def test_without_two_times_there_is_no_ratio(times: tuple[Timing, ...]) -> None:
    found = compared(run_of(record(times=times)), run_of(record(times=(timing(150),))))
    assert all(t.ratio is None for t in found.entries[0].times)
    assert "ratio" not in report.text(found, everything=True)


def test_numbers_stand_beside_each_other() -> None:
    checks = (Check("write", True, max_abs=1.0), Check("forward", True, cache="nan", relative_l2=0.1))
    found = compared(run_of(record(checks=checks)), run_of(record(checks=checks[1:])))
    assert [(n.part, n.left is not None, n.right is not None) for n in found.entries[0].numbers] == [
        ("write", True, False),
        ("forward", True, True),
    ]
    assert found.entries[0].parts == ("checks",)


def test_a_change_of_evidence_alone_leaves_an_entry_the_same() -> None:
    found = compared(run_of(record(route=(WRITE, PAGED))), run_of(record(route=(WRITE, PAGED), claims=())))
    assert (found.entries[0].kind, found.entries[0].parts) == ("same", ("selection", "claims"))


def test_what_matters_most_comes_first() -> None:
    pairs = [
        ("r", Verdict.PASS, Verdict.ERROR),
        ("f", Verdict.REJECTED, Verdict.PASS),
        ("s", Verdict.PASS, Verdict.PASS),
        ("l", Verdict.PASS, Verdict.UNVERIFIED),
        ("v", Verdict.UNVERIFIED, Verdict.WRONG),
    ]
    one, two = (run_of(*(record(cell(backend=p[0]), p[i]) for p in pairs)) for i in (1, 2))
    found = compared(one, two)
    assert [e.kind for e in found.entries] == ["regression", "lost", "verdict", "fix", "same"]
    assert len(found.of("fix")) == 1


def test_an_environment_that_was_not_recorded_is_said_to_be() -> None:
    found = compared(run_of(record()), run_of(record(environment="none")))
    assert [tuple(fact) for fact in found.facts] == [("environment", "recorded", "not recorded", 1)]


def test_only_the_extensions_that_differ_are_told() -> None:
    other = environment("offline:gfx942", extensions=("virtual ROCm platform", "stand-ins", "more"))
    found = compared(run_of(record()), run_of(record(), environments=(other,)))
    assert [tuple(fact)[:3] for fact in found.facts] == [("changed by capmatrix", "nothing else", "more; stand-ins")]


# -- words ---------------------------------------------------------------------------------------


def test_the_text_says_what_differs() -> None:
    newer = environment("offline:gfx942", versions={"vllm": "0.33.0"})
    broken = record(verdict=Verdict.ERROR, failure=failure(), kernel_block=32)
    same = record(cell(batch="verify"))
    found = compared(run_of(record(), same), run_of(broken, same, environments=(newer,)))
    text = report.text(found)
    flat = " ".join(text.split())
    assert "\nRegressions: 1; The same: 1\n" in text
    assert "  vllm: 0.32.0 -> 0.33.0 (2 cells)" in text
    assert "      left   pass (compiled)\n" in text
    assert "error (compiled), kernel block 32 at forward: AssertionError: query and key dtype differ" in flat
    assert "verify" not in text
    assert "verify" in report.text(found, everything=True)


def test_only_what_changes_over_time_is_called_a_regression() -> None:
    run = run_of(record(), record(cell(backend="T"), Verdict.CRASH))
    text = report.text(compared(run, left={"backend": "ROCM_ATTN"}, right={"backend": "T"}))
    assert "Works on the left alone (1):" in text
    assert "egression" not in text


def test_what_one_side_alone_has_is_not_run_on_the_other() -> None:
    found = compared(run_of(record()), run_of(record(cell(batch="verify"))))
    for text in (report.text(found), report.markdown(found)):
        assert "was not run on the other; that says nothing of the backend" in text
        assert "No cell is on both sides" in text
    assert "| not run |" in report.markdown(found)


def test_different_targets_in_two_runs_are_pointed_at() -> None:
    found = compared(run_of(record()), run_of(record(cell(target="offline:gfx950"))))
    assert any("--left target=offline:gfx942 --right target=offline:gfx950" in note for note in report.notes(found))
    found = compared(run_of(record()), run_of(record(cell(target=EVIL))))
    assert "<img" not in without_code(report.markdown(found))


def test_entries_of_which_the_same_is_said_stand_together() -> None:
    cells = [cell(block_size=b) for b in (16, 32, 64)]
    one, two = (run_of(*(record(c, v) for c in cells)) for v in (Verdict.PASS, Verdict.WRONG))
    text = report.text(compared(one, two))
    assert "  b16\n  b32\n  b64\n      left   pass (compiled)\n      right  wrong (compiled)\n" in text


def test_nothing_of_a_record_is_alive_in_a_comparison() -> None:
    evil = environment("offline:gfx942", versions={EVIL: EVIL, "vllm": EVIL}, hardware={"name": EVIL})
    bad = msgspec.structs.replace(
        record(cell(drafter=EVIL, batch=EVIL), Verdict.WRONG, reasons=(EVIL,), claims=(Claim(EVIL, True, EVIL),)),
        kv_cache={EVIL: EVIL}, layout=EVIL, route=(msgspec.structs.replace(PAGED, name=EVIL, phase=EVIL),),
        checks=(Check(EVIL, False, cache=EVIL),), times=(Timing("decode", EVIL, 1, 1, 1, 1),),
    )  # fmt: skip
    good = msgspec.structs.replace(bad, verdict=Verdict.PASS)
    found = compared(run_of(good), run_of(bad, environments=(evil,)))
    (entry,) = found.entries
    for text in (
        *(report.text(found, everything=e) for e in (True, False)),
        compare_cell.text(entry, EVIL, EVIL),
    ):
        assert not [c for c in text if not c.isprintable() and c != "\n"]
    for text in (report.markdown(found, everything=True), compare_cell.markdown(entry, EVIL, EVIL)):
        assert not [c for c in text if not c.isprintable() and c != "\n"]
        assert "<img" not in (outside := without_code(text)) and "@all" not in outside


def test_markdown_fits_a_comment() -> None:
    reasons = [f"{i} {'x' * 290}" for i in range(400)]
    old = [record(cell(drafter=f"d{i}")) for i in range(400)]
    new = [
        msgspec.structs.replace(r, verdict=Verdict.WRONG, reasons=(reasons[i],), flags=(Flag.STAND_IN,))
        for i, r in enumerate(old)
    ]
    found = compared(run_of(*old), run_of(*new))
    assert len(report.markdown(found)) <= 65_536
    assert report.markdown(found, everything=True).count("d399") == 1


def test_one_cell_shows_everything_of_both_sides() -> None:
    one = rich_record()
    two = msgspec.structs.replace(one, verdict=Verdict.PASS, reasons=(), kernel_block=32, checks=one.checks[:1])
    (entry,) = compared(run_of(one), run_of(two)).entries
    found = {s.title.partition(" (")[0]: {row.label: row for row in s.rows} for s in compare_cell.sections(entry)}
    assert list(found) == ["Outcome", "Claims", "Set-up", "Route", "Numbers", "Environment"]
    assert found["Set-up"]["kernel block"] == ("kernel block", "64", "32")
    assert found["Set-up"]["kernel block"].differs and not found["Set-up"]["layout"].differs
    assert found["Numbers"]["forward"].left.startswith("BAD, relative L2 0.55, bound 0.0042")
    assert found["Numbers"]["forward"].right == "-"
    assert "LDS 32 KiB" in found["Route"]["forward"].left
    text = compare_cell.text(entry, "a", "b")
    assert " * kernel block" in text and "   layout" in text
    assert "| **`kernel block`** | `64` | `32` |" in compare_cell.markdown(entry, "a", "b")


# -- the command ---------------------------------------------------------------------------------


def write(path: Path, *records: Record, created: str = "2026-11-01T00:00:00Z") -> str:
    lines = [encode({"kind": "run", "header": {"created": created}, "version": 1})]
    for target in ("offline:gfx942", "offline:gfx950"):
        lines += [encode({"kind": "environment", "environment": environment(target)})]
    lines += [encode({"kind": "record", "record": r}) for r in records]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return str(path)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    one = write(tmp_path / "one.jsonl", record(), record(cell(target="offline:gfx950"), Verdict.WRONG))
    return [one, write(tmp_path / "two.jsonl", record(verdict=Verdict.CRASH))]


def test_two_run_files_are_compared(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", *files]) == 0
    out = capsys.readouterr().out
    assert out.startswith("left   one.jsonl: 2 cells;")
    assert "Regressions (1):" in out and "Only on the left (1):" in out
    assert cli.main(["compare", files[0], files[0]]) == 0
    assert "\nThe same: 2\n" in capsys.readouterr().out


def test_sides_are_chosen_in_any_number_of_runs(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    choice = ["--left", "arch=gfx942", "--right", "arch=gfx950", "--where", "run=one.jsonl"]
    assert cli.main(["compare", *files, *choice]) == 0
    assert "left   arch=gfx942: 1 cell of one.jsonl" in capsys.readouterr().out
    assert cli.main(["compare", files[0], *choice, "--cell", "ROCM_ATTN b128", "--format", "md"]) == 0
    assert "❔" not in (out := capsys.readouterr().out) and "| Outcome | `arch=gfx942` | `arch=gfx950` |" in out
    assert cli.main(["compare", files[0], *choice, "--cell", record().cell_id]) == 0
    assert "arch=gfx942" in capsys.readouterr().out


def test_a_comparison_goes_to_a_file(files: list[str], tmp_path: Path) -> None:
    assert cli.main(["compare", *files, "--format", "md", "-o", str(tmp_path / "a.md")]) == 0
    assert (tmp_path / "a.md").read_text(encoding="utf-8").startswith("## `one.jsonl` beside `two.jsonl`\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Allowed: two run files, RUN... --left KEY=VALUE --right KEY=VALUE"),
        (["--left", "arch=gfx942"], "--right: one side is chosen and the other not"),
        (["--left", "arch=gfx94", "--right", "arch=gfx950"], "did you mean 'gfx942'? Allowed: gfx942, gfx950."),
        (["--left", "vllm=9", "--right", "vllm=8"], "--left: no record has vllm=9 (got '9') Allowed: 0.32.0."),
        (["--left", "bogus=1", "--right", "arch=gfx950"], "unknown key"),
        (["--left", "arch=gfx942", "--right", "arch=gfx950", "--cell", "b64"], "no such cell in the run"),
        (["--left", "arch=gfx942", "--right", "arch=gfx950", "--where", "tp=9"], "--where: no record has tp=9"),
    ],
)
def test_wrong_use_says_what_is_there(
    files: list[str], words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["compare", files[0], *words]) == 2
    assert message in capsys.readouterr().err


def test_a_run_without_a_cell_is_told_by_its_name(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = write(tmp_path / "empty.jsonl")
    assert cli.main(["compare", files[0], empty]) == 2
    assert f"{empty}: the run holds no record of a cell" in capsys.readouterr().err


def test_comparing_imports_neither_torch_nor_vllm(files: list[str]) -> None:
    script = (
        "import sys; from capmatrix import cli; cli.main(sys.argv[1:]);"
        "assert not {'torch', 'vllm', 'triton'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script, "compare", *files], check=True, capture_output=True)
