"""Ctrl-C: once ends a run in good order, twice at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

#: Exit status of a process that a second Ctrl-C ended, as shells have it for SIGINT.
EXIT_INTERRUPTED = 130

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Handlers for SIGINT and SIGTERM in the main thread: the first raises KeyboardInterrupt.

    The second calls ``leave`` and ends the process. In an xdist node the second does nothing: a terminal
    sends Ctrl-C to every process, and the controller passes it on as well.
    """

    def __init__(self, leave: Callable[[], None] | None) -> None:
        self._leave = leave
        self._before: dict[int, Any] = {}

    def install(self) -> None:
        """Take over the signals; nothing outside the main thread, where Python allows no handler."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            self._before[number] = signal.signal(number, self._first)

    def restore(self) -> None:
        """Give the signals back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _first(self, number: int, frame: FrameType | None) -> None:
        for each in _SIGNALS:
            signal.signal(each, self._second)
        raise KeyboardInterrupt

    def _second(self, number: int, frame: FrameType | None) -> None:
        if self._leave is None:
            return
        try:
            self._leave()
        finally:
            sys.stderr.flush()
            os._exit(EXIT_INTERRUPTED)
