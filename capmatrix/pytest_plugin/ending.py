"""How a run ends: its exit status, its table and its Markdown."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from ..errors import EXIT_INFRASTRUCTURE, EXIT_OK, EXIT_UNEXPECTED, CapmatrixError
from ..store import read
from .facts import Facts
from .timed import TIMED_ALREADY, Timed

#: pytest's exit statuses for a run that was interrupted and for one without any test.
_INTERRUPTED, _NO_TESTS = 2, 5


class Tally(msgspec.Struct):
    """What a session has seen. ``told``: cells judged above the declared rung; ``trouble``: cells without a record.

    ``untimed``: groups of rivals that the harness, not they, kept from being timed; ``timed``: groups with a time;
    ``idle``: the others by why nothing of them was timed. ``flakes``: verdicts of cells whose repetition gave another
    one.
    """

    selected: int = 0
    told: int = 0
    resumed: int = 0
    trouble: int = 0
    untimed: int = 0
    timed: int = 0
    idle: Counter[str] = msgspec.field(default_factory=Counter)
    interrupted: bool = False
    verdicts: Counter[str] = msgspec.field(default_factory=Counter)
    kinds: Counter[str] = msgspec.field(default_factory=Counter)
    notes: list[str] = msgspec.field(default_factory=list)
    flakes: dict[str, list[str]] = msgspec.field(default_factory=dict)

    def add(self, facts: Facts) -> None:
        """Count a cell."""
        self.told += facts["told"]
        self.resumed += facts["resumed"]
        self.verdicts[facts["verdict"]] += 1
        self.kinds[facts["kind"]] += 1
        if len(set(facts["repeats"])) > 1:
            self.flakes[facts["cell"]] = facts["repeats"]

    def add_times(self, facts: Timed) -> None:
        """Count a group of rivals."""
        if facts["times"] or facts["idle"] == TIMED_ALREADY:
            self.timed += 1
        else:
            self.idle[facts["idle"] or "none could be timed"] += 1

    def exit_status(self, pytest_status: int) -> int:
        """The session's exit status: pytest's own, but 3 for trouble and 1 for a run that told nothing."""
        if self.trouble or self.untimed:
            return EXIT_INFRASTRUCTURE
        if self.interrupted:
            return _INTERRUPTED
        if pytest_status == _INTERRUPTED and self.kinds["failed"]:
            return EXIT_UNEXPECTED  # xdist stops on --maxfail by interrupting itself
        if pytest_status not in (EXIT_OK, EXIT_UNEXPECTED, _NO_TESTS):
            return pytest_status
        return EXIT_UNEXPECTED if not self.told else pytest_status

    def summary(self) -> dict[str, Any]:
        """The run file's last line."""
        return {
            "cells": self.selected,
            "verdicts": dict(self.verdicts),
            "outcomes": dict(self.kinds),
            "told": self.told,
            "trouble": self.trouble,
        }


def show(terminal: Any, run_path: Path, tally: Tally) -> None:
    """Print the table and the paths of the run file and of the Markdown written beside it."""
    from ..report import markdown
    from ..report import terminal as text
    from ..report.table import build

    terminal.ensure_newline()
    terminal.section("support table", sep="=")
    try:
        run = read(run_path)
        report = build(run.records, run.environments, run.header, run.started, run.pairs)
        writer = terminal._tw
        writer.write(text.draw(report, width=writer.fullwidth, color=writer.hasmarkup))
        for problem in run.problems:
            terminal.write_line(f"{run_path}: {problem}", yellow=True)
        written = run_path.with_suffix(".md")
        written.write_text(markdown.draw(report), encoding="utf-8")
        terminal.write_line(f"run file: {run_path}")
        terminal.write_line(f"Markdown: {written}")
    except (CapmatrixError, OSError) as error:
        terminal.write_line(f"no table: {error}", red=True)
    if tally.interrupted or tally.trouble or tally.untimed:
        terminal.write_line(f"to do the rest: add --resume --run-file {run_path}", bold=True)
    verdictless(terminal, tally)


def verdictless(terminal: Any, tally: Tally) -> None:
    """Say what is wrong with the run as a whole."""
    for note in tally.notes:
        terminal.write_line(note, red=True)
    for cell, seen in tally.flakes.items():
        terminal.write_line(f"flaky: {cell}: {', '.join(seen)}", red=True)
    if tally.trouble:
        terminal.write_line(f"{tally.trouble} cells have no record: see the failures above", red=True)
    if tally.untimed:
        terminal.write_line(f"{_groups(tally.untimed)} of cells not timed: see the failures above", red=True)
    if tally.idle:
        why = "; ".join(f"{reason} (in {_groups(n)})" for reason, n in tally.idle.most_common(3))
        what = "nothing was timed" if not tally.timed else f"{_groups(sum(tally.idle.values()))} of rivals not timed"
        terminal.write_line(f"{what}: {why}", yellow=True)
    if not tally.told and not tally.interrupted:
        counted = ", ".join(f"{n} {verdict}" for verdict, n in tally.verdicts.most_common()) or "no cell was run"
        terminal.write_line(f"FAILED: no cell got a verdict above the declared rung ({counted})", red=True)


def _groups(count: int) -> str:
    return f"{count} group{'s' * (count != 1)}"
