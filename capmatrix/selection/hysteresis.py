"""A default held against the one before: what is not enough to change it.

A win smaller than the margin or than the noise, one unrepeated serving run, or evidence on a lower rung changes
no default; a default that now fails, on as strong evidence, is always displaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ..cell import Rung
from ..summary import strength
from .defaults import Other, Row
from .measures import Setting
from .policies import EXTRA_DEPENDENCIES, Candidate, place
from .rowparts import dated, margin, rounded, times
from .standing import Standing

_RUN = strength(Rung.EXECUTED)


def marked(row: Row, *marks: str, **changes: Any) -> Row:
    """``row`` with more marks and other changes."""
    return msgspec.structs.replace(row, marks=tuple(dict.fromkeys((*row.marks, *marks))), **changes)


def held(
    new: Row, old: Row | None, standings: Mapping[str, Standing], candidates: Mapping[str, Candidate],
    setting: Setting | None, margin_percent: float, same_policy: bool,
) -> Row:  # fmt: skip
    """``new``, unless the earlier default ``old`` must stay.

    ``same_policy`` says that both tables followed one policy: another one may well choose otherwise.
    """
    if old is None or not old.backend or old.backend == new.backend:
        return new
    now = standings.get(old.backend)
    weaker = against_weaker(new, old, standings)
    if weaker is not new:
        return weaker
    if now is not None and now.state not in ("pass", "not run", "unavailable", "unverified"):
        return new
    costs = setting.costs if setting is not None else {}
    mine, theirs = costs.get(new.backend), costs.get(old.backend)
    why = ""
    if "unrepeated" in new.marks:
        why = f"{new.backend} rests on one unrepeated serving run"
    elif mine is not None and theirs is not None:
        win = (theirs.mid / mine.mid - 1) * 100
        if same_policy and (win < margin_percent or mine.overlaps(theirs)):
            why = f"{new.backend} wins by {win:.2f} %, less than the margin of {margin_percent:g} % or the noise"
    elif same_policy and mine is None and _as_strong(old, new, candidates):
        why = f"nothing measured puts {new.backend} before it"
    elif mine is None and old.value is not None:
        why = f"{new.backend} is not measured, and it was"
    return _kept(new, old, standings, candidates, setting, why) if why else new


def _as_strong(old: Row, new: Row, candidates: Mapping[str, Candidate]) -> bool:
    """Whether the earlier default stands on evidence as strong as the new choice: now, or else before."""
    if old.backend in candidates:
        return candidates[old.backend].tier <= candidates[new.backend].tier
    before = strength(Rung(old.rung)) if old.rung else 0
    return min(before, _RUN) >= min(strength(Rung(new.rung)), _RUN)


def against_weaker(new: Row, old: Row | None, standings: Mapping[str, Standing]) -> Row:
    """The earlier row where what speaks against it now is weaker evidence than what it rests on."""
    if old is None or not old.backend or not old.rung:
        return new
    before = strength(Rung(old.rung))
    now = standings.get(old.backend)
    against = now.rung if now is not None and now.state not in ("pass", "not run", "unavailable") else None
    if before < _RUN:
        return new
    if against is not None and strength(against) < _RUN and now is not None:
        text = f"{old.backend}: {now.state} ({against.value}) now, but {old.rung} before: {now.detail}"
        return marked(old, "kept", "conflict", conflicts=(*old.conflicts, text))
    nothing_now = now is None or now.state in ("not run", "unavailable")
    if nothing_now and (not new.backend or strength(Rung(new.rung)) < _RUN):
        return marked(old, "carried", reason=f"{old.reason} (earlier table; nothing stronger now)")
    return new


def _kept(
    new: Row, old: Row, standings: Mapping[str, Standing], candidates: Mapping[str, Candidate],
    setting: Setting | None, why: str,
) -> Row:  # fmt: skip
    """``new`` with the earlier default as its choice; what would have been chosen is among the others."""
    one = standings.get(old.backend)
    candidate = candidates.get(old.backend)
    if one is None or candidate is None:
        return marked(old, "carried", "kept", reason=f"earlier default kept: {why}")
    costs = setting.costs if setting is not None else {}
    mine, theirs = costs.get(old.backend), costs.get(new.backend)
    faster, low, high = margin(mine, theirs)
    fastest = costs.get(new.fastest)
    others = [o for o in new.other if o.backend != old.backend]
    word = Other(
        new.backend, "kept", why, new.rung, times(theirs, fastest), new.records, new.published
    )  # fmt: skip
    marks = [m for m in new.marks if m in ("conflict",)]
    marks += ["provisional"] if strength(candidate.rung) < _RUN else []
    marks += ["incomplete"] if candidate.missing else []
    return msgspec.structs.replace(
        new,
        backend=old.backend,
        reason=f"earlier default kept: {why}",
        decided_by="earlier table",
        rung=candidate.rung.value,
        value=rounded(mine.value) if mine is not None else None,
        unit=setting.unit if setting is not None and mine is not None else "",
        runner_up=new.backend,
        margin_percent=faster,
        margin_low_percent=low,
        margin_high_percent=high,
        times_fastest=times(mine, fastest),
        requires=EXTRA_DEPENDENCIES.get(old.backend, ()),
        switches=tuple(f"{n}={v}" for n, v in one.switches),
        marks=(*marks, "kept"),
        records=one.refs,
        published=tuple(s.ref for s in one.served),
        other=tuple(sorted([*others, word], key=lambda o: place(o.backend))),
        **dated([one]),
    )
