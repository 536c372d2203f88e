"""A call of the layer on buffers that stay where they are, captured in a graph and replayed, as vLLM's runner does.

The graph is captured with dummy inputs of its size; before each replay the buffers are filled in place, rows
beyond the batch are padding (no slot, length 0), and the backend's builder brings its own buffers up to date
(vllm 0.32, ``vllm/v1/worker/gpu/cudagraph_utils.py`` and ``model_runner.py``). Where there is no GPU nothing is
captured: a replay calls the layer again, with the metadata that a capture would have had and on the same buffers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from vllm.forward_context import set_forward_context
from vllm.v1.worker.gpu.attn_utils import build_attn_metadata, build_slot_mappings_by_layer

from ..cell import Geometry
from . import mla
from .inputs import Placement, Values
from .setup import Setup


def in_a_graph(call: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, Callable[[], Any]]:
    """Capture ``call`` in a graph of the GPU: its output, and what replays it."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = call()
    return output, graph.replay


def without_a_graph(call: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, Callable[[], Any]]:
    """Capture nothing: a replay makes the call again, and leaves its output where the first one did."""
    output = call()
    return output, lambda: output.copy_(call())


class StaticCall:
    """``requests`` of ``query_len`` new tokens each; ``output`` (tokens, heads, size) once it is captured.

    ``watched``: also note the ``absorbed`` query of latent attention, which is what its kernels get and a judge
    needs; a call that is timed is not watched.
    """

    def __init__(
        self,
        setup: Setup,
        geometry: Geometry,
        requests: int,
        query_len: int,
        dtype: torch.dtype,
        *,
        watched: bool = False,
    ) -> None:
        self.setup = setup
        self.requests, self.query_len, self.tokens = requests, query_len, requests * query_len
        self.longest = int(setup.config.model_config.max_model_len)
        self.watched = watched
        device = setup.device

        def rows(*shape: int) -> torch.Tensor:
            return torch.zeros(self.tokens, *shape, dtype=dtype, device=device)

        g, m = geometry, geometry.mla
        if m is None:
            self.q, self.width = rows(g.num_heads, g.head_size), g.head_size
            self.k, self.v = rows(g.num_kv_heads, g.head_size), rows(g.num_kv_heads, g.head_size)
        else:
            self.q, self.width = rows(g.num_heads, m.qk_nope_head_dim + m.qk_rope_head_dim), m.v_head_dim
            # The latent, and the rotary part of the key.
            self.k, self.v = rows(m.kv_lora_rank), rows(1, m.qk_rope_head_dim)
        self.slots = torch.full((self.tokens,), -1, dtype=torch.int64, device=device)
        width = -(-self.longest // setup.block_size)
        self.tables = torch.zeros(requests, width, dtype=torch.int32, device=device)
        self.starts = torch.empty(requests + 1, dtype=torch.int32, device=device)
        self.seq_lens = torch.empty(requests, dtype=torch.int32, device=device)
        self.positions = torch.zeros(self.tokens, dtype=torch.int64, device=device)
        self.output = self.q
        self.absorbed: torch.Tensor | None = None
        self._again: Callable[[], Any] | None = None

    def capture(self) -> None:
        """Warm up and capture, with metadata of its own for each. Raises what vLLM and the driver raise."""
        on_gpu = self.setup.device.type == "cuda"
        if on_gpu:
            # The buffers were filled on this stream, and another one is about to read them.
            torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()) if on_gpu else contextlib.nullcontext():
            self._dummy()
            self._call(self._metadata(self.longest, capture=True))
        if on_gpu:
            torch.cuda.synchronize()
        self._dummy()
        metadata = self._metadata(self.longest, capture=True)
        capture = in_a_graph if on_gpu else without_a_graph
        self.output, self._again = capture(lambda: self._call(metadata))

    def fill(self, placement: Placement, values: Values, k: torch.Tensor, v: torch.Tensor) -> None:
        """A batch of at most as many requests; ``k`` and ``v`` are the new tokens' (tokens, KV heads, size).

        Of latent attention ``k`` are the latent rows (tokens, 1, rank + rope), and ``v`` is not read.
        """
        count, tokens = placement.seq_lens.shape[0], k.shape[0]
        if mla.is_mla(self.setup.layer):
            k, v = mla.parts(self.setup.layer, k)
        for buffer, given in ((self.q, values.q), (self.k, k), (self.v, v)):
            buffer[:tokens] = given
            # What padded rows hold must not matter.
            buffer[tokens:] = float("nan")
        self.slots.fill_(-1)
        self.slots[:tokens] = placement.new_slots
        self.tables.zero_()
        self.tables[:count, : placement.tables.shape[1]] = placement.tables
        self.starts.fill_(tokens)
        self.starts[: count + 1] = placement.query_start_loc
        self.seq_lens.zero_()
        self.seq_lens[:count] = placement.seq_lens
        self._metadata(int(placement.seq_lens.max()), capture=False)

    def replay(self) -> torch.Tensor:
        """Run the captured call on what the buffers hold; (tokens, heads, size), overwritten by the next."""
        assert self._again is not None
        self._again()
        return self.output

    def _dummy(self) -> None:
        self.starts.copy_(torch.arange(self.requests + 1) * self.query_len)
        self.seq_lens.fill_(self.query_len)

    def _metadata(self, longest: int, *, capture: bool) -> dict[str, Any]:
        setup = self.setup
        return build_attn_metadata(
            setup.groups,
            self.requests,
            self.tokens,
            self.starts,
            self.starts.cpu(),
            self.query_len,
            self.seq_lens,
            longest,
            [self.tables],
            self.slots[None],
            setup.kv_cache_config,
            seq_lens_cpu_upper_bound=self.seq_lens.cpu(),
            positions=self.positions,
            is_prefilling=torch.zeros(self.requests, dtype=torch.bool),
            for_cudagraph_capture=capture,
            causal=not setup.config.attention_config.use_non_causal,
        )

    def _call(self, metadata: dict[str, Any]) -> torch.Tensor:
        setup, layer = self.setup, self.setup.layer
        by_layer = build_slot_mappings_by_layer(self.slots[None], setup.kv_cache_config)
        with set_forward_context(metadata, setup.config, num_tokens=self.tokens, slot_mapping=by_layer):
            if not mla.is_mla(layer):
                output: torch.Tensor = layer(self.q.flatten(1), self.k.flatten(1), self.v.flatten(1))
            elif not self.watched:
                output = mla.call_with(layer, self.q, self.k, self.v)
            else:
                output = self._watched_call(layer)
        return output.view(self.tokens, -1, self.width)

    def _watched_call(self, layer: Any) -> torch.Tensor:
        """The call of a latent layer, noting its absorbed query; in a graph, each replay copies it again."""
        with mla.absorbing(layer) as seen:
            output = mla.call_with(layer, self.q, self.k, self.v)
        self.absorbed = seen[0] if seen else None
        return output
