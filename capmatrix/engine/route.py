"""The route of a cell: which kernels and native operators ran, in order of first launch.

One recorder per process. Launch sites report here: the virtual driver's launcher, Triton's
interpreter, the native stand-ins. ``start`` empties it; ``finish`` returns the route.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..cell import Kernel


class NativeMissing(Exception):
    """A native operator was reached that this target has no code for and no exact stand-in."""

    def __init__(self, name: str, detail: str = "") -> None:
        self.name = name
        super().__init__(f"native operator {name} has no code on this target" + (f": {detail}" if detail else ""))


_kernels: dict[tuple[Any, ...], Kernel] = {}
_phase = "forward"


def start() -> None:
    """Forget the route so far."""
    _kernels.clear()


def set_phase(phase: str) -> None:
    """Label what follows: ``cache-write``, ``forward`` or ``graph``."""
    global _phase
    _phase = phase


def phase() -> str:
    """The label that launches get now."""
    return _phase


def launched(name: str, kind: str, *, key: Any = None, grid: tuple[int, ...] | None = None, **figures: Any) -> None:
    """Note one launch. Launches of one kernel with one grid in one phase are counted together."""
    where = (name, kind, _phase, key, grid)
    known = _kernels.get(where)
    if known is None:
        _kernels[where] = Kernel(name=name, kind=kind, phase=_phase, grid=grid, **figures)
    else:
        _kernels[where] = msgspec.structs.replace(known, calls=known.calls + 1)


def so_far() -> tuple[Kernel, ...]:
    """The route since ``start``."""
    return tuple(_kernels.values())


def natives() -> tuple[str, ...]:
    """Names of native operators reached that computed nothing exact."""
    return tuple(dict.fromkeys(k.name for k in _kernels.values() if k.kind == "native"))
