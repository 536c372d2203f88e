"""Commands that put runs beside each other: ``compare`` and ``history``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..errors import InputError
from . import inputs
from .selection import add_margin
from .written import put

if TYPE_CHECKING:
    from ..analysis.compare import Comparison, Entry
    from ..analysis.sources import Source
    from ..cell import Record
    from ..pair import PairRecord

Add = Callable[[str, Callable[[argparse.Namespace, list[str]], int], str], argparse.ArgumentParser]

_FORMS = ("two run files", "RUN... --left KEY=VALUE --right KEY=VALUE")


def add_to(add: Add) -> None:
    """Adds the commands' parsers; ``add`` is the command line's own."""
    one = add("compare", compare, "Put two runs, versions, architectures or axis values side by side.")
    one.add_argument("runs", nargs="+", metavar="RUN", help="two run files; or any number, with --left and --right")
    side = "what stands on the %s, such as arch=gfx942, aiter=0.1.21 or backend=TRITON_ATTN; repeatable"
    one.add_argument("--left", action="append", default=[], metavar="KEY=VALUE", help=side % "left")
    one.add_argument("--right", action="append", default=[], metavar="KEY=VALUE", help=side % "right")
    one.add_argument("--where", action="append", default=[], metavar="KEY=VALUE", help="holds for both; repeatable")
    one.add_argument("--cell", metavar="CELL", help="all that both sides say of one cell: its id, or tokens of it")
    one.add_argument("--all", dest="everything", action="store_true", help="also the cells that are the same, uncut")
    _add_output(one, ("text", "md"))

    one = add("history", history, "Follow one cell, or one pair, over many runs, oldest first.")
    one.add_argument("cell", metavar="CELL", help='its id, or tokens that only it has: "ROCM_ATTN b128 verify"')
    one.add_argument("runs", nargs="+", metavar="RUN", help="a run file; they are put in order of their dates")
    _add_output(one, ("text", "md", "json"))


def compare(arguments: argparse.Namespace, extra: list[str]) -> int:
    """``capmatrix compare``: two selections of records beside each other."""
    from ..analysis import compare as room
    from ..analysis import selectors
    from ..report import compare as report
    from ..report import terminal

    left, right = (selectors.parse(getattr(arguments, side), f"--{side}") for side in ("left", "right"))
    where = selectors.parse(arguments.where, "--where")
    if bool(left) != bool(right):
        missing = "--right" if left else "--left"
        raise InputError("one side is chosen and the other not", key=missing, allowed=_FORMS)
    sources = _sources(arguments.runs)
    if not left:
        if len(sources) != 2:
            raise InputError("which ones are compared?", key="RUN", value=len(sources), allowed=_FORMS)
        for path, source in zip(arguments.runs, sources, strict=True):
            if not source.run.records:
                raise InputError("the run holds no record of a cell", file=path)
        left, right = ({"run": source.name} for source in sources)
    found = room.compare(sources, left, right, where=where, margin_percent=arguments.margin)
    width = terminal.use_width(sys.stdout)
    as_md = arguments.format == "md"
    if arguments.cell is not None:
        text = _one(found, _named(arguments.cell, found), as_md, width)
    elif as_md:
        text = report.markdown(found, everything=arguments.everything)
    else:
        text = report.text(found, everything=arguments.everything, width=width)
    return put(text, arguments.output, sections=False)


def history(arguments: argparse.Namespace, extra: list[str]) -> int:
    """``capmatrix history``: one cell over many runs."""
    from ..analysis import history as room
    from ..codec import printed
    from ..report import history as report
    from ..report import terminal
    from ..report.lookup import find

    sources = _sources(arguments.runs, pairs=True)
    known: list[Record | PairRecord] = []
    for source in sources:
        known += [*source.run.records, *source.run.pairs]
    meant = find(arguments.cell, known)
    found = room.of(meant[0].cell_id, sources, arguments.margin)
    if arguments.format == "json":
        text = printed(found) + "\n"
    elif arguments.format == "md":
        text = report.markdown(found)
    else:
        text = report.text(found, width=terminal.use_width(sys.stdout))
    return put(text, arguments.output, sections=False)


def _one(found: Comparison, entry: Entry, as_md: bool, width: int) -> str:
    from ..report import compare as report
    from ..report import compare_cell

    names = (report.chosen(found.left), report.chosen(found.right))
    return compare_cell.markdown(entry, *names) if as_md else compare_cell.text(entry, *names, width=width)


def _named(query: str, found: Comparison) -> Entry:
    """The entry whose own name, or whose cell's id on either side, is meant. InputError where none or several are."""
    import msgspec

    from ..report.lookup import find

    by_name = {entry.name: entry for entry in found.entries}
    records = {}
    for name, entry in by_name.items():
        for item in (entry.left, entry.right):
            if item is not None:
                if item.record.cell_id == query.strip():
                    return entry
                records[name] = msgspec.structs.replace(item.record, cell_id=name)
    return by_name[find(query, records.values())[0].cell_id]


def _sources(paths: Sequence[str], pairs: bool = False) -> tuple[Source, ...]:
    from ..analysis.sources import gather

    found = [(path, inputs.read(path)) for path in paths]
    for path, run in found:
        if run.pairs and not pairs:
            print(f"capmatrix: {path}: its pairs ({len(run.pairs)}) are left out: cells are compared", file=sys.stderr)
    return gather(found)


def _add_output(parser: argparse.ArgumentParser, formats: Sequence[str]) -> None:
    add_margin(parser, "a difference in time that is none")
    parser.add_argument("--format", choices=formats, default="text", help="default: text")
    parser.add_argument(
        "-o", dest="output", default="-", metavar="FILE", help="where to write (default: standard output)"
    )
