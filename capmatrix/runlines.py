"""The lines of a run file: one JSON object each with a ``kind``, decoded by type, bounded and versioned."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from .cell import RECORD_VERSION, Environment, Record
from .errors import InputError, short
from .pair import PAIR_VERSION, PairRecord

#: Longest line in bytes that is written or read.
MAX_LINE = 8 << 20

_KINDS = ("run", "environment", "started", "record", "pair", "end")


class RunLine(msgspec.Struct, tag_field="kind", tag="run"):
    """The header: first line of a run and of each resumption."""

    header: dict[str, Any]
    version: int = RECORD_VERSION


class EnvironmentLine(msgspec.Struct, tag_field="kind", tag="environment"):
    """What records name by id."""

    environment: Environment


class StartedLine(msgspec.Struct, tag_field="kind", tag="started"):
    """A cell is about to be launched; ``at`` is UTC, ISO 8601."""

    cell_id: str
    attempt: int = 1
    at: str = ""


class RecordLine(msgspec.Struct, tag_field="kind", tag="record"):
    """A cell's outcome."""

    record: Record


class PairLine(msgspec.Struct, tag_field="kind", tag="pair"):
    """A pair's outcome: a target and its drafter together."""

    record: PairRecord


class EndLine(msgspec.Struct, tag_field="kind", tag="end"):
    """The run is complete."""

    summary: dict[str, Any] = {}


Line = RunLine | EnvironmentLine | StartedLine | RecordLine | PairLine | EndLine


class _RecordVersion(msgspec.Struct):
    version: int = RECORD_VERSION


class _Peek(msgspec.Struct):
    """Just enough of a line to name its kind and version when the rest does not decode."""

    kind: str
    version: int = RECORD_VERSION
    record: _RecordVersion = msgspec.field(default_factory=_RecordVersion)


line_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Line)
_peek_decoder = msgspec.json.Decoder(_Peek)
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def decode(line: bytes, path: object, number: int) -> Line | str:
    """A line's object, or what is wrong with it. InputError for a newer version."""
    try:
        decoded: Line = line_decoder.decode(line)
    except _UNREADABLE as error:
        return _explain(line, error, path, number)
    version = decoded.version if isinstance(decoded, RunLine) else RECORD_VERSION
    if isinstance(decoded, RecordLine):
        version = decoded.record.version
    if isinstance(decoded, PairLine):
        _check_version(decoded.record.version, path, number, PAIR_VERSION)
    _check_version(version, path, number)
    return decoded


def _explain(line: bytes, error: Exception, path: object, number: int) -> str:
    if not isinstance(error, msgspec.ValidationError):
        end = "" if line.endswith(b"\n") else " (truncated?)"
        return f"not a line of JSON{end}: {short(line, 60)}"
    try:
        peek = _peek_decoder.decode(line)
    except _UNREADABLE:
        return f"not a run file's line: {error}"
    known = PAIR_VERSION if peek.kind == "pair" else RECORD_VERSION
    _check_version(peek.version, path, number)
    _check_version(peek.record.version, path, number, known)
    if peek.kind not in _KINDS:
        return f"unknown kind {short(peek.kind, 40)}; known: {', '.join(_KINDS)}"
    return f"not a valid {peek.kind}: {error}"


def _check_version(version: int, path: object, number: int, known: int = RECORD_VERSION) -> None:
    if not 1 <= version <= known:
        raise InputError(
            f"written in record version {version}, this capmatrix reads up to {known}; install a newer one",
            file=path,
            line=number,
            key="version",
        )


def now() -> str:
    """UTC, ISO 8601, to the millisecond."""
    seconds = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds * 1000) % 1000:03d}Z"
