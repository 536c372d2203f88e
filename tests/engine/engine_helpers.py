"""Cells for the engine's tests, and looks into their records."""

from __future__ import annotations

from typing import Any

from capmatrix.cell import Cell, Check, Claim, Geometry, Kernel, Record, Role

#: MiniMax-M3's EAGLE3 drafter at TP 4, and the same with few heads for the interpreter.
WHOLE = Geometry(16, 16, 128)
FEW = Geometry(4, 4, 128)


def drafter_cell(target: str, backend: str, block_size: int, kv_cache_dtype: str, batch: str, **fields: Any) -> Cell:
    """A cell of that drafter, as small as the target's kind wants it; ``fields`` of Cell outrank."""
    is_interpreted = target.startswith("interpreter")
    given: dict[str, Any] = {
        "drafter": "minimax-m3-eagle3",
        "tp": 4,
        "role": Role.DRAFTER,
        "method": "eagle3",
        "geometry": FEW if is_interpreted else WHOLE,
        "num_speculative_tokens": 2,
        "lengths": "short" if is_interpreted else "full",
    } | fields
    return Cell(
        target=target,
        backend=backend,
        block_size=block_size,
        kv_cache_dtype=kv_cache_dtype,
        batch=batch,
        **given,
    )


def kernel(record: Record, name: str) -> Kernel:
    """The kernel called ``name`` in the record's route; fails with the route where it is not there."""
    found = [k for k in record.route if k.name == name]
    assert found, f"{name} is not in the route: {[k.name for k in record.route]}"
    return found[0]


def checks(record: Record, part: str) -> list[Check]:
    """The record's checks of one part."""
    return [c for c in record.checks if c.part == part]


def claim(record: Record, layer: str) -> Claim:
    """What one claim layer said."""
    return next(c for c in record.claims if c.layer == layer)
