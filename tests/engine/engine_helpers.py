"""Looks into records, for the engine's tests."""

from __future__ import annotations

from capmatrix.cell import Check, Claim, Kernel, Record


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
