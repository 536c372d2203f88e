"""How far two timed runs agree, for a terminal and for a pull request."""

from __future__ import annotations

from collections.abc import Callable

from ..analysis.agreement import Agreement, Apart
from ..analysis.compare import Entry, Times
from . import text as words
from .markdown import code_in_table

#: Times that do not agree which are shown, and reasons that are given of each; the rest is counted.
SHOWN, _REASONS = 30, 6

Label = Callable[[Entry], str]
Say = Callable[[Times], str]


def headline(found: Agreement, below: int = 0) -> str:
    """``17 of 18 times agree within their intervals; 1 does not:``; ``below``: how many of those stand elsewhere."""
    total, apart = found.agree + len(found.apart), len(found.apart)
    out = f"{found.agree:,} of {words.count(total, 'time')} on the same hardware agree within their intervals"
    if not apart:
        return f"{out}."
    out += f"; {apart:,} {'does' if apart == 1 else 'do'} not"
    if below == apart:
        return f"{out}: see below, among what changed."
    return f"{out}, {below:,} of them among what changed below:" if below else f"{out}:"


def text(found: Agreement | None, label: Label, say: Say, width: int, everything: bool) -> list[str]:
    """Plain lines, the first one empty; none where nothing was timed on both sides.

    A time of an entry that changed stands with the entry (``reason``), not here.
    """
    if found is None:
        return []
    here = [one for one in found.apart if one.entry.kind == "same"]
    out = ["", *words.fill(headline(found, len(found.apart) - len(here)), width)]
    shown = here if everything else here[:SHOWN]
    for one in shown:
        out += words.fill(f"{label(one.entry)}: {say(one.times)}", width, "  ", "      ")
        out += words.fill(reason(one), width, "      ", "      ")
    rest = len(here) - len(shown)
    return [*out, f"  and {rest:,} more"] if rest else out


def markdown(found: Agreement | None, label: Label, say: Say, shown: int) -> list[str]:
    """For GitHub; none where nothing was timed on both sides."""
    if found is None:
        return []
    out = ["", headline(found)]
    if not found.apart:
        return out
    out += ["", "| Time | Left to right | Why, as far as recorded |", "|---|---|---|"]
    for one in found.apart[:shown]:
        columns = (label(one.entry), say(one.times), why(one))
        out.append(f"| {' | '.join(code_in_table(column, 400) for column in columns)} |")
    return out + (["", f"and {len(found.apart) - shown:,} more"] if len(found.apart) > shown else [])


def reason(one: Apart) -> str:
    """``why, as far as recorded: ...``"""
    return f"why, as far as recorded: {why(one)}"


def why(one: Apart) -> str:
    """What is recorded that may be why two times are apart."""
    reasons = [words.one_line(reason, 200) for reason in one.why[:_REASONS]]
    more = len(one.why) - len(reasons)
    return "; ".join([*reasons, *([f"and {more} more"] if more else [])]) or "nothing that is recorded differs"
