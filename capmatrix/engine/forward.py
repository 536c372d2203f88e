"""Run one batch through the layer as vLLM's worker does: cache writer, metadata builder, forward."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from vllm.config.compilation import CUDAGraphMode
from vllm.forward_context import BatchDescriptor, set_forward_context
from vllm.v1.worker.gpu.attn_utils import build_attn_metadata, build_slot_mappings_by_layer

from ..batches import Batch
from ..cell import Phase
from . import bands, mla, native_ops, route, sparse
from .inputs import Placement, Values
from .setup import Setup


class Outcome(NamedTuple):
    """What a forward left: output (rows, heads, size), the query as the kernels got it, native rows.

    ``trespasses`` names what was changed and may not be: inputs, tables, and bands around the buffers.
    """

    output: torch.Tensor
    query: torch.Tensor
    native_rows: torch.Tensor
    metadata: str
    trespasses: tuple[str, ...] = ()


def run(setup: Setup, batch: Batch, placement: Placement, values: Values, enter: Callable[[Phase], None]) -> Outcome:
    """Write the context through the layer's own cache writer, then call the layer on the new tokens.

    Raises what vLLM raises.
    """
    enter(Phase.CACHE_WRITE)
    route.set_phase("cache-write")
    write_context(setup, batch, placement, values)
    return attend(setup, batch, placement, values, enter)


def attend(setup: Setup, batch: Batch, placement: Placement, values: Values, enter: Callable[[Phase], None]) -> Outcome:
    """Call the layer on the new tokens, their context being in the cache already.

    Outputs and every temporary start as NaN. Raises what vLLM raises.
    """
    route.set_phase("forward")
    enter(Phase.FORWARD)
    tokens = int(placement.query_start_loc[-1])
    padded = tokens + batch.padded_tokens
    slots = torch.full((padded,), -1, dtype=torch.int64, device=setup.device)
    slots[:tokens] = placement.new_slots
    k, v = (new_tokens(batch, kind) for kind in (values.k, values.v))
    metadata = _metadata(setup, batch, placement, tokens, slots)
    as_the_runner = {
        "num_tokens": padded,
        "cudagraph_runtime_mode": CUDAGraphMode[batch.mode],
        "batch_descriptor": BatchDescriptor(num_tokens=padded),
    }
    tables = {
        "the block table": (placement.tables, placement.tables.clone()),
        "query_start_loc": (placement.query_start_loc, placement.query_start_loc.clone()),
        "seq_lens": (placement.seq_lens, placement.seq_lens.clone()),
        "the slot mapping": (slots, slots.clone()),
    }
    by_layer = build_slot_mappings_by_layer(slots[None], setup.kv_cache_config)
    q, k, v = (_padded(x, padded) for x in (values.q, k, v))
    native_ops.forget_claims()
    with (
        set_forward_context(metadata, setup.config, slot_mapping=by_layer, **as_the_runner),
        uninitialised_as_nan(),
        _writer_apart(setup.layer),
    ):
        call = _call_of(setup.layer)
        output, query, native, read, written = call(setup.layer, q, k, v)
    return Outcome(
        output=output[:tokens],
        query=query,
        native_rows=native[:tokens],
        metadata=type(next(iter(metadata.values()))).__name__,
        trespasses=tuple(bands.trespasses(read, written, tables)),
    )


#: Output (rows, heads, size), the query as the kernels got it, rows of native operators, buffers read and written.
Called = tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[bands.Banded], list[bands.Banded]]


def _call_of(layer: Any) -> Callable[..., Called]:
    if mla.is_mla(layer):
        return _latent_call
    return _sparse_call if sparse.is_sparse(layer) else _dense_call


def _sparse_call(layer: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Called:
    output, read = sparse.call(layer, q, k, v)
    return output, q, native_ops.claimed_rows(output), read, []


def _dense_call(layer: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Called:
    bands.made()
    with _banded_buffers(layer) as (read, written):
        output = layer(q.flatten(1), k.flatten(1), v.flatten(1)).view(q.shape[0], -1, layer.head_size)
    written += bands.made()
    return output, read[0].given() if read else q, native_ops.claimed_rows(output), read, written


def _latent_call(layer: Any, q: torch.Tensor, rows: torch.Tensor, v: torch.Tensor) -> Called:
    """As ``_dense_call``, with latent rows; the query is the absorbed one, of decode tokens only."""
    with mla.watched(layer) as seen:
        q, rows = seen.around("the query", q), seen.around("the new latent rows", rows)
        output = mla.call(layer, q, rows).view(q.shape[0], layer.num_heads, -1)
    query = seen.query if seen.query is not None else q.new_empty(0, layer.num_heads, layer.head_size)
    return output, query, mla.native_rows(seen, output), seen.read, []


def prepared(
    setup: Setup, metadata: dict[str, Any], slots: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> Callable[[], torch.Tensor]:
    """The bare call of the layer, to be repeated: nothing is watched, filled or judged."""
    by_layer = build_slot_mappings_by_layer(slots[None], setup.kv_cache_config)
    flat = q.flatten(1), k.flatten(1), v.flatten(1)

    def call() -> torch.Tensor:
        with set_forward_context(metadata, setup.config, num_tokens=slots.shape[0], slot_mapping=by_layer):
            output: torch.Tensor = setup.layer(*flat)
        return output

    return call


def write_context(setup: Setup, batch: Batch, placement: Placement, values: Values) -> None:
    """Store each request's context (its tokens before the new ones) with the backend's own writer."""
    layer = setup.layer
    lengths = [r.seq_len - r.query_len for r in batch.requests]
    if not any(lengths):
        return
    own_writer = mla.is_mla(layer) or sparse.is_sparse(layer)
    if layer.attn_backend.forward_includes_kv_cache_update and not own_writer:
        return
    # Blocks that a sliding window has left behind are gone: nothing of them is written.
    if not placement.evicted:
        k, v, slots = (
            torch.cat([x[:n] for x, n in zip(kind, lengths, strict=True)])
            for kind in (values.k, values.v, placement.slots)
        )
        _write(layer, k, v, slots)
        return
    here = [s[:n] >= 0 for s, n in zip(placement.slots, lengths, strict=True)]
    k = torch.cat([x[: len(i)][i] for x, i in zip(values.k, here, strict=True)])
    v = torch.cat([x[: len(i)][i] for x, i in zip(values.v, here, strict=True)])
    slots = torch.cat([s[: len(i)][i] for s, i in zip(placement.slots, here, strict=True)])
    _write(layer, k, v, slots)


def _write(layer: Any, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
    if sparse.is_sparse(layer):
        sparse.write(layer, k, v, slots)
    elif mla.is_mla(layer):
        mla.write(layer, k, slots)
    else:
        layer.impl.do_kv_cache_update(layer, k, v, layer.kv_cache, slots)


def new_tokens(batch: Batch, per_request: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """The rows of the new tokens, (new tokens, KV heads, size)."""
    return torch.cat([x[-r.query_len :] for x, r in zip(per_request, batch.requests, strict=True)])


def _metadata(setup: Setup, batch: Batch, placement: Placement, tokens: int, slots: torch.Tensor) -> dict[str, Any]:
    causal = not setup.config.attention_config.use_non_causal
    longest = max(r.seq_len for r in batch.requests)
    positions = torch.zeros(slots.shape[0], dtype=torch.int64)
    positions[:tokens] = torch.cat([torch.arange(r.seq_len - r.query_len, r.seq_len) for r in batch.requests])
    on_host = [x.to("cpu", copy=True) for x in (placement.query_start_loc, placement.seq_lens)]
    return build_attn_metadata(
        setup.groups,
        len(batch.requests),
        tokens,
        placement.query_start_loc,
        on_host[0],
        max(r.query_len for r in batch.requests),
        placement.seq_lens,
        longest,
        [placement.tables],
        slots[None],
        setup.kv_cache_config,
        seq_lens_cpu_upper_bound=on_host[1],
        positions=positions.to(setup.device),
        is_prefilling=torch.tensor([r.query_len == r.seq_len for r in batch.requests]),
        causal=causal,
    )


def _padded(x: torch.Tensor, rows: int) -> torch.Tensor:
    missing = rows - x.shape[0]
    if not missing:
        return x.clone()
    # What padded rows hold must not matter: NaN shows when it does.
    return torch.cat((x, x.new_full((missing, *x.shape[1:]), float("nan"))))


@contextlib.contextmanager
def uninitialised_as_nan() -> Iterator[None]:
    """Within, PyTorch fills uninitialised floating memory with NaN, so that rows nobody wrote show."""
    before = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = before[1]


@contextlib.contextmanager
def _writer_apart(layer: Any) -> Iterator[None]:
    """Label what the layer's own cache writer launches, so that the route tells it from the attention."""
    write = getattr(layer.impl, "do_kv_cache_update", None)
    if write is None:
        yield
        return

    def labelled(*args: Any, **kwargs: Any) -> Any:
        route.set_phase("cache-write")
        try:
            return write(*args, **kwargs)
        finally:
            route.set_phase("forward")

    layer.impl.do_kv_cache_update = labelled
    try:
        yield
    finally:
        del layer.impl.do_kv_cache_update


@contextlib.contextmanager
def _banded_buffers(layer: Any) -> Iterator[tuple[list[bands.Banded], list[bands.Banded]]]:
    """Give the layer's implementation copies of its buffers, each with bands around it.

    Collects those that it only reads, the query (quantised or not) first, and the output.
    """
    read: list[bands.Banded] = []
    written: list[bands.Banded] = []
    forward = layer.impl.forward

    def watched(
        layer_: Any, query: Any, key: Any, value: Any, cache: Any, metadata: Any, output: Any, **more: Any
    ) -> Any:
        given = [
            None if x is None else bands.around(name, x)
            for name, x in (("the query", query), ("the new keys", key), ("the new values", value))
        ]
        read.extend(b for b in given if b is not None)
        out = bands.around("the output", output)
        written.append(out)
        q, k, v = (None if b is None else b.view for b in given)
        result = forward(layer_, q, k, v, cache, metadata, output=out.view, **more)
        output.copy_(out.view)
        # What native attention would have written there, it would have written here.
        for row in native_ops.claimed_rows(out.view).nonzero().flatten():
            native_ops.claim(output[row])
        return output if result is out.view else result

    layer.impl.forward = watched
    try:
        yield read, written
    finally:
        del layer.impl.forward
