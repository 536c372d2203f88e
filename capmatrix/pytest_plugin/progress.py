"""A line for every finished cell, and a message while a worker server starts."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from .facts import Facts

#: Colours by pytest's outcome, as pytest's terminal writer names them.
_MARKUP: Mapping[str, dict[str, bool]] = {
    "passed": {"green": True},
    "failed": {"red": True},
    "skipped": {"yellow": True},
    "xfailed": {"yellow": True},
    "xpassed": {"cyan": True, "bold": True},
}

#: Finished cells whose pace the estimate of the rest goes by: compilation makes early cells the slower ones.
_RECENT = 32

Write = Callable[..., None]


class Progress:
    """Writes status lines through ``write(text, **markup)``.

    ``slow``: servers import vLLM, which takes a while; ``clock`` gives seconds.
    """

    def __init__(self, write: Write, slow: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._slow = slow
        self._clock = clock
        self._ends: deque[float] = deque(maxlen=_RECENT + 1)
        self.total = 0
        self.done = 0
        self.resumed = 0
        self._announced: set[str] = set()

    def begin(self, total: int) -> None:
        """The cells are known and the first is about to start."""
        self.total = total

    def starting(self, server: str, target: str) -> None:
        """A cell needs a worker server that does not run yet; said once a server."""
        if server in self._announced:
            return
        self._announced.add(server)
        self._write(f"starting {target}" + (" (imports vLLM, about 10 s)" if self._slow else ""), cyan=True)

    def finished(self, facts: Facts) -> None:
        """A cell has its record. Cells whose record was there already are counted, not listed."""
        self.done += 1
        if facts["resumed"]:
            self.resumed += 1
            return
        now = self._clock()
        if not self._ends:
            self._ends.append(now - facts["seconds"])  # not since the start: that was spent on a server
        self._ends.append(now)
        width = len(str(self.total))
        text = (
            f"[{self.done:>{width}}/{self.total}] {facts['verdict']:<11} {facts['rung']:<11} "
            f"{facts['seconds']:>6.1f}s  {facts['label']}"
        )
        left = self.remaining()
        if left is not None:
            text += f"  ({duration(left)} left)"
        self._write(text, **_markup(facts))

    def remaining(self) -> float | None:
        """Seconds the rest will take at the pace of late; None when nothing is left or known."""
        left = self.total - self.done
        if len(self._ends) < 2 or left < 1:
            return None
        return (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1) * left


def duration(seconds: float) -> str:
    """``0:42``, ``12:05``, ``1:02:03``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _markup(facts: Facts) -> dict[str, Any]:
    return dict(_MARKUP.get(facts["kind"], {}))
