"""The support table as a page of an MkDocs Material site: what Python-Markdown makes of it, with vLLM's extensions."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import samples
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import cell, record
from test_markdown import HOSTILE, hostile_record
from test_pair import recorded, refused

from capmatrix.cell import Verdict
from capmatrix.report import markdown
from capmatrix.report.dialect import MKDOCS, mkdocs_code
from capmatrix.report.table import build

library = pytest.importorskip("markdown", reason="Python-Markdown is not installed")
pytest.importorskip("pymdownx", reason="pymdown-extensions is not installed")

#: Those of vLLM's mkdocs.yaml (and mkdocs's own: tables, fenced code, toc), but for its TeX one.
EXTENSIONS = [
    "tables",
    "attr_list",
    "md_in_html",
    "admonition",
    "pymdownx.details",
    "pymdownx.superfences",
    "pymdownx.tabbed",
    "pymdownx.highlight",
    "pymdownx.inlinehilite",
    "pymdownx.snippets",
    "pymdownx.emoji",
    "toc",
]
OPTIONS = {"pymdownx.tabbed": {"alternate_style": True}, "pymdownx.snippets": {"check_paths": True}}


def page(text: str) -> str:
    return str(library.markdown(text, extensions=EXTENSIONS, extension_configs=OPTIONS))


class Elements(HTMLParser):
    """Tags in order, and the text of every ``code`` element."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.codes: list[str] = []
        self.words = ""
        self._depth = 0
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "code":
            self._depth += 1
            self.codes.append("")

    def handle_endtag(self, tag: str) -> None:
        self._depth -= tag == "code"

    def handle_data(self, data: str) -> None:
        if self._depth:
            self.codes[-1] += data
        else:
            self.words += data


def seed_page() -> str:
    return markdown.draw(build(*samples.seed_run()), MKDOCS)


def test_architectures_are_tabs_and_footnotes_fold() -> None:
    drawn = page(seed_page())
    found = Elements(drawn)
    assert found.tags.count("h1") == 1
    assert re.findall(r"<label for=\"[^\"]+\">([^<]+)</label>", drawn) == ["gfx942", "gfx950"]
    assert re.findall(r"<summary>([^<]+)</summary>", drawn) == ["5 footnotes", "10 footnotes", "Legend", "Environments"]
    assert found.tags.count("details") == 4 and drawn.count('class="tabbed-block"') == 2
    # One table an architecture, one of environments; none is left as text.
    assert found.tags.count("table") == 3
    assert "|" not in found.words and "???" not in found.words and "===" not in found.words
    assert found.tags.count("ol") == 2


def test_a_table_has_its_entries() -> None:
    drawn = page(seed_page())
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", drawn, re.DOTALL)]
    rows = [row for row in rows if row and row[0] == "<code>TRITON_ATTN</code>"]
    assert len(rows) == 2 and {len(row) for row in rows} == {5}
    assert rows[1][2] == "❌ wrong (interpreted)<br>conflict <sup>3,4</sup>"
    listed = re.findall(r"<li>(.*?)</li>", drawn, re.DOTALL)
    assert any(item.startswith("wrong (interpreted) at compare, in <code>prefill</code>") for item in listed)


def test_one_architecture_has_a_heading_and_no_tab() -> None:
    text = markdown.draw(build([record()], {}), MKDOCS)
    drawn = page(text)
    assert "tabbed" not in drawn and '<h2 id="gfx942"><code>gfx942</code></h2>' in drawn


def test_pairs_have_their_table() -> None:
    text = markdown.draw(build([], {}, pairs=[recorded(), refused()]), MKDOCS)
    found = Elements(page(text))
    assert found.tags.count("table") == 1 and found.tags.count("details") == 2  # footnotes, legend
    assert "rejected [1]" in found.codes and "|" not in found.words


def test_a_page_of_any_length_keeps_its_reasons() -> None:
    words = "because of this and that and more of it " * 6
    records = [
        record(cell(block_size=16 * n), Verdict.ERROR, reasons=(f"{n} {words}",), claims=()) for n in range(1, 400)
    ]
    text = markdown.draw(build(records, {}), MKDOCS)
    assert len(text) > markdown.COMMENT_LIMIT and text.count(words.strip()) == 399


def elements(evil: str, verdict: Verdict) -> Elements:
    made = build([hostile_record(evil, verdict)], {}, {"matrix": evil, "preset": evil})
    return Elements(page(markdown.draw(made, MKDOCS)))


