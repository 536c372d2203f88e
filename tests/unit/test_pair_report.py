"""Pairs in reports: the section in each form, and everything known of one pair."""

from __future__ import annotations

import html

import msgspec
import pytest
from test_pair import made, recorded, refused

from capmatrix.cell import Environment, Geometry, Rung, Verdict
from capmatrix.errors import InputError
from capmatrix.pair import PairRecord, Side, SideFacts, Uncalled
from capmatrix.report import markdown, pairs, terminal
from capmatrix.report.cautions import cautions
from capmatrix.report.explain import explain
from capmatrix.report.page import plain
from capmatrix.report.table import build

RECORDS = [recorded(), refused()]


def row(record: PairRecord) -> dict[str, str]:
    (table,) = pairs.tables([record])
    return dict(zip(pairs.HEADINGS, table.rows[0].cells, strict=True))


def test_a_row_says_what_was_resolved_and_how() -> None:
    found = row(recorded())
    assert found["target"] == "TRITON_ATTN +1"
    assert found["drafter"] == "TRITON_ATTN (inherited)"
    assert (found["block"], found["layout"], found["runner"]) == ("128", "LBNHC", "auto=v2")
    assert found["result"] == "pass (compiled) 2/2"


def test_a_refusal_keeps_what_was_known_and_has_a_footnote() -> None:
    (table,) = pairs.tables([refused()])
    assert table.rows[0].cells[-1] == "rejected [1]"
    assert table.notes[0][0] == 1
    assert table.notes[0][1].startswith("at kernel blocks and metadata builders: ValueError: No common block size")


def test_blocks_given_managed_and_kernel() -> None:
    groups = recorded().groups
    split = (type(groups[0])("FullAttentionSpec", 128, 32, 1024, {}),)
    assert row(recorded(groups=split))["block"] == "128>32"
    chosen = recorded(made(block_size=None))
    assert row(chosen)["block"] == "auto=128"


def test_an_ignored_request_is_shown() -> None:
    asked = made(drafter=Side("d", "Qwen3ForCausalLM", Geometry(8, 8, 128), "ROCM_ATTN"))
    facts = SideFacts(backends={"TRITON_ATTN": 8}, how="ignored")
    assert row(recorded(asked, drafter=facts))["drafter"] == "TRITON_ATTN (not ROCM_ATTN)"


@pytest.mark.parametrize(("native", "said"), [(True, "LHBNC, native"), (False, "LHBNC, not native"), (None, "LHBNC")])
def test_the_native_path_is_part_of_the_layout(native: bool | None, said: str) -> None:
    record = recorded(layout="LHBNC", drafter=SideFacts(backends={"ROCM_ATTN": 1}, native_path=native))
    assert row(record)["layout"] == said


def test_equal_footnotes_share_a_number() -> None:
    (table,) = pairs.tables([refused(), refused()])
    assert [line.note for line in table.rows] == [1, 1]
    assert len(table.notes) == 1


def test_layers_that_no_call_reached_are_said() -> None:
    left = recorded(uncalled=(Uncalled("target", "GDN_ATTN", 6, "no attention: recurrent states"),))
    (table,) = pairs.tables([left])
    assert table.rows[0].cells[-1] == "pass (compiled) 2/2, 6 layers not called [1]"
    said = "not called: 6 target layers of GDN_ATTN (no attention: recurrent states)"
    assert table.notes == ((1, said),)
    report = build([], {}, {}, (), [left])
    for text in (terminal.draw(report), markdown.draw(report), plain.draw(report)):
        assert "GDN_ATTN" in text and "6 layers not called" in text
    assert said in explain(left.pair_id, [], {}, {}, pairs=[left])
    failed = msgspec.structs.replace(left, verdict=Verdict.WRONG, reasons=("target: off",))
    (table,) = pairs.tables([failed])
    assert table.notes[0][1] == f"at forward: target: off; {said}"


def test_a_set_up_that_contradicts_itself_is_seen_in_every_form() -> None:
    said = "draft step 2 reads other tokens' keys"
    bad = recorded(contradictions=(said,), rules=("V2 model runner", said), rung=Rung.DECLARED, runs=())
    (table,) = pairs.tables([bad])
    assert table.rows[0].cells[-1] == "set-up passes, CONTRADICTION [1]"
    assert table.notes == ((1, f"contradiction: {said}"),)
    assert row(recorded(contradictions=(said,)))["result"] == "pass (compiled) 2/2, CONTRADICTION [1]"
    report = build([], {}, {}, (), [bad, recorded()])
    for text in (terminal.draw(report), markdown.draw(report), html.unescape(plain.draw(report))):
        assert said in text and "1 of them with a set-up that contradicts itself" in " ".join(text.split())
    told = explain(bad.pair_id, [], {}, {}, pairs=[bad])
    assert told.count(said) == 1 and "CONTRADICTION" in told
    evil = recorded(contradictions=("<b>\x1b[31m|",))
    report = build([], {}, {}, (), [evil])
    assert "<b>" not in plain.draw(report)
    assert "\x1b" not in terminal.draw(report) + markdown.draw(report) + explain(evil.pair_id, [], {}, {}, pairs=[evil])


def test_every_form_has_the_section() -> None:
    report = build([], {}, {"matrix": "pairs"}, (), RECORDS)
    for text in (terminal.draw(report), markdown.draw(report), plain.draw(report)):
        assert "Pairs" in text
        assert "TRITON_ATTN (inherited)" in text
        assert "No common block size for 128" in text
        assert "1 pass, 1 rejected" in text
    assert "2 pairs" in terminal.draw(report)
    assert cautions(report)[0].startswith("Pairs show")


def test_a_narrow_terminal_loses_nothing() -> None:
    narrow = "\n".join(pairs.lines(RECORDS, 60))
    for word in ("TRITON_ATTN (inherited)", "UNIFORM_BATCH", "rejected [1]"):
        assert word in narrow


def test_no_pairs_no_section() -> None:
    report = build([], {}, {})
    assert "Pairs" not in terminal.draw(report) + markdown.draw(report)
    assert pairs.lines([], 80) == [] and pairs.markdown([]) == [] and pairs.html([]) == ""


def test_text_of_records_is_made_harmless() -> None:
    evil = recorded(verdict=Verdict.ERROR, reasons=("<script>alert(1)</script> \x1b[31m | `x`",))
    report = build([], {}, {}, (), [evil])
    assert "<script>" not in plain.draw(report)
    assert "\x1b" not in terminal.draw(report) + markdown.draw(report)


def test_explain_shows_both_sides() -> None:
    environment = Environment(id="env", target="offline:gfx942", versions={"vllm": "0.32.0"})
    text = explain("minimax-m3-eagle3 ROCM_AITER_FA", [], {"env": environment}, {"files": ["p.toml"]}, pairs=RECORDS)
    assert text.startswith(refused().pair_id)
    for said in (
        "Target",
        "Drafter",
        "asked ROCM_AITER_FA",
        "no common kernel block",
        "kernel blocks and metadata builders",
        "vllm/v1/worker/utils.py:554",
        "vllm 0.32.0",
        f"p.toml::{refused().pair_id}",
    ):
        assert said in text, said
    other = explain(recorded().pair_id, [], {}, {}, pairs=RECORDS)
    assert "(inherited)" in other and "canaries kept" in other and "block_size 128" in other
    with pytest.raises(InputError):
        explain("nothing like it", [], {}, {}, pairs=RECORDS)
