"""Whole models made and let go of in one process: what torch would keep of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def models_forgotten() -> Iterator[None]:
    """Let go of the models made within: every compiled one stays registered with torch for as long as it lives.

    Its hook into Dynamo holds the model, and so its layers, its configuration and their pool, for ever.
    """
    from torch._dynamo import convert_frame

    hooks = convert_frame._bytecode_hooks
    before = set(hooks)
    try:
        yield
    finally:
        for added in set(hooks) - before:
            del hooks[added]
