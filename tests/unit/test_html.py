"""The page as a document: self-contained, harmless, readable without a script, and legible in both schemes."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest
import samples
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import cell, environment, record
from test_markdown import HOSTILE, hostile_record

from capmatrix import store
from capmatrix.cell import Environment, Record, Rung, Verdict
from capmatrix.report.page import plain, render
from capmatrix.report.table import build

VOID = {"meta", "br", "img", "input", "hr", "link"}


def page_of(
    records: list[Record],
    environments: Mapping[str, Environment],
    header: dict[str, Any] | None = None,
    name: str = "a",
) -> str:
    """The page of one run."""
    return render.render([(name, store.Run(header or {}, dict(environments), records))])


PAGE = page_of(*samples.seed_run())
SHEET = render.asset("page.css")


class Outline(HTMLParser):
    """Tags and attributes of a page; fails on tags that are not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: dict[str, int] = {}
        self.attributes: set[str] = set()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.scripts: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] = self.tags.get(tag, 0) + 1
        for name, value in attrs:
            self.attributes.add(name)
            if name == "id":
                self.ids.append(value or "")
            elif name == "href":
                self.links.append(value or "")
        if tag == "script":
            self.scripts.append((dict(attrs).get("type") or "", ""))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            kind, before = self.scripts[-1]
            self.scripts[-1] = (kind, before + data)


def outline(page: str) -> Outline:
    parser = Outline()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    return parser


def model_of(page: str) -> dict[str, Any]:
    (found,) = [text for kind, text in outline(page).scripts if kind == "application/json"]
    model: dict[str, Any] = msgspec.json.decode(found)
    return model


def test_the_page_loads_nothing() -> None:
    found = outline(PAGE)
    assert not {"iframe", "img", "link", "object", "embed", "form", "base"} & set(found.tags)
    assert not [name for name in found.attributes if name.startswith("on") or name in ("src", "srcdoc")]
    assert all(link.startswith("#") for link in found.links)
    styles = "".join(re.findall(r"<style>.*?</style>", PAGE, re.DOTALL))
    assert not re.search(r"@import|url\((?![\"']?(?:#|data:))", styles)


def test_its_one_script_is_the_one_that_the_policy_allows() -> None:
    (script,) = [text for kind, text in outline(PAGE).scripts if kind == ""]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', PAGE)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'" and rules["script-src"] == f"'sha256-{digest}'"
    assert set(rules) == {"default-src", "script-src", "style-src", "img-src", "base-uri", "form-action"}
    assert rules["img-src"] == "data:"


def test_the_script_makes_no_markup_of_text() -> None:
    """Text of records becomes nodes through append and textContent alone."""
    for name in render.SCRIPTS:
        source = render.asset(name)
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\b|Function\(", source
        )
        assert not re.search(r"\bfetch\(|XMLHttpRequest|WebSocket|import\(|localStorage|sendBeacon", source), name


def test_every_id_is_there_once() -> None:
    ids = outline(PAGE).ids
    assert len(set(ids)) == len(ids) and {"model", "e0", "view", "panel"} <= set(ids)


def test_the_same_runs_give_the_same_page() -> None:
    assert page_of(*samples.seed_run()) == PAGE


def test_without_a_script_the_tables_are_there() -> None:
    records, environments, _ = samples.seed_run()
    (static,) = re.findall(r"<noscript>(.*?)</noscript>", PAGE, re.DOTALL)
    report = build(records, environments)
    rows = sum(len(rows) for t in report.tables for rows in t.groups.values())
    assert static.count("<tr><th>") == rows + len(report.tables)
    found = plain.draw(report).split("</td><td>")
    assert "pass (compiled) fallback" in " ".join(found) and "unverified (compiled)" in " ".join(found)
    assert len(static) < 20_000


def test_not_run_is_not_rejected() -> None:
    records = [record(cell(block_size=16)), record(cell(backend="TRITON_ATTN"), Verdict.REJECTED, reasons=("no",))]
    static = plain.draw(build(records, {}))
    assert static.count("<td>not run</td>") == 2 and static.count("<td>rejected</td>") == 1


def test_a_pass_names_its_rung() -> None:
    for rung in Rung:
        assert f"<td>pass ({rung.value})</td>" in plain.draw(build([record(rung=rung)], {}))


# Colours: WCAG 2.1's AA for text is 4.5 to 1


