"""Names and figures of the policies, apart from what computes them: the command line needs them at once."""

from __future__ import annotations

#: Policies by name, the default first.
POLICIES: tuple[str, ...] = ("lightest", "fastest", "safest")
#: Percent of the fastest candidate's speed that a lighter one may give away, and that a win must exceed.
MARGIN = 5.0
