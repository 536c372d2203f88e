"""Numbers on a command line: types for argparse, each with its bounds and an error that names them."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def whole(high: int = (1 << 31) - 1, name: str = "") -> Callable[[str], int]:
    """A type of argparse for whole numbers from 1 to ``high``; ``name`` says what the number is, where it has one."""
    what = f"{name} (1 to {high})" if name else "a whole number above 0"

    def read(text: str) -> int:
        # Longer than any bound is no number to read: Python itself refuses to from some thousand digits on.
        if not text.isdecimal() or len(text) > 20 or not 0 < int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
        return int(text)

    return read


def percent(high: float) -> Callable[[str], float]:
    """A type of argparse for ``10%`` or ``10``, from 0 to ``high``; gives 10.0."""

    def read(text: str) -> float:
        try:
            found = float(text.strip().removesuffix("%"))
        except ValueError:
            found = -1.0
        if not 0 <= found <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a percentage of 0 to {high:g}")
        return found

    return read
