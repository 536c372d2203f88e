"""Markdown reports: what reviewers read, and text from elsewhere that must do nothing."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
import samples
from hypothesis import given
from hypothesis import strategies as st
from samples import cell, environment, record

from capmatrix.cell import Kernel, Record, Verdict
from capmatrix.report import markdown

GOLDEN = Path(__file__).parent / "golden"

HOSTILE = [
    "a | b | c",
    "a \\| b \\\\| c",
    "` `` ``` x",
    "``` | `",
    "\n\n# Heading\n\n- item",
    "\r\n| a | b |\r\n|---|---|",
    "<script>alert(1)</script>",
    "</details><img src=x onerror=alert(1)>",
    "<!-- gone",
    "&lt;b&gt; &#60;",
    "\x1b[31mred\x1b[0m \x07\x00\x7f",
    "\u202egnp.exe\u2066 \u200b\ufeff",
    "@octocat @org/team",
    "#1 GH-2 org/repo#3",
    "[click](https://example.com) ![x](y) https://example.com www.example.com",
    "**bold** _em_ ~~gone~~ $x$ :tada:",
    "[^1]: footnote",
    "x" * 5000,
    "z\u0300\u0301\u0302" * 50,
]


def hostile_record(evil: str, verdict: Verdict = Verdict.ERROR) -> Record:
    c = cell(backend=evil, drafter=evil, kv_cache_dtype=evil, batch=evil, dtype=evil, switches=((evil, evil),))
    failure = msgspec.structs.replace(samples.failure(evil, evil), frame=evil, stderr_tail=evil, traceback=(evil,))
    return record(c, verdict, reasons=(evil, evil), failure=failure, cell_id=evil, route=(Kernel(evil, evil, evil),))


def hostile_text(evil: str, verdict: Verdict = Verdict.ERROR) -> str:
    env = environment("offline:gfx942", versions={"vllm": evil, evil: evil}, extensions=(evil,), switches={evil: evil})
    header = {"matrix": evil, "preset": evil, "created": evil, "cells": 3}
    return markdown.render([hostile_record(evil, verdict)], {env.id: env}, header, unfinished=[evil])


def outside_code(line: str) -> str:
    """A line without its code spans, as CommonMark finds them: by fences of equal length."""
    out, rest = "", line
    while True:
        fence = re.search(r"`+", rest)
        if not fence:
            return out + rest
        end = re.compile(rf"(?<!`){fence[0]}(?!`)").search(rest, fence.end())
        if not end:
            return out + rest
        out, rest = out + rest[: fence.start()], rest[end.end() :]


def assert_harmless(drawn: str) -> None:
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u200b\u202a-\u202e\u2066-\u2069\ufeff]", drawn)
    tags = set()
    columns = 0
    for line in drawn.splitlines():
        bare = outside_code(line)
        assert "`" not in bare, line
        tags |= set(re.findall(r"<[^>]*>?", bare))
        for sign in ("@", "](", "![", "://", "GH-", "[^"):
            assert sign not in bare, line
        assert not re.search(r"(?<!#)#\d", bare), line
        if line.startswith("|"):
            # GitHub splits a row at every pipe that no backslash precedes, code spans or not.
            cells = len(re.findall(r"(?<!\\)\|", line)) - 1
            assert columns in (0, cells), line
            columns = cells
        else:
            columns = 0
    allowed = {"<br>", "<sup>", "</sup>", "<details>", "</details>", "<summary>", "</summary>"}
    assert tags <= allowed
    assert drawn.count("\n<details>") == drawn.count("\n</details>")


@pytest.mark.parametrize("evil", HOSTILE)
@pytest.mark.parametrize("verdict", [Verdict.ERROR, Verdict.UNVERIFIED, Verdict.UNAVAILABLE, Verdict.REJECTED])
def test_text_from_elsewhere_does_nothing(evil: str, verdict: Verdict) -> None:
    drawn = hostile_text(evil, verdict)
    assert_harmless(drawn)
    plain = hostile_text("plain", verdict)
    assert drawn.count("\n") == plain.count("\n")


@given(st.text(st.characters(codec="utf-8"), max_size=60))
def test_no_text_does_anything(evil: str) -> None:
    assert_harmless(hostile_text(evil))


@given(st.text(st.sampled_from("|`\\ ab<\n"), max_size=30))
def test_spans_end_where_they_should(evil: str) -> None:
    assert outside_code(f"a{markdown.code(evil)}b") == "ab"
    in_table = markdown.code_in_table(evil)
    assert outside_code(f"a{in_table}b") == "ab"
    assert not set("|\\") & set(in_table)


@pytest.mark.parametrize("evil", HOSTILE)
def test_a_commonmark_parser_sees_no_markup_of_a_record(evil: str) -> None:
    library = pytest.importorskip("markdown_it", reason="markdown-it-py is not installed")
    page = library.MarkdownIt("gfm-like", {"linkify": False}).render(hostile_text(evil))
    assert page.count("<table>") == 2
    tags = set(re.findall(r"</?([a-z0-9]+)", page))
    text_tags = {"h2", "h3", "p", "code", "strong", "ol", "ul", "li", "br", "sup", "details", "summary"}
    assert tags <= text_tags | {"table", "thead", "tbody", "tr", "th", "td"}
    assert page.count("<h2>") == 1


def test_the_report_says_verdict_rung_and_marks_in_words() -> None:
    drawn = markdown.render(*samples.seed_run())
    row = next(line for line in drawn.splitlines() if line.startswith("| `TRITON_ATTN` |") and "wrong" in line)
    assert "✅ pass (interpreted)<br>nan_unsafe <sup>" in row
    assert "❌ wrong (interpreted)<br>nan_unsafe, conflict <sup>" in row
    assert "### What this does not show" in drawn
    assert "`torch 2.13.0+cpu`" in drawn


def test_not_run_and_rejected_look_different() -> None:
    records = [record(cell(block_size=16)), record(cell(backend="TRITON_ATTN"), Verdict.REJECTED, reasons=("no",))]
    drawn = markdown.render(records, {})
    assert re.search(r"^\| `ROCM_ATTN` \| ✅ pass \(compiled\) \| not run \|$", drawn, re.M)
    assert re.search(r"^\| `TRITON_ATTN` \| not run \| 🚫 rejected <sup>1</sup> \|$", drawn, re.M)


def test_footnotes_of_a_table_are_numbered_as_its_entries_say() -> None:
    drawn = markdown.render(*samples.seed_run())
    sections = drawn.split("\n### ")[1:3]
    assert len(sections) == 2
    for section in sections:
        used = {int(n) for group in re.findall(r"<sup>([\d,]+)</sup>", section) for n in group.split(",")}
        listed = [int(n) for n in re.findall(r"^(\d+)\. ", section, re.M)]
        assert listed == sorted(used) == list(range(1, len(listed) + 1))
        assert f"<details><summary>{len(listed)} footnotes</summary>" in section


def test_a_long_report_still_fits_a_comment() -> None:
    words = "because of this and that and more of it " * 8
    records = [
        record(cell(block_size=16 * n), Verdict.ERROR, reasons=(f"{n} {words}",), claims=()) for n in range(1, 200)
    ]
    drawn = markdown.render(records, {})
    assert 30_000 < len(drawn) <= markdown.COMMENT_LIMIT
    assert "199 error" in drawn


def test_one_that_cannot_fit_says_so_at_its_head() -> None:
    records = [record(cell(block_size=16 * n), Verdict.ERROR, reasons=(f"{n}",)) for n in range(1, 900)]
    drawn = markdown.render(records, {})
    assert len(drawn) > markdown.COMMENT_LIMIT
    assert drawn.splitlines()[2].startswith("> Longer than a GitHub comment")


def test_golden_markdown() -> None:
    """What a pull request would show; ``python tests/unit/golden/update.py`` writes it anew."""
    assert markdown.render(*samples.seed_run()) == (GOLDEN / "seed.md").read_text(encoding="utf-8")
