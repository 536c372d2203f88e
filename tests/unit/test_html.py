"""The HTML report: self-contained, harmless, and seen once through a browser."""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import xml.etree.ElementTree as ElementTree
import zlib
from html.parser import HTMLParser
from pathlib import Path

import pytest
import samples
from hypothesis import given
from hypothesis import strategies as st
from samples import cell, environment, record
from test_markdown import HOSTILE, hostile_record

from capmatrix.cell import Rung, Verdict
from capmatrix.report import html
from capmatrix.report.html_chart import chart_keys, verdict_chart

PAGE = html.render(*samples.seed_run())
VOID = {"meta", "br", "img", "input", "hr", "link"}


class Outline(HTMLParser):
    """Tags and attributes of a page; fails on tags that are not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: dict[str, int] = {}
        self.attributes: set[str] = set()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] = self.tags.get(tag, 0) + 1
        for name, value in attrs:
            self.attributes.add(name)
            if name == "id":
                self.ids.append(value or "")
            elif name == "href":
                self.links.append(value or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def outline(page: str) -> Outline:
    parser = Outline()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    return parser


def test_the_page_loads_nothing_and_runs_nothing() -> None:
    found = outline(PAGE)
    assert not {"script", "iframe", "img", "link", "object", "embed", "form", "base"} & set(found.tags)
    assert not [name for name in found.attributes if name.startswith("on") or name in ("src", "srcdoc", "style-src")]
    assert all(link.startswith("#") for link in found.links)
    assert not re.search(r"@import|url\((?!#)", PAGE)
    assert "default-src 'none'" in PAGE


def test_every_link_has_its_place() -> None:
    found = outline(PAGE)
    assert len(set(found.ids)) == len(found.ids)
    assert {link[1:] for link in found.links} <= set(found.ids)
    assert found.links


def test_a_details_for_each_entry_and_every_cell_in_one() -> None:
    records, environments, header = samples.seed_run()
    page = html.render(records, environments, header)
    assert outline(page).tags["details"] == 32
    for r in records:
        assert page.count(f"<code>{r.cell_id}</code>") == (0 if r.cell.target == "device" else 1)


def test_colour_never_stands_alone() -> None:
    """Whatever is coloured by its verdict holds the verdict's word."""
    names = "|".join(v.value for v in Verdict)
    coloured = re.findall(rf'class="(?:v|chip) ({names})(?: weak)?">(.*?)</(?:span|li)>', PAGE)
    assert len(coloured) > 50
    assert all(verdict in content for verdict, content in coloured)


def test_a_pass_whose_numbers_nobody_checked_looks_weaker() -> None:
    def drawn(rung: Rung) -> str:
        return html.render([record(rung=rung)], {}).split('<table class="matrix">')[1].split("</table>")[0]

    for rung in (Rung.DECLARED, Rung.COMPILED):
        assert f'class="v pass weak">pass</span><span class="rung">{rung.value}' in drawn(rung)
    for rung in (Rung.INTERPRETED, Rung.EXECUTED, Rung.SERVED):
        assert f'class="v pass">pass</span><span class="rung">{rung.value}' in drawn(rung)


def test_not_run_is_not_rejected() -> None:
    records = [record(cell(block_size=16)), record(cell(backend="TRITON_ATTN"), Verdict.REJECTED, reasons=("no",))]
    page = html.render(records, {})
    assert page.split("<tbody>")[1].count('<td><span class="notrun">not run</span></td>') == 2
    assert 'class="v rejected">rejected</span><sup>' in page


def test_both_schemes_colour_every_verdict() -> None:
    light, dark = PAGE.split("@media (prefers-color-scheme: dark)")
    for verdict in Verdict:
        for sheet in (light, dark):
            assert re.search(rf"--{verdict.value}: #[0-9a-f]{{6}};", sheet), verdict
            assert re.search(rf"--{verdict.value}-bg:\s+#[0-9a-f]{{6}};", sheet), verdict


def test_words_are_readable_on_their_grounds() -> None:
    """At least 4.5 to 1, WCAG 2.1's AA for text."""
    for sheet in PAGE.split("@media (prefers-color-scheme: dark)"):
        colours = dict(re.findall(r"--([a-z-]+):\s+#([0-9a-f]{6})", sheet))
        for verdict in Verdict:
            for ground in (f"{verdict.value}-bg", "bg", "panel"):
                ratio = contrast(colours[verdict.value], colours[ground])
                assert ratio >= 4.5, (verdict, ground, ratio)
        for name in ("fg", "soft"):
            assert contrast(colours[name], colours["bg"]) >= 4.5


def contrast(one: str, two: str) -> float:
    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (0, 2, 4)]
        linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(two)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("evil", HOSTILE)
def test_text_from_elsewhere_does_nothing(evil: str) -> None:
    assert_harmless(evil)


