"""What runs show of cells and pairs, as ``capmatrix expect`` needs it: what would have to be expected of each. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ..cell import Environment, Record, Verdict
from ..outcome import FAILING, UNTOLD, Kind, flaky, one_line, outcome
from ..outcome import reason as reason_of
from ..pair import PairRecord
from .expectations import KIND, VERSIONS, Entry, Subject, subject_of

AnyRecord = Record | PairRecord

#: Longest reason that is taken over from a record, in characters.
MAX_REASON = 300

#: Outcomes against the declaration that an expectation has to explain.
_SURPRISING = (Kind.FAILED, Kind.XPASSED)


class Observation(msgspec.Struct, frozen=True):
    """One cell or pair in one environment.

    ``seen``: the verdicts it got, in a fixed order. ``wanted``: those an entry must state, empty where the cell is
    as declared. ``signature`` is what cells that fail for the same cause have in common.
    """

    subject: Subject
    seen: tuple[Verdict, ...]
    wanted: tuple[Verdict, ...]
    reason: str = ""
    signature: str = ""

    @property
    def kind(self) -> str:
        """``cells`` or ``pairs``: what it is an observation of."""
        return str(self.subject.axes[KIND])

    @property
    def label(self) -> tuple[tuple[Verdict, ...], str]:
        """What observations of one entry share."""
        return self.wanted, self.signature

    def satisfied(self, entry: Entry | None) -> bool:
        """Whether ``entry``, the one that decides, says what was seen."""
        if entry is None:
            return not self.wanted
        return set(self.seen) <= set(entry.verdicts)


def observe(runs: Iterable[tuple[Sequence[AnyRecord], Mapping[str, Environment]]]) -> list[Observation]:
    """The observations of runs, in order of first appearance. Those of which nothing could be told are left out.

    What got different verdicts in the same versions, by repetition or in several runs, is flaky.
    """
    grouped: dict[tuple[object, ...], list[tuple[AnyRecord, Subject]]] = {}
    for records, environments in runs:
        for record in records:
            found = subject_of(record, environments.get(record.environment))
            if record.verdict in UNTOLD and not flaky(record):
                continue
            versions = tuple(found.versions.get(name, "") for name in VERSIONS)
            grouped.setdefault((found.id, found.place, versions), []).append((record, found))
    return [_observation(group) for group in grouped.values()]


def _observation(group: Sequence[tuple[AnyRecord, Subject]]) -> Observation:
    verdicts: dict[Verdict, None] = {}
    for record, _ in group:
        verdicts.update(dict.fromkeys(v for v in (record.verdict, *record.repeats) if v not in UNTOLD))
    seen = tuple(v for v in Verdict if v in verdicts)
    surprising = [record for record, _ in group if _surprises(record)]
    shown = surprising[0] if surprising else group[0][0]
    wanted = seen if surprising or len(seen) > 1 else ()
    reason = one_line(reason_of(shown))[:MAX_REASON]
    return Observation(group[0][1], seen, wanted, reason, signature(shown))


def _surprises(record: AnyRecord) -> bool:
    """Whether an expectation has to explain the record by itself, its repetitions apart."""
    if isinstance(record, PairRecord):
        return record.verdict in FAILING
    return outcome(msgspec.structs.replace(record, repeats=())).kind in _SURPRISING


def signature(record: AnyRecord) -> str:
    """What is the same of one failure at other sizes: exception type, and the reason without its figures."""
    kind = record.failure.type if record.failure is not None else ""
    text = re.sub(r"[-+]?\d[\d.e+-]*", "#", reason_of(record))
    return f"{kind} {one_line(text)[:160]}"
