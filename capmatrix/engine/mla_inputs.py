"""Inputs of latent attention: the weights of ``kv_b_proj``, latent rows, and queries.

A cached row is the latent (``kv_lora_rank``) and the rotary part of the key (``qk_rope_head_dim``). Keys and
values of a head are the latent times that head's part of ``kv_b_proj``; weights are drawn, not trained.
"""

from __future__ import annotations

import functools

import torch

from ..batches import Batch
from ..cell import Geometry, MlaGeometry
from .inputs import NEEDLE, Values, picked_keys, signs, spelled


def widths(geometry: Geometry) -> MlaGeometry:
    """The latent widths of a geometry that has them."""
    if geometry.mla is None:
        raise ValueError("the geometry has no latent attention")
    return geometry.mla


@functools.lru_cache(maxsize=4)
def weight(geometry: Geometry, dtype: torch.dtype, seed: int = 5) -> torch.Tensor:
    """``kv_b_proj``'s weight, (heads * (nope + v), rank), of variance 1 / rank so that keys and values have 1."""
    m = widths(geometry)
    generator = torch.Generator().manual_seed(seed)
    rows = geometry.num_heads * (m.qk_nope_head_dim + m.v_head_dim)
    drawn = torch.randn(rows, m.kv_lora_rank, generator=generator, device="cpu")
    return (drawn * m.kv_lora_rank**-0.5).to(dtype)


def up_projections(
    geometry: Geometry, dtype: torch.dtype, device: torch.device | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """W_UK (rank, heads, nope) and W_UV (rank, heads, v), in float64, as vLLM splits the weight."""
    m = widths(geometry)
    both = weight(geometry, dtype).to(device).double().T.view(m.kv_lora_rank, geometry.num_heads, -1)
    return both[..., : m.qk_nope_head_dim], both[..., m.qk_nope_head_dim :]


def random_values(batch: Batch, geometry: Geometry, dtype: torch.dtype, seed: int = 2) -> Values:
    """Standard normal queries (tokens, heads, nope + rope) and latent rows (length, 1, rank + rope)."""
    m = widths(geometry)
    generator = torch.Generator().manual_seed(seed)
    new = sum(r.query_len for r in batch.requests)
    width = m.qk_nope_head_dim + m.qk_rope_head_dim
    q = torch.randn(new, geometry.num_heads, width, generator=generator).to(dtype)
    rows = tuple(
        torch.randn(r.seq_len, 1, m.kv_lora_rank + m.qk_rope_head_dim, generator=generator).to(dtype)
        for r in batch.requests
    )
    return Values(q, rows, _latents(rows, m))


def needle_values(batch: Batch, geometry: Geometry, dtype: torch.dtype, seed: int = 3) -> Values:
    """Needles: latent rows of ±1 that spell their position, queries that point at one row's key.

    Keys and values come from the same latent, so a row that takes nearly all the weight also decides the
    output, by each head's own projection: a wrong block, mask edge, head, scale or rotary part is a large error.
    """
    m = widths(geometry)
    generator = torch.Generator().manual_seed(seed)
    w_uk, _ = up_projections(geometry, dtype)
    queries, rows = [], []
    for index, request in enumerate(batch.requests):
        latent = spelled(request.seq_len, 1, m.kv_lora_rank, index, generator)
        rope = signs((request.seq_len, 1, m.qk_rope_head_dim), generator)
        rows.append(torch.cat((latent, rope), dim=-1).to(dtype))
        heads = torch.arange(geometry.num_heads)
        for picks in picked_keys(request, geometry, generator):
            nope = torch.einsum("hl,lhp->hp", latent[picks, 0].double(), w_uk[:, heads])
            queries.append(NEEDLE * torch.cat((nope.float(), rope[picks, 0]), dim=-1))
    kept = tuple(rows)
    return Values(torch.stack(queries).to(dtype), kept, _latents(kept, m))


def _latents(rows: tuple[torch.Tensor, ...], m: MlaGeometry) -> tuple[torch.Tensor, ...]:
    return tuple(row[..., : m.kv_lora_rank] for row in rows)
