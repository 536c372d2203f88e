"""An environment told in rows, for whoever explains one record: what it is made of and what it may speak for."""

from __future__ import annotations

from ..cell import Environment
from ..summary import place_of
from . import text

#: What is said where a record names no environment.
UNKNOWN = "not recorded: the target could not be started"


def rows(target: str, environment: Environment) -> list[tuple[str, str]]:
    """Label and value of each row, for a record of ``target``; a row that continues the one before has no label."""
    told = (
        ("versions", environment.versions),
        ("commits", environment.commits),
        ("hardware", environment.hardware),
        ("identity", environment.identity),
        ("switches", environment.switches),
    )
    out = [
        (label, text.one_line(", ".join(f"{n} {v}" for n, v in facts.items()), 2000)) for label, facts in told if facts
    ]
    out += [
        ("" if i else "changed", f"- {text.one_line(extension, 1000)}")
        for i, extension in enumerate(environment.extensions)
    ]
    speaks = place_of(target, environment).architecture or "no AMD architecture by itself"
    return [*out, ("speaks for", text.one_line(speaks))]