def assert_harmless(evil: str) -> None:
    """The same elements as of a harmless text: nothing began and nothing ended, whatever it holds."""
    drawn, expected = (elements(text, Verdict.ERROR) for text in (evil, "plain"))
    assert drawn.tags == expected.tags
    assert drawn.words.split() == expected.words.split()
    # Here it stands in a sentence too, word by word.
    drawn, expected = (elements(text, Verdict.UNVERIFIED) for text in (evil, "plain"))
    assert [tag for tag in drawn.tags if tag != "code"] == [tag for tag in expected.tags if tag != "code"]


@pytest.mark.parametrize("evil", [e for e in HOSTILE if markdown.text.one_line(e)])
def test_text_from_elsewhere_does_nothing(evil: str) -> None:
    assert_harmless(evil)


@pytest.mark.parametrize(
    "evil",
    [
        '--8<-- "mkdocs.yml"',
        "{: .class onclick=x }",
        "#!python print(1)",
        ":::python print(1)",
        "$x$ \\(y\\)",
        "{{ macro }} {% raw %}",
        '"] === "tab',
        "[[wiki]] ==mark== ^^ins^^ ~~del~~ H~2~O",
        "*[HTML]: x",
        "`{ .x }`",
        "\\` \\\\` `\\`",
        "<!-- x --> <?php ?> <![CDATA[ x ]]>",
        "<script>`</script>`",
    ],
)
def test_extensions_see_nothing_of_a_record(evil: str) -> None:
    assert_harmless(evil)


def places(evil: str) -> Elements:
    """Wherever a report puts text: a tab's title, a sentence, a table, a folded list."""
    span, in_table = MKDOCS.code(evil, 300), MKDOCS.code_in_table(evil, 80)
    table = [
        f"**{span}, TP 4**: {span}",
        "",
        f"| a | {in_table} |",
        "| --- | --- |",
        f"| {in_table}<br>{in_table} | x |",
    ]
    lines = [f"x {span}; {span}.", "", *table, "", *MKDOCS.fold("1 footnote", [f"1. error, in {span}: {span}"])]
    return Elements(page("\n".join(MKDOCS.parts([(evil, lines), ("other", lines)]))))


@settings(max_examples=100, deadline=None)
@given(st.text(st.sampled_from("|`\\ ab<>&#!:*_{}[]()$\"'=~^-1"), min_size=1, max_size=24).filter(str.strip))
def test_no_text_does_anything(evil: str) -> None:
    drawn, expected = places(evil), places("plain")
    assert drawn.tags == expected.tags
    assert {code.strip() for code in drawn.codes} == {markdown.text.one_line(evil)}
    assert drawn.words.split()[-12:] == expected.words.split()[-12:]


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Zs", "Zl", "Zp"]), min_size=1, max_size=40))
def test_a_span_shows_what_it_was_given(value: str) -> None:
    """The text comes out as it went in, but for what cannot be printed."""
    found = Elements(page(f"a {mkdocs_code(value)} b"))
    assert found.codes == [markdown.text.one_line(value)]
    assert found.words.split() == ["a", "b"]


CONFIG = """\
site_name: test
theme: {name: material, font: false}
plugins: []
markdown_extensions: [attr_list, md_in_html, admonition, pymdownx.details, pymdownx.superfences, pymdownx.highlight,
  pymdownx.inlinehilite, pymdownx.snippets, {pymdownx.tabbed: {alternate_style: true}}, {toc: {permalink: true}}]
"""


@pytest.mark.slow
def test_a_site_takes_the_page(tmp_path: Path) -> None:
    """A strict build of MkDocs Material: as a page of its own, and as a section of one written by hand."""
    from capmatrix.commands import written

    (tmp_path / "docs").mkdir()
    (tmp_path / "mkdocs.yml").write_text(CONFIG, encoding="utf-8")
    report = build(*samples.seed_run())
    (tmp_path / "docs" / "index.md").write_text(markdown.draw(report, MKDOCS), encoding="utf-8")
    by_hand = tmp_path / "docs" / "attention_backends.md"
    by_hand.write_text(f"# Backends\n\n{written.BEGIN}\n{written.END}\n\n## After\n", encoding="utf-8")
    assert written.put(markdown.draw(report, MKDOCS, titled=False), str(by_hand)) == 0
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-f", str(tmp_path / "mkdocs.yml")]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, check=False, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    for name in ("index.html", "attention_backends/index.html"):
        text = (tmp_path / "site" / name).read_text(encoding="utf-8")
        assert text.count("<table>") == 3 and text.count('class="tabbed-block"') == 2
        assert len(re.findall(r"<h1\b", text)) == 1
