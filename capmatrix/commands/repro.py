"""``capmatrix repro`` and ``capmatrix issue``: a cell of a run as a standalone script, and as a bug report."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from . import inputs
from .written import put

if TYPE_CHECKING:
    from ..cell import Record
    from ..pair import PairRecord
    from ..store import Run

Add = Callable[[str, Callable[[argparse.Namespace, list[str]], int], str], argparse.ArgumentParser]


def add_to(add: Add) -> None:
    """Adds both commands' parsers; ``add`` is the command line's own."""
    for name, command, text in (
        ("repro", repro, "Print a script that reproduces a cell with vLLM and PyTorch alone."),
        ("issue", issue, "Print a bug report of a cell, for vLLM's tracker."),
    ):
        one = add(name, command, text)
        one.add_argument("cell", metavar="CELL", help='its id, or tokens that only it has: "ROCM_ATTN b128 verify"')
        one.add_argument("run", metavar="RUN", help="the run file that has it")
        one.add_argument("-o", dest="output", metavar="FILE", help="where to write (default: standard output)")


def repro(arguments: argparse.Namespace, extra: list[str]) -> int:
    """``capmatrix repro``: the script; exit 2 for a cell that no script can show."""
    from ..repro.script import script

    run, record = _found(arguments)
    return put(script(record, run.environments.get(record.environment)), arguments.output, sections=False)


def issue(arguments: argparse.Namespace, extra: list[str]) -> int:
    """``capmatrix issue``: the report; exit 2 for a cell that is no bug."""
    from ..analysis.neighbour import nearest
    from ..cell import Record
    from ..repro.issue import issue as write

    run, record = _found(arguments)
    neighbour = nearest(record, run.records, run.environments) if isinstance(record, Record) else None
    text = write(record, run.environments.get(record.environment), run.header, neighbour)
    return put(text, arguments.output, sections=False)


def _found(arguments: argparse.Namespace) -> tuple[Run, Record | PairRecord]:
    """The run, and the record of the cell that is meant."""
    from ..report import lookup

    run = inputs.read(arguments.run)
    records: list[Record | PairRecord] = [*run.records, *run.pairs]
    return run, lookup.find(arguments.cell, records)[0]
