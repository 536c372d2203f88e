"""The support table as Markdown: for a GitHub pull request or a committed file, and for a page of an MkDocs site.

Records are data from elsewhere. Everything that comes from one stands in a code span, where neither
HTML nor emphasis, links, mentions or issue numbers take effect.

Two runs of the same cells with the same outcome give the same text, whatever the order of their records, the day and
the machine: a committed table changes only where something is seen to have changed. Times, where a run has them, are
what was measured, and differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..cell import RUNGS, Environment, Flag, Record, Verdict
from . import pairs, text, times
from .cautions import cautions
from .dialect import GITHUB, Dialect, github_code, github_code_in_table
from .steady import steady
from .table import Entry, Report, Table, build, footnote_text

#: GitHub refuses a comment of more characters than this.
COMMENT_LIMIT = GITHUB.limit

code = github_code
code_in_table = github_code_in_table

#: A word before each verdict, so that a reader finds failures without reading; never a colour alone.
SIGN = {
    Verdict.PASS: "✅",
    Verdict.WRONG: "❌",
    Verdict.CRASH: "❌",
    Verdict.ERROR: "❌",
    Verdict.TIMEOUT: "❌",
    Verdict.REJECTED: "🚫",
    Verdict.UNAVAILABLE: "⬜",
    Verdict.UNVERIFIED: "❔",
}
#: Facts of a GPU that can bear on an outcome. The rest (clocks, memory, the CPU) is the machine's; the run has it.
_GPU_FACTS = ("vendor", "arch", "name")


def render(
    records: Iterable[Record],
    environments: Mapping[str, Environment],
    header: Mapping[str, Any] | None = None,
    *,
    unfinished: Sequence[str] = (),
) -> str:
    """The whole report, ending with a newline."""
    return draw(build(records, environments, header, unfinished))


def draw(report: Report, dialect: Dialect = GITHUB, *, titled: bool = True) -> str:
    """``report`` as Markdown, ending with a newline; without ``titled`` as a section of a larger page.

    Where a page may only have so many characters, reasons are shortened as far as needed; one that is too long all the
    same says so in its first lines.
    """
    out = _draw(report, dialect, 300, titled)
    if not dialect.limit or len(out) <= dialect.limit:
        return out
    for limit in (140, 60):
        out = _draw(report, dialect, limit, titled)
        if len(out) <= dialect.limit:
            return out
    note = f"> Longer than a GitHub comment may be ({dialect.limit:,} characters): attach it as a file.\n"
    if not titled:
        return f"{note}\n{out}"
    title, _, rest = out.partition("\n")
    return f"{title}\n\n{note}{rest}"


def _draw(report: Report, dialect: Dialect, limit: int, titled: bool) -> str:
    out = []
    if titled:
        title = steady(text.header_title(report.header, dated=False))
        out += [f"{dialect.title}Attention support{': ' + dialect.code(title, 300) if title else ''}", ""]
    counts = text.counted(report.records) or ("" if report.pairs else "none")
    out.append(text.jobs(len(report.records), len(report.pairs)) + (f": {counts}." if counts else "."))
    out += dialect.parts([(table.place.title, _table(table, dialect, limit)) for table in report.tables])
    out += pairs.markdown(report.pairs, dialect, report.environments, report.expected_pairs)
    notes = cautions(report)
    if notes:
        out += ["", f"{dialect.heading}What this does not show", ""]
        out += [f"- {_prose(note, dialect)}" for note in notes]
    if report.tables:
        out += ["", *dialect.fold("Legend", _legend(report))]
    if report.environments:
        out += ["", *dialect.fold("Environments", _environments(report, dialect))]
    return "\n".join(out) + "\n"


def _table(table: Table, dialect: Dialect, limit: int) -> list[str]:
    code, in_table = dialect.code, dialect.code_in_table
    versions = ", ".join(f"{name} {code(version, 60)}" for name, version in table.versions)
    about = [versions] if versions else []
    about.append(", ".join(code(t, 60) for t in table.targets))
    out = ["; ".join(about) + ". " + "Shared by all cells: " + code(", ".join(table.shared), 300) + "."]
    heads = [f"block {c.block_size}<br>{in_table(c.kv_cache_dtype, 80)}" for c in table.columns]
    # Numbers begin anew in every table, so that a footnote more in one leaves the others as they are.
    before = table.footnotes[0].number - 1 if table.footnotes else 0
    for group, rows in table.groups.items():
        out += ["", f"**{code(group.drafter, 80)}, TP {group.tp}**: {code(table.geometry[group], 300)}", ""]
        out.append(f"| Backend | {' | '.join(heads)} |")
        out.append(dialect.rule * (1 + len(heads)) + "|")
        for row in rows:
            variant = f"<br>{in_table(', '.join(row.variant), 200)}" if row.variant else ""
            cells = [entry_text(table.entry(group, row, c), before) for c in table.columns]
            out.append(f"| {in_table(row.backend, 80)}{variant} | {' | '.join(cells)} |")
    if table.footnotes:
        notes = [f"{n.number - before}. {footnote_text(n, code, limit)}" for n in table.footnotes]
        out += ["", *dialect.fold(text.count(len(notes), "footnote"), notes)]
    return out + times.markdown(table.records, dialect, amd=bool(table.place.architecture))


def entry_text(entry: Entry, before: int = 0) -> str:
    """Verdict, rung and marks in words; footnote numbers raised, counted from the one after ``before``.

    Holds nothing that a record wrote.
    """
    if entry.summary is None:
        return text.NOT_RUN
    found = entry.summary
    out = f"{SIGN[found.verdict]} {found.verdict.value}"
    if entry.ran:
        out += f" ({found.rung.value})"
        if entry.partial:
            out += f" {entry.ran}/{entry.expected}"
    words = [text.MARKS[flag][1] for flag in entry.marks]
    if entry.ran and entry.kernel_block is not None:
        words.append(f"kernel block {entry.kernel_block}")
    if words:
        out += f"<br>{', '.join(words)}"
    if entry.footnotes:
        out += f" <sup>{','.join(str(number - before) for number in entry.footnotes)}</sup>"
    return out


_PLAIN = re.compile(r"[A-Za-z0-9.,;:()%/'-]+")
#: What GitHub makes a link or a picture of without being asked.
_LINKED = re.compile(r"://|www\.|GH-\d|:[\w+-]+:", re.IGNORECASE)


def _prose(sentence: str, dialect: Dialect) -> str:
    """A sentence that may hold text of a record: words of plain characters as they are, others in code spans."""
    parts = []
    for word in sentence.split(" "):
        core = word.rstrip(".,;:)")
        plain = _PLAIN.fullmatch(word) and not _LINKED.search(word)
        parts.append(word if not core or plain else dialect.code(core, 300) + word[len(core) :])
    return " ".join(parts)


def _legend(report: Report) -> list[str]:
    entries = [e for t in report.tables for e in t.entries.values()]
    notes = [n for t in report.tables for n in t.footnotes]
    shown = {e.verdict for e in entries} | {n.verdict for n in notes}
    out = [f"- {SIGN[v]} **{v.value}**: {text.VERDICT_MEANING[v]}" for v in Verdict if v in shown]
    out.append(f"- **{text.NOT_RUN}**: {text.NOT_RUN_MEANING}")
    rungs = {e.summary.rung for e in entries if e.summary and e.ran} | {
        n.rung for n in notes if n.verdict not in (Verdict.REJECTED, Verdict.UNAVAILABLE)
    }
    out += [f"- pass (**{r.value}**): {text.RUNG_MEANING[r]}" for r in RUNGS if r in rungs]
    marks = {flag for e in entries for flag in e.marks}
    out += [f"- **{text.MARKS[f][1]}**: {text.MARKS[f][2]}" for f in Flag if f in marks]
    if any(e.kernel_block is not None for e in entries):
        out.append("- **kernel block n**: the kernels get blocks of n tokens, not the manager's block")
    if any(e.partial for e in entries):
        out.append("- **n/m**: n of the m batches of that drafter ran; the rest is footnoted or has no record")
    return out


def _environments(report: Report, dialect: Dialect) -> list[str]:
    out = ["| Target | Versions | GPU | Changed by capmatrix |", dialect.rule * 4 + "|"]
    rows = []
    for environment in sorted(report.environments.values(), key=lambda e: (e.target, e.id)):
        versions = [f"{n} {v}" for n, v in environment.versions.items()]
        versions += [f"{n} commit {v[:12]}" for n, v in environment.commits.items()]
        versions += [f"{n}={v}" for n, v in environment.switches.items()]
        has_gpu = "vendor" in environment.hardware or "arch" in environment.hardware
        facts = {n: environment.hardware.get(n) for n in _GPU_FACTS} if has_gpu else {}
        columns = (
            [environment.target],
            versions,
            [f"{n} {v}" for n, v in facts.items() if isinstance(v, (str, int))],
            [steady(extension) for extension in environment.extensions],
        )
        cells = ["<br>".join(dialect.code_in_table(value, 120) for value in column) for column in columns]
        rows.append(f"| {' | '.join(cell or ' ' for cell in cells)} |")
    # A run that was resumed, or merged with another, has several environments that say the same here.
    return out + sorted(set(rows), key=rows.index)
