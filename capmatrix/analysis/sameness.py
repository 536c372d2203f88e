"""What two records of a cell have in common: the parts that say what happened, without times, ids and addresses."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from .. import codec
from ..cell import Kernel, Record

_ADDRESS = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-f]{8,}\b|\b\d{4,}\b")


def parts(record: Record) -> dict[str, str]:
    """Each part as text to compare: verdict, reason, selection, claims, set-up, route, checks.

    Of checks only their outcome counts, and of kernels not how long they took to compile.
    """
    selection = [c for c in record.claims if c.layer == "selector"]
    claims = [c for c in record.claims if c.layer != "selector"]
    failure = (record.failure.type, record.failure.frame) if record.failure else None
    found: dict[str, Any] = {
        "verdict": (record.verdict, record.rung, record.phase, record.flags),
        "reason": ([_steady(r) for r in record.reasons], failure),
        "selection": selection,
        "claims": claims,
        "set-up": (
            record.implementation,
            record.kernel_block,
            record.layout,
            record.kv_cache,
            record.graph_support,
        ),
        "route": [_kernel(k) for k in record.route],
        "checks": [(c.part, c.cache, c.ok, c.nan_count > 0, c.unwritten_count > 0) for c in record.checks],
    }
    return {name: codec.encode(value).decode() for name, value in found.items()}


def differing(one: dict[str, str], other: dict[str, str]) -> tuple[str, ...]:
    """Names of the parts that are not the same."""
    return tuple(name for name in one if one[name] != other[name])


def _kernel(kernel: Kernel) -> Kernel:
    return msgspec.structs.replace(kernel, compile_s=None, detail=_steady(kernel.detail))


def _steady(text: str) -> str:
    """Text without addresses, process ids and the like."""
    return _ADDRESS.sub("#", text)
