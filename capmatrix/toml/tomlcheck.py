"""Reading typed values out of a ``TomlFile``: each mistake is one InputError at its own line.

Every function takes the file, the key path of the value and the value itself.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from .tomlfile import Key, TomlFile

At = tuple[Key, ...]

#: Longest text (a description, a reason) and most elements of one list.
MAX_TEXT = 2000
MAX_ELEMENTS = 4096

#: Characters that change the direction of the text around them, so that it reads as what it is not.
_DIRECTIONS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def table(doc: TomlFile, at: At, value: object, allowed: Collection[str] | None = None) -> dict[str, Any]:
    """A table whose keys are among ``allowed`` (None: any)."""
    if not isinstance(value, dict):
        raise doc.error(at, "must be a table", value=value)
    if allowed is not None:
        for key in value:
            if key not in allowed:
                raise doc.error((*at, key), "unknown key", value=key, allowed=allowed)
    return value


def tables(doc: TomlFile, at: At, value: object, allowed: Collection[str]) -> list[dict[str, Any]]:
    """An array of tables, each as ``table`` has it."""
    if not isinstance(value, list) or not value:
        raise doc.error(at, f"must be an array of tables, written [[{at[-1]}]]", value=value)
    return [table(doc, (*at, i), element, allowed) for i, element in enumerate(value)]


def named(doc: TomlFile, at: At, value: object, pattern: str) -> dict[str, Any]:
    """A table of tables whose names match ``pattern``."""
    found = table(doc, at, value)
    for name, element in found.items():
        if not re.fullmatch(pattern, name):
            raise doc.error((*at, name), "not a valid name", value=name, allowed=[pattern])
        table(doc, (*at, name), element)
    return found


def require(doc: TomlFile, at: At, value: Mapping[str, object], keys: Iterable[str], why: str = "") -> None:
    """Every one of ``keys`` is in the table ``value``."""
    for key in keys:
        if key not in value:
            raise doc.error((*at, key), f"is missing{why and ': '}{why}")


def text(doc: TomlFile, at: At, value: object) -> str:
    """A string that is neither blank nor endless, without control characters other than line ends and tabs."""
    if not isinstance(value, str):
        raise doc.error(at, "must be a string", value=value)
    if not value.strip():
        raise doc.error(at, "must not be blank", value=value)
    if len(value) > MAX_TEXT:
        raise doc.error(at, f"longer than {MAX_TEXT} characters")
    for c in value:
        if c not in "\n\t" and (unicodedata.category(c) == "Cc" or c in _DIRECTIONS):
            raise doc.error(at, "must hold no control characters", value=value)
    return value


def integer(doc: TomlFile, at: At, value: object, lowest: int, highest: int) -> int:
    """An integer within bounds; a boolean is none."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise doc.error(at, "must be an integer", value=value, allowed=[f"{lowest} to {highest}"])
    if not lowest <= value <= highest:
        raise doc.error(at, "out of range", value=value, allowed=[f"{lowest} to {highest}"])
    return value


def boolean(doc: TomlFile, at: At, value: object) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise doc.error(at, "must be true or false", value=value)
    return value


def word(doc: TomlFile, at: At, value: object, allowed: Collection[str]) -> str:
    """One of the strings ``allowed``."""
    if not isinstance(value, str):
        raise doc.error(at, "must be a string", value=value, allowed=allowed)
    if value not in allowed:
        raise doc.error(at, "unknown value", value=value, allowed=allowed)
    return value


def elements(doc: TomlFile, at: At, value: object) -> list[tuple[At, Any]]:
    """The elements of a list, or the value itself where it is none, each with its path; at least one."""
    if not isinstance(value, list):
        return [(at, value)]
    if not value:
        raise doc.error(at, "has no value, so that there would be no cell", value=value)
    if len(value) > MAX_ELEMENTS:
        raise doc.error(at, f"more than {MAX_ELEMENTS} values")
    return [((*at, i), element) for i, element in enumerate(value)]
