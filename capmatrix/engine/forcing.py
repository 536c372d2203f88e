"""``--force``: make a backend accept what it rejects, to see where it breaks.

Two different experiments: its validation answers "no reasons", or it declares one kernel block.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from ..cell import Cell, Force


@contextlib.contextmanager
def forced(cell: Cell, backend: type[Any]) -> Iterator[None]:
    """Within this context ``backend`` (a class) claims what ``cell.force`` says; restored after."""
    claims: dict[str, Any] = {}
    if cell.force is Force.VALIDATION:
        claims["validate_configuration"] = classmethod(lambda cls, *args, **kwargs: [])
    elif cell.force is Force.KERNEL_BLOCK:
        block = cell.kernel_block or cell.block_size
        claims["get_supported_kernel_block_sizes"] = staticmethod(lambda *args: [block])
    own = {name: backend.__dict__[name] for name in claims if name in backend.__dict__}
    for name, claim in claims.items():
        setattr(backend, name, claim)
    try:
        yield
    finally:
        for name in claims:
            if name in own:
                setattr(backend, name, own[name])
            else:
                delattr(backend, name)
