"""Ranges of versions: ``>=0.31,<0.33`` as an interval that can be compared to others. Pure."""

from __future__ import annotations

import re

import msgspec
from packaging.version import InvalidVersion, Version

#: What a range looks like, for messages and for the schema.
PATTERN = r"^\s*(>=|>|<=|<|==)\s*[0-9][0-9A-Za-z.+!-]{0,63}(\s*,\s*(>=|>|<=|<)\s*[0-9][0-9A-Za-z.+!-]{0,63})?\s*$"

_CLAUSE = re.compile(r"(>=|>|<=|<|==)\s*(\S+)")
#: What ``git describe`` calls a commit after a tag: ``0.1.20-46-ge4048607a5`` is 46 commits after 0.1.20.
_DESCRIBED = re.compile(r"v?(\d+(?:\.\d+)*)-(\d+)-g[0-9a-f]{4,40}")


class RangeError(ValueError):
    """Text that is no range of versions; the message says why."""


class Bound(msgspec.Struct, frozen=True):
    """One end of a range; ``closed`` says that the version itself is inside."""

    version: Version
    closed: bool


class Range(msgspec.Struct, frozen=True):
    """An interval of versions; None is no bound on that side."""

    low: Bound | None = None
    high: Bound | None = None

    def __contains__(self, version: Version) -> bool:
        low, high = self.low, self.high
        if low is not None and (version < low.version or (version == low.version and not low.closed)):
            return False
        return high is None or version < high.version or (version == high.version and high.closed)

    def __str__(self) -> str:
        low, high = self.low, self.high
        if low is not None and high is not None and low == high:
            return f"=={low.version}"
        parts = []
        if low is not None:
            parts.append(f"{'>=' if low.closed else '>'}{low.version}")
        if high is not None:
            parts.append(f"{'<=' if high.closed else '<'}{high.version}")
        return ",".join(parts)

    def intersection(self, other: Range) -> Range | None:
        """The versions in both; None where there are none. Exact but for gaps between two neighbouring versions."""
        low = _tighter(self.low, other.low, low=True)
        high = _tighter(self.high, other.high, low=False)
        if low is None or high is None:
            return Range(low, high)
        if low.version > high.version or (low.version == high.version and not (low.closed and high.closed)):
            return None
        return Range(low, high)

    def within(self, other: Range) -> bool:
        """Whether every version of this range is in ``other``."""
        return self.intersection(other) == self


def parse(text: str) -> Range:
    """One or two comparisons, ``>=0.31,<0.33`` or ``==0.32.0``, as an interval. Raises RangeError."""
    low: Bound | None = None
    high: Bound | None = None
    if not re.match(PATTERN, text):
        raise RangeError("not a range of versions")
    for clause in text.split(","):
        found = _CLAUSE.fullmatch(clause.strip())
        assert found is not None
        operator, number = found.groups()
        try:
            version = Version(number)
        except InvalidVersion:
            raise RangeError(f"{number!r} is not a version") from None
        if version.local is not None:
            raise RangeError(f"{number!r}: build labels are not compared; leave out {'+' + version.local!r}")
        bound = Bound(version, "=" in operator)
        if operator in (">", ">=", "=="):
            if low is not None:
                raise RangeError("two lower bounds")
            low = bound
        if operator in ("<", "<=", "=="):
            if high is not None:
                raise RangeError("two upper bounds")
            high = bound
    made = Range(low, high)
    if Range().intersection(made) is None:
        raise RangeError("no version is in this range")
    return made


def version(text: str) -> Version | None:
    """A version as a distribution or a checkout states it, without its build label; None where it is none.

    A checkout's ``0.1.20-46-ge4048607a5`` counts as 0.1.20.post46, between 0.1.20 and 0.1.21.
    """
    described = _DESCRIBED.fullmatch(text)
    try:
        return Version(f"{described[1]}.post{described[2]}" if described else text.partition("+")[0])
    except InvalidVersion:
        return None


def _tighter(a: Bound | None, b: Bound | None, *, low: bool) -> Bound | None:
    if a is None or b is None:
        return a or b
    if a.version == b.version:
        return a if not a.closed else b
    return (a if a.version > b.version else b) if low else (a if a.version < b.version else b)
