"""Parts of a row of the default-selection table that choosing it and holding it against an earlier one share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .measures import Cost
from .standing import Standing


def dated(standings: Iterable[Standing]) -> dict[str, Any]:
    """Versions and dates of the evidence, as keywords of a row."""
    found = list(standings)
    dates = sorted({date for s in found for date in s.dates})
    versions: dict[str, str] = {}
    for s in found:
        versions.update(s.versions)
    return {
        "dated_from": dates[0] if dates else "",
        "dated_to": dates[-1] if dates else "",
        "versions": dict(sorted(versions.items())),
    }


def margin(cost: Cost | None, rival: Cost | None) -> tuple[float | None, float | None, float | None]:
    """By how many percent ``cost`` is faster than ``rival``, with the interval where both were repeated."""
    if cost is None or rival is None:
        return None, None, None
    mid = round((rival.mid / cost.mid - 1) * 100, 2)
    if not (cost.spans or rival.spans) or min(cost.repeats, rival.repeats) < 2:
        return mid, None, None
    low, high = (rival.low / cost.high - 1) * 100, (rival.high / cost.low - 1) * 100
    return mid, round(low, 2), round(high, 2)


def times(cost: Cost | None, fastest: Cost | None) -> float | None:
    """``cost`` over the fastest candidate's; 1 is equal."""
    return round(cost.mid / fastest.mid, 4) if cost is not None and fastest is not None else None


def rounded(value: float) -> float:
    """Six significant figures: more than any measurement has, and the same bytes everywhere."""
    return float(f"{value:.6g}")
