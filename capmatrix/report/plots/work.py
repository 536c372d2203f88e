"""What a timed call had to do at least, from what its record holds: bytes moved, operations, bandwidth of the GPU."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ...cell import Cell, Record, Timing
from ...grid import Workload
from . import evidence

#: Bytes of an element by model dtype.
_MODEL = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True)
class Work:
    """``moved`` bytes and ``operations`` of one call; ``bandwidth``: bytes a second that plain sums read beside it."""

    moved: float
    operations: float
    bandwidth: float | None

    @property
    def intensity(self) -> float:
        """Operations a byte."""
        return self.operations / self.moved


def work(record: Record, timing: Timing, workloads: Mapping[str, Workload]) -> Work | None:
    """What the call did, or None where the record does not tell.

    Decode and verify: the bytes are the recorded share of the roofline at the bandwidth measured beside it, and the
    keys follow from them. Prefill has no such share: its lengths are those of its workload profile.
    """
    cell = record.cell
    g, k = cell.geometry, cell.num_speculative_tokens
    if g.mla is not None or min(timing.query_tokens, g.num_heads, g.num_kv_heads, g.head_size) <= 0:
        return None
    if not evidence.sane(timing.query_tokens, g.num_heads, g.num_kv_heads, g.head_size, k, g.sliding_window or 0):
        return None
    element = _element(cell)
    if element is None or cell.dtype not in _MODEL:
        return None
    read = _bandwidth(timing)
    if timing.phase == "prefill":
        return _prefill(cell, timing, workloads.get(timing.workload), element, read)
    if timing.share_of_roofline is None or not evidence.sane(timing.share_of_roofline) or read is None:
        return None
    moved = timing.share_of_roofline * read * timing.median_us * 1e-6
    query = 1 + (k if timing.phase == "verify" else 0)
    requests = timing.query_tokens / query
    keys = (moved - _query_bytes(cell, timing.query_tokens)) / _pair_bytes(cell, element) - timing.query_tokens
    if keys < timing.query_tokens:
        return None
    return Work(moved, _operations(cell, requests, query, keys / requests), read)


def _prefill(cell: Cell, timing: Timing, profile: Workload | None, element: int, read: float | None) -> Work | None:
    requests = _requests(timing)
    if profile is None or not requests or timing.query_tokens % requests:
        return None
    query = timing.query_tokens // requests
    length = max(query, profile.context + profile.input)
    keys = min(length, cell.geometry.sliding_window + query) if cell.geometry.sliding_window else length
    moved = (keys + query) * requests * _pair_bytes(cell, element) + _query_bytes(cell, timing.query_tokens)
    return Work(moved, _operations(cell, requests, query, length), read)


def _operations(cell: Cell, requests: float, query: int, length: float) -> float:
    """Two products of a query with its keys, two operations each; ``length`` counts keys, the new ones among them."""
    g = cell.geometry
    window = float(g.sliding_window or length)
    first = length - query + 1 if g.causal else length  # keys that the first new token sees; the last one sees all
    if window <= first:
        seen = query * window
    else:
        grows = min(window - first, length - first)  # new tokens that see fewer keys than the window has
        seen = grows * (first + first + grows - 1) / 2 + (query - grows) * min(window, length)
    return 4.0 * g.num_heads * g.head_size * requests * seen


def _pair_bytes(cell: Cell, element: int) -> int:
    """Bytes of the key and value of one token."""
    return 2 * cell.geometry.num_kv_heads * cell.geometry.head_size * element


def _query_bytes(cell: Cell, tokens: int) -> int:
    """Bytes of query and output of the new tokens."""
    return 2 * tokens * cell.geometry.num_heads * cell.geometry.head_size * _MODEL[cell.dtype]


def _element(cell: Cell) -> int | None:
    """Bytes of an element of the cache; None for formats that pack or that carry scales along."""
    name = cell.kv_cache_dtype
    if name == "auto":
        return _MODEL.get(cell.dtype)
    return _MODEL.get(name, 1 if name in ("fp8", "fp8_e4m3", "fp8_e5m2") else None)


def _bandwidth(timing: Timing) -> float | None:
    if timing.bandwidth_tb_s is not None:
        given = timing.bandwidth_tb_s * 1e12
        return given if evidence.sane(given) and given > 0 else None
    # Earlier records say it in words.
    found = re.search(r"(?<![\d.])(\d{1,4}(?:\.\d{1,6})?) TB/s read here", timing.detail)
    return float(found[1]) * 1e12 if found and float(found[1]) > 0 else None


def _requests(timing: Timing) -> int:
    if timing.requests:
        return timing.requests
    found = re.search(r"(?<![\d.])(\d{1,7}) requests", timing.detail)
    return int(found[1]) if found else 0
