"""Writing TOML: the few forms that derived tables need, the same bytes for the same data."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_WIDTH = 120


def dumps(data: Mapping[str, Any]) -> str:
    """``data`` as TOML: scalars first, then tables, then arrays of tables, each in the order given.

    Values are strings, numbers, booleans, lists, mappings, and lists of mappings (arrays of tables).
    None is left out, as TOML has no such value. Raises TypeError for anything else.
    """
    lines: list[str] = []
    _table(lines, (), data)
    return "\n".join(lines).strip("\n") + "\n"


def plain(values: Iterable[Any]) -> Any:
    """Values as a file has them: one by itself, several as a list, numbers by size before words by alphabet."""
    found = sorted(values, key=lambda v: (isinstance(v, str), v if not isinstance(v, str) else 0, str(v)))
    return found[0] if len(found) == 1 else found


def _table(lines: list[str], path: tuple[str, ...], data: Mapping[str, Any]) -> None:
    present = {key: value for key, value in data.items() if value is not None}
    for key, value in present.items():
        if not _is_table(value) and not _is_tables(value):
            lines += _pair(key, value)
    for key, value in present.items():
        if _is_table(value):
            lines += ["", f"[{_dotted((*path, key))}]"]
            _table(lines, (*path, key), value)
    for key, value in present.items():
        if _is_tables(value):
            for element in value:
                lines += ["", f"[[{_dotted((*path, key))}]]"]
                _table(lines, (*path, key), element)


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping)


def _is_tables(value: object) -> bool:
    return isinstance(value, Sequence) and bool(value) and all(isinstance(v, Mapping) for v in value)


def _pair(key: str, value: object) -> list[str]:
    text = _value(value)
    line = f"{_key(key)} = {text}"
    if len(line) > _WIDTH and isinstance(value, (list, tuple)):
        return [f"{_key(key)} = [", *(f"    {_value(v)}," for v in value), "]"]
    return [line]


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_value(v) for v in value)}]"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + " }" if value else "{}"
    raise TypeError(f"not a value of TOML: {value!r}")


def _string(value: str) -> str:
    # A JSON string is a TOML basic string, except for lone surrogates, and for DEL, which TOML wants escaped. What
    # a terminal or an editor would obey (C1 controls, changes of direction) is escaped with it.
    text = json.dumps(value.encode("utf-8", "replace").decode("utf-8"), ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in text)


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _string(key)


def _dotted(path: Sequence[str]) -> str:
    return ".".join(map(_key, path))
