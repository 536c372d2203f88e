"""Time one attention call of one layer at a workload profile: decode and verify by graph replay, prefill eager.

Times are of this GPU alone. The cache holds random numbers; each request's blocks are scattered over a pool of
the profile's size, and the GPU's last cache is flushed before every repeat.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from ..batches import Batch, Request
from ..cell import Cell, Phase, Timing
from ..grid import Workload
from . import device_facts, device_route, forward, inputs, model_config, setup
from .static_call import StaticCall

REPEATS = 24
_WARM = 3
#: Ranks (from 0) of the order statistics that hold the median of 24 repeats with 95 % confidence (binomial).
_LOW, _HIGH = 6, 17
#: Beyond every last-level cache of a GPU (MI300X: 256 MiB of Infinity Cache).
_FLUSH_BYTES = 512 << 20
#: New tokens of a prefill call: vLLM's default token budget of a step, in chunks of 2048.
_CHUNK, _BUDGET = 2048, 8192

_QUERY = {"decode": lambda k: 1, "verify": lambda k: 1 + k}


def measure(
    cell: Cell, device: torch.device, name: str, workload: Workload, enter: Callable[[Phase], None]
) -> tuple[Timing, ...]:
    """The call of the cell's batch under a profile; nothing where the batch is none that is timed.

    Raises what the backend raises at that size, and torch.OutOfMemoryError.
    """
    if cell.geometry.mla is not None or cell.batch not in (*_QUERY, "prefill"):
        return ()
    batch = _batch(cell, workload)
    # vLLM wants room for one sequence of the model's length, however short these are.
    longest = -(-model_config.MAX_MODEL_LEN[cell.lengths] // cell.block_size)
    blocks = max(longest, inputs.blocks_needed(batch, cell.block_size)) + setup.SPARE_BLOCKS
    made = setup.build(cell, device, enter, blocks=blocks)
    enter(Phase.TIME)
    if max(r.seq_len for r in batch.requests) > made.config.model_config.max_model_len:
        return ()
    _random_cache(made)
    with device_route.quiet():
        timed = _eager if cell.batch == "prefill" else _replayed
        times, detail = timed(cell, made, batch)
    ordered = sorted(times)
    moved = _bytes(cell, made, batch)
    median = statistics.median(ordered)
    clocks = ", ".join(f"{k} {v}" for k, v in device_facts.clocks().items())
    return (
        Timing(
            phase=cell.batch,  # type: ignore[arg-type]
            workload=name,
            median_us=round(median, 2),
            low_us=round(ordered[_LOW], 2),
            high_us=round(ordered[_HIGH], 2),
            repeats=len(ordered),
            share_of_roofline=None if cell.batch == "prefill" else round(moved / bandwidth() / (median * 1e-6), 4),
            query_tokens=sum(r.query_len for r in batch.requests),
            detail=f"{detail}; {len(batch.requests)} requests, {bandwidth() / 1e12:.2f} TB/s read here; {clocks}",
        ),
    )


def _batch(cell: Cell, workload: Workload) -> Batch:
    """Requests half-way through their output on average: lengths spread evenly from its start to its end."""
    start = workload.context + workload.input
    if cell.batch == "prefill":
        count = max(1, min(workload.concurrency, _BUDGET // _CHUNK))
        return Batch("prefill", tuple(Request(_CHUNK, max(_CHUNK, start)) for _ in range(count)))
    query_len = _QUERY[cell.batch](cell.num_speculative_tokens)
    steps = max(1, workload.concurrency - 1)
    lengths = [start + query_len + workload.output * i // steps for i in range(workload.concurrency)]
    order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(9)).tolist()
    return Batch(cell.batch, tuple(Request(query_len, lengths[i]) for i in order))


def _random_cache(made: setup.Setup) -> None:
    cache = made.layer.kv_cache
    storage = torch.empty(0, dtype=torch.uint8, device=cache.device).set_(cache.untyped_storage())
    if cache.element_size() > 1:
        storage[: storage.numel() // 2 * 2].view(cache.dtype).normal_()
    else:
        # Finite numbers of both signs in every FP8 format: exponents up to the middle of their range.
        storage.random_(0, 0x48)
        storage[1::2] += 0x80


def _given(cell: Cell, made: setup.Setup, batch: Batch) -> tuple[inputs.Placement, inputs.Values]:
    placement = inputs.place(batch, made.block_size, made.kv_cache_config.num_blocks).on(made.device)
    g, dtype = cell.geometry, getattr(torch, cell.dtype)
    new = sum(r.query_len for r in batch.requests)

    def rows(heads: int) -> torch.Tensor:
        return torch.randn(new, heads, g.head_size, device=made.device).to(dtype)

    return placement, inputs.Values(rows(g.num_heads), (rows(g.num_kv_heads),), (rows(g.num_kv_heads),))


def _replayed(cell: Cell, made: setup.Setup, batch: Batch) -> tuple[list[float], str]:
    placement, values = _given(cell, made, batch)
    call = StaticCall(made, cell.geometry, len(batch.requests), batch.requests[0].query_len, getattr(torch, cell.dtype))
    call.capture()
    since = time.perf_counter()
    call.fill(placement, values, values.k[0], values.v[0])
    torch.cuda.synchronize()
    built = (time.perf_counter() - since) * 1e6
    return _times(call.replay), f"graph replay; inputs and metadata filled in {built:.0f} us"


def _eager(cell: Cell, made: setup.Setup, batch: Batch) -> tuple[list[float], str]:
    placement, values = _given(cell, made, batch)
    slots = placement.new_slots
    since = time.perf_counter()
    metadata = forward._metadata(made, batch, placement, slots.shape[0], slots)
    built = (time.perf_counter() - since) * 1e6
    call = forward.prepared(made, metadata, slots, values.q, values.k[0], values.v[0])
    return _times(call), f"eager; metadata built in {built:.0f} us"


def _times(call: Callable[[], Any]) -> list[float]:
    """Microseconds of each repeat, the last-level cache flushed before it."""
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    found = []
    for number in range(_WARM + REPEATS):
        flush.fill_(number % 251)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        if number >= _WARM:
            found.append(start.elapsed_time(end) * 1000)
    return found


def _bytes(cell: Cell, made: setup.Setup, batch: Batch) -> int:
    """Fewest bytes that the call moves: K and V of every key that is read, new ones written, query and output."""
    g, element = cell.geometry, made.layer.kv_cache.element_size()
    window = g.sliding_window or 1 << 60
    keys = sum(min(r.seq_len, window + r.query_len) for r in batch.requests)
    new = sum(r.query_len for r in batch.requests)
    model = torch.finfo(getattr(torch, cell.dtype)).bits // 8
    return 2 * (keys + new) * g.num_kv_heads * g.head_size * element + 2 * new * g.num_heads * g.head_size * model


@functools.cache
def bandwidth() -> float:
    """Bytes a second that this GPU moves at best: a sum over 4 GiB, a maximum over it, a copy (read and write)."""
    data = torch.empty(1 << 31, dtype=torch.float16, device="cuda").normal_()
    out = torch.empty_like(data)
    size = data.numel() * 2
    best = 0.0
    for moved, call in ((size, data.sum), (size, data.amax), (2 * size, lambda: out.copy_(data))):
        times = []
        for _ in range(6):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            call()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end) / 1000)
        best = max(best, moved / min(times))
    return best
