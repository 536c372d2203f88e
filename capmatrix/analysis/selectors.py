"""``key=value`` selectors of records: by run, architecture, target, version or axis of the cell. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from ..cell import Force
from ..errors import InputError
from ..summary import COMPARED_VERSIONS, place, switch_words
from .sources import Sourced

#: What a key says where nothing is recorded.
NONE = "none"

#: Distributions that a selector may name; the first ones with their commits, as a support table shows them.
_DISTRIBUTIONS = (*COMPARED_VERSIONS, "rocm", "driver", "capmatrix")


def _version(name: str) -> Callable[[Sourced], str]:
    def value(item: Sourced) -> str:
        if item.environment is None:
            return NONE
        version = item.environment.versions.get(name, "").partition("+")[0]
        commit = item.environment.commits.get(name, "")[:12]
        known = f"{version} ({commit})" if version and commit and commit != "unknown" else version or commit
        return known or NONE

    return value


def _switches(item: Sourced) -> str:
    return switch_words(item.record.cell.switches) or NONE


def _force(item: Sourced) -> str:
    cell = item.record.cell
    return cell.force.value if cell.force is not Force.KERNEL_BLOCK else f"kernel_block {cell.kernel_block}"


def _axis(name: str) -> Callable[[Sourced], str]:
    return lambda item: str(getattr(item.record.cell, name))


#: Axes of a cell that a selector may name as they are.
_AXES = ("backend", "block_size", "kv_cache_dtype", "drafter", "tp", "dtype", "batch", "execution", "runner", "scales")

#: Every key, and what it says of a record. ``arch`` is what heads a support table's column: an AMD architecture,
#: or, for a record that may speak for none, the hardware with the identity it had.
KEYS: dict[str, Callable[[Sourced], str]] = {
    "run": lambda item: item.source.name,
    "arch": lambda item: place(item.record, item.environment).title,
    "target": lambda item: item.record.cell.target,
    **{name: _version(name) for name in _DISTRIBUTIONS},
    **{name: _axis(name) for name in _AXES},
    "switches": _switches,
    "force": _force,
}

#: Keys along which time goes by: what differs from left to right is a regression or a fix.
ORDERED: frozenset[str] = frozenset({"run", *_DISTRIBUTIONS})


def parse(words: Iterable[str], option: str) -> dict[str, str]:
    """Selectors from words as a user wrote them; ``option`` is named in errors. InputError for a wrong one."""
    out: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key or not value:
            raise InputError("not of the form KEY=VALUE", key=option, value=word, allowed=KEYS)
        if key not in KEYS:
            raise InputError("unknown key", key=option, value=key, allowed=KEYS)
        if key in out:
            raise InputError(f"{key} is chosen twice", key=option, value=word)
        out[key] = value
    return out


def select(items: Sequence[Sourced], wanted: Mapping[str, str], option: str) -> list[Sourced]:
    """The records that every selector fits. InputError, with the values that there are, where one fits nothing.

    A version may be given without its commit.
    """
    left = list(items)
    chosen = ""
    for key, value in wanted.items():
        told = [(KEYS[key](item), item) for item in left]
        exact = key not in _DISTRIBUTIONS
        fitting = [item for said, item in told if value in ((said,) if exact else (said, said.partition(" (")[0]))]
        if not fitting:
            there = sorted({said for said, _ in told}, key=natural)
            raise InputError(f"no record{chosen} has {key}={value}", key=option, value=value, allowed=there)
        left = fitting
        chosen += f"{' with' if not chosen else ' and'} {key}={value}"
    return left


def natural(text: str) -> tuple[tuple[int, str], ...]:
    """A key to sort by in which ``b16`` comes before ``b128``."""
    parts = re.split(r"([0-9]{1,18})", text)
    return tuple((int(part), "") if i % 2 else (-1, part) for i, part in enumerate(parts))
