"""Changes between two runs or tables, for a terminal and for a pull request."""

from __future__ import annotations

from ..analysis.diff import KINDS, Diff
from . import text as words
from .markdown import COMMENT_LIMIT, code

#: Changes shown one by one of each kind; the rest is counted.
SHOWN = 60


def _summary(found: Diff) -> str:
    counts = [f"{len(found.of(kind)):,} {title.lower()}" for kind, title in KINDS.items() if found.of(kind)]
    unchanged = f"{words.count(found.same, found.what)} unchanged"
    return f"{', '.join(counts) or 'No change'}; {unchanged}."


def text(found: Diff, old: str, new: str) -> str:
    """Plain text, ending with a newline."""
    out = [f"{words.one_line(old)} -> {words.one_line(new)}", _summary(found)]
    for kind, title in KINDS.items():
        changes = found.of(kind)
        if not changes:
            continue
        out += ["", f"{title}:"]
        for change in changes[:SHOWN]:
            out += [f"  {words.one_line(change.subject)}", f"      {words.one_line(change.text, 400)}"]
        if len(changes) > SHOWN:
            out.append(f"  and {len(changes) - SHOWN} more")
    return "\n".join(out) + "\n"


def markdown(found: Diff, old: str, new: str) -> str:
    """Markdown for a pull request comment: regressions open, the rest folded; under GitHub's limit."""
    for shown in (SHOWN, 20, 5, 0):
        out = _markdown(found, old, new, shown)
        if len(out) <= COMMENT_LIMIT:
            return out
    return out


def _markdown(found: Diff, old: str, new: str, shown: int) -> str:
    sign = "❌ Regressions" if found.regressed else "✅ No regression"
    out = [f"## {sign}: {code(old)} → {code(new)}", "", _summary(found)]
    for kind, title in KINDS.items():
        changes = found.of(kind)
        if not changes:
            continue
        open_ = " open" if kind in ("regression", "slower", "default") else ""
        out += ["", f"<details{open_}><summary>{title} ({len(changes)})</summary>", ""]
        out += [f"- {code(change.subject)}<br>{code(change.text, 400)}" for change in changes[:shown]]
        if len(changes) > shown:
            out.append(f"- and {len(changes) - shown} more")
        out += ["", "</details>"]
    return "\n".join(out) + "\n"
