"""Rules of failing regions, and disputes, for a terminal and as Markdown."""

from __future__ import annotations

import msgspec

from ..analysis.dispute import Dispute
from ..analysis.regions import Rule
from . import text as words
from .markdown import code


class Report(msgspec.Struct, frozen=True):
    """What ``capmatrix rules`` found. ``docs`` is the document's path, empty where none was given."""

    rules: tuple[Rule, ...]
    declarations: tuple[Dispute, ...]
    documents: tuple[Dispute, ...] = ()
    published: tuple[Dispute, ...] = ()
    docs: str = ""


def _support(rule: Rule) -> str:
    text = f"{rule.support} of {words.count(rule.failing, 'failing cell')} ({', '.join(rule.rungs)})"
    return f"{text}; {rule.exceptions} of {rule.passing} passing ones are exceptions"


def _sections(report: Report) -> list[tuple[str, tuple[Dispute, ...], str]]:
    out = [("Declarations", report.declarations, "No declaration is contradicted.")]
    if report.docs:
        out.append(("vLLM's table of backends", report.documents, "The table is not contradicted."))
    if report.published:
        out.append(("Published results", report.published, ""))
    return out


def text(report: Report) -> str:
    """Plain text, ending with a newline."""
    out = ["Failing regions", ""]
    for rule in report.rules:
        out.append(f"  {words.one_line(str(rule), 400)}")
        out.append(f"      {_support(rule)}")
        out += [f"      {words.one_line(reason, 200)}" for reason in rule.reasons]
        out += [f"      exception: {words.one_line(name)}" for name in rule.against]
    if not report.rules:
        out.append("  No cell failed.")
    for title, disputes, none in _sections(report):
        out += ["", title, ""]
        for one in disputes:
            out.append(f"  {words.one_line(one.backend)}, {one.kind}")
            out.append(f"      says: {words.one_line(one.says, 400)}")
            out.append(f"      ran:  {words.one_line(one.ran, 400)}")
            out.append(f"      edit: {words.one_line(one.edit, 400)}")
            out += [f"      e.g.  {words.one_line(one.examples[0])}"] if one.examples else []
        if not disputes and none:
            out.append(f"  {none}")
    return "\n".join(out) + "\n"


def markdown(report: Report) -> str:
    """Markdown, ending with a newline; whatever a record wrote stands in code spans."""
    out = ["## Failing regions", ""]
    for rule in report.rules:
        out.append(f"- {code(str(rule), 400)}<br>{_support(rule)}")
        out += [f"  - {code(reason, 200)}" for reason in rule.reasons]
        out += [f"  - exception: {code(name)}" for name in rule.against]
    if not report.rules:
        out.append("No cell failed.")
    for title, disputes, none in _sections(report):
        out += ["", f"## {title}", ""]
        for one in disputes:
            out.append(f"- **{one.kind}**: {code(one.backend)}")
            out += [f"  - {word}: {code(getattr(one, word), 400)}" for word in ("says", "ran", "edit")]
            out += [f"  - for example {code(one.examples[0])}"] if one.examples else []
        if not disputes and none:
            out.append(none)
    return "\n".join(out) + "\n"
