"""What capmatrix answered in place of hardware, noted by name so that a record can list it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_answered: set[str] = set()


def note(name: str) -> None:
    """Remember that the stand-in called ``name`` answered."""
    _answered.add(name)


def drain() -> tuple[str, ...]:
    """Names noted since the last call, sorted."""
    names = tuple(sorted(_answered))
    _answered.clear()
    return names


def answering(name: str, answer: Any) -> Callable[..., Any]:
    """A function of any arguments that notes ``name`` and returns ``answer`` (called if callable)."""

    def stand_in(*args: Any, **kwargs: Any) -> Any:
        note(name)
        return answer() if callable(answer) else answer

    return stand_in