@given(st.text(st.characters(codec="utf-8"), max_size=60))
def test_no_text_does_anything(evil: str) -> None:
    assert_harmless(evil)


def assert_harmless(evil: str) -> None:
    env = environment("offline:gfx942", versions={"vllm": evil, evil: evil}, extensions=(evil,), switches={evil: evil})
    header = {"matrix": evil, "preset": evil, "capmatrix": evil}
    page = html.render([hostile_record(evil)], {env.id: env}, header, unfinished=[evil])
    plain = html.render([hostile_record("plain")], {env.id: env}, {"matrix": "x"})
    assert set(outline(page).tags) <= set(outline(plain).tags)
    assert outline(page).attributes <= outline(plain).attributes
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u200b\u202a-\u202e\u2066-\u2069\ufeff]", page)


# The chart


def test_the_chart_counts_cells_by_backend_and_verdict() -> None:
    records, _, _ = samples.seed_run()
    svg = ElementTree.fromstring(verdict_chart(records))
    titles = [e.text for e in svg.iter("title")]
    assert "TRITON_ATTN: 10 cells pass" in titles
    assert "TRITON_ATTN: 24 cells pass, numbers not checked" in titles
    assert "TRITON_ATTN: 2 cells wrong" in titles
    assert sum(int(t.split(": ")[1].split()[0]) for t in titles if t) == len(records)


def test_bars_are_as_long_as_their_counts() -> None:
    svg = ElementTree.fromstring(verdict_chart([record()] * 3 + [record(verdict=Verdict.ERROR)]))
    widths = [float(rect.get("width", "")) for g in svg.iter("g") for rect in g.iter("rect")]
    assert widths[0] == pytest.approx(3 * widths[1], rel=0.01)


def test_the_charts_key_names_what_it_shows() -> None:
    keys = chart_keys([record(), samples.rich_record()])
    assert [words for _, _, words in keys] == ["pass, numbers not checked", "wrong"]
    assert verdict_chart([]) == ""


# A browser


def chromium() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        found = shutil.which(name)
        if found:
            return found
    reason = "Chromium is not installed (apt-get install chromium)"
    if os.environ.get("CI") == "true":
        pytest.fail(f"{reason}, and CI must have it")
    pytest.skip(reason)


def pixels(path: Path) -> list[bytes]:
    """Rows of a PNG of 8-bit RGB or RGBA without interlace, three bytes a pixel."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height, depth, kind, _, _, interlace = struct.unpack(">IIBBBBB", data[16:29])
    assert (depth, interlace) == (8, 0) and kind in (2, 6)
    packed, at = b"", 8
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        if data[at + 4 : at + 8] == b"IDAT":
            packed += data[at + 8 : at + 8 + size]
        at += size + 12
    raw, step = zlib.decompress(packed), 3 if kind == 2 else 4
    rows, before, line = [], bytearray(width * step), 1 + width * step
    for y in range(height):
        filter_, row = raw[y * line], bytearray(raw[y * line + 1 : (y + 1) * line])
        for i in range(len(row)):
            left = row[i - step] if i >= step else 0
            up, corner = before[i], before[i - step] if i >= step else 0
            if filter_ == 1:
                row[i] = (row[i] + left) & 255
            elif filter_ == 2:
                row[i] = (row[i] + up) & 255
            elif filter_ == 3:
                row[i] = (row[i] + (left + up) // 2) & 255
            elif filter_ == 4:
                p = left + up - corner
                near = min((abs(p - left), 0, left), (abs(p - up), 1, up), (abs(p - corner), 2, corner))
                row[i] = (row[i] + near[2]) & 255
        rows.append(bytes(b for x in range(width) for b in row[x * step : x * step + 3]))
        before = row
    return rows


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_browser_draws_it(tmp_path: Path, dark: bool) -> None:
    page, shot = tmp_path / "page.html", tmp_path / "page.png"
    page.write_text(PAGE, encoding="utf-8")
    command = [
        chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run",
        f"--user-data-dir={tmp_path / 'profile'}", f"--blink-settings=preferredColorScheme={0 if dark else 1}",
        "--window-size=1000,700", f"--screenshot={shot}", page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert shot.exists(), done.stderr[-2000:]
    rows = pixels(shot)
    assert (len(rows), len(rows[0])) == (700, 3000)
    seen = {row[x : x + 3].hex() for row in rows for x in range(0, len(row), 3)}
    sheet = PAGE.split("@media (prefers-color-scheme: dark)")[dark]
    colours = dict(re.findall(r"--([a-z-]+):\s+#([0-9a-f]{6})", sheet))
    for name in ("bg", "panel", "pass-bg", "wrong-bg", "unverified-bg", "unavailable-bg"):
        assert colours[name] in seen, name
    assert rows[-1][:3].hex() == rows[0][:3].hex() == colours["bg"]
