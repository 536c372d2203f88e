"""Full graphs: capture a call of uniform requests at the sizes that vLLM captures, replay it on other inputs, judge it.

What the backend declares (``AttentionCGSupport``) is compared with what it does. Off a GPU nothing is captured: the
interpreter runs the call that a capture would record, with its metadata and buffers, and offline it is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import torch

from ..batches import Batch, Request
from ..cell import Cell, Check, Phase, Verdict
from . import device_route, failures, forward, inputs, judge, mla, mla_inputs, native_ops, pool, route, sparse
from .setup import Setup
from .static_call import StaticCall

#: The most requests that decode and verify are captured for on a GPU.
MOST = 16

#: The longest sequence of a replay in tokens, on a GPU and where nothing is captured.
LONGEST, LONGEST_INTERPRETED = 700, 90

#: Batches that are captured over a ladder of sizes; other uniform ones are replayed as they are.
LADDERED = ("decode", "verify")

Enter = Callable[[Phase], None]


def applies(cell: Cell, setup: Setup, batch: Batch) -> bool:
    """Whether a full graph is to be tried: where vLLM has one for the batch, or has none for want of support alone."""
    plan = setup.plan
    if cell.execution != "full" or plan is None or sparse.is_sparse(setup.layer):
        return False
    unsupported = plan.configured != plan.resolved and cell.batch in LADDERED
    return unsupported or plan.dispatch(batch).mode == "FULL"


def computed(cell: Cell, setup: Setup, batch: Batch, findings: dict[str, Any], enter: Enter) -> Verdict:
    """Capture and replay; adds a check a replay. Raises what capture raises where vLLM would capture."""
    enter(Phase.GRAPH)
    promised = _promised(setup, batch)
    checks: list[Check] = []
    kernels = tuple(k.name for k in findings["route"] if k.phase == "forward" and k.kind != "stand_in")
    try:
        with device_route.quiet():
            for requests, replays in _sizes(cell, setup, batch):
                checks += _size(cell, setup, requests, replays, kernels)
    except Exception as error:
        if promised:
            findings["checks"] += checks
            raise
        findings["checks"].append(_undeclared(setup, f"and so it is: {failures.first_line(error)}"))
        return Verdict.PASS
    bad = [c for c in checks if c.ok is False]
    if not promised:
        what = "capture and replay give" if _on_gpu(setup) else "calls as captured give"
        findings["checks"].append(
            _undeclared(setup, "and the numbers are wrong" if bad else f"yet {what} right numbers")
        )
        return Verdict.PASS
    findings["checks"] += checks
    if bad:
        findings["reasons"] = tuple(f"{_what(setup)} of {c.detail}" for c in bad)
        return Verdict.WRONG
    return Verdict.PASS


def compiled(cell: Cell, setup: Setup, batch: Batch, findings: dict[str, Any], enter: Enter) -> Verdict:
    """Compile what a capture would launch; it may differ from the eager call, as the metadata does."""
    enter(Phase.GRAPH)
    route.set_phase("graph")
    # The cell's own batch comes last.
    requests, replays = _sizes(cell, setup, batch)[-1]
    dtype = getattr(torch, cell.dtype)
    try:
        StaticCall(setup, cell.geometry, requests, replays[0].requests[0].query_len, dtype).capture()
    except Exception as error:
        if _promised(setup, batch):
            raise
        findings["checks"].append(_undeclared(setup, f"and so it is: {failures.first_line(error)}"))
        return Verdict.PASS
    text = f"{requests} requests: what a capture would launch is compiled; nothing is captured on this target"
    findings["checks"].append(Check("graph", None, detail=text))
    return Verdict.PASS


def _promised(setup: Setup, batch: Batch) -> bool:
    """Whether vLLM would capture a graph for the batch, because the backend declares that it can."""
    return setup.plan is not None and setup.plan.dispatch(batch).mode == "FULL"


def _undeclared(setup: Setup, found: str) -> Check:
    return Check("graph", None, detail=f"{setup.graph_support} declared, so vLLM captures none, {found}")


def _on_gpu(setup: Setup) -> bool:
    return setup.device.type == "cuda"


def _what(setup: Setup) -> str:
    return "graph" if _on_gpu(setup) else "call as captured, without a graph,"


def _sizes(cell: Cell, setup: Setup, batch: Batch) -> list[tuple[int, list[Batch]]]:
    """Requests to capture for, and the batches to replay there: those that vLLM would dispatch to that size."""
    assert setup.plan is not None
    query_len = batch.requests[0].query_len
    # Where vLLM captures none, because the backend declares none, the sizes of one token a request are tried.
    ladder = setup.plan.ladder(query_len, 1 << 10) or (1, 2, 4, 8, 16)
    wanted = len(batch.requests) + batch.padded_tokens
    own = next((n for n in ladder if n >= wanted), wanted), [batch]
    if cell.batch not in LADDERED:
        return [own]
    steps = [(n, below) for below, n in zip((0, *ladder), ladder, strict=False) if n <= MOST]
    if not _on_gpu(setup):
        # The smallest size, the first that a batch can be padded to, and the cell's own batch.
        return [*(_step(query_len, *s, LONGEST_INTERPRETED) for s in steps[:1] + _with_room(steps)), own]
    return [_step(query_len, *s, LONGEST) for s in steps]


def _with_room(steps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(n, below) for n, below in steps if n - below > 1][:1]


def _step(query_len: int, requests: int, below: int, longest: int) -> tuple[int, list[Batch]]:
    """Batches that fill a size, and that are padded to it: other lengths, other blocks, other values each time."""
    counts = dict.fromkeys(max(below + 1, n) for n in (requests, requests * 3 // 4, requests // 2 + 1))
    return requests, [_batch(n, query_len, longest, 10 * requests + seed) for seed, n in enumerate(counts)]


def _batch(count: int, query_len: int, longest: int, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(query_len, longest, (count,), generator=generator).tolist()
    return Batch("graph", tuple(Request(query_len, length) for length in lengths))


def _size(cell: Cell, setup: Setup, requests: int, replays: list[Batch], kernels: tuple[str, ...]) -> list[Check]:
    query_len = replays[0].requests[0].query_len
    dtype = getattr(torch, cell.dtype)
    call = StaticCall(setup, cell.geometry, requests, query_len, dtype, watched=mla.is_mla(setup.layer))
    call.capture()
    return [
        check
        for number, batch in enumerate(replays)
        for check in _replay(cell, setup, call, batch, 100 + 10 * requests + number, kernels)
    ]


def _replay(
    cell: Cell, setup: Setup, call: StaticCall, batch: Batch, seed: int, kernels: tuple[str, ...]
) -> list[Check]:
    window = cell.geometry.sliding_window
    blocks = setup.kv_cache_config.num_blocks
    dtype = getattr(torch, cell.dtype)
    made = mla_inputs if mla.is_mla(setup.layer) else inputs
    placement = inputs.place(batch, setup.block_size, blocks, seed, window).on(setup.device)
    values = made.random_values(batch, cell.geometry, dtype, seed).on(setup.device)
    before = pool.fill(setup.layer, "stale")
    forward.write_context(setup, batch, placement, values)
    k, v = (forward.new_tokens(batch, x) for x in (values.k, values.v))
    call.fill(placement, values, k, v)
    # Rows that a replay does not write show.
    call.output.fill_(float("nan"))
    native_ops.forget_claims()
    with forward.uninitialised_as_nan():
        output = call.replay()
    native = native_ops.claimed_rows(output)
    output = output.clone()
    if _on_gpu(setup):
        torch.cuda.synchronize()
    written, stored = judge.write_check(cell, setup, placement, values, before, "stale")
    detail = f"{call.requests} requests, {len(batch.requests)} replayed"
    if not _on_gpu(setup):
        detail += " without a graph"
    found = [_named(c, detail) for c in written if c.ok is False]
    if stored is None:
        return [*found, Check("graph", None, "stale", detail=f"{detail}: the cache as stored cannot be read back")]
    tokens = k.shape[0]
    outcome = forward.Outcome(
        output=output[:tokens], query=_query(setup, call, values.q), native_rows=native[:tokens], metadata=""
    )
    queries = judge.query_checks(cell, setup, batch, values, outcome, "stale")
    found += [_named(c, detail) for c in queries if c.ok is False]
    expected = judge.expected(cell, setup, batch, values, stored, outcome, kernels)
    return [*found, _named(judge.forward_check("graph", "stale", outcome, expected), detail)]


def _named(check: Check, detail: str) -> Check:
    """The check as one of the graph, saying of which replay."""
    return msgspec.structs.replace(check, part="graph", detail=f"{detail}; {check.detail}" if check.detail else detail)


def _query(setup: Setup, call: StaticCall, q: torch.Tensor) -> torch.Tensor:
    """The query as the layer hands it to its kernels: absorbed by latent attention, quantised where it does that."""
    if mla.is_mla(setup.layer):
        if call.absorbed is None:
            return q.new_empty(0, setup.layer.num_heads, setup.layer.head_size)
        return call.absorbed[: q.shape[0]].clone()
    quantise = getattr(setup.layer, "query_quant", None)
    if quantise is None or not setup.layer.impl.supports_quant_query_input:
        return q
    quantised, _ = quantise(q.flatten(1), setup.layer._q_scale)
    return quantised.view(q.shape)  # type: ignore[no-any-return]
