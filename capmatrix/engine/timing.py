"""Time one attention call of one layer at a workload profile: decode and verify by graph replay, prefill eager.

Times are of this GPU alone. The cache holds random numbers; each request's blocks are scattered over a pool of
the profile's size, and the GPU's last cache is flushed before every repeat.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable
from typing import Any

import torch

from ..batches import Batch, Request
from ..cell import Cell, Phase
from ..grid import Workload
from ..timings import UNCAPTURED, Sample
from . import device_facts, device_route, forward, inputs, metadata_builds, model_config, setup
from .static_call import StaticCall

#: Calls before the first that counts.
_WARM = 3
#: Beyond every last-level cache of a GPU (MI300X: 256 MiB of Infinity Cache).
_FLUSH_BYTES = 512 << 20
#: Most flushes before a repeat: some 8 ms, and longer than the host needs for any call that is not compiled.
_MOST_FLUSHES = 64
#: New tokens of a prefill call: vLLM's default token budget of a step, in chunks of 2048.
_CHUNK, _BUDGET = 2048, 8192

_QUERY = {"decode": lambda k: 1, "verify": lambda k: 1 + k}

#: A call to repeat, how it is made, and what builds its metadata anew.
_Prepared = tuple[Callable[[], Any], str, Callable[[], Any]]


def sample(
    cell: Cell, device: torch.device, workload: Workload, repeats: int, enter: Callable[[Phase], None]
) -> Sample:
    """``repeats`` of the call of the cell's batch (``timings.BATCHES``) under a profile.

    With no repeats the call is made once, so that every kernel of it is compiled: with the profile's requests and
    lengths, by which kernels are chosen and specialised, but in a small pool whose blocks requests share, since
    several workers do so at a time. Raises what the backend raises at that size, and torch.OutOfMemoryError.
    """
    batch = _batch(cell, workload)
    most = max(model_config.MAX_MODEL_LEN[cell.lengths], _whole(max(r.seq_len for r in batch.requests)))
    # vLLM wants room for one sequence of the model's length, however short these are.
    blocks = -(-most // cell.block_size)
    if repeats:
        blocks = max(blocks, inputs.blocks_needed(batch, cell.block_size))
    best = bandwidth() if repeats else None
    made = setup.build(cell, device, enter, blocks=blocks + setup.SPARE_BLOCKS, longest=most)
    enter(Phase.TIME)
    _random_cache(made)
    placement, values = _given(cell, made, batch)
    with device_route.quiet():
        call, how, build = (_eager if cell.batch == "prefill" else _replayed)(cell, made, batch, placement, values)
        if not repeats:
            call()
            torch.cuda.synchronize()
            return Sample(how=how)
        built = metadata_builds.measured(build)
        times, host = _times(call, made.device, repeats, best or 1.0)
    return Sample(
        microseconds=tuple(times),
        how=how,
        requests=len(batch.requests),
        query_tokens=sum(r.query_len for r in batch.requests),
        moved_bytes=None if cell.batch == "prefill" else _bytes(cell, made, batch),
        bandwidth=best,
        metadata_us=built.microseconds,
        synchronisations=built.synchronisations,
        clocks=_clocks(),
        host_us=tuple(host),
        gpu=device_facts.gpu_id(),
    )


def _whole(tokens: int) -> int:
    """A model's length that admits so many tokens: whole thousands (1,024), as models have."""
    return -(-tokens // 1024) * 1024


def _clocks() -> dict[str, float]:
    """What the driver says of its clocks now, but for what is no number."""
    found = {}
    for name, value in device_facts.clocks().items():
        with contextlib.suppress(TypeError, ValueError):
            number = float(value)
            if math.isfinite(number):
                found[name] = number
    return found


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
        # Finite numbers of both signs in every FP8 format: exponents up to the middle of their range, and no zero,
        # whose negative is NaN in e4m3fnuz.
        storage.random_(1, 0x48)
        storage[1::2] += 0x80


def _given(cell: Cell, made: setup.Setup, batch: Batch) -> tuple[inputs.Placement, inputs.Values]:
    """Where the batch's tokens live, and random values; requests share blocks where the pool is too small for all."""
    size, blocks = made.block_size, made.kv_cache_config.num_blocks
    needed = inputs.blocks_needed(batch, size) + setup.SPARE_BLOCKS
    placement = inputs.place(batch, size, max(blocks, needed)).on(made.device)
    if needed > blocks:
        slots = placement.new_slots
        placement = placement._replace(
            tables=placement.tables % (blocks - 1) + 1,
            new_slots=(slots // size % (blocks - 1) + 1) * size + slots % size,
        )
    g, m, dtype = cell.geometry, cell.geometry.mla, getattr(torch, cell.dtype)
    new = sum(r.query_len for r in batch.requests)

    def rows(heads: int, width: int) -> torch.Tensor:
        return torch.randn(new, heads, width, device=made.device).to(dtype)

    if m is not None:
        latent = rows(1, m.kv_lora_rank + m.qk_rope_head_dim)
        q = rows(g.num_heads, m.qk_nope_head_dim + m.qk_rope_head_dim)
        return placement, inputs.Values(q, (latent,), (latent[..., : m.kv_lora_rank],))
    k, v = (rows(g.num_kv_heads, g.head_size) for _ in range(2))
    return placement, inputs.Values(rows(g.num_heads, g.head_size), (k,), (v,))


def _replayed(
    cell: Cell, made: setup.Setup, batch: Batch, placement: inputs.Placement, values: inputs.Values
) -> _Prepared:
    requests, how = _captured(made, batch)
    call = StaticCall(made, cell.geometry, requests, batch.requests[0].query_len, getattr(torch, cell.dtype))
    call.capture()

    def fill() -> None:
        call.fill(placement, values, values.k[0], values.v[0])

    fill()
    return call.replay, how, fill


def _captured(made: setup.Setup, batch: Batch) -> tuple[int, str]:
    """Requests that the graph is captured for: as many as vLLM would pad the batch to; and what to say of it."""
    count = len(batch.requests)
    if made.plan is None:
        return count, "graph replay; the cell's server is eager"
    found = made.plan.dispatch(batch)
    if found.mode != "FULL":
        how = {"NONE": "eagerly", "PIECEWISE": "between piecewise graphs"}.get(found.mode, found.mode)
        return count, f"graph replay; {UNCAPTURED} {how}"
    return (
        found.requests,
        f"graph replay, padded to {found.requests} requests" if found.requests > count else "graph replay",
    )


def _eager(
    cell: Cell, made: setup.Setup, batch: Batch, placement: inputs.Placement, values: inputs.Values
) -> _Prepared:
    slots = placement.new_slots

    def build() -> dict[str, Any]:
        return forward._metadata(made, batch, placement, slots.shape[0], slots)

    call = forward.prepared(made, build(), slots, values.q, values.k[0], values.v[0])
    return call, "eager", build


def _times(
    call: Callable[[], Any], device: torch.device, repeats: int, bandwidth: float
) -> tuple[list[float], list[float]]:
    """Microseconds of each repeat on the GPU, the last-level cache flushed before it; and on the host.

    The GPU is kept busy with flushing for as long as the host takes to make the call: else the pauses between an
    eager call's kernels, in which the GPU waits for the host, would be timed as the kernels' own.
    """
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device=device)
    found, host, lead = [], [], 1
    for number in range(_WARM + repeats):
        for _ in range(lead):
            flush.fill_(number % 251)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        since = time.perf_counter()
        call()
        took = time.perf_counter() - since
        end.record()
        torch.cuda.synchronize()
        if number >= _WARM:
            found.append(start.elapsed_time(end) * 1000)
            host.append(took * 1e6)
        else:
            # The first calls may compile: the last of them is as those that count.
            lead = max(1, min(_MOST_FLUSHES, math.ceil(2 * took * bandwidth / _FLUSH_BYTES)))
    return found, host


def _bytes(cell: Cell, made: setup.Setup, batch: Batch) -> int:
    """Fewest bytes that the call moves: K and V of every key that is read, new ones written, query and output."""
    g, element = cell.geometry, made.layer.kv_cache.element_size()
    window = g.sliding_window or 1 << 60
    keys = sum(min(r.seq_len, window - 1 + r.query_len) for r in batch.requests)
    new = sum(r.query_len for r in batch.requests)
    model = torch.finfo(getattr(torch, cell.dtype)).bits // 8
    if g.mla is not None:
        m = g.mla
        row = (m.kv_lora_rank + m.qk_rope_head_dim) * element
        heads = g.num_heads * (m.qk_nope_head_dim + m.qk_rope_head_dim + m.v_head_dim) * model
        return (keys + new) * row + new * heads
    return 2 * (keys + new) * g.num_kv_heads * g.head_size * element + 2 * new * g.num_heads * g.head_size * model


@functools.cache
def bandwidth() -> float:
    """Bytes a second that this GPU moves at best: a sum over 4 GiB, a maximum over it, a copy (read and write)."""
    found = _bandwidth()
    torch.cuda.empty_cache()
    return found


def _bandwidth() -> float:
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
