"""Snapshots of vLLM's choices: their lines, what differs between two, and the one that is committed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from answers import NOTHING, selects

from capmatrix.errors import InputError
from capmatrix.guard import golden
from capmatrix.guard.golden import SETTINGS, Change, Setting, Snapshot
from capmatrix.guard.questions import Answer, Question
from capmatrix.report import golden as report
from capmatrix.vocabulary import ARCHITECTURES

REFUSED = msgspec.structs.replace(NOTHING, stage="configure")


def line(layer: str) -> golden.Line:
    (found,) = [one for one in golden.lines(Setting(False), ["gfx942"]) if one.key == f"gfx942 no-aiter | {layer}"]
    return found


def answered(one: golden.Line, *answers: Answer) -> dict[Question, Answer]:
    return dict(zip((question for _, question in one.questions), answers, strict=True))


def test_a_line_tells_choices_by_label() -> None:
    sized = line("target auto plain, by head size")
    assert [label for label, _ in sized.questions] == [str(size) for size in golden.HEADS]
    same = answered(sized, *[selects("ROCM_ATTN")] * 8)
    assert golden.value(sized, same) == "all ROCM_ATTN"
    mixed = answered(sized, *[selects("ROCM_ATTN")] * 6, selects("TRITON_ATTN"), NOTHING)
    assert golden.value(sized, mixed) == "64 72 80 96 128 192 ROCM_ATTN; 256 TRITON_ATTN; 512 none"


def test_a_drafters_line_is_one_word() -> None:
    one = line("eagle3 drafter fp8, runner v1, target TRITON_ATTN")
    ((_, question),) = one.questions
    assert (question.method, question.runner, question.target_backend) == ("eagle3", "v1", "TRITON_ATTN")
    assert golden.value(one, answered(one, selects("ROCM_ATTN"))) == "ROCM_ATTN"
    assert golden.value(one, answered(one, REFUSED)) == "refused"


def test_a_backend_that_is_named_is_taken_refused_or_ignored() -> None:
    one = line("target auto plain, by backend named")
    given = [selects("ROCM_ATTN")] * len(one.questions)
    given[1], given[2] = NOTHING, selects("ROCM_ATTN", ignored="TRITON_ATTN")
    text = golden.value(one, answered(one, *given))
    assert "TRITON_ATTN refused" in text and "ROCM_AITER_FA ignored" in text and text.startswith("ROCM_ATTN ")


def test_no_change_is_none() -> None:
    one = Snapshot("0.32.0", {"gfx942 aiter | a": "X", "gfx942 aiter | b, by head size": "64 X; 72 Y"})
    assert golden.compare(one, one) == []


def test_the_same_change_is_told_once_with_its_settings() -> None:
    old = Snapshot("0.32.0", {"gfx942 aiter | a": "X", "gfx950 aiter | a": "X", "gfx950 aiter | b": "X"})
    new = Snapshot("0.33.0", {"gfx942 aiter | a": "Y", "gfx950 aiter | a": "Y", "gfx950 aiter | b": "X"})
    assert golden.compare(old, new) == [Change("a", "X", "Y", ("gfx942 aiter", "gfx950 aiter"))]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("all X", "64 128 X; 72 Y", [("72", "X", "Y")]),
        ("64 128 X; 72 Y", "all X", [("72", "Y", "X")]),
        ("64 X; 72 128 Y", "64 72 X; 128 Z", [("72", "Y", "X"), ("128", "Y", "Z")]),
        ("all X", "all Y", [("", "all X", "all Y")]),
    ],
)
def test_only_the_labels_that_changed_are_told(before: str, after: str, expected: list[tuple[str, str, str]]) -> None:
    found = golden.compare(Snapshot("1", {"s | l": before}), Snapshot("2", {"s | l": after}))
    assert [(c.layer, c.old, c.new) for c in found] == [(f"l {label}".strip(), a, b) for label, a, b in expected]


def test_a_line_that_one_lacks_is_absent() -> None:
    (found,) = golden.compare(Snapshot("1", {}), Snapshot("2", {"gfx942 no-aiter | a": "X"}))
    assert (found.old, found.new) == ("absent", "X")


def test_lines_with_an_aiter_are_left_out_where_there_is_none() -> None:
    old = Snapshot("1", {"gfx942 aiter | a": "X", "gfx942 no-aiter | a": "X"})
    new = Snapshot("1", {"gfx942 no-aiter | a": "Y"}, aiter=False)
    assert golden.compare(old, new) == [Change("a", "X", "Y", ("gfx942 no-aiter",))]
    assert "not compared" in report.draw(old, new, [], "file")


def test_the_difference_reads_well() -> None:
    changes = [Change("target fp8 sinks, by head size 72", "X", "Y", ("gfx942 aiter", "gfx950 aiter"))]
    text = report.draw(Snapshot("0.32.0", {}), Snapshot("0.33.0", {}), changes, "old.json")
    assert text == (
        "vllm 0.32.0 (old.json) -> vllm 0.33.0\n\n"
        "target fp8 sinks, by head size 72: X -> Y\n  gfx942 aiter, gfx950 aiter\n\n1 changes\n"
    )


def test_a_snapshot_survives_its_file(tmp_path: Path) -> None:
    one = Snapshot("0.32.0", {"b": "Y", "a": "X"})
    path = golden.path_of("0.32.1+cpu", tmp_path)
    assert path.name == "selection-vllm-0.32.json"
    path.write_text(golden.dumps(one))
    assert golden.load(path) == one
    assert [text.split('"')[1] for text in path.read_text().splitlines() if text.startswith(('"a"', '"b"'))] == [
        "a",
        "b",
    ]


def test_the_newest_snapshot_is_by_version_not_by_name(tmp_path: Path) -> None:
    assert golden.newest(tmp_path) is None
    for version in ("0.9.0", "0.32.0", "0.100.0"):
        golden.path_of(version, tmp_path).write_text("")
    assert golden.newest(tmp_path) == golden.path_of("0.100", tmp_path)


@pytest.mark.parametrize("text", ["", "[1]", '{"vllm": "0.32.0"}', "nonsense"])
def test_a_file_that_is_no_snapshot(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(InputError, match="not a snapshot"):
        golden.load(path)
    with pytest.raises(InputError, match="cannot be read"):
        golden.load(tmp_path / "none.json")


def test_the_committed_snapshot_holds_every_line_and_the_facts_known_of_0_32() -> None:
    one = golden.load(golden.path_of("0.32.0"))
    assert one.vllm == "0.32.0" and one.aiter
    assert set(one.choices) == {line.key for setting in SETTINGS for line in golden.lines(setting)}
    for arch in ARCHITECTURES:
        own = {key.partition(" | ")[2]: value for key, value in one.choices.items() if key.startswith(f"{arch} no-")}
        assert own["target auto plain, by block size"] == "unset 16 32 64 128 256 544 ROCM_ATTN; 1 8 none"
        assert own["target fp8 sinks, by head size"] == "all TRITON_ATTN"
        assert own["target auto dcp 2, by head size"] == "all none"
        assert own["eagle3 drafter fp8, runner v2, target TRITON_ATTN"] == "TRITON_ATTN"
        assert own["eagle3 drafter fp8, runner v1, target TRITON_ATTN"] == "ROCM_ATTN"
    switched = "aiter VLLM_ROCM_USE_AITER=1 | target auto plain, by head size"
    assert one.choices[f"gfx1201 {switched}"] == "all ROCM_AITER_UNIFIED_ATTN"
    assert "UNIFIED" not in one.choices[f"gfx1100 {switched}"]
