"""Block-sparse attention by a model's own layer (MiniMax-M3): an indexer selects blocks, the layer attends to those.

vLLM 0.32, ``vllm/models/minimax_m3``: ``MiniMaxM3SparseAttention._run_attention`` runs the indexer, which scores the
blocks of each request by its own small keys and writes the best into ``topk_indices_buffer``, and then the
attention over those. Both are Triton kernels on ROCm unless AITER's sparse path is switched on. Before that the layer
norms, rotates and stores with one native operator, which has no code here; its cache writes are exact and done in its
place, as a stand-in that the route names. It takes no scales, so that an FP8 cache has scales of 1.

Keys and queries of the indexer are the signs of those of the attention (of the first head of a group): whole numbers
add up exactly in any order, so that which blocks are the best is never a matter of rounding.
"""

from __future__ import annotations

from typing import Any

import torch

from ..batches import Batch, Request
from ..cell import Check
from . import bands, native_ops, route

#: The layer's own operator that norms, rotates and stores.
WRITER = "_C.fused_minimax_m3_qknorm_rope_kv_insert"

#: The implementation whose kernels are Triton's; the others are AITER's (``amd/sparse_attention_msa.py``).
_TRITON = "MiniMaxM3SparseTritonImpl"

#: Blocks that a request has beyond those that the indexer may select, in the batches that ``with_selection`` makes.
_BEYOND = 3


def is_sparse(layer: Any) -> bool:
    """Whether ``layer`` selects blocks by an indexer of its own."""
    return hasattr(layer, "_run_attention") and hasattr(getattr(layer, "indexer", None), "index_cache")


def out_of_reach(layer: Any) -> str:
    """Why a call of the layer cannot be judged here; empty where it can.

    AITER's path (``amd/ops/sparse_pa.py``) reads K and V in a form that a native operator of AITER's writes.
    """
    name = type(layer.impl).__name__
    if name == _TRITON:
        return ""
    writer = "aiter.reshape_and_cache"
    return f"native: {writer} writes the pages of 16 tokens that {name} reads; it has no code on this target"


def prepare(layer: Any, dtype: torch.dtype) -> None:
    """Give the layer the attributes under which ``Attention`` has the same, and scales of 1.

    Those are buffers, which loading dummy weights fills with small random numbers.
    """
    layer.head_size = layer.head_dim
    layer.dtype = dtype
    layer.side_caches = (layer.indexer.index_cache.kv_cache,)
    for name in "kv":
        getattr(layer, f"_{name}_scale").fill_(1.0)
        setattr(layer, f"_{name}_scale_float", 1.0)


def index_keys(k: torch.Tensor) -> torch.Tensor:
    """Indexer keys (tokens, size) of keys (tokens, KV heads, size)."""
    return _signs(k[:, 0])


