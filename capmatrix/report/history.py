"""One cell over many runs, for a terminal and for a pull request."""

from __future__ import annotations

from collections.abc import Callable

from ..analysis.history import History, Moment
from ..cell import Record, Verdict
from ..summary import DID_NOT_RUN
from . import text as words
from .compare import BEGUN
from .markdown import SIGN, code, code_in_table


def text(found: History, width: int = 100) -> str:
    """Plain text, ending with a newline; a run in which the verdict is another than before is marked with ``*``."""
    out = [words.one_line(found.cell_id, 1000), *words.fill(headline(found), width), ""]
    turns = {id(moment) for moment in found.turns}
    heads = [(words.one_line(m.date or "no date", 30), words.one_line(m.run, 60)) for m in found.moments]
    dated, named = (max((words.width(head[i]) for head in heads), default=0) for i in (0, 1))
    known: Moment | None = None
    for moment, (date, run) in zip(found.moments, heads, strict=True):
        head = f"{'*' if id(moment) in turns else ' '} {words.pad(date, dated)}  {words.pad(run, named)}  "
        out += words.fill(verdict_words(moment), width, head, " " * words.width(head))
        for line in _details(moment, known):
            out += words.fill(line, width, " " * 6, " " * 10)
        known = moment if moment.record else known
    return "\n".join(out) + "\n"


def markdown(found: History) -> str:
    """For GitHub, ending with a newline."""
    out = [f"## History of {code(found.cell_id, 1000)}", "", headline(found, code), ""]
    out += ["| Date | Run | Outcome | Versions | What changed |", "|---|---|---|---|---|"]
    for moment in found.moments:
        sign = f"{SIGN[moment.record.verdict]} " if moment.record else ""
        columns = (
            code_in_table(moment.date, 30),
            code_in_table(moment.run, 120),
            f"{sign}{code_in_table(verdict_words(moment), 200)}",
            "<br>".join(code_in_table(f"{name} {version}") for name, version in moment.versions),
            "<br>".join(code_in_table(line, 300) for line in _changes(moment)),
        )
        out.append(f"| {' | '.join(column or ' ' for column in columns)} |")
    return "\n".join(out) + "\n"


def headline(found: History, named: Callable[[str], str] = words.one_line) -> str:
    """How many runs have the cell, and in which its verdict changed; ``named`` makes a run's name fit to be shown."""
    out = f"{words.count(len(found.moments), 'run')}, {len(found.ran)} with this cell; "
    if not found.turns:
        return out + ("the verdict never changed." if len(found.ran) > 1 else "nothing to compare with.")
    times = words.count(len(found.turns), "time")
    return f"{out}the verdict changed {times}, last in {named(found.turns[-1].run)}."


def verdict_words(moment: Moment) -> str:
    """Verdict, rung, kernel block and marks; "not run" where there is no record."""
    record = moment.record
    if record is None:
        return BEGUN if moment.begun else words.NOT_RUN
    out = record.verdict.value
    if record.verdict not in DID_NOT_RUN:
        out += f" ({record.rung.value})"
    if isinstance(record, Record) and record.kernel_block is not None and record.kernel_block != record.cell.block_size:
        out += f", kernel block {record.kernel_block}"
    if record.flags:
        out += f", {', '.join(flag.value for flag in record.flags)}"
    return out


def _details(moment: Moment, before: Moment | None) -> list[str]:
    """Why; and what is new in it, or, of the first one, the versions."""
    if moment.record is None:
        return []
    why = words.reason(moment.record)
    out = [why if moment.record.verdict is Verdict.PASS else f"{moment.record.phase.value}: {why}"] if why else []
    if before is None:
        stated = ", ".join(f"{name} {words.one_line(version, 60)}" for name, version in moment.versions)
        return out + ([stated] if stated else [])
    return out + [f"changed: {line}" for line in _changes(moment, verdicts=False)]


def _changes(moment: Moment, verdicts: bool = True) -> list[str]:
    """What is new; without ``verdicts``, where these stand one below the other, only the rest."""
    told = ("regression", "lost", "verdict", "fix") if not verdicts else ()
    out = [words.one_line(change.text, 300) for change in moment.changes if change.kind not in told]
    return out + [words.one_line(f"{name}: {was} -> {now}", 200) for name, was, now in moment.facts]
