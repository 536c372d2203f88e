"""TOML files that know the line of every key, so that an error can point at what is wrong.

``tomllib`` reads the values; it does not keep positions, so a second, small scan over the same text
notes the line on which each key, table and array element stands. The scan decides nothing: where it
does not understand a text, ``tomllib`` says what is wrong with it.
"""

from __future__ import annotations

import re
import stat
import sys
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias

from ..errors import InputError

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

#: Largest file read, in bytes.
MAX_BYTES = 4 * 1024 * 1024
#: Parts of one dotted key, and levels of nested arrays and inline tables. Far more than any file
#: needs; keeps the parsers (quadratic in the first, recursive in the second) out of trouble.
MAX_KEY_PARTS = 32
MAX_NESTING = 32

Key: TypeAlias = "str | int"
KeyPath: TypeAlias = "tuple[Key, ...]"


class TomlFile:
    """A parsed TOML file: ``data`` (plain dicts, lists and scalars), ``path`` and the lines of its keys."""

    def __init__(self, path: Path, data: dict[str, Any], lines: _Lines) -> None:
        self.path = path
        self.data = data
        self._lines = lines

    def line(self, *keys: Key) -> int | None:
        """The line, from 1, on which ``keys`` stands: ``line("preset", "seed", "backend", 2)``.

        An integer picks an element of an array or of an array of tables. None if the file has no such
        key. A value on the line of what it is inside has that line.
        """
        node: Any = self.data
        for key in keys:
            try:
                node = node[key]
            except (KeyError, IndexError, TypeError):
                return None
        return self.nearest_line(*keys)

    def nearest_line(self, *keys: Key) -> int | None:
        """The line of the longest part of ``keys`` that the file has: where a missing key belongs."""
        for end in range(len(keys), 0, -1):
            line = self._lines.find(keys[:end])
            if line is not None:
                return line
        return None

    def error(
        self, keys: Iterable[Key], message: str, *, value: object = None, allowed: Iterable[object] = ()
    ) -> InputError:
        """An ``InputError`` (returned, not raised) at ``keys``, or at the table where they are missing."""
        path = tuple(keys)
        return InputError(
            message,
            file=self.path,
            line=self.nearest_line(*path),
            key=dotted(path) or None,
            value=value,
            allowed=allowed,
        )


def dotted(keys: Iterable[Key]) -> str:
    """A key path as people write it: ``preset.seed.backend[2]``."""
    text = ""
    for key in keys:
        if isinstance(key, int):
            text += f"[{key}]"
        else:
            plain = key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else repr(key)
            text += f"{'.' if text else ''}{plain}"
    return text


def load(path: str | Path) -> TomlFile:
    """Read and parse ``path``. Raises InputError if it is missing, not a file, too large, not UTF-8 or not TOML."""
    path = Path(path)
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise InputError("not a regular file", file=path)
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise InputError("no such file", file=path) from None
    except (OSError, ValueError) as error:
        # ValueError: a NUL byte in the path.
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"cannot be read: {reason}", file=path) from None
    return parse(raw, path)


def parse(raw: bytes, path: str | Path) -> TomlFile:
    """Parse the bytes of a file called ``path``; InputError as for ``load``."""
    path = Path(path)
    if len(raw) > MAX_BYTES:
        raise InputError(f"larger than {MAX_BYTES // 1024 // 1024} MiB", file=path)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"not UTF-8: byte 0x{raw[error.start]:02x} at offset {error.start}", file=path, line=line
        ) from None
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    lines = _Lines()
    scan = _Scan(text, lines)
    try:
        scan.document()
    except _TooDeep as error:
        raise InputError(str(error), file=path, line=error.line) from None
    except _Confused:
        pass  # not TOML; tomllib has the better words for it
    try:
        return TomlFile(path, tomllib.loads(text), lines)
    except ValueError as error:  # TOMLDecodeError; dates and integers out of range raise it plain
        raise _decode_error(error, text, lines, scan, path) from None
    except RecursionError:  # pragma: no cover - MAX_NESTING comes first
        raise InputError("nested too deeply", file=path) from None


def _decode_error(error: ValueError, text: str, lines: _Lines, scan: _Scan, path: Path) -> InputError:
    message = str(error)
    place = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", message)
    line: int | None
    if place is None:
        line, column = scan.line, None  # a plain ValueError has no position
    elif place[1]:
        line, column = int(place[1]), int(place[2])
    else:
        line, column = text.count("\n") + (not text.endswith("\n")), None
    if lines.repeated and message.startswith(("Cannot", "Duplicate")):
        keys, first, line = lines.repeated
        return InputError(f"defined twice, first on line {first}", file=path, line=line, key=dotted(keys))
    reason = message[: place.start()] if place else message
    where = f" (column {column})" if column else ""
    return InputError(f"not valid TOML: {reason}{where}", file=path, line=line)


