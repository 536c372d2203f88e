"""What runs show of cells, as ``capmatrix expect`` needs it: what each cell would have to be expected to be. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ..cell import Environment, Record, Verdict
from ..outcome import UNTOLD, Kind, flaky, one_line, outcome
from ..outcome import reason as reason_of
from .expectations import VERSIONS, Entry, Subject, subject

#: Longest reason that is taken over from a record, in characters.
MAX_REASON = 300

#: Outcomes against the declaration that an expectation has to explain.
_SURPRISING = (Kind.FAILED, Kind.XPASSED)


class Observation(msgspec.Struct, frozen=True):
    """One cell in one environment.

    ``seen``: the verdicts it got, in a fixed order. ``wanted``: those an entry must state, empty where the cell is
    as declared. ``signature`` is what cells that fail for the same cause have in common.
    """

    subject: Subject
    seen: tuple[Verdict, ...]
    wanted: tuple[Verdict, ...]
    reason: str = ""
    signature: str = ""

    @property
    def label(self) -> tuple[tuple[Verdict, ...], str]:
        """What observations of one entry share."""
        return self.wanted, self.signature

    def satisfied(self, entry: Entry | None) -> bool:
        """Whether ``entry``, the one that decides, says what was seen."""
        if entry is None:
            return not self.wanted
        return set(self.seen) <= set(entry.verdicts)


def observe(runs: Iterable[tuple[Sequence[Record], Mapping[str, Environment]]]) -> list[Observation]:
    """The observations of runs, in order of first appearance. Cells of which nothing could be told are left out.

    A cell that got different verdicts in the same versions, by repetition or in several runs, is flaky.
    """
    grouped: dict[tuple[object, ...], list[tuple[Record, Subject]]] = {}
    for records, environments in runs:
        for record in records:
            found = subject(record.cell, record, environments.get(record.environment))
            if record.verdict in UNTOLD and not flaky(record):
                continue
            versions = tuple(found.versions.get(name, "") for name in VERSIONS)
            grouped.setdefault((found.id, found.place, versions), []).append((record, found))
    return [_observation(group) for group in grouped.values()]


def _observation(group: Sequence[tuple[Record, Subject]]) -> Observation:
    verdicts: dict[Verdict, None] = {}
    for record, _ in group:
        verdicts.update(dict.fromkeys(v for v in (record.verdict, *record.repeats) if v not in UNTOLD))
    seen = tuple(v for v in Verdict if v in verdicts)
    plain = [msgspec.structs.replace(record, repeats=()) for record, _ in group]
    surprising = [r for r in plain if outcome(r).kind in _SURPRISING]
    shown = surprising[0] if surprising else plain[0]
    wanted = seen if surprising or len(seen) > 1 else ()
    reason = one_line(reason_of(shown))[:MAX_REASON]
    return Observation(group[0][1], seen, wanted, reason, signature(shown))


def signature(record: Record) -> str:
    """What is the same of one failure at other sizes: exception type, and the reason without its figures."""
    kind = record.failure.type if record.failure is not None else ""
    text = re.sub(r"[-+]?\d[\d.e+-]*", "#", reason_of(record))
    return f"{kind} {one_line(text)[:160]}"
