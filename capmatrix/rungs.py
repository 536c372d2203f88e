"""Which rung of evidence a target can reach."""

from __future__ import annotations

from .cell import Rung

_BY_KIND = {
    "offline": Rung.COMPILED,
    "interpreter": Rung.INTERPRETED,
    "emulator": Rung.EMULATED,
    "device": Rung.EXECUTED,
    "serve": Rung.SERVED,
}


def reachable(target: str) -> Rung:
    """The strongest rung a target (``offline:gfx942``, ``device`` ...) can give; unknown ones only declare."""
    return _BY_KIND.get(target.partition(":")[0], Rung.DECLARED)