def schemes() -> list[dict[str, str]]:
    light, dark = SHEET.split("@media screen and (prefers-color-scheme: dark)")
    dark = dark.split("\n}\n", 1)[0]
    return [dict(re.findall(r"--([a-z-]+):\s+#([0-9a-f]{6})", sheet)) for sheet in (light, dark)]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_words_are_readable_on_their_grounds(dark: bool) -> None:
    colours = schemes()[dark]
    for verdict in Verdict:
        name = verdict.value
        for ground in (f"{name}-bg", "bg", "panel"):
            assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)
        assert contrast(colours[f"{name}-on"], colours[f"{name}-solid"]) >= 4.5, name
    for name in ("fg", "soft", "accent"):
        assert contrast(colours[name], colours["bg"]) >= 4.5, name
        assert contrast(colours[name], colours["panel"]) >= 4.5, name


def test_every_verdict_has_a_shape_of_its_own() -> None:
    shapes = {v: re.findall(rf'^\.{v.value} {{ --shape: url\("([^"]+)"\)', SHEET, re.MULTILINE) for v in Verdict}
    assert all(len(found) == 1 for found in shapes.values())
    assert len({found[0] for found in shapes.values()}) == len(Verdict)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("blind", ["protan", "deutan"])
def test_a_pass_is_told_from_a_failure_without_red_and_green(dark: bool, blind: str) -> None:
    """Tiles' grounds as people without one kind of cone see them, by distance in the plane that they have left."""
    colours = schemes()[dark]
    passed = _seen(colours["pass-solid"], blind)
    for verdict in (Verdict.WRONG, Verdict.ERROR, Verdict.CRASH, Verdict.TIMEOUT):
        other = _seen(colours[f"{verdict.value}-solid"], blind)
        assert sum((a - b) ** 2 for a, b in zip(passed, other)) ** 0.5 > 0.18, verdict


#: Linear RGB as seen without L or M cones: Viénot, Brettel and Mollon 1999, "Digital video colourmaps for checking the
#: legibility of displays by dichromats".
_DICHROMAT = {
    "protan": ((0.11238, 0.88762, 0.0), (0.11238, 0.88762, 0.0), (0.00401, -0.00401, 1.0)),
    "deutan": ((0.29275, 0.70725, 0.0), (0.29275, 0.70725, 0.0), (-0.02234, 0.02234, 1.0)),
}


def _linear(colour: str) -> list[float]:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    return [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]


def _seen(colour: str, blind: str) -> list[float]:
    parts = _linear(colour)
    linear = [max(0.0, sum(a * b for a, b in zip(row, parts))) for row in _DICHROMAT[blind]]
    return [v ** (1 / 2.4) for v in linear]


def contrast(one: str, two: str) -> float:
    low, high = sorted(sum(a * b for a, b in zip((0.2126, 0.7152, 0.0722), _linear(c))) for c in (one, two))
    return (high + 0.05) / (low + 0.05)


# Text from elsewhere


@pytest.mark.parametrize(
    "evil", [*HOSTILE, "</script><img src=x onerror=alert(1)>", "<!--<script>", "</noscript></style>"]
)
def test_text_from_elsewhere_does_nothing(evil: str) -> None:
    assert_harmless(evil)


@settings(max_examples=25, deadline=None)
@given(st.text(st.characters(codec="utf-8"), max_size=60))
def test_no_text_does_anything(evil: str) -> None:
    assert_harmless(evil)


@given(st.text(st.sampled_from('<>/\\"!-scriptu0022\u2028\x1b')))
def test_a_data_block_holds_any_text(evil: str) -> None:
    made = render.block({"a": evil, evil: [evil]})
    assert msgspec.json.decode(made) == {"a": evil, evil: [evil]} or evil == "a"
    assert "<" not in made and made.isprintable() and '\\"' not in made.replace("\\\\", "")


def assert_harmless(evil: str) -> None:
    env = environment("offline:gfx942", versions={"vllm": evil, evil: evil}, extensions=(evil,), switches={evil: evil})
    header = {"matrix": evil, "preset": evil, "capmatrix": evil, "created": evil, "files": [evil]}
    page = page_of([hostile_record(evil)], {env.id: env}, header, evil)
    plain_ = page_of([hostile_record("plain")], {env.id: env}, {"matrix": "x"})
    found, expected = outline(page), outline(plain_)
    assert set(found.tags) <= set(expected.tags)
    assert found.attributes <= expected.attributes
    assert found.tags["script"] == expected.tags["script"] == 3
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u200b\u202a-\u202e\u2066-\u2069\ufeff]", page)
    # What was written is what is read: the text itself, not a version of it with parts lost.
    assert model_of(page)["environments"][env.id]["versions"]["vllm"] == evil
