"""One cell, or one pair, over many runs, oldest first: what it was in each, and where it changed. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..cell import Environment, Record
from ..pair import PairRecord
from ..summary import versions
from . import diff
from .sources import Source, by_date


class Moment(msgspec.Struct, frozen=True):
    """The cell in one run. ``record`` is None where it was not run there; ``begun``: but it was launched.

    ``changes`` are from the last run before this one that has a record of it, and ``facts`` what that run's
    environment stated differently (name, before, now).
    """

    run: str
    date: str
    record: Record | PairRecord | None = None
    environment: Environment | None = None
    begun: bool = False
    changes: tuple[diff.Change, ...] = ()
    facts: tuple[tuple[str, str, str], ...] = ()

    @property
    def versions(self) -> tuple[tuple[str, str], ...]:
        """The versions that must agree for two records to be compared."""
        return versions(self.environment)


class History(msgspec.Struct, frozen=True):
    """All moments of a cell, oldest first; runs of one date stay in the order given."""

    cell_id: str
    moments: tuple[Moment, ...]

    @property
    def ran(self) -> tuple[Moment, ...]:
        """Those with a record."""
        return tuple(moment for moment in self.moments if moment.record is not None)

    @property
    def turns(self) -> tuple[Moment, ...]:
        """Those in which the verdict is another than before."""
        out = []
        before = None
        for moment in self.ran:
            verdict = moment.record.verdict if moment.record else None
            if before is not None and verdict is not before:
                out.append(moment)
            before = verdict
        return tuple(out)


def of(cell_id: str, sources: Sequence[Source], margin_percent: float = 5.0) -> History:
    """The history of the cell or the pair whose records have ``cell_id``."""
    moments: list[Moment] = []
    last: Moment | None = None
    for source in by_date(sources):
        known: list[Record | PairRecord] = [*source.run.records, *source.run.pairs]
        record = next((r for r in known if r.cell_id == cell_id), None)
        if record is None:
            moments.append(Moment(source.name, source.date, begun=cell_id in source.run.started))
            continue
        environment = source.run.environments.get(record.environment)
        now = Moment(source.name, source.date, record, environment)
        if last is not None:
            now = _changed(last, now, margin_percent)
        moments.append(now)
        last = now
    return History(cell_id, tuple(moments))


def _changed(before: Moment, now: Moment, margin_percent: float) -> Moment:
    one, two = before.environment, now.environment
    same = diff.hardware(one) == diff.hardware(two)
    changes: list[diff.Change] = []
    if isinstance(before.record, Record) and isinstance(now.record, Record):
        changes = diff.of_records(before.record, now.record, margin_percent, same_hardware=same)
    elif isinstance(before.record, PairRecord) and isinstance(now.record, PairRecord):
        changes = diff.of_pairs(before.record, now.record)
    facts = diff.of_facts([one], [two]) if one is not None and two is not None else []
    return msgspec.structs.replace(now, changes=tuple(changes), facts=tuple(facts))
