"""One cell over many runs: their order, what it was in each, and where it changed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from samples import PAGED, cell, environment, record
from test_pair import recorded, refused

from capmatrix import cli
from capmatrix.analysis import history as room
from capmatrix.analysis import sources
from capmatrix.cell import Record, Timing, Verdict
from capmatrix.codec import encode
from capmatrix.report import history as report
from capmatrix.store import Run

ID = record().cell_id


def run_of(created: str, *records: Record, vllm: str = "0.32.0", **changes: Any) -> Run:
    known = environment("offline:gfx942", versions={"vllm": vllm})
    return Run({"created": created} if created else {}, {known.id: known}, list(records), **changes)


def followed(*runs: Run) -> room.History:
    return room.of(ID, sources.gather((f"{i}.jsonl", run) for i, run in enumerate(runs)))


def test_runs_are_put_in_order_of_their_dates_and_then_as_given() -> None:
    late, early = run_of("2026-11-03T00:00:00+00:00", record()), run_of("2026-11-01T00:00:00Z", record())
    same = run_of("2026-11-01T00:00:00.123Z", record())
    assert [m.run for m in followed(late, early, same).moments] == ["1.jsonl", "2.jsonl", "0.jsonl"]
    assert followed(early).moments[0].date == "2026-11-01T00:00:00Z"


def test_a_run_without_a_header_is_as_old_as_its_first_cell() -> None:
    assert sources.date(run_of("", record())) == "2026-11-20T09:13:01Z"
    assert sources.date(run_of("", record(started_at=""))) == ""
    odd = Run({"created": {"a": 1}, "started_at": "2026-11-05T00:00:00Z"})
    assert sources.date(odd) == "2026-11-05T00:00:00Z"


def test_runs_have_names_of_their_own() -> None:
    given = sources.gather([("x/a.jsonl", Run()), ("y/a.jsonl", Run()), ("b.jsonl", Run()), ("b.jsonl", Run())])
    assert [s.name for s in given] == ["x/a.jsonl", "y/a.jsonl", "b.jsonl", "b.jsonl (2)"]


def test_the_run_in_which_the_verdict_changed() -> None:
    bad = record(verdict=Verdict.WRONG)
    found = followed(
        run_of("2026-11-01T00:00:00Z", record()),
        run_of("2026-11-02T00:00:00Z", bad, vllm="0.33.0"),
        run_of("2026-11-03T00:00:00Z", bad),
        run_of("2026-11-04T00:00:00Z", record()),
    )
    assert [m.run for m in found.turns] == ["1.jsonl", "3.jsonl"]
    assert [c.kind for c in found.moments[1].changes] == ["regression"]
    assert found.moments[1].facts == (("vllm", "0.32.0", "0.33.0"),)
    assert found.moments[2].changes == ()
    assert [c.kind for c in found.moments[3].changes] == ["fix"]
    assert report.headline(found) == "4 runs, 4 with this cell; the verdict changed 2 times, last in 3.jsonl."


def test_a_run_without_the_cell_is_no_change() -> None:
    other = record(cell(batch="verify"))
    found = followed(
        run_of("2026-11-01T00:00:00Z", record()),
        run_of("2026-11-02T00:00:00Z", other),
        run_of("2026-11-03T00:00:00Z", other, started=[ID]),
        run_of("2026-11-04T00:00:00Z", record()),
    )
    assert [m.record is not None for m in found.moments] == [True, False, False, True]
    assert found.turns == () and found.moments[3].changes == ()
    assert [report.verdict_words(m) for m in found.moments] == [
        "pass (compiled)", "not run", "begun, not finished", "pass (compiled)",
    ]  # fmt: skip
    assert report.headline(found).endswith("4 runs, 2 with this cell; the verdict never changed.")


def test_times_of_another_gpu_are_no_change() -> None:
    def timed(median: float) -> Record:
        return record(times=(Timing("decode", "seed", median, median - 1, median + 1, 9),))

    runs = [run_of(f"2026-11-0{i}T00:00:00Z", timed(i * 100.0)) for i in (1, 2)]
    assert [c.kind for c in followed(*runs).moments[1].changes] == ["slower"]
    other = environment("offline:gfx942", hardware={"name": "another"})
    runs[1].environments = {other.id: other}
    assert followed(*runs).moments[1].changes == ()


def test_the_text_marks_the_run_that_changed() -> None:
    bad = record(verdict=Verdict.WRONG, reasons=("forward: off",))
    found = followed(
        run_of("2026-11-01T00:00:00Z", record()),
        run_of("2026-11-02T00:00:00Z", bad, vllm="0.33.0"),
        run_of("2026-11-03T00:00:00Z", msgspec.structs.replace(bad, route=(PAGED,), kernel_block=32)),
    )
    assert report.text(found).splitlines()[3:] == [
        "  2026-11-01T00:00:00Z  0.jsonl  pass (compiled)",
        "      vllm 0.32.0",
        "* 2026-11-02T00:00:00Z  1.jsonl  wrong (compiled)",
        "      forward: forward: off",
        "      changed: vllm: 0.32.0 -> 0.33.0",
        "  2026-11-03T00:00:00Z  2.jsonl  wrong (compiled), kernel block 32",
        "      forward: forward: off",
        "      changed: kernel block 128 -> 32",
        "      changed: vllm: 0.33.0 -> 0.32.0",
    ]
    rows = report.markdown(found).splitlines()[4:]
    assert len(rows) == 2 + 3
    assert "❌ `wrong (compiled)` | `vllm 0.33.0` | `pass (compiled) -> wrong (compiled) at forward" in rows[3]


def test_nothing_of_a_record_is_alive_in_a_history() -> None:
    evil = "`|<img src=x>@all \x1b[31m\u202e"
    bad = record(verdict=Verdict.WRONG, reasons=(evil,))
    runs = [run_of("2026-11-01T00:00:00Z", record()), run_of(evil * 3, bad, vllm=evil)]
    found = room.of(ID, sources.gather([("a", runs[0]), (evil, runs[1])]))
    for text in (report.text(found), report.markdown(found)):
        assert not [c for c in text if not c.isprintable() and c != "\n"]
    spans = r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)"
    assert "<img" not in re.sub(spans, "", report.markdown(found))


def test_a_pair_has_a_history_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = recorded(), refused()
    new = msgspec.structs.replace(new, pair=old.pair, pair_id=old.pair_id, layout="LHBNC")
    files = []
    for day, pair in ((2, new), (1, old)):
        lines = [{"kind": "run", "header": {"created": f"2026-11-0{day}T00:00:00Z"}, "version": 1}]
        lines += [{"kind": "pair", "record": pair}]
        files.append(tmp_path / f"{day}.jsonl")
        files[-1].write_bytes(b"\n".join(map(encode, lines)) + b"\n")
    assert cli.main(["history", old.pair_id, *map(str, files)]) == 0
    out = capsys.readouterr().out
    assert "last in 2.jsonl." in out
    assert "  2026-11-01T00:00:00Z  1.jsonl  pass (compiled)\n" in out
    assert f"* 2026-11-02T00:00:00Z  2.jsonl  {new.verdict.value}" in out
    unwrapped = " ".join(out.split())
    assert "changed: the drafter's backends TRITON_ATTN -> ROCM_AITER_FA; layout LBNHC -> LHBNC" in unwrapped
    assert "left out" not in capsys.readouterr().err


# -- the command ---------------------------------------------------------------------------------


def write(path: Path, created: str, *records: Record) -> str:
    lines = [encode({"kind": "run", "header": {"created": created}, "version": 1})]
    lines += [encode({"kind": "environment", "environment": environment("offline:gfx942")})]
    lines += [encode({"kind": "record", "record": r}) for r in records]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return str(path)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    one = write(tmp_path / "one.jsonl", "2026-11-02T00:00:00Z", record(verdict=Verdict.CRASH))
    two = write(tmp_path / "two.jsonl", "2026-11-01T00:00:00Z", record(), record(cell(batch="verify")))
    return [one, two]


def test_a_cell_is_named_as_explain_takes_it(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for name in (ID, "rocm_attn b128 decode"):
        assert cli.main(["history", name, *files]) == 0
        out = capsys.readouterr().out
        assert out.startswith(f"{ID}\n2 runs, 2 with this cell; the verdict changed 1 time, last in one.jsonl.\n")
        assert out.index("two.jsonl  pass") < out.index("one.jsonl  crash")
    assert cli.main(["history", "b128", *files]) == 2
    assert "2 cells match" in capsys.readouterr().err


def test_a_history_as_markdown_and_as_json(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["history", ID, *files, "--format", "md", "-o", str(tmp_path / "a.md")]) == 0
    assert (tmp_path / "a.md").read_text(encoding="utf-8").startswith(f"## History of `{ID}`\n")
    assert cli.main(["history", ID, *files, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [m["record"]["verdict"] for m in found["moments"]] == ["pass", "crash"]
    assert found["moments"][1]["changes"][0]["kind"] == "regression"
