"""Run one batch through the layer as vLLM's worker does: cache writer, metadata builder, forward."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from vllm.forward_context import set_forward_context
from vllm.v1.worker.gpu.attn_utils import build_attn_metadata, build_slot_mappings_by_layer

from ..batches import Batch
from ..cell import Phase
from . import native_ops, route
from .inputs import Placement, Values
from .setup import Setup


class Outcome(NamedTuple):
    """What a forward left: output (rows, heads, size), the query as the kernels got it, native rows."""

    output: torch.Tensor
    query: torch.Tensor
    native_rows: torch.Tensor
    metadata: str


def run(
    setup: Setup, batch: Batch, placement: Placement, values: Values, enter: Callable[[Phase], None]
) -> Outcome:
    """Write the context through the layer's own cache writer, then call the layer on the new tokens.

    Outputs and every temporary start as NaN. Raises what vLLM raises.
    """
    enter(Phase.CACHE_WRITE)
    route.set_phase("cache-write")
    write_context(setup, batch, placement, values)
    route.set_phase("forward")
    enter(Phase.FORWARD)
    tokens = int(placement.query_start_loc[-1])
    padded = tokens + batch.padded_tokens
    slots = torch.full((padded,), -1, dtype=torch.int64)
    slots[:tokens] = placement.new_slots
    k, v = (new_tokens(batch, kind) for kind in (values.k, values.v))
    metadata = _metadata(setup, batch, placement, tokens, slots)
    by_layer = build_slot_mappings_by_layer(slots[None], setup.kv_cache_config)
    q, k, v = (_padded(x, padded) for x in (values.q, k, v))
    native_ops.forget_claims()
    with (
        set_forward_context(metadata, setup.config, num_tokens=padded, slot_mapping=by_layer),
        uninitialised_as_nan(),
        _query_as_given(setup.layer) as given,
        _writer_apart(setup.layer),
    ):
        output = setup.layer(q.flatten(1), k.flatten(1), v.flatten(1))
    output = output.view(padded, -1, setup.layer.head_size)
    return Outcome(
        output=output[:tokens],
        query=given[0] if given else q[:tokens],
        native_rows=native_ops.claimed_rows(output)[:tokens],
        metadata=type(next(iter(metadata.values()))).__name__,
    )


def write_context(setup: Setup, batch: Batch, placement: Placement, values: Values) -> None:
    """Store each request's context (its tokens before the new ones) with the backend's own writer."""
    layer = setup.layer
    lengths = [r.seq_len - r.query_len for r in batch.requests]
    if not any(lengths) or layer.attn_backend.forward_includes_kv_cache_update:
        return
    k = torch.cat([x[:n] for x, n in zip(values.k, lengths, strict=True)])
    v = torch.cat([x[:n] for x, n in zip(values.v, lengths, strict=True)])
    slots = torch.cat([s[:n] for s, n in zip(placement.slots, lengths, strict=True)])
    layer.impl.do_kv_cache_update(layer, k, v, layer.kv_cache, slots)


def new_tokens(batch: Batch, per_request: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """The rows of the new tokens, (new tokens, KV heads, size)."""
    return torch.cat([x[-r.query_len :] for x, r in zip(per_request, batch.requests, strict=True)])


def _metadata(setup: Setup, batch: Batch, placement: Placement, tokens: int, slots: torch.Tensor) -> dict[str, Any]:
    causal = not setup.config.attention_config.use_non_causal
    longest = max(r.seq_len for r in batch.requests)
    positions = torch.cat([torch.arange(r.seq_len - r.query_len, r.seq_len) for r in batch.requests])
    return build_attn_metadata(
        setup.groups,
        len(batch.requests),
        tokens,
        placement.query_start_loc,
        placement.query_start_loc.clone(),
        max(r.query_len for r in batch.requests),
        placement.seq_lens,
        longest,
        [placement.tables],
        slots[None],
        setup.kv_cache_config,
        seq_lens_cpu_upper_bound=placement.seq_lens.clone(),
        positions=positions,
        is_prefilling=torch.tensor([r.query_len == r.seq_len for r in batch.requests]),
        causal=causal,
    )


def _padded(x: torch.Tensor, rows: int) -> torch.Tensor:
    missing = rows - x.shape[0]
    if not missing:
        return x.clone()
    # What padded rows hold must not matter: NaN shows when it does.
    return torch.cat((x, torch.full((missing, *x.shape[1:]), float("nan"), dtype=x.dtype)))


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
def _query_as_given(layer: Any) -> Iterator[list[torch.Tensor]]:
    """Collect the query that the layer hands to its implementation, quantised or not."""
    seen: list[torch.Tensor] = []
    forward = layer.impl.forward

    def watched(layer_: Any, query: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        seen.append(query.clone())
        return forward(layer_, query, *args, **kwargs)

    layer.impl.forward = watched
    try:
        yield seen
    finally:
        del layer.impl.forward
