"""Full graphs: capture a decode or verify call at several sizes, replay it on other inputs, and judge the numbers.

Execution ``full`` on a GPU. What the backend declares (``AttentionCGSupport``) is compared with what it does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import torch

from ..batches import Batch, Request
from ..cell import Cell, Check, Phase, Verdict
from . import device_route, failures, forward, inputs, judge, pool
from .setup import Setup
from .static_call import StaticCall

#: Requests that graphs are captured for; vLLM's capture sizes begin the same.
LADDER = (1, 2, 4, 8, 16)

#: Batches whose requests all have one query length, which a graph is captured for.
UNIFORM = ("decode", "verify")


def applies(cell: Cell) -> bool:
    """Whether the cell asks for graphs, and its batch can have one."""
    return cell.execution == "full" and cell.batch in UNIFORM and cell.geometry.mla is None


def declared(support: str, query_len: int) -> bool:
    """Whether ``AttentionCGSupport`` promises graphs of uniform requests of ``query_len`` tokens."""
    return support in ("ALWAYS", "UNIFORM_BATCH") or (support == "UNIFORM_SINGLE_TOKEN_DECODE" and query_len == 1)


def computed(cell: Cell, setup: Setup, findings: dict[str, Any], enter: Callable[[Phase], None]) -> Verdict:
    """Capture and replay over the ladder; adds a check a replay. Raises what capture raises where it is declared."""
    query_len = 1 if cell.batch == "decode" else 1 + cell.num_speculative_tokens
    support = findings["graph_support"]
    promised = declared(support, query_len)
    enter(Phase.GRAPH)
    checks: list[Check] = []
    kernels = tuple(k.name for k in findings["route"] if k.phase == "forward" and k.kind != "stand_in")
    try:
        with device_route.quiet():
            for requests in LADDER:
                checks += _size(cell, setup, requests, query_len, kernels)
    except Exception as error:
        if promised:
            findings["checks"] += checks
            raise
        text = f"{support} declared, and so it is: {failures.first_line(error)}"
        findings["checks"].append(Check("graph", None, detail=text))
        return Verdict.PASS
    bad = [c for c in checks if c.ok is False]
    if not promised:
        outcome = "the numbers are wrong" if bad else "yet capture and replay give right numbers"
        findings["checks"].append(Check("graph", None, detail=f"{support} declared, {outcome}"))
        return Verdict.PASS
    findings["checks"] += checks
    if bad:
        findings["reasons"] = tuple(f"graph of {c.detail}" for c in bad)
        return Verdict.WRONG
    return Verdict.PASS


def _size(cell: Cell, setup: Setup, requests: int, query_len: int, kernels: tuple[str, ...]) -> list[Check]:
    call = StaticCall(setup, cell.geometry, requests, query_len, getattr(torch, cell.dtype))
    call.capture()
    checks = []
    # Full, and padded: other lengths, other blocks, other values each time.
    for seed, count in enumerate(dict.fromkeys((requests, max(1, requests * 3 // 4), max(1, requests // 2 + 1)))):
        batch = _batch(count, query_len, 10 * requests + seed)
        checks.append(_replay(cell, setup, call, batch, 100 + 10 * requests + seed, kernels))
    return checks


def _batch(count: int, query_len: int, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(query_len, 700, (count,), generator=generator).tolist()
    return Batch("graph", tuple(Request(query_len, length) for length in lengths))


def _replay(cell: Cell, setup: Setup, call: StaticCall, batch: Batch, seed: int, kernels: tuple[str, ...]) -> Check:
    window = cell.geometry.sliding_window
    blocks = setup.kv_cache_config.num_blocks
    placement = inputs.place(batch, setup.block_size, blocks, seed, window).on(setup.device)
    values = inputs.random_values(batch, cell.geometry, getattr(torch, cell.dtype), seed).on(setup.device)
    before = pool.fill(setup.layer, "stale")
    forward.write_context(setup, batch, placement, values)
    k, v = (forward.new_tokens(batch, x) for x in (values.k, values.v))
    call.fill(placement, values, k, v)
    output = call.replay().clone()
    torch.cuda.synchronize()
    _, stored = judge.write_check(cell, setup, placement, values, before, "stale")
    detail = f"{call.requests} requests, {len(batch.requests)} replayed"
    if stored is None:
        return Check("graph", None, "stale", detail=f"{detail}: the cache as stored cannot be read back")
    tokens = k.shape[0]
    outcome = forward.Outcome(
        output=output[:tokens],
        query=_query(setup, values.q),
        native_rows=torch.zeros(tokens, dtype=torch.bool),
        metadata="",
    )
    expected = judge.expected(cell, setup, batch, values, stored, outcome, kernels)
    check = judge.forward_check("graph", "stale", outcome, expected)
    return msgspec.structs.replace(check, detail=f"{detail}; {check.detail}")


def _query(setup: Setup, q: torch.Tensor) -> torch.Tensor:
    """The query as the layer hands it to its kernels: quantised where it does that."""
    quantise = getattr(setup.layer, "query_quant", None)
    if quantise is None or not setup.layer.impl.supports_quant_query_input:
        return q
    quantised, _ = quantise(q.flatten(1), setup.layer._q_scale)
    return quantised.view(q.shape)  # type: ignore[no-any-return]
