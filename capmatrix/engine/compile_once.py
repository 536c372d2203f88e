"""A kernel is compiled once over all workers: whoever needs one that another compiles now waits and takes that one.

Triton looks a kernel up in its cache and compiles it on a miss; two workers that miss at the same time both compile.
A lock beside the cache entry, held from the miss until the entry is complete, makes the second one look again. It
goes with the process that holds it, so a worker that dies or is killed while it compiles leaves the next one to try.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any


def install() -> None:
    """Have Triton use the locking cache, unless the user has named a cache manager of their own."""
    from triton import knobs
    from triton.runtime.cache import FileCacheManager

    if knobs.cache.manager_class in (None, FileCacheManager):
        knobs.cache.manager_class = _locking(FileCacheManager)


def _locking(base: type[Any]) -> type[Any]:
    """Triton's file cache with the lock; ``base`` is Triton's own class."""

    class LockingCacheManager(base):  # type: ignore[misc]
        _lock: int | None = None

        def get_group(self, filename: str) -> Any:
            found = super().get_group(filename)
            if found and filename in found:
                return found
            self._wait()
            found = super().get_group(filename)
            if found and filename in found:
                self._release()  # compiled by another worker meanwhile
            return found

        def put_group(self, filename: str, group: dict[str, str]) -> Any:
            try:
                return super().put_group(filename, group)
            finally:
                self._release()

        def _wait(self) -> None:
            import fcntl

            # A file system without locks is no reason to compile nothing.
            with contextlib.suppress(OSError):
                path = os.path.join(self.cache_dir, "compiling.lock")
                self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
                fcntl.flock(self._lock, fcntl.LOCK_EX)

        def _release(self) -> None:
            lock, self._lock = self._lock, None
            if lock is not None:
                os.close(lock)

        def __del__(self) -> None:
            self._release()  # a compilation that failed

    return LockingCacheManager
