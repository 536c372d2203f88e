"""The command that writes plots of runs and published results as SVG files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import EXIT_OK, EXIT_UNEXPECTED, InputError
from . import inputs

if TYPE_CHECKING:
    from ..selection.published import Published

Add = Callable[[str, Callable[[argparse.Namespace, list[str]], int], str], argparse.ArgumentParser]

KINDS = ("published", "time", "roofline", "kernels")


def add_to(add: Add) -> None:
    """Adds the command's parser; ``add`` is the command line's own."""
    one = add("plot", plot, "Draw times, rooflines and what kernels cost as SVG files; exit 1 where there is nothing.")
    one.add_argument("runs", nargs="*", metavar="RUN", help="a run file; several are merged; or a published table")
    one.add_argument("--published", action="append", default=[], metavar="FILE", help="a published table; repeatable")
    one.add_argument("--kind", action="append", choices=KINDS, help="only these; repeatable (default: all)")
    one.add_argument("--workload", default="", metavar="FILE:NAME", help="a profile that no shipped matrix has")
    one.add_argument("-o", dest="output", required=True, metavar="DIR", help="where to write, one file a plot")


def _table(name: str) -> Published:
    """A published table, by its path or a shipped one's name."""
    from ..selection import published
    from ..toml import tomlfile

    doc = tomlfile.load(published.find(name))
    if not published.is_published(doc.data):
        raise InputError("no published table ([[result]]); run files end in .jsonl", file=name)
    return published.from_toml(doc)


def plot(arguments: argparse.Namespace, extra: list[str]) -> int:
    """``capmatrix plot``: every figure that runs and published tables have data for, a file each."""
    from .. import store
    from ..report.plots import figures, standalone
    from ..selection import workloads

    tables = [name for name in arguments.runs if name.endswith(".toml")] + arguments.published
    names = [name for name in arguments.runs if not name.endswith(".toml")]
    if not names and not tables:
        raise InputError("give at least one run or one published table", key="RUN")
    found = {table.name: table for table in map(_table, tables)}
    run = store.merge([inputs.read(name) for name in names])
    _, known = workloads.choose(arguments.workload)
    drawn = figures(run.records, run.environments, list(found.values()), workloads=known)
    wanted = [figure for figure in drawn if figure.kind in (arguments.kind or KINDS)]
    if not wanted:
        what = f"{len(run.records):,} records and {len(found):,} published tables"
        print(f"capmatrix: nothing to draw in {what}: no times and no kernels with figures", file=sys.stderr)
        return EXIT_UNEXPECTED
    folder = Path(arguments.output)
    for figure in wanted:
        path = folder / f"{figure.name}.svg"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_bytes(standalone(figure).encode())
        except OSError as error:
            message = f"cannot write: {error.strerror or error}"
            raise InputError(message, key="-o", value=str(arguments.output)) from None
        print(path)
    return EXIT_OK
