"""Import what most cells use once, in the server, so that forked workers start with it."""

from __future__ import annotations

import contextlib

from vllm.v1.attention.backends.registry import AttentionBackendEnum

from ..vocabulary import ROCM_BACKENDS


def backends() -> None:
    """Import every ROCm backend's module that can be imported; the others fail in their own cells."""
    for name in ROCM_BACKENDS:
        with contextlib.suppress(Exception):
            AttentionBackendEnum[name].get_class()
    from . import claims, forward, judge, setup  # noqa: F401
