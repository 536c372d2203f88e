"""Text of a record without what is one machine's or one moment's: a committed table changes with facts alone."""

from __future__ import annotations

import re

#: The folders of an absolute path. Device files are facts, not places.
_FOLDERS = re.compile(r"(?<![\w.:/])/(?!dev/|proc/|sys/)(?:[\w.@+~-]+/)+")
_TIME = re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?")
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,}\b")
_PROCESS = re.compile(r"\b(pid|PID|process) (?:= ?)?\d+\b")


def steady(value: str) -> str:
    """``value`` with dots for folders of a machine (below its packages they stay), times, addresses and process ids."""
    value = _FOLDERS.sub(_below_packages, value)
    value = _TIME.sub("...", value)
    value = _ADDRESS.sub("0x...", value)
    return _PROCESS.sub(r"\1 ...", value)


def _below_packages(found: re.Match[str]) -> str:
    _, mark, below = found[0].rpartition("-packages/")
    return f".../{below}" if mark else ".../"
