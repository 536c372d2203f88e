"""Errors that capmatrix shows its users, each with what to do next; no traceback is printed for them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

EXIT_OK = 0
EXIT_UNEXPECTED = 1
EXIT_USAGE = 2
EXIT_INFRASTRUCTURE = 3


class CapmatrixError(Exception):
    """Base of all errors with a message meant for the user. ``exit_code`` is the process's."""

    exit_code = EXIT_INFRASTRUCTURE


class InputError(CapmatrixError):
    """Something the user wrote is wrong: file, line, key, value, what is allowed, the nearest valid name.

    Args:
        message: what is wrong, without place or remedy.
        file, line, key, value: where, and what stood there; those unknown are left out.
        allowed: the valid names or forms; the nearest one to ``value`` is suggested.
    """

    exit_code = EXIT_USAGE

    def __init__(
        self,
        message: str,
        *,
        file: object = None,
        line: int | None = None,
        key: str | None = None,
        value: object = None,
        allowed: Iterable[object] = (),
    ) -> None:
        self.message = message
        self.file = None if file is None else str(file)
        self.line = line
        self.key = key
        self.value = value
        self.allowed = [str(a) for a in allowed]
        self.nearest = nearest(value, self.allowed)
        super().__init__(str(self))

    def __str__(self) -> str:
        place = self.file or ""
        if self.line is not None:
            place += f":{self.line}"
        if self.key:
            place += f"{': ' if place else ''}{self.key}"
        text = f"{place}: {self.message}" if place else self.message
        if self.value is not None:
            text += f" (got {short(self.value)})"
        if self.nearest:
            text += f"; did you mean {self.nearest!r}?"
        if self.allowed:
            shown = ", ".join(self.allowed[:40]) + (", ..." if len(self.allowed) > 40 else "")
            text += f" Allowed: {shown}."
        return printable(text)


def nearest(value: object, allowed: list[str]) -> str | None:
    """The allowed name closest to ``value`` (case ignored), or None when none is close."""
    if not isinstance(value, (str, int)) or isinstance(value, bool):
        return None
    lowered = {a.lower(): a for a in allowed}
    hits = difflib.get_close_matches(str(value)[:200].lower(), list(lowered), n=1, cutoff=0.6)
    return lowered[hits[0]] if hits else None


def short(value: object, limit: int = 120) -> str:
    """``repr`` cut to ``limit`` characters."""
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def printable(text: str) -> str:
    """Text with control characters (terminal escapes among them) replaced, newlines and tabs kept."""
    if text.isprintable():
        return text
    return "".join(c if c in "\n\t" or (c.isprintable()) else "\N{REPLACEMENT CHARACTER}" for c in text)
