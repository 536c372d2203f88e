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


def headline(found: Agreement) -> str:
    """``17 of 18 times agree within their intervals; 1 does not:``"""
    total, apart = found.agree + len(found.apart), len(found.apart)
    out = f"{found.agree:,} of {words.count(total, 'time')} on the same hardware agree within their intervals"
    return f"{out}; {apart:,} {'does' if apart == 1 else 'do'} not:" if apart else f"{out}."


def text(found: Agreement | None, label: Label, say: Say, width: int, everything: bool) -> list[str]:
    """Plain lines, the first one empty; none where nothing was timed on both sides."""
    if found is None:
        return []
    out = ["", *words.fill(headline(found), width)]
    shown = found.apart if everything else found.apart[:SHOWN]
    for one in shown:
        out += words.fill(f"{label(one.entry)}: {say(one.times)}", width, "  ", "      ")
        out += words.fill(f"why, as far as recorded: {why(one)}", width, "      ", "      ")
    rest = len(found.apart) - len(shown)
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


def why(one: Apart) -> str:
    """What is recorded that may be why two times are apart."""
    reasons = [words.one_line(reason, 200) for reason in one.why[:_REASONS]]
    more = len(one.why) - len(reasons)
    return "; ".join([*reasons, *([f"and {more} more"] if more else [])]) or "nothing that is recorded differs"
