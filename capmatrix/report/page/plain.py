"""The tables without a script: what a page shows where JavaScript is off. Small: no evidence, words only."""

from __future__ import annotations

from html import escape

from .. import pairs, text
from ..table import Entry, Report, Table


def draw(report: Report) -> str:
    """HTML of every table of ``report``; every text is escaped."""
    out = [f"<p>{_text(text.counted(report.records), 400)}</p>" if report.records else ""]
    out += [_table(table) for table in report.tables]
    out += [
        f"<p>{_text(a.target)}: {text.count(a.cells, 'cell')} unavailable: {_text(a.reason)}</p>" for a in report.absent
    ]
    out.append(pairs.html(report.pairs, report.environments, report.expected_pairs))
    return "\n".join(part for part in out if part)


def _text(value: object, limit: int = 300) -> str:
    return escape(text.one_line(value, limit))


def _table(table: Table) -> str:
    versions = ", ".join(f"{_text(n)} {_text(v, 60)}" for n, v in table.versions)
    out = [
        f"<h2>{_text(table.place.title)}</h2><p>{versions}; {_text(', '.join(table.shared))}</p>",
        '<table class="plain"><thead><tr><th>Backend</th>',
        *(f"<th>block {c.block_size}, {_text(c.kv_cache_dtype, 60)}</th>" for c in table.columns),
        "</tr></thead><tbody>",
    ]
    for group, rows in table.groups.items():
        span = 1 + len(table.columns)
        out.append(f'<tr class="group"><th colspan="{span}">{_text(group.drafter, 80)}, TP {group.tp}</th></tr>')
        for row in rows:
            name = ", ".join((row.backend, *row.variant))
            cells = "".join(f"<td>{_entry(table.entry(group, row, c))}</td>" for c in table.columns)
            out.append(f"<tr><th>{_text(name)}</th>{cells}</tr>")
    out.append("</tbody></table>")
    return "".join(out)


def _entry(entry: Entry) -> str:
    if entry.summary is None:
        return text.NOT_RUN
    words = [entry.summary.verdict.value]
    if entry.ran:
        words.append(f"({entry.summary.rung.value})")
    if entry.partial:
        words.append(f"{entry.ran}/{entry.expected}")
    words += [text.MARKS[flag][1] for flag in entry.marks]
    return " ".join(words)
