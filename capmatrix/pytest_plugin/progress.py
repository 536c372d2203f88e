"""A line for every finished cell, and a message while a worker server starts."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import printable
from .facts import Facts
from .timed import Timed

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
        self.groups = 0
        self._timed = 0
        self._is_timing = False

    def begin(self, total: int, groups: int = 0) -> None:
        """The cells, and the groups of rivals to time, are known and the first is about to start."""
        self.total = total
        self.groups = groups

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

    def timing(self) -> None:
        """All cells are done, and the first group of rivals is about to be timed; said once."""
        if not self._is_timing:
            self._is_timing = True
            self._write(f"timing {self.groups} group{'s' * (self.groups != 1)} of rivals, in turn", cyan=True)

    def timed(self, facts: Timed) -> None:
        """A group of rivals is done: one line for it, and one for each rival."""
        self._timed += 1
        if facts["idle"]:
            return
        width = len(str(self.groups))
        head = f"[times {self._timed:>{width}}/{self.groups}] {facts['seconds']:>6.1f}s  {facts['label']}"
        self._write(head, green=bool(facts["times"]), yellow=not facts["times"])
        for rival, workload, median in facts["times"]:
            self._write(f"    {median:>12,.1f} us  {rival}  {workload}")
        for line in facts["refused"]:
            self._write(f"    {printable(line)}", yellow=True)

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
