"""In which mode vLLM runs a batch: eagerly, between the pieces of piecewise graphs, or in one full graph.

A cell's ``execution`` sets the server's mode, as its user does; what a batch then runs in is decided by the classes
that vLLM's runners decide with (vllm 0.32, ``vllm/v1/worker/gpu/cudagraph_utils.py`` and
``vllm/v1/cudagraph_dispatcher.py``): from its shape, the capture sizes, the support that the backend declares, and
for a drafter from the pass that the batch is of. No graph is captured here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from vllm.config import set_current_vllm_config
from vllm.config.compilation import CUDAGraphMode
from vllm.platforms import current_platform
from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher
from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager
from vllm.v1.worker.utils import get_uniform_decode_token_count

from ..batches import Batch
from ..cell import Cell, Check, Role
from ..summary import execution_detail
from . import mla

#: Methods whose drafter runs one token a request after its first pass, and those with one pass over 1 + k.
_SEQUENTIAL = ("eagle", "eagle3", "mtp", "draft_model")
_ONE_PASS = ("dflash", "dspark")


#: What the record of a cell says that asks for graphs where vLLM's configuration has none.
WITHOUT = Check("execution", None, "", detail="server NONE: vLLM turned graphs off for this configuration; eager")


class Dispatched(NamedTuple):
    """What a batch runs as: ``mode`` NONE, PIECEWISE or FULL, with its padded ``tokens`` and ``requests``."""

    mode: str
    tokens: int
    requests: int


@dataclass(frozen=True)
class Plan:
    """The server's mode (``configured``), what the backend's support left of it (``resolved``), and the deciders.

    ``longest`` is the query length of a verify, 1 + k. ``passes`` are the deciders of the target's batches (and of
    a drafter's first pass) and of a drafter's own; ``largest`` is the largest capture size in tokens.
    """

    configured: str
    resolved: str
    runner: str
    longest: int
    largest: int
    passes: tuple[Any, Any]
    sequential: bool
    drafter: bool

    def dispatch(self, batch: Batch) -> Dispatched:
        """What vLLM runs the batch as. Its ``padded_tokens`` count as tokens, but for a graph of whole requests."""
        found = self._dispatch(batch, 0)
        if found.mode != "FULL" and batch.padded_tokens:
            found = self._dispatch(batch, batch.padded_tokens)
        return found

    def _dispatch(self, batch: Batch, more: int) -> Dispatched:
        requests, longest = len(batch.requests), max(r.query_len for r in batch.requests)
        tokens = sum(r.query_len for r in batch.requests) + more
        # A batch with longer queries than a verify's holds a prefill.
        uniform = get_uniform_decode_token_count(requests, tokens, longest, longest <= self.longest)
        decider = self.passes[self._own_pass(uniform)]
        if self.runner == "v1":
            mode, found = decider.dispatch(tokens, uniform_decode=uniform == self.longest)
        else:
            found = decider.dispatch(requests, tokens, uniform, 0, longest)
            mode = found.cg_mode
        return Dispatched(mode.name, found.num_tokens, found.num_reqs or requests)

    def ladder(self, query_len: int, most: int) -> tuple[int, ...]:
        """Requests of ``query_len`` tokens that vLLM captures full graphs for, up to ``most``, ascending.

        Empty where it captures none for that length.
        """
        decider = self.passes[self._own_pass(query_len)]
        if self.runner == "v1":
            found = {d.num_tokens for m, descs in decider.get_capture_descs() if m.name == "FULL" for d in descs}
            sizes = {n // query_len for n in found if n % query_len == 0 and query_len == self.longest}
        else:
            descs = decider._capture_descs.get(CUDAGraphMode.FULL, [])
            sizes = {d.num_reqs for d in descs if d.uniform_token_count in (None, query_len)}
        return tuple(sorted(n for n in sizes if n <= most))

    def _own_pass(self, uniform: int | None) -> bool:
        """Whether a batch of this uniform query length is a drafter's own, not one of the target's shape."""
        if not self.drafter:
            return False
        return not self.sequential or (uniform == 1 and self.longest > 1)


def plan(cell: Cell, config: Any, support: Any, kv_cache_config: Any, device: torch.device) -> Plan | None:
    """The plan of a set-up whose builders are there; None where the configuration has no graphs.

    ``support`` is what the builders declare. Changes ``config`` as the runner does; raises what vLLM raises where the
    mode cannot be had.
    """
    compilation = config.compilation_config
    if compilation.cudagraph_mode == CUDAGraphMode.NONE:
        return None
    configured, longest = compilation.cudagraph_mode.name, 1 + config.num_speculative_tokens
    v1 = cell.runner == "v1"
    resolved = compilation.resolve_cudagraph_mode_and_sizes(
        support.min_cg_support,
        support.min_cg_attn_backend,
        longest,
        use_v2_model_runner=not v1,
        kv_cache_config=kv_cache_config,
        max_num_reqs=config.scheduler_config.max_num_seqs,
    )
    sequential = cell.method in _SEQUENTIAL
    own_length = 1 if sequential else longest
    if v1:
        # V1's proposers have piecewise graphs only.
        own = CUDAGraphMode.NONE if resolved.mixed_mode() == CUDAGraphMode.NONE else CUDAGraphMode.PIECEWISE
        passes = _dispatcher(config, resolved, longest), _dispatcher(config, own, 1)
    else:
        # V2's speculators have full graphs of their own passes, or none.
        full = resolved.decode_mode() == CUDAGraphMode.FULL
        own = CUDAGraphMode.FULL_DECODE_ONLY if full else CUDAGraphMode.NONE
        passes = _manager(config, resolved, longest, device), _manager(config, own, own_length, device)
    return Plan(
        configured=configured,
        resolved=resolved.name,
        runner=cell.runner,
        longest=longest,
        largest=int(compilation.max_cudagraph_capture_size or 0),
        passes=passes,
        sequential=sequential,
        drafter=cell.role is Role.DRAFTER and cell.method in (*_SEQUENTIAL, *_ONE_PASS),
    )


def _dispatcher(config: Any, mode: CUDAGraphMode, query_len: int) -> Any:
    made = CudagraphDispatcher(config)
    made.initialize_cudagraph_keys(mode, query_len)
    return made


def _manager(config: Any, mode: CUDAGraphMode, query_len: int, device: torch.device) -> Any:
    with set_current_vllm_config(config), _without_pool():
        mla.distributed()
        made = CudaGraphManager(config, device, mode, query_len)
    # It dispatches once it has captured; what it would have captured is known before.
    made._graphs_captured = True
    return made


@contextlib.contextmanager
def _without_pool() -> Iterator[None]:
    """Within, the platform hands out a pool that no graph is ever put in: a CPU has none."""
    platform: Any = type(current_platform)
    own = platform._global_graph_pool
    platform._global_graph_pool = own or object()
    try:
        yield
    finally:
        platform._global_graph_pool = own


def padded(batch: Batch, dispatched: Dispatched) -> Batch:
    """The batch as the runner calls it in that mode: its rows padded to the capture size of a piecewise graph."""
    if dispatched.mode != "PIECEWISE":
        return batch
    real = sum(r.query_len for r in batch.requests)
    return batch._replace(padded_tokens=dispatched.tokens - real, mode="PIECEWISE")


def check(plan: Plan, batch: Batch, dispatched: Dispatched) -> Check:
    """What the record says of the mode that the batch ran in; of a full graph, what was captured says the rest."""
    real = sum(r.query_len for r in batch.requests)
    rows = f"{real} tokens" if dispatched.tokens == real else f"{real} tokens padded to {dispatched.tokens}"
    if dispatched.mode == "PIECEWISE":
        said = f"{rows}; attention runs eagerly between graphs of the model's other parts, of which a cell has none"
    elif dispatched.mode == "FULL":
        requests = f"{len(batch.requests)} of {dispatched.requests} requests"
        said = f"{rows}, {requests}; the check `graph` says what was captured"
    elif plan.resolved == "NONE":
        said = "eager: the backend's declared support leaves no graphs"
    elif real > plan.largest:
        said = f"eager: {real} tokens are more than the largest captured size, {plan.largest}"
    else:
        said = f"eager: vLLM's {plan.runner.upper()} runner has no graph for this batch of a drafter's own pass"
    server = plan.configured if plan.configured == plan.resolved else f"{plan.configured}, resolved to {plan.resolved}"
    return Check("execution", None, "", detail=execution_detail(server, dispatched.mode, said))
