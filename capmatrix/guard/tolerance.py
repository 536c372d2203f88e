"""How much slower than the best a default may be, and percentages on a command line."""

from __future__ import annotations

import argparse

#: By how many percent a default may be slower than the best.
TOLERANCE = 10.0


def percent(text: str) -> float:
    """``10%`` or ``10`` to 10.0; argparse's error for anything else."""
    try:
        found = float(text.strip().removesuffix("%"))
    except ValueError:
        found = -1.0
    if not 0 <= found <= 100_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage")
    return found
