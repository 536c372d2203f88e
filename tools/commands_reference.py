"""Writes docs/commands.md anew from the command line's own parsers: python tools/commands_reference.py

With --check it writes nothing and exits with 1 where the page is not up to date.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "commands.md"

HEAD = """\
# Commands

<!-- Made by tools/commands_reference.py from the parsers; do not edit. -->

What `capmatrix COMMAND --help` says, in one place. `RUN` is a run file ([records.md](records.md)); `FILE` of `run` and
`cells` is a matrix file ([matrix-files.md](matrix-files.md)) or the name of a shipped one. The exit statuses are in
[exit-codes.md](exit-codes.md).
"""

PYTEST = """\
## pytest's options

Matrix files, pair files and tables are pytest files as well: `pytest FILE` collects their cells, pairs or rows. The
plugin adds these options; `capmatrix run` hands its own on.
"""


class Recorder:
    """Stands for pytest's parser and its groups: keeps what a plugin adds."""

    def __init__(self) -> None:
        self.options: list[tuple[tuple[str, ...], dict[str, Any]]] = []

    def getgroup(self, *_: object, **__: object) -> Recorder:
        """Every group is this one."""
        return self

    def addoption(self, *names: str, **how: Any) -> None:
        """Keep one option."""
        self.options.append((names, how))

    def addini(self, *_: object, **__: object) -> None:
        """Settings of an ini file are not listed."""


def commands() -> dict[str, argparse.ArgumentParser]:
    """Every command's parser, in the order of the help."""
    from capmatrix import cli

    (found,) = [a for a in cli._parser()._actions if isinstance(a, argparse._SubParsersAction)]
    return dict(found.choices)


def page() -> str:
    """The whole page."""
    out = [HEAD]
    for name, parser in commands().items():
        places = [a for a in parser._actions if not a.option_strings]
        options = [a for a in parser._actions if a.option_strings and not isinstance(a, argparse._HelpAction)]
        synopsis = " ".join(["capmatrix", name, *(["[OPTIONS]"] if options else []), *(_place(a) for a in places)])
        out += [f"## `capmatrix {name}`\n", f"{_cell(parser.description or '')}\n", f"```text\n{synopsis}\n```\n"]
        rows = [(_place(a), a.help, a) for a in places] + [(_option(a.option_strings, a), a.help, a) for a in options]
        if rows:
            out.append(_table((words, _help(text, action)) for words, text, action in rows))
    return "\n".join([*out, PYTEST, _table(_pytest_rows())])


def _pytest_rows() -> Iterator[tuple[str, str]]:
    from capmatrix.pytest_plugin import guard_items, options

    recorder, parser = Recorder(), argparse.ArgumentParser(add_help=False)
    for room in (options, guard_items):
        room.add_options(recorder)  # type: ignore[arg-type]
    for names, how in recorder.options:
        action = parser.add_argument(*names, **how)
        if action.help != argparse.SUPPRESS:
            yield _option(action.option_strings, action), _help(action.help, action)


def _place(action: argparse.Action) -> str:
    """``FILE``, ``[FILE]``, ``RUN...`` or ``[RUN...]``."""
    word = str(action.metavar or action.dest)
    many = "..." if action.nargs in ("+", "*") else ""
    return f"[{word}{many}]" if action.nargs in ("?", "*") else f"{word}{many}"


def _option(names: list[str] | tuple[str, ...], action: argparse.Action) -> str:
    value = ""
    if action.nargs != 0:
        value = (
            f"{{{','.join(map(str, action.choices))}}}"
            if action.choices and not action.metavar
            else str(action.metavar)
        )
        value = f"[{value}]" if action.nargs == "?" else value
    return ", ".join(f"{name} {value}".strip() for name in names)


def _help(text: str | None, action: argparse.Action) -> str:
    said = (text or "") % {**vars(action), "prog": "capmatrix"}
    return said + (" (required)" if action.option_strings and action.required else "")


def _table(rows: Iterator[tuple[str, str]]) -> str:
    lines = [f"| `{words}` | {_cell(text)} |" for words, text in rows]
    return "\n".join(["| Argument | What it is |", "| --- | --- |", *lines, ""])


def _cell(text: str) -> str:
    for sign in "\\|*_<>[]":
        text = text.replace(sign, f"\\{sign}")
    return text


def main(words: list[str]) -> int:
    """Writes the page, or checks it."""
    text = page()
    if "--check" in words:
        is_current = PAGE.exists() and PAGE.read_text(encoding="utf-8") == text
        print(f"{PAGE}: {'up to date' if is_current else 'stale; run python tools/commands_reference.py'}")
        return 0 if is_current else 1
    PAGE.write_text(text, encoding="utf-8")
    print(PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
