"""The support table's model, and its drawing for a terminal."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
import samples
from samples import cell, environment, forced, record

from capmatrix import summary
from capmatrix.cell import Check, Claim, Flag, Force, Record, Rung, Verdict
from capmatrix.report import cautions, table, terminal, text

GOLDEN = Path(__file__).parent / "golden"
COLUMN = table.Column(128, "fp8")
GROUP = table.Group("minimax-m3-eagle3", 4)


def build(records: list[Record], **kwargs: object) -> table.Report:
    targets = {r.cell.target for r in records} - {"device"}
    environments = {e.id: e for e in map(environment, sorted(targets))}
    return table.build(records, environments, **kwargs)  # type: ignore[arg-type]


def only(records: list[Record]) -> tuple[table.Table, table.Entry]:
    """The one table of ``records`` and its first entry."""
    (found,) = build(records).tables
    return found, next(iter(found.entries.values()))


# The model


def test_the_seed_run_has_a_table_an_architecture() -> None:
    records, environments, header = samples.seed_run()
    report = table.build(records, environments, header)
    assert [t.place.architecture for t in report.tables] == ["gfx942", "gfx950"]
    gfx950 = report.tables[1]
    assert gfx950.columns == ((16, "auto"), (16, "fp8"), (128, "auto"), (128, "fp8"))
    assert [r.backend for r in gfx950.groups[GROUP]] == list(samples.BACKENDS)
    assert len(gfx950.entries) == 16
    assert sum(report.counts.values()) == len(records) == 192
    (absent,) = report.absent
    assert (absent.target, absent.cells) == ("device", 48)


def test_every_entry_of_the_seed_is_what_the_records_say() -> None:
    report = table.build(*samples.seed_run())
    found = {
        (t.place.title, row.backend, column.block_size, column.kv_cache_dtype): (
            f"{e.verdict.value if e.verdict else None} {e.summary.rung.value if e.summary else None}"
            f"{''.join(f' {m.value}' for m in e.marks)}"
        )
        for t in report.tables
        for (_, row, column), e in t.entries.items()
    }
    assert found["gfx942", "ROCM_ATTN", 16, "fp8"] == "unverified compiled"
    assert found["gfx942", "ROCM_ATTN", 128, "fp8"] == "pass compiled fallback"
    assert found["gfx942", "TRITON_ATTN", 128, "fp8"] == "pass compiled"
    assert found["gfx950", "TRITON_ATTN", 128, "auto"] == "pass interpreted nan_unsafe"
    assert found["gfx950", "TRITON_ATTN", 16, "fp8"] == "wrong interpreted conflict"
    assert found["gfx950", "ROCM_AITER_UNIFIED_ATTN", 128, "auto"] == "pass interpreted conflict"
    assert found["gfx950", "ROCM_AITER_UNIFIED_ATTN", 128, "fp8"] == "unavailable declared"


def test_a_footnote_says_why_in_which_batch_and_at_which_phase() -> None:
    found, entry = only([record(verdict=Verdict.ERROR, reasons=("out of registers", "and more"))])
    (note,) = found.footnotes
    assert entry.footnotes == (note.number,) == (1,)
    assert table.footnote_text(note, text.one_line) == (
        "error (compiled) at forward, in decode: out of registers (declared supported)"
    )


def test_batches_with_the_same_reason_share_a_line_and_entries_a_number() -> None:
    cells = [cell(batch=b, block_size=n) for n in (16, 128) for b in ("decode", "verify")]
    records = [record(c, Verdict.ERROR, reasons=("no",)) for c in cells]
    found, _ = only(records)
    assert [n.batches for n in found.footnotes] == [("decode", "verify")]
    assert {e.footnotes for e in found.entries.values()} == {(1,)}


def test_a_failure_without_reasons_shows_its_exception() -> None:
    found, _ = only([record(verdict=Verdict.ERROR, failure=samples.failure(), claims=())])
    assert found.footnotes[0].reason == "AssertionError: query and key dtype differ"


def test_the_verdicts_word_is_not_said_twice() -> None:
    found, _ = only([record(verdict=Verdict.UNVERIFIED, reasons=("unverified: native: no code",))])
    assert found.footnotes[0].reason == "native: no code"


def test_a_fallback_without_reasons_names_what_ran() -> None:
    route = (samples.WRITE, samples.PAGED, samples.PAGED)
    found, entry = only([record(route=route, flags=(Flag.FALLBACK,))])
    assert found.footnotes[0].reason == "fallback: ran kernel_paged_attention_2d"
    assert entry.footnotes == (1,)


def test_not_run_is_no_entry_and_never_unsupported() -> None:
    records = [record(cell(block_size=16)), record(cell(backend="TRITON_ATTN"), Verdict.REJECTED, reasons=("no",))]
    found, _ = only(records)
    empty = found.entry(GROUP, table.Row("ROCM_ATTN"), COLUMN)
    assert (empty.verdict, empty.footnotes) == (None, ())
    assert terminal.entry_text(empty, lambda r: r.value) == ("not run", "")
    refused = found.entry(GROUP, table.Row("TRITON_ATTN"), COLUMN)
    assert terminal.entry_text(refused, lambda r: r.value) == ("rejected", " [1]")


def test_batches_that_did_not_run_show_in_the_entry() -> None:
    records = [record(cell(batch=b)) for b in ("decode", "verify")]
    records.append(record(cell(batch="prefill"), Verdict.REJECTED, reasons=("no prefill",)))
    records.append(record(cell(backend="TRITON_ATTN", batch="mixed")))
    found, _ = only(records)
    entry = found.entry(GROUP, table.Row("ROCM_ATTN"), COLUMN)
    assert (entry.ran, entry.expected, entry.missing) == (2, 4, ("mixed",))
    assert terminal.entry_text(entry, lambda r: r.value) == ("pass", " compiled 2/4 [1]")


def test_a_kernel_block_of_its_own_is_shown() -> None:
    _, entry = only([record(kernel_block=32)])
    assert terminal.entry_text(entry, lambda r: r.value) == ("pass", " compiled k32")
    _, same = only([record(kernel_block=128)])
    assert same.kernel_block is None


def test_rows_differ_by_axis_values_that_vary() -> None:
    records = [record(cell(dtype=d)) for d in ("bfloat16", "float16")]
    records += [record(forced(), Verdict.ERROR), record(forced(None), claims=(Claim("validation", False),))]
    found, _ = only(records)
    assert found.groups[GROUP] == (
        ("ROCM_ATTN", ("bf16",)),
        ("ROCM_ATTN", ("fp16",)),
        ("ROCM_AITER_FA", ("bf16", "forced kernel block 128")),
        ("ROCM_AITER_FA", ("bf16", "forced validation")),
    )
    assert found.shared == ("eager", "runner v2", "non-unit scales", "batch decode")
    assert [n.reason for n in found.footnotes if n.verdict is Verdict.PASS] == ["(declared rejected)"]


def test_other_versions_get_a_table_of_their_own() -> None:
    old = environment("offline:gfx942", id="old", versions={**samples.VERSIONS, "vllm": "0.24.0"})
    new = environment("offline:gfx942")
    records = [record(), record(verdict=Verdict.ERROR, environment="old")]
    report = table.build(records, {old.id: old, new.id: new})
    assert [t.place.title for t in report.tables] == ["gfx942", "gfx942"]
    assert [dict(t.versions)["vllm"] for t in report.tables] == ["0.24.0", "0.32.0"]
    assert [e.marks for t in report.tables for e in t.entries.values()] == [(), ()]


def test_an_nvidia_gpu_has_a_table_of_its_own() -> None:
    nvidia = environment("device", hardware={"vendor": "nvidia", "name": "NVIDIA H200"}, identity={"arch": "gfx950"})
    offline = environment("offline:gfx950")
    records = [record(cell(target="device")), record(cell(target="offline:gfx950"), Verdict.ERROR)]
    report = table.build(records, {nvidia.id: nvidia, offline.id: offline})
    assert [t.place.title for t in report.tables] == ["gfx950", "NVIDIA H200 with a ROCm gfx950 identity"]
    assert [e.verdict for e in report.tables[0].entries.values()] == [Verdict.ERROR]
    assert any("not an AMD GPU" in note for note in cautions.cautions(report))


def test_cells_that_could_not_start_join_their_architectures_table() -> None:
    late = record(cell(backend="ROCM_AITER_FA"), Verdict.UNAVAILABLE, environment="", reasons=("no aiter",))
    report = build([record(), late])
    (found,) = report.tables
    assert found.entry(GROUP, table.Row("ROCM_AITER_FA"), COLUMN).verdict is Verdict.UNAVAILABLE
    assert report.absent == ()


def test_an_empty_run_is_no_error() -> None:
    report = table.build([], {})
    assert report.tables == ()
    said = "What this does not show\n- No cell has a record: this run shows nothing.\n"
    assert terminal.draw(report) == f"0 cells\n\n{said}"


# Cautions


def say(records: list[Record], **kwargs: object) -> str:
    return "\n".join(cautions.cautions(build(records, **kwargs)))


def test_a_run_without_evidence_says_so() -> None:
    for empty in (record(verdict=Verdict.UNVERIFIED), record(verdict=Verdict.REJECTED), record(rung=Rung.DECLARED)):
        assert "No cell got a verdict above the declared rung" in say([empty])
    assert "No cell got" not in say([record()])


def test_no_gpu_is_said_where_none_ran() -> None:
    assert "Nothing ran on a GPU" in say([record()])
    amd = environment("device", hardware={"vendor": "amd", "arch": "gfx942"})
    report = table.build([record(cell(target="device"))], {amd.id: amd})
    assert "Nothing ran on a GPU" not in "\n".join(cautions.cautions(report))


def test_full_graphs_that_were_not_captured_are_said() -> None:
    replayed = (Check("graph", True),)
    graphed = record(cell(execution="full"), checks=replayed)
    assert "1 cell with full graphs ran without one" in say([graphed, record()])
    captured = record(cell(target="device", execution="full"), rung=Rung.EXECUTED, checks=replayed)
    assert "ran without one" not in say([captured]) and "tried none" not in say([captured, graphed, record()])


@pytest.mark.parametrize("execution", ["piecewise", "full"])
def test_cells_whose_attention_has_no_graph_are_said(execution: str) -> None:
    """A prefill of a server with graphs, say: vLLM calls its attention eagerly."""
    eager = record(cell(target="device", batch="prefill", execution=execution), rung=Rung.EXECUTED)
    found = say([eager, record()])
    assert "1 cell set to graphs tried none" in found and "ran without one" not in found


def test_cells_that_vllm_runs_eagerly_are_counted() -> None:
    def ran(mode: str, batch: str, execution: str = "piecewise") -> Record:
        said = summary.execution_detail(execution.upper(), mode, "eager: 747 tokens; this batch PIECEWISE: no")
        one = cell(target="device", batch=batch, execution=execution)
        return record(one, rung=Rung.EXECUTED, checks=(Check("execution", None, "", detail=said),))

    found = say(
        [ran("NONE", "decode"), ran("NONE", "prefill"), ran("PIECEWISE", "verify"), ran("FULL", "mixed", "full")]
    )
    assert "2 of 3 cells with execution piecewise ran eagerly: vLLM has no graph" in found
    assert "execution full ran eagerly" not in found
    assert "ran eagerly" not in say([ran("PIECEWISE", "verify")])


@pytest.mark.parametrize(
    ("detail", "mode"),
    [
        ("server PIECEWISE; this batch NONE: eager: 747 tokens are more than ...", "NONE"),
        ("server FULL_AND_PIECEWISE, resolved to PIECEWISE; this batch PIECEWISE: 9 tokens", "PIECEWISE"),
        ("server FULL_AND_PIECEWISE; this batch FULL: 3 tokens", "FULL"),
        ("server NONE: vLLM turned graphs off for this configuration; eager", "NONE"),
        ("server PIECEWISE; this batch <b>: x", ""),
        ("", ""),
    ],
)
def test_the_mode_of_a_batch_is_read_from_its_record(detail: str, mode: str) -> None:
    assert summary.batch_mode(record(checks=(Check("execution", None, "", detail=detail),))) == mode
    assert summary.batch_mode(record()) == ""


def test_what_was_scaled_or_stood_in_is_said() -> None:
    said = say([samples.rich_record()])
    assert "fewer heads and short sequences on interpreter:gfx950" in said
    assert "stand-in for a native operator: _C_cache_ops.reshape_and_cache" in said
    assert "fewer heads" not in say([record()])


def test_gaps_are_said() -> None:
    said = say([record()], header={"cells": 10}, unfinished=["a"])
    assert "9 of 10 planned cells have no record" in said
    assert "1 cell begun without leaving a record" in said


# The terminal


def lines_of(width: int, **kwargs: bool) -> list[str]:
    records, environments, header = samples.seed_run()
    return terminal.render(records, environments, header, width=width, **kwargs).splitlines()


@pytest.mark.parametrize("width", [60, 80, 100, 140, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert max(map(text.width, lines_of(width))) <= width


@pytest.mark.parametrize("width", [60, 80, 100, 140, 200])
def test_every_entry_is_drawn_once_at_any_width(width: int) -> None:
    body = "\n".join(lines_of(width)).split("What this does not show")[0]
    rows = [line for line in body.splitlines() if re.match(r"  (ROCM|TRITON)_", line)]
    words = re.findall(r"\b(pass|wrong|unverified|unavailable)\b", "\n".join(rows))
    assert len(words) == 32


def test_rungs_are_spelt_out_where_there_is_room() -> None:
    assert any("pass compiled" in line for line in lines_of(200))
    assert any("pass comp " in line for line in lines_of(80))


def test_colour_adds_nothing_but_colour() -> None:
    plain, coloured = "\n".join(lines_of(100)), "\n".join(lines_of(100, color=True))
    assert "\x1b[" in coloured
    assert "\x1b" not in plain
    bare = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert [line.rstrip() for line in bare.splitlines()] == plain.splitlines()


class _Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colour_only_on_a_terminal_and_without_no_color() -> None:
    assert terminal.use_color(_Tty(), {"TERM": "xterm"})
    assert not terminal.use_color(_Tty(), {"NO_COLOR": "1"})
    assert not terminal.use_color(_Tty(), {"TERM": "dumb"})
    assert not terminal.use_color(io.StringIO(), {})


def test_width_of_a_pipe_and_of_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert terminal.use_width(io.StringIO()) == 100
    monkeypatch.setenv("COLUMNS", "132")
    assert terminal.use_width(io.StringIO()) == 132


def test_the_legend_explains_every_word_and_mark_in_the_table() -> None:
    drawn = "\n".join(lines_of(140))
    legend = drawn.split("Legend")[1]
    for word in ("pass", "wrong", "error", "unavailable", "unverified", "compiled", "interpreted", "k<n>"):
        assert re.search(rf"^  {re.escape(word)} ", legend, re.M), word
    for letter in ("F", "N", "!"):
        assert re.search(rf"^  {re.escape(letter)} ", legend, re.M), letter
    assert "rejected" not in legend


def test_hostile_text_draws_no_escape_and_no_line_of_its_own() -> None:
    evil = "\x1b[31mred\r\nrm -rf\u202e\x00|`<b>"
    c = cell(backend=evil, drafter=evil, kv_cache_dtype=evil, batch=evil)
    drawn = terminal.render([record(c, Verdict.ERROR, reasons=(evil,))], {}, {"matrix": evil})
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e]", drawn)
    assert not any(line.startswith("rm -rf") for line in drawn.splitlines())


def test_forced_cells_stand_apart_from_the_backend_unforced() -> None:
    plain = record(cell(backend="ROCM_AITER_FA"), Verdict.UNVERIFIED, reasons=("native",))
    crashed = record(forced(), Verdict.CRASH, flags=(Flag.FORCED_KERNEL_BLOCK,), reasons=("SIGSEGV",))
    assert crashed.cell.force is Force.KERNEL_BLOCK
    drawn = terminal.render([plain, crashed], {}, {}, width=120)
    assert re.search(r"^  ROCM_AITER_FA +unverified", drawn, re.M)
    assert re.search(r"^  ROCM_AITER_FA, forced kernel block 128 +crash", drawn, re.M)


def test_golden_terminal() -> None:
    """The drawing that reviewers see change; ``python tests/unit/golden/update.py`` writes it anew."""
    assert "\n".join(lines_of(100)) + "\n" == (GOLDEN / "seed.txt").read_text(encoding="utf-8")


# Shared text


@pytest.mark.parametrize("width", [24, 40, 80])
def test_fill_keeps_every_word_and_the_width(width: int) -> None:
    long = "a " * 30 + "/".join("longpath" for _ in range(20)) + " end"
    drawn = text.fill(long, width, "- ", "  ")
    assert all(text.width(line) <= max(width, 22) for line in drawn)
    assert "".join("".join(drawn).split()) == "-" + "".join(long.split())


def test_fill_of_nothing_is_the_indent() -> None:
    assert text.fill("", 80, "x ") == ["x "]


def test_widths_of_wide_and_combining_characters() -> None:
    assert (text.width("ab"), text.width("漢字"), text.width("e\u0301")) == (2, 4, 1)


def test_numbers_for_people() -> None:
    durations = [text.seconds(s) for s in (0.00012, 0.0412, 1.314, 94, 1800)]
    assert durations == ["0.12 ms", "41.2 ms", "1.31 s", "94 s", "1800 s"]
    assert [text.size(b) for b in (0, 32768, 65600, 5 << 30)] == ["0 B", "32 KiB", "64.1 KiB", "5 GiB"]
    assert [text.count(1, "cell"), text.count(2000, "cell")] == ["1 cell", "2,000 cells"]
    assert text.count(2, "pass", "passes") == "2 passes"


def test_a_pass_is_never_counted_without_its_rung() -> None:
    counted = text.counted([record(), record(verdict=Verdict.WRONG), samples.rich_record()])
    assert counted == "1 pass (1 compiled), 2 wrong"
