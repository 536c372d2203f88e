"""What the tests of workers share: a look at processes, and waiting for an event."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Environment variable that marks a test's processes.
TAG = "CAPMATRIX_TEST_TAG"

#: Seconds for things that take milliseconds, on a machine that may be busy.
AMPLE = 60.0


def running(value: str) -> dict[int, str]:
    """Living processes that carry the test's tag, with their command lines."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            environment = Path(f"/proc/{name}/environ").read_bytes()
            state = Path(f"/proc/{name}/stat").read_text().rsplit(")", 1)[1].split()[0]
            command = Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue
        if f"{TAG}={value}".encode() in environment.split(b"\0") and state not in "ZX":
            found[int(name)] = command.replace(b"\0", b" ").decode(errors="replace")[:200]
    return found


def wait_for(condition: Callable[[], Any], seconds: float = AMPLE) -> Any:
    """The condition's first true value, or its last."""
    end = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < end:
        time.sleep(0.005)
    return value
