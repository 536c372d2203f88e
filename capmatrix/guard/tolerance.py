"""How much slower than the best a default may be."""

from __future__ import annotations

from .. import argtypes

#: By how many percent a default may be slower than the best.
TOLERANCE = 10.0

#: A tolerance on a command line, in percent.
percent = argtypes.percent(100_000)
