"""Watch Triton compile: tell the worker's supervisor when it starts and ends, and how long it took."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

#: Seconds that the last compilation of each kernel took in this process; None where it came from the cache.
_seconds: dict[str, float | None] = {}
_started: list[tuple[str, float]] = []
_on_start: Callable[[str], None] | None = None
_on_end: Callable[[], None] | None = None
_hit = False


def install(on_start: Callable[[str], None], on_end: Callable[[], None]) -> None:
    """Call ``on_start(kernel)`` when Triton begins to compile, ``on_end()`` when it is done."""
    from triton import knobs

    global _on_start, _on_end
    _on_start, _on_end = on_start, on_end
    knobs.runtime.jit_cache_hook = _before
    knobs.runtime.jit_post_compile_hook = _after
    knobs.compilation.listener = _listener


@contextlib.contextmanager
def compiling(kernel: str) -> Iterator[None]:
    """Report what is done within as the compilation of ``kernel``, where Triton's own hooks do not see it."""
    _before(fn=SimpleNamespace(name=kernel))
    yield
    _after(fn=None)


def taken(kernel: str) -> float | None:
    """Seconds of the last compilation of ``kernel``, or None when it came from the cache."""
    return _seconds.get(kernel)


def _before(*, fn: Any, **rest: Any) -> bool:
    global _hit
    _hit = False
    name = fn.name.rsplit(".", 1)[-1]
    _started.append((name, time.monotonic()))
    if _on_start:
        _on_start(name)
    return False


def _after(*, fn: Any, **rest: Any) -> bool:
    if _started:
        name, since = _started.pop()
        _seconds[name] = None if _hit else round(time.monotonic() - since, 3)
    if _on_end:
        _on_end()
    return False


def _listener(*, cache_hit: bool, **rest: Any) -> None:
    global _hit
    _hit = cache_hit