def index_queries(q: torch.Tensor, heads: int) -> torch.Tensor:
    """Indexer queries (tokens, ``heads``, size) of queries (tokens, query heads, size)."""
    return _signs(q[:, :: q.shape[1] // heads])


def _signs(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x >= 0, 1.0, -1.0).to(x.dtype)


def with_selection(batch: Batch, layer: Any) -> Batch:
    """The batch with one more request, of more blocks than the indexer may select."""
    query_len = max(request.query_len for request in batch.requests)
    blocks = layer.impl.topk_blocks + _BEYOND
    longest = Request(query_len, (blocks - 1) * layer.impl.block_size + query_len + 4)
    return batch._replace(requests=(*batch.requests, longest))


def write(layer: Any, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
    """Store K, V (tokens, KV heads, size) and the indexer's keys at ``slots`` (tokens,), those below 0 left out."""
    before = route.phase()
    route.set_phase("cache-write")
    route.launched(WRITER, "stand_in")
    both = torch.cat((k, v), dim=-1)
    native_ops.write_rows(layer.kv_cache.transpose(1, 2), slots, both, layer.kv_cache_dtype)
    native_ops.write_rows(layer.indexer.index_cache.kv_cache, slots, index_keys(k), "auto")
    route.set_phase(before)


def call(layer: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, list[bands.Banded]]:
    """Store the new tokens, then the layer's own ``_run_attention``; (tokens, heads, size) and what it only reads.

    Inside vLLM's forward context.
    """
    from vllm.forward_context import get_forward_context

    write(layer, k, v, get_forward_context().slot_mapping[layer.layer_name])
    index_q = index_queries(q, layer.num_idx_heads)
    read = [bands.around("the query", q.flatten(1)), bands.around("the indexer's query", index_q.flatten(1))]
    layer.topk_indices_buffer.fill_(-1)
    output = torch.empty_like(read[0].view)
    output = layer._run_attention(read[0].view, read[1].view, output)
    return output.view(q.shape), read


def mask(layer: Any, request: Request, first: int) -> torch.Tensor:
    """(query heads, new, length) keys that the rows of a request may read: causal, in blocks that were selected.

    ``first`` is the request's first row.
    """
    rows = layer.topk_indices_buffer[:, first : first + request.query_len].long()
    blocks = -(-request.seq_len // layer.impl.block_size)
    chosen = torch.zeros(*rows.shape[:2], blocks + 1, dtype=torch.bool, device=rows.device)
    chosen.scatter_(2, torch.where((rows >= 0) & (rows < blocks), rows, blocks), True)
    keys = torch.arange(request.seq_len, device=rows.device)
    positions = torch.arange(request.seq_len - request.query_len, request.seq_len, device=rows.device)
    may = chosen[:, :, keys // layer.impl.block_size] & (keys <= positions[:, None])
    return may.repeat_interleave(layer.num_heads // layer.num_kv_heads, 0)


def selection_check(layer: Any, batch: Batch, q: torch.Tensor, k: tuple[torch.Tensor, ...], cache: str) -> Check:
    """Whether the indexer selected, for every row, the blocks with the best scores, the row's own among them.

    ``q`` (new tokens, heads, size), ``k`` by request; equal scores are as good as each other.
    """
    size, most = layer.impl.block_size, layer.impl.topk_blocks
    index_q, found, at = index_queries(q, layer.num_idx_heads).double(), "", 0
    rows = choices = 0
    for request, keys in zip(batch.requests, k, strict=True):
        scores = torch.einsum("qhd,kd->hqk", index_q[at : at + request.query_len], index_keys(keys).double())
        for row in range(request.query_len):
            last = request.seq_len - request.query_len + row
            for head in range(layer.num_idx_heads):
                by_block = [float(part.max()) for part in scores[head, row, : last + 1].split(size)]
                chosen = [int(b) for b in layer.topk_indices_buffer[head, at + row] if b >= 0]
                rows, choices = rows + 1, choices + (len(by_block) > most)
                found = found or _wrong(chosen, by_block, most)
        at += request.query_len
    detail = found or f"{choices} of {rows} rows had more blocks than the {most} that may be selected"
    return Check("selection", not found, cache, detail=detail)


def _wrong(chosen: list[int], scores: list[float], most: int) -> str:
    """What is wrong with the blocks that were chosen for a row; empty for nothing."""
    wanted = min(most, len(scores))
    if sorted(set(chosen)) != sorted(chosen) or any(block >= len(scores) for block in chosen):
        return f"selected blocks {chosen} of {len(scores)}"
    if len(chosen) != wanted:
        return f"selected {len(chosen)} blocks, not {wanted}"
    own = len(scores) - 1
    if own not in chosen:
        return f"the row's own block {own} is not among {chosen}"
    left = [score for block, score in enumerate(scores) if block not in chosen]
    least = min((scores[block] for block in chosen if block != own), default=float("inf"))
    if left and max(left) > least:
        return f"block {scores.index(max(left))} scores {max(left):g} and is left out for one of {least:g}"
    return ""
