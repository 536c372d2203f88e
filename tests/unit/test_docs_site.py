"""The documentation as a site and as files: it builds with no warning and no network, and its links lead somewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
FILES = [*sorted(ROOT.glob("*.md")), *DOCS]

_LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\(([^)\s]+)\)|!\[[^\]\n]*\]\(([^)\s]+)\)")


def tool(name: str) -> ModuleType:
    import importlib.util

    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def build(root: Path, site: Path, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(root / "mkdocs.yml"), "-d", str(site)]
    # A proxy that is not there: whatever would fetch fails.
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    environment = {**os.environ, **nowhere, "NO_MKDOCS_2_WARNING": "1", **env}
    return subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built") / "site"
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr
    return folder


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The site's sources in a folder of their own."""
    for name in ("docs", "examples", "matrices"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("results", "schema", "golden"))
    (tmp_path / "tools").mkdir()
    for name in ("mkdocs.yml", "tools/site_links.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    for name in re.findall(r"\]\(\.\./([^)#\s]+)", "".join(page.read_text(encoding="utf-8") for page in DOCS)):
        if (ROOT / name).is_file() and not (tmp_path / name).exists():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


@pytest.mark.slow
def test_every_page_is_built_and_in_the_navigation(site: Path) -> None:
    home = (site / "index.html").read_text(encoding="utf-8")
    for page in DOCS:
        built = page.relative_to(ROOT / "docs").with_suffix(".html")
        assert (site / built).is_file(), page
        assert f'href="{built.as_posix()}' in home, page


@pytest.mark.slow
def test_a_page_fetches_nothing(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(DOCS)
    for page in pages:
        text = page.read_text(encoding="utf-8")
        tags = re.findall(r"<(?:link|script|img|iframe|source)\b[^>]*>", text)
        assert tags
        assert [tag for tag in tags if re.search(r'(?:src|href)="(?:https?:)?//', tag)] == [], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(\s*['\"]?(?:https?:)?//", sheet.read_text(encoding="utf-8")), sheet


@pytest.mark.slow
def test_tables_code_and_folds_are_drawn(site: Path) -> None:
    text = (site / "tutorial.html").read_text(encoding="utf-8")
    assert text.count('<div class="highlight">') >= 10
    assert "```" not in text
    assert "<table>" in (site / "exit-codes.html").read_text(encoding="utf-8")
    folded = (site / "support-h200.html").read_text(encoding="utf-8")
    assert len(re.findall(r"<summary>(?:\d+ footnotes|Legend|Environments)</summary>", folded)) == 3


@pytest.mark.slow
def test_a_link_to_nothing_stops_the_build(copied: Path) -> None:
    page, bad = copied / "docs" / "index.md", ["none.md", "tutorial.md#none", "../none.toml", "/tutorial.md"]
    good = page.read_text(encoding="utf-8")
    page.write_text(f"{good}\n{' '.join(f'[x]({link})' for link in bad)}\n", encoding="utf-8")
    done = build(copied, copied / "site")
    warned = [line for line in done.stderr.splitlines() if line.startswith("WARNING")]
    assert done.returncode == 1
    assert [link for link in bad if not any("index.md" in line and f"'{link}'" in line for line in warned)] == []


def test_the_page_of_commands_is_up_to_date() -> None:
    """``python tools/commands_reference.py`` writes it anew."""
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert page == tool("commands_reference").page()


def test_the_page_of_commands_names_every_option() -> None:
    from capmatrix import cli

    room = tool("commands_reference")
    page = room.page()
    assert list(room.commands()) == re.findall(r"^## `capmatrix (\w+)`$", page, re.MULTILINE)
    (found,) = [a for a in cli._parser()._actions if hasattr(a, "choices") and isinstance(a.choices, dict)]
    for name, parser in found.choices.items():
        section = page.partition(f"## `capmatrix {name}`\n")[2].partition("\n## ")[0]
        for option in parser._option_string_actions:
            assert option in ("-h", "--help") or re.search(rf"[` ]{re.escape(option)}[` ,]", section), (name, option)
    assert "--guard-arch ARCH" in page and "SUPPRESS" not in page and "%(" not in page


def test_the_page_of_exit_statuses_names_commands() -> None:
    page = (ROOT / "docs" / "exit-codes.md").read_text(encoding="utf-8").partition("What 1 means")[2]
    known = tool("commands_reference").commands()
    found = [words.split() for words in re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)]
    assert len(found) >= 10
    for name, *options in found:
        assert set(options) <= set(known[name]._option_string_actions), name


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", words).replace(" ", "-")


def without_code(text: str) -> str:
    fenced = re.sub(r"^( *)(```+).*?^ *\2 *$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`(?!\])", "", fenced)


def anchors(file: Path) -> set[str]:
    text = re.sub(r"^( *)(```+).*?^ *\2 *$", "", file.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return {slug(h) for h in re.findall(r"^#+ (.+)$", text, re.MULTILINE)} | set(re.findall(r'<a id="([^"]+)">', text))


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_links_between_files_lead_somewhere(file: Path) -> None:
    for found in _LINK.finditer(without_code(file.read_text(encoding="utf-8"))):
        target = found[1] or found[2]
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (file.parent / path).resolve() if path else file
        assert there.exists() and there.is_relative_to(ROOT), f"{file}: {target}"
        if anchor:
            assert anchor in anchors(there), f"{file}: {target}"


@pytest.mark.parametrize(
    ("repository", "text", "drawn"),
    [
        ("", "see [the `file`](../tox.ini) and [a](b.md)", "see the `file` and [a](b.md)"),
        ("https://example.com/x/", "[m](../matrices/smoke.toml#a)", "[m](https://example.com/x/blob/HEAD/matrices/smoke.toml#a)"),
        ("https://example.com/x", "[gone](../gone.toml)", "[gone](../gone.toml)"),
        ("", "[bisect.md](bisect.md), [none.md](none.md)", "[Which switch is it?](bisect.md), [none.md](none.md)"),
        ("", "[bisect.md](bisect.md#a)", "[Which switch is it?](bisect.md#a)"),
        ("", "[out](../../../../../etc/passwd)", "[out](../../../../../etc/passwd)"),
    ],
)  # fmt: skip
def test_links_out_of_the_site(repository: str, text: str, drawn: str) -> None:
    page = SimpleNamespace(file=SimpleNamespace(abs_src_path=str(ROOT / "docs" / "index.md")))
    config = SimpleNamespace(config_file_path=str(ROOT / "mkdocs.yml"), extra={"repository": repository or None})
    assert tool("site_links").on_page_markdown(text, page=page, config=config, files=None) == drawn
