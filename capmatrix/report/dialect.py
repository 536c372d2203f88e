"""Where GitHub's Markdown and that of an MkDocs page differ: code spans, parts that fold, and parts side by side.

What a report puts into code spans was written by whoever made the records. In either dialect nothing in such a span
takes effect.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from . import text

#: A titled part of a page: its title, which may hold text of a record, and its lines.
Part = tuple[str, Sequence[str]]

_LOOK_ALIKE = str.maketrans({"|": "\N{BROKEN BAR}", "`": "\N{MODIFIER LETTER GRAVE ACCENT}", "\\": "\N{SET MINUS}"})


@dataclass(frozen=True)
class Dialect:
    """``code`` makes a code span of at most so many characters, ``code_in_table`` one for a table's cell.

    ``fold`` hides lines behind a summary of plain words; ``parts`` draws a report's architectures; ``title`` and
    ``heading`` begin such lines; ``rule`` is a column's part of the line under a table's heading; ``limit`` is the
    length a page may have, in characters (0: any).
    """

    code: Callable[[object, int], str]
    code_in_table: Callable[[object, int], str]
    fold: Callable[[str, Sequence[str]], list[str]]
    parts: Callable[[Sequence[Part]], list[str]]
    title: str
    heading: str
    rule: str
    limit: int = 0


def github_code(value: object, limit: int = 300) -> str:
    """A code span that shows ``value`` as it is, whatever it holds. Not for tables: see ``github_code_in_table``."""
    inner = text.one_line(value, limit)
    if not inner:
        return ""
    longest = max((len(run) for run in re.findall("`+", inner)), default=0)
    fence = "`" * (longest + 1)
    edge = " " if inner[0] in "` " or inner[-1] in "` " else ""
    return f"{fence}{edge}{inner}{edge}{fence}"


def github_code_in_table(value: object, limit: int = 80) -> str:
    """A code span for a table's cell, where a pipe ends the cell even in code: look-alikes stand for what could."""
    inner = text.one_line(value, limit).translate(_LOOK_ALIKE)
    return f"`{inner}`" if inner else ""


def _github_fold(summary: str, lines: Sequence[str]) -> list[str]:
    return [f"<details><summary>{summary}</summary>", "", *lines, "", "</details>"]


def _github_parts(parts: Sequence[Part]) -> list[str]:
    out: list[str] = []
    for title, lines in parts:
        out += ["", f"### {github_code(title, 100)}", "", *lines]
    return out


#: In a code span of Python-Markdown and its usual extensions these have no meaning.
_PLAIN = re.compile(r"""[\w .,;:+=/()\[\]}'"@*#%^~?!-]+""")
#: A span that begins so is highlighted as source code by pymdownx.inlinehilite, and loses these characters.
_HILITE = ("#!", ":::")


def mkdocs_code(value: object, limit: int = 300) -> str:
    """A code span; where a character could have a meaning to Python-Markdown, one of HTML, spelt in entities."""
    inner = text.one_line(value, limit)
    if not inner:
        return ""
    if _PLAIN.fullmatch(inner) and not inner.startswith(_HILITE):
        return f"`{inner}`"
    return f"<code>{_entities(inner)}</code>"


def _entities(value: str) -> str:
    return "".join(c if c.isalnum() or c in " .,;()/-" or not c.isascii() else f"&#{ord(c)};" for c in value)


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" if line else "" for line in lines]


def _mkdocs_fold(summary: str, lines: Sequence[str]) -> list[str]:
    return [f'??? note "{summary}"', "", *_indented(lines)]


def _mkdocs_parts(parts: Sequence[Part]) -> list[str]:
    """Content tabs, one an architecture; a heading where there is one alone."""
    if len(parts) == 1:
        ((title, lines),) = parts
        return ["", f"## {mkdocs_code(title, 100)}", "", *lines]
    out: list[str] = []
    for title, lines in parts:
        out += ["", f'=== "{_entities(text.one_line(title, 100))}"', "", *_indented(lines)]
    return out


GITHUB = Dialect(github_code, github_code_in_table, _github_fold, _github_parts, "## ", "### ", "|---", limit=65_536)
MKDOCS = Dialect(mkdocs_code, mkdocs_code, _mkdocs_fold, _mkdocs_parts, "# ", "## ", "| --- ")
