"""The support table as one self-contained page: no script, nothing loaded from elsewhere.

Everything that comes from a record is escaped; a content security policy forbids scripts, frames and
requests besides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from .. import summary
from ..cell import RUNGS, Environment, Flag, Record, Rung, Verdict
from . import pairs, text
from .cautions import cautions
from .html_chart import chart_keys, verdict_chart
from .html_style import STYLE
from .table import Entry, Footnote, Group, Report, Row, Table, build

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_MAX_KERNELS = 12


def render(
    records: Iterable[Record],
    environments: Mapping[str, Environment],
    header: Mapping[str, Any] | None = None,
    *,
    unfinished: Sequence[str] = (),
) -> str:
    """The whole page."""
    return draw(build(records, environments, header, unfinished))


def draw(report: Report) -> str:
    """``report`` as one HTML document."""
    title = text.header_title(report.header)
    out = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{_text(f'Attention support: {title}' if title else 'Attention support')}</title>",
        f"<style>{STYLE}</style></head><body>",
        '<header class="page"><h1>Attention support</h1>',
        f'<p class="soft">{_text(title)}</p>' if title else "",
        _chips(report.records),
        _navigation(report),
        "</header><main>",
        _overview(report),
    ]
    out += [_table(i, table) for i, table in enumerate(report.tables)]
    out += [pairs.html(report.pairs), _legend(report), _environments(report), _footer(report), "</main></body></html>"]
    return "\n".join(part for part in out if part) + "\n"


def _text(value: object, limit: int = 300) -> str:
    return escape(text.one_line(value, limit))


def _chips(records: Sequence[Record]) -> str:
    counts = Counter((r.verdict, r.rung if r.verdict is Verdict.PASS else None) for r in records)
    out = [f'<li class="chip">{text.count(len(records), "cell")}</li>']
    for verdict in Verdict:
        for rung in (*reversed(RUNGS), None):
            number = counts[verdict, rung]
            if number:
                small = f" <small>{rung.value}</small>" if rung else ""
                out.append(f'<li class="chip {_class(verdict, rung)}">{number:,} {verdict.value}{small}</li>')
    return f'<ul class="chips">{"".join(out)}</ul>'


def _class(verdict: Verdict, rung: Rung | None) -> str:
    """A pass whose numbers were not checked is outlined, not filled."""
    weak = verdict is Verdict.PASS and rung in (Rung.DECLARED, Rung.COMPILED)
    return verdict.value + (" weak" if weak else "")


def _navigation(report: Report) -> str:
    links = [f'<a href="#t{i}">{_text(t.place.title)}</a>' for i, t in enumerate(report.tables)]
    links += ['<a href="#legend">Legend</a>', '<a href="#environments">Environments</a>']
    return f"<nav>{''.join(links)}</nav>"


def _overview(report: Report) -> str:
    notes = "".join(f"<li>{escape(note)}</li>" for note in cautions(report))
    keys = "".join(
        f'<li class="chip {v.value}{weak * " weak"}">{escape(words)}</li>'
        for v, weak, words in chart_keys(report.records)
    )
    chart = verdict_chart(report.records)
    left = f'<div class="panel"><h3>Cells by backend</h3>{chart}<ul class="chips">{keys}</ul></div>' if chart else ""
    right = f'<div class="panel"><h3>What this does not show</h3><ul>{notes}</ul></div>' if notes else ""
    return f'<div class="two">{left}{right}</div>'


def _table(index: int, table: Table) -> str:
    versions = ", ".join(f"{_text(n)} {_text(v, 60)}" for n, v in table.versions)
    targets = ", ".join(f"<code>{_text(t, 60)}</code>" for t in table.targets)
    out = [
        f'<section id="t{index}"><h2>{_text(table.place.title)}</h2>',
        f'<p class="soft">{versions}{bool(versions) * "; "}{targets}<br>{_text(", ".join(table.shared))}</p>',
        '<div class="wrap"><table class="matrix"><thead><tr><th scope="col">Backend</th>',
    ]
    for column in table.columns:
        kv = _text(column.kv_cache_dtype, 60)
        out.append(f'<th scope="col">block {column.block_size}, <code>{kv}</code></th>')
    out.append("</tr></thead><tbody>")
    for group, rows in table.groups.items():
        name = f"{_text(group.drafter, 80)}, TP {group.tp}"
        geometry = f' <span class="soft">{_text(table.geometry[group])}</span>' if table.geometry[group] else ""
        span = 1 + len(table.columns)
        out.append(f'<tr class="group"><th colspan="{span}" scope="colgroup">{name}{geometry}</th></tr>')
        out += [_row(table, group, row) for row in rows]
    out.append("</tbody></table></div>")
    if table.footnotes:
        start = table.footnotes[0].number
        notes = "".join(f'<li id="n{n.number}">{_footnote(n)}</li>' for n in table.footnotes)
        out.append(f'<ol class="notes" start="{start}">{notes}</ol>')
    out.append("</section>")
    return "".join(out)


def _row(table: Table, group: Group, row: Row) -> str:
    variant = f'<br><span class="soft">{_text(", ".join(row.variant))}</span>' if row.variant else ""
    cells = "".join(f"<td>{_entry(table.entry(group, row, c))}</td>" for c in table.columns)
    return f'<tr><th scope="row"><code>{_text(row.backend, 60)}</code>{variant}</th>{cells}</tr>'


def _entry(entry: Entry) -> str:
    if entry.summary is None:
        return f'<span class="notrun">{text.NOT_RUN}</span>'
    found = entry.summary
    parts = [_verdict(found.verdict, found.rung)]
    if entry.partial:
        parts.append(f'<span class="rung">{entry.ran}/{entry.expected} batches</span>')
    if entry.footnotes:
        links = " ".join(f'<a href="#n{n}">{n}</a>' for n in entry.footnotes)
        parts.append(f"<sup>{links}</sup>")
    words = [text.MARKS[flag][1] for flag in entry.marks]
    if entry.ran and entry.kernel_block is not None:
        words.append(f"kernel block {entry.kernel_block}")
    if words:
        marks = "".join(f'<span class="mark">{escape(word)}</span>' for word in words)
        parts.append(f'<span class="marks">{marks}</span>')
    details = "".join(_batch(r, other=r is not f.record) for f in found.findings for r in (f.record, *f.others))
    missing = f'<div class="notrun">no record: {_text(", ".join(entry.missing))}</div>' if entry.missing else ""
    return f'<details><summary>{"".join(parts)}</summary><div class="batches">{details}{missing}</div></details>'


def _verdict(verdict: Verdict, rung: Rung) -> str:
    out = f'<span class="v {_class(verdict, rung)}">{verdict.value}</span>'
    if verdict not in summary.DID_NOT_RUN:
        out += f'<span class="rung">{rung.value}</span>'
    return out


def _batch(record: Record, other: bool) -> str:
    rows: list[tuple[str, str]] = [("target", f"<code>{_text(record.cell.target, 60)}</code>")]
    if record.verdict not in (Verdict.PASS, Verdict.UNAVAILABLE):
        rows.append(("ended at", record.phase.value))
    rows += [("reason", _text(reason)) for reason in record.reasons[:4]]
    if record.failure is not None and record.failure.frame:
        rows.append(("frame", f"<code>{_text(record.failure.frame)}</code>"))
    if record.flags:
        rows.append(("flags", ", ".join(f.value for f in record.flags)))
    if record.route:
        kernels = record.route[:_MAX_KERNELS]
        names = [f'{_text(k.name, 100)} <span class="soft">{_text(k.kind, 30)}</span>' for k in kernels]
        if len(record.route) > _MAX_KERNELS:
            names.append(f"and {len(record.route) - _MAX_KERNELS} more")
        rows.append(("route", "<br>".join(names)))
    rows.append(("cell", f"<code>{_text(record.cell_id, 400)}</code>"))
    items = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in rows)
    note = ' <span class="soft">does not decide</span>' if other else ""
    head = f"<b>{_text(record.cell.batch, 60)}</b> {_verdict(record.verdict, record.rung)}{note}"
    return f"<div>{head}<dl>{items}</dl></div>"


def _footnote(note: Footnote) -> str:
    if note.claim:
        return f"declared: {_text(note.reason)}"
    word = _verdict(note.verdict, note.rung)
    out = f"conflict: <code>{_text(note.conflict)}</code> says {word}" if note.conflict else word
    if note.phase:
        out += f" at {escape(note.phase)}"
    out += f" in {_text(', '.join(note.batches))}"
    return f"{out}: {_text(note.reason)}" if note.reason else out


def _legend(report: Report) -> str:
    records = report.records
    verdicts = {r.verdict for r in records}
    rungs = {r.rung for r in records if r.verdict in summary.RAN}
    marks = {flag for t in report.tables for e in t.entries.values() for flag in e.marks}
    items = [(f'<span class="v {v.value}">{v.value}</span>', text.VERDICT_MEANING[v]) for v in Verdict if v in verdicts]
    items.append((f'<span class="notrun">{text.NOT_RUN}</span>', text.NOT_RUN_MEANING))
    items += [(_verdict(Verdict.PASS, r), text.RUNG_MEANING[r]) for r in RUNGS if r in rungs]
    items += [(f'<span class="mark">{text.MARKS[f][1]}</span>', text.MARKS[f][2]) for f in Flag if f in marks]
    body = "".join(f"<dt>{name}</dt><dd>{escape(meaning)}</dd>" for name, meaning in items)
    return f'<section id="legend"><h2>Legend</h2><dl class="legend">{body}</dl></section>'


def _environments(report: Report) -> str:
    rows = []
    for e in sorted(report.environments.values(), key=lambda e: (e.target, e.id)):
        versions = [f"{n} {v}" for n, v in e.versions.items()] + [f"{n} commit {v[:12]}" for n, v in e.commits.items()]
        facts = [f"{n}: {v}" for n, v in (*e.hardware.items(), *e.identity.items()) if isinstance(v, (str, int))]
        switches = [f"{n}={v}" for n, v in e.switches.items()]
        columns = (versions, facts, switches, list(e.extensions))
        cells = "".join(f"<td>{'<br>'.join(_text(v) for v in column)}</td>" for column in columns)
        rows.append(f'<tr><th scope="row"><code>{_text(e.target, 60)}</code></th>{cells}</tr>')
    if not rows:
        return ""
    titles = ("Target", "Versions", "Hardware and identity", "Switches", "Changed by capmatrix")
    head = "".join(f'<th scope="col">{title}</th>' for title in titles)
    return (
        '<section id="environments"><h2>Environments</h2><div class="wrap"><table class="env">'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div></section>"
    )


def _footer(report: Report) -> str:
    made = report.header.get("capmatrix")
    name = f"capmatrix {_text(made, 40)}" if made else "capmatrix"
    return f"<footer>{name}; cells open to show batches, routes and ids.</footer>"
