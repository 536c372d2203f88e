"""How long the host takes to build attention metadata, and how often that makes it wait for the GPU.

What is measured is vLLM's own ``build_attn_metadata`` with the backend's builder in it, called as in a step; tensors
that are made for it beforehand are not part of it.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import torch

from . import forward, static_call

#: Builds that are timed. One more is made to count what waits, since counting takes time itself.
_BUILDS = 5

#: What PyTorch's warning of an operation that waits begins with, on CUDA as on ROCm.
_WAITS = "called a synchronizing"

_NAME = "build_attn_metadata"


class Builds(NamedTuple):
    """``microseconds`` of each build; ``synchronisations`` of one, None where they could not be counted."""

    microseconds: tuple[float, ...]
    synchronisations: int | None


def measured(build: Callable[[], Any]) -> Builds:
    """Calls ``build``, which builds one batch's metadata, some times over.

    A synchronisation is counted where the host waits for the GPU: an operation of PyTorch that does (a copy to or from
    pageable memory, ``item``, ``nonzero``; ``torch.cuda.set_sync_debug_mode`` tells), a device's or an event's
    ``synchronize``. Native code that waits on its own is not seen.
    """
    taken: list[float] = []

    def timed(wrapped: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        torch.cuda.synchronize()
        since = time.perf_counter()
        result = wrapped(*args, **kwargs)
        taken.append((time.perf_counter() - since) * 1e6)
        return result

    with _around(timed):
        for _ in range(_BUILDS):
            build()
    waits: list[int] = []

    def counted(wrapped: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with _waits() as seen:
            result = wrapped(*args, **kwargs)
        waits.append(len(seen))
        return result

    with _around(counted):
        build()
    return Builds(tuple(taken), sum(waits) if waits else None)


@contextlib.contextmanager
def _around(watcher: Callable[..., Any]) -> Iterator[None]:
    """Within, whoever here calls vLLM's function calls ``watcher`` with it and its arguments."""
    with contextlib.ExitStack() as stack:
        for module in (forward, static_call):
            wrapped = getattr(module, _NAME)
            stack.enter_context(mock.patch.object(module, _NAME, _bound(watcher, wrapped)))
        yield


def _bound(watcher: Callable[..., Any], wrapped: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return watcher(wrapped, *args, **kwargs)

    return call


@contextlib.contextmanager
def _waits() -> Iterator[list[str]]:
    """Within, what makes the host wait is listed."""
    seen: list[str] = []

    def noting(name: str, wrapped: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            seen.append(name)
            return wrapped(*args, **kwargs)

        return call

    before = torch.cuda.get_sync_debug_mode()
    with contextlib.ExitStack() as stack:
        caught = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        for owner in (torch.cuda, torch.cuda.Event):
            stack.enter_context(mock.patch.object(owner, "synchronize", noting("synchronize", owner.synchronize)))
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield seen
        finally:
            torch.cuda.set_sync_debug_mode(before)
            seen += [str(w.message) for w in caught if str(w.message).startswith(_WAITS)]
