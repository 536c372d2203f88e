"""The support table as Markdown that can be pasted into a GitHub pull request.

Records are data from elsewhere. Everything that comes from one stands in a code span, where neither
HTML nor emphasis, links, mentions or issue numbers take effect; in a table, where a pipe ends a cell
even in a code span, look-alikes stand for the characters that could.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..cell import RUNGS, Environment, Flag, Record, Verdict
from . import pairs, text
from .cautions import cautions
from .table import Entry, Report, Table, build, footnote_text

#: GitHub refuses a comment of more characters than this.
COMMENT_LIMIT = 65_536

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
_LOOK_ALIKE = str.maketrans({"|": "\N{BROKEN BAR}", "`": "\N{MODIFIER LETTER GRAVE ACCENT}", "\\": "\N{SET MINUS}"})


def code(value: object, limit: int = 300) -> str:
    """A code span that shows ``value`` as it is, whatever it holds. Not for tables: see ``code_in_table``."""
    inner = text.one_line(value, limit)
    if not inner:
        return ""
    longest = max((len(run) for run in re.findall("`+", inner)), default=0)
    fence = "`" * (longest + 1)
    edge = " " if inner[0] in "` " or inner[-1] in "` " else ""
    return f"{fence}{edge}{inner}{edge}{fence}"


def code_in_table(value: object, limit: int = 80) -> str:
    """A code span for a table's cell: pipes, backticks and backslashes replaced by look-alikes."""
    inner = text.one_line(value, limit).translate(_LOOK_ALIKE)
    return f"`{inner}`" if inner else ""


def render(
    records: Iterable[Record],
    environments: Mapping[str, Environment],
    header: Mapping[str, Any] | None = None,
    *,
    unfinished: Sequence[str] = (),
) -> str:
    """The whole report, ending with a newline."""
    return draw(build(records, environments, header, unfinished))


def draw(report: Report) -> str:
    """``report`` as Markdown. Reasons are shortened as far as needed to stay under GitHub's limit of a
    comment; one that is too long all the same says so in its first lines."""
    out = ""
    for limit in (300, 140, 60):
        out = _draw(report, limit)
        if len(out) <= COMMENT_LIMIT:
            return out
    title, _, rest = out.partition("\n")
    note = f"> Longer than a GitHub comment may be ({COMMENT_LIMIT:,} characters): attach it as a file.\n"
    return f"{title}\n\n{note}{rest}"


def _draw(report: Report, limit: int) -> str:
    title = text.header_title(report.header)
    out = [f"## Attention support{': ' + code(title) if title else ''}", ""]
    counts = text.counted(report.records) or ("" if report.pairs else "none")
    out.append(text.jobs(len(report.records), len(report.pairs)) + (f": {counts}." if counts else "."))
    for table in report.tables:
        out += ["", *_table(table, limit)]
    out += pairs.markdown(report.pairs)
    notes = cautions(report)
    if notes:
        out += ["", "### What this does not show", ""]
        out += [f"- {_prose(note)}" for note in notes]
    if report.tables:
        out += ["", *_legend(report)]
    if report.environments:
        out += ["", *_environments(report)]
    return "\n".join(out) + "\n"


def _table(table: Table, limit: int) -> list[str]:
    versions = ", ".join(f"{name} {code(version, 60)}" for name, version in table.versions)
    out = [f"### {code(table.place.title, 100)}", ""]
    about = [versions] if versions else []
    about.append(", ".join(code(t, 60) for t in table.targets))
    out.append("; ".join(about) + ". " + "Shared by all cells: " + code(", ".join(table.shared), 300) + ".")
    heads = [f"block {c.block_size}<br>{code_in_table(c.kv_cache_dtype)}" for c in table.columns]
    for group, rows in table.groups.items():
        out += ["", f"**{code(group.drafter, 80)}, TP {group.tp}**: {code(table.geometry[group])}", ""]
        out.append(f"| Backend | {' | '.join(heads)} |")
        out.append("|---" * (1 + len(heads)) + "|")
        for row in rows:
            variant = f"<br>{code_in_table(', '.join(row.variant), 200)}" if row.variant else ""
            cells = [entry_text(table.entry(group, row, c)) for c in table.columns]
            out.append(f"| {code_in_table(row.backend)}{variant} | {' | '.join(cells)} |")
    if table.footnotes:
        out.append("")
        out += [f"{note.number}. {footnote_text(note, code, limit)}" for note in table.footnotes]
    return out


def entry_text(entry: Entry) -> str:
    """Verdict, rung and marks in words; footnote numbers raised. Holds nothing that a record wrote."""
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
        out += f" <sup>{','.join(map(str, entry.footnotes))}</sup>"
    return out


_PLAIN = re.compile(r"[A-Za-z0-9.,;:()%/'-]+")
#: What GitHub makes a link of without being asked.
_LINKED = re.compile(r"://|www\.|GH-\d", re.IGNORECASE)


def _prose(sentence: str) -> str:
    """A sentence that may hold text of a record: words of plain characters as they are, others in code spans."""
    parts = []
    for word in sentence.split(" "):
        core = word.rstrip(".,;:)")
        plain = _PLAIN.fullmatch(word) and not _LINKED.search(word)
        parts.append(word if not core or plain else code(core) + word[len(core) :])
    return " ".join(parts)


def _legend(report: Report) -> list[str]:
    entries = [e for t in report.tables for e in t.entries.values()]
    notes = [n for t in report.tables for n in t.footnotes]
    out = ["<details><summary>Legend</summary>", ""]
    shown = {e.verdict for e in entries} | {n.verdict for n in notes}
    out += [f"- {SIGN[v]} **{v.value}**: {text.VERDICT_MEANING[v]}" for v in Verdict if v in shown]
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
    return [*out, "", "</details>"]


def _environments(report: Report) -> list[str]:
    out = ["<details><summary>Environments</summary>", "", "| Target | Versions | Hardware | Changed by capmatrix |"]
    out.append("|---|---|---|---|")
    for environment in sorted(report.environments.values(), key=lambda e: (e.target, e.id)):
        versions = [f"{n} {v}" for n, v in environment.versions.items()]
        versions += [f"{n} commit {v[:12]}" for n, v in environment.commits.items()]
        versions += [f"{n}={v}" for n, v in environment.switches.items()]
        hardware = [f"{n} {v}" for n, v in environment.hardware.items() if isinstance(v, (str, int))]
        columns = (
            code_in_table(environment.target),
            "<br>".join(code_in_table(v) for v in versions),
            "<br>".join(code_in_table(h) for h in hardware),
            "<br>".join(code_in_table(e, 120) for e in environment.extensions),
        )
        out.append(f"| {' | '.join(c or ' ' for c in columns)} |")
    return [*out, "", "</details>"]
