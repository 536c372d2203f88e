"""What a run does not show, said plainly: sentences for the end of every report."""

from __future__ import annotations

from collections import Counter

from .. import summary
from ..cell import Flag, Record, Rung, Verdict
from . import text
from .steady import steady
from .table import Report


def cautions(report: Report) -> list[str]:
    """One sentence each, the weightiest first; empty only for a run that has nothing to hold back."""
    out: list[str] = []
    records = report.records
    ran = [r for r in records if r.verdict in summary.RAN]
    told = [r for r in ran if r.verdict is not Verdict.UNVERIFIED]
    if not records and report.pairs:
        said = "Pairs show what vLLM decides and whether its kernels are right there: no speed, no server."
        return [said, *_strangers(report)]
    if not records:
        return ["No cell has a record: this run shows nothing."]
    if not any(r.rung is not Rung.DECLARED for r in told):
        out.append("No cell got a verdict above the declared rung: this run shows nothing about what works.")
    elif not any(summary.strength(r.rung) >= summary.strength(Rung.EXECUTED) for r in told):
        out.append("Nothing ran on a GPU: no speed, no graph replay and no memory fault is seen here.")

    compiled = [r for r in ran if r.verdict is Verdict.PASS and r.rung is Rung.COMPILED]
    if compiled:
        out.append(
            f"{text.count(len(compiled), 'pass', 'passes')} on the compiled rung: dispatch and compilation worked; "
            "no numbers were checked there."
        )
    unverified = [r for r in ran if r.verdict is Verdict.UNVERIFIED]
    if unverified:
        why = Counter(steady(text.reason(r, 160)) or "no reason recorded" for r in unverified)
        commonest = sorted(why.items(), key=lambda item: (-item[1], item[0]))
        shown = "; ".join(f"{reason} ({n})" if n > 1 else reason for reason, n in commonest[:3])
        more = f"; and {text.count(len(why) - 3, 'more reason')}" if len(why) > 3 else ""
        out.append(f"{text.count(len(unverified), 'cell')} unverified: {shown}{more}.")
    out += _conditions(report, ran, told)
    out += _gaps(report)
    return out


def _conditions(report: Report, ran: list[Record], told: list[Record]) -> list[str]:
    out = []
    entries = [e for t in report.tables for e in t.entries.values()]
    conflicts = sum(e.summary is not None and Flag.CONFLICT in e.summary.flags for e in entries)
    if conflicts:
        marked = text.count(conflicts, "entry", "entries")
        out.append(f"{marked} marked conflict: two targets disagree; see the footnotes.")
    out += _strangers(report)
    scaled = {r.cell.target for r in told if r.cell.geometry.scaled}
    short = {r.cell.target for r in told if r.cell.lengths == "short"}
    if scaled or short:
        both = scaled | short
        what = " and ".join(w for w, s in (("fewer heads", scaled), ("short sequences", short)) if s)
        out.append(f"Run with {what} on {', '.join(text.one_line(t, 60) for t in sorted(both))}.")
    stand_ins = sorted({k.name for r in ran for k in r.route if k.kind == "stand_in"})
    if stand_ins:
        cells = sum(any(k.kind == "stand_in" for k in r.route) for r in ran)
        shown = ", ".join(text.one_line(n, 60) for n in stand_ins[:4]) + (", ..." if len(stand_ins) > 4 else "")
        out.append(f"{text.count(cells, 'cell')} used a PyTorch stand-in for a native operator: {shown}.")
    if told and all(r.cell.execution == "eager" for r in told):
        out.append("Every cell ran eagerly: graph capture and compiled mode were not tried.")
    return out + _graphs(told)


def _graphs(told: list[Record]) -> list[str]:
    """What cells of servers with graphs do not show of them."""
    out = _eager(told)
    executed = summary.strength(Rung.EXECUTED)
    held: list[Record] = []
    rest: list[Record] = []
    for record in told:
        if record.cell.execution != "eager":
            (held if any(c.part == "graph" for c in record.checks) else rest).append(record)
    uncaptured = sum(summary.strength(r.rung) < executed for r in held)
    if uncaptured:
        out.append(
            f"{text.count(uncaptured, 'cell')} with full graphs ran without one: the call that a graph would hold was "
            "made or compiled, not captured."
        )
    between = sum(summary.batch_mode(r) != "NONE" for r in rest)
    if between:
        out.append(
            f"{text.count(between, 'cell')} set to graphs tried none: attention was called as between piecewise "
            "graphs; those of the model's other parts were not made."
        )
    return out


def _eager(told: list[Record]) -> list[str]:
    """Cells of servers with graphs whose batches vLLM runs in none: a pass of theirs is that of an eager call."""
    out = []
    for execution in sorted({r.cell.execution for r in told} - {"eager"}):
        cells = [r for r in told if r.cell.execution == execution]
        eager = sum(summary.batch_mode(r) == "NONE" for r in cells)
        if eager:
            out.append(
                f"{eager:,} of {text.count(len(cells), 'cell')} with execution {text.one_line(execution, 40)} ran "
                "eagerly: vLLM has no graph of any kind for those batches (docs/execution.md)."
            )
    return out


def _strangers(report: Report) -> list[str]:
    """A sentence for each place of cells or pairs that is no AMD GPU's."""
    homes = [(table.place, table.versions) for table in report.tables]
    for record in report.pairs:
        environment = report.environments.get(record.environment)
        homes.append((summary.place_of(record.pair.target, environment), summary.versions(environment)))
    titles = dict.fromkeys(place.title for place, versions in homes if versions and not place.architecture)
    return [
        f"{text.one_line(title)}: not an AMD GPU; real execution of portable code, "
        "which says nothing of an AMD architecture by itself."
        for title in titles
    ]


def _gaps(report: Report) -> list[str]:
    out = []
    for absent in report.absent:
        out.append(
            f"{text.one_line(absent.target, 60)}: {text.count(absent.cells, 'cell')} unavailable here: "
            f"{absent.reason.rstrip('.')}."
        )
    if report.unfinished:
        out.append(
            f"{text.count(len(report.unfinished), 'cell')} begun without leaving a record (the run was stopped); "
            "--resume runs them again."
        )
    planned = report.header.get("cells")
    if isinstance(planned, int) and planned > len(report.records):
        out.append(f"{planned - len(report.records):,} of {planned:,} planned cells have no record.")
    partial = sum(e.partial for t in report.tables for e in t.entries.values())
    if partial:
        out.append(
            f"{text.count(partial, 'entry', 'entries')} where some batches did not run "
            "(shown as batches that ran / batches of that drafter)."
        )
    return out
