"""For MkDocs: what a link of a page of docs/ becomes in a site.

A file of the repository outside docs/ is not in the site: with ``extra.repository``, a URL, such a link leads to the
hosted file; without it its words stand there with no link. A link to nothing is left, and fails a strict build.
A link whose words are a page's file name, which is what a reader of the repository looks for, gets the page's title.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

#: ``[words](../path)`` or ``[words](../path#part)``; the words may be code.
_LINK = re.compile(r"\[([^\]\n]+)\]\((\.\./[^)\s#]+)(#[^)\s]*)?\)")

#: ``[guard.md](guard.md)``, with or without a part.
_NAMED = re.compile(r"\[([\w-]+\.md)\]\((\1(?:#[^)\s]*)?)\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """MkDocs calls this with each page's text; returns the text to render."""
    source = Path(page.file.abs_src_path)
    root = Path(config.config_file_path).parent
    repository = (config.extra.get("repository") or "").rstrip("/")

    def instead(found: re.Match[str]) -> str:
        words, path, part = found[1], found[2], found[3] or ""
        target = (source.parent / path).resolve()
        if not target.is_relative_to(root) or not target.exists():
            return found[0]
        if not repository:
            return words
        return f"[{words}]({repository}/blob/HEAD/{target.relative_to(root).as_posix()}{part})"

    def titled(found: re.Match[str]) -> str:
        named = source.parent / found[1]
        title = re.match(r"# (.+)", named.read_text(encoding="utf-8")) if named.is_file() else None
        return f"[{title[1]}]({found[2]})" if title else found[0]

    return _NAMED.sub(titled, _LINK.sub(instead, markdown))