class _Lines:
    """Lines by key path. Elements of an array are kept as one list of lines an array, to stay small."""

    def __init__(self) -> None:
        self.keys: dict[KeyPath, int] = {}
        # Tables that only exist because a longer key mentions them.
        self.implied: dict[KeyPath, int] = {}
        self.elements: dict[KeyPath, array[int]] = {}
        self.repeated: tuple[KeyPath, int, int] | None = None

    def find(self, path: KeyPath) -> int | None:
        line = self.keys.get(path) or self.implied.get(path)
        if line is None and path and isinstance(path[-1], int):
            of_array = self.elements.get(path[:-1])
            if of_array is not None and 0 <= path[-1] < len(of_array):
                return of_array[path[-1]]
        return line

    def define(self, path: KeyPath, line: int) -> None:
        first = self.keys.setdefault(path, line)
        if first != line and self.repeated is None:
            self.repeated = (path, first, line)


class _Confused(Exception):
    """The scan met text that is not TOML."""


class _TooDeep(Exception):
    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


_BLANK = re.compile(r"[ \t]*")
_SPACE = re.compile(r"(?:[ \t\n]+|#[^\n]*)*")
_KEY_PART = re.compile(r"""[A-Za-z0-9_-]+|"(?!"")[^"\\\n]*(?:\\.[^"\\\n]*)*"|'(?!'')[^'\n]*'""")
_STRING = re.compile(
    r'"""[^"\\]*(?:(?:\\.|"{1,2}(?!"))[^"\\]*)*"{3,5}'
    r"|'''.*?'{3,5}"
    r'|"[^"\\\n]*(?:\\.[^"\\\n]*)*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)
_SCALAR = re.compile(r"[^,\]}\n#]+")


class _Scan:
    """One pass over a document, filling ``lines``."""

    def __init__(self, text: str, lines: _Lines) -> None:
        self.text = text
        self.lines = lines
        self.at = 0
        self.line = 1
        # Arrays of tables seen so far, by path, and how many elements each has.
        self.counts: dict[KeyPath, int] = {}

    def take(self, pattern: re.Pattern[str]) -> str:
        """Step over ``pattern`` at the current place and return it, counting lines."""
        match = pattern.match(self.text, self.at)
        if match is None:
            raise _Confused
        found = match[0]
        self.at = match.end()
        self.line += found.count("\n")
        return found

    def literal(self, token: str) -> bool:
        if not self.text.startswith(token, self.at):
            return False
        self.at += len(token)
        return True

    def document(self) -> None:
        table: KeyPath = ()
        while True:
            self.take(_SPACE)
            if self.at >= len(self.text):
                return
            if self.literal("[["):
                table = self.header("]]", many=True)
            elif self.literal("["):
                table = self.header("]", many=False)
            else:
                self.pair(table, 0)

    def header(self, close: str, many: bool) -> KeyPath:
        line = self.line
        parts = self.key()
        if not self.literal(close):
            raise _Confused
        path: KeyPath = ()
        for index, part in enumerate(parts):
            path += (part,)
            last = index == len(parts) - 1
            if many and last:
                count = self.counts.get(path, 0)
                self.counts[path] = count + 1
                self.lines.implied.setdefault(path, line)
                path += (count,)
            elif path in self.counts and not last:
                path += (self.counts[path] - 1,)
            if last:
                self.lines.define(path, line)
            else:
                self.lines.implied.setdefault(path, line)
        return path

    def key(self) -> list[str]:
        """A dotted key, without what follows it."""
        parts: list[str] = []
        while True:
            self.take(_BLANK)
            parts.append(_unquoted(self.take(_KEY_PART)))
            if len(parts) > MAX_KEY_PARTS:
                raise _TooDeep(f"a key of more than {MAX_KEY_PARTS} parts", self.line)
            self.take(_BLANK)
            if not self.literal("."):
                return parts

    def pair(self, table: KeyPath, depth: int) -> None:
        line = self.line
        parts = self.key()
        if not self.literal("="):
            raise _Confused
        path = table
        for part in parts[:-1]:
            path += (part,)
            self.lines.implied.setdefault(path, line)
        path += (parts[-1],)
        self.lines.define(path, line)
        self.value(path, depth)

    def value(self, path: KeyPath, depth: int) -> None:
        if depth > MAX_NESTING:
            raise _TooDeep(f"nested more than {MAX_NESTING} levels deep", self.line)
        self.take(_BLANK)
        if self.literal("["):
            self.elements(path, depth)
        elif self.literal("{"):
            self.inline_table(path, depth)
        elif self.text.startswith(('"', "'"), self.at):
            self.take(_STRING)
        else:
            self.take(_SCALAR)

    def elements(self, path: KeyPath, depth: int) -> None:
        start = self.line
        found: array[int] = array("L")
        while True:
            self.take(_SPACE)
            if self.literal("]"):
                break
            found.append(self.line)
            self.value((*path, len(found) - 1), depth + 1)
            self.take(_SPACE)
            if not self.literal(","):
                if not self.literal("]"):
                    raise _Confused
                break
        if found and found[-1] != start:
            self.lines.elements[path] = found

    def inline_table(self, path: KeyPath, depth: int) -> None:
        while True:
            self.take(_SPACE)
            if self.literal("}"):
                return
            self.pair(path, depth + 1)
            self.take(_SPACE)
            if not self.literal(","):
                if not self.literal("}"):
                    raise _Confused
                return


def _unquoted(raw: str) -> str:
    if raw[0] not in "\"'":
        return raw
    if raw[0] == "'" or "\\" not in raw:
        return raw[1:-1]
    try:
        return str(tomllib.loads(f"key = {raw}")["key"])
    except ValueError:
        raise _Confused from None
