"""Set a cell up as vLLM's own worker does: layer, spec, layout, groups, kernel blocks, KV cache.

Every decision is vLLM's, taken by the functions its GPU worker calls (vllm 0.32,
``vllm/v1/worker/gpu``); cells that differ only in batch share one ``Setup``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from vllm.config import set_current_vllm_config
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.attention.backends.utils import get_supported_kv_cache_layouts, resolve_kv_cache_layout
from vllm.v1.core.kv_cache_utils import get_kv_cache_configs
from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec, init_attn_backend, init_kv_cache

from .. import batches
from ..cell import Cell, Phase
from . import execution, layers, model_config, workspace
from .forcing import forced
from .inputs import blocks_needed

#: Manager blocks in the pool beyond what a batch needs, so that stale blocks exist to be read by mistake.
SPARE_BLOCKS = 8


@dataclass(frozen=True)
class Setup:
    """What vLLM built for a cell; ``groups`` and ``kernel_blocks`` are by KV cache group.

    ``plan`` says in which mode each batch runs; None where the server is eager.
    """

    config: Any
    layer: Any
    kv_cache_config: Any
    groups: list[Any]
    kernel_blocks: list[int]
    graph_support: str
    layout: str
    spec: Any
    plan: execution.Plan | None = None

    @property
    def block_size(self) -> int:
        """The manager block of the layer's group, in tokens (a sliding-window layer picks its own)."""
        return int(self.spec.block_size)

    @property
    def device(self) -> torch.device:
        """Where the cache is, and so everything that a call takes."""
        device: torch.device = self.layer.kv_cache.device
        return device


def build(
    cell: Cell,
    device: torch.device,
    enter: Callable[[Phase], None],
    blocks: int | None = None,
    longest: int | None = None,
) -> Setup:
    """Set ``cell`` up with a pool that any of its batches fits in, or of ``blocks``; ``enter`` is told each phase.

    ``longest``: most tokens of a sequence, where the cell's own length is not meant.

    Raises whatever vLLM raises; the phase last entered says where.
    """
    enter(Phase.CONFIGURE)
    backend = AttentionBackendEnum[cell.backend].get_class()
    with forced(cell, backend):
        config = model_config.vllm_config(cell, longest)
        with set_current_vllm_config(config):
            enter(Phase.SELECT)
            layer = layers.make(cell, config, device)
            enter(Phase.BUILD)
            workspace.start(device)
            return _build_cache(cell, config, layer, device, blocks)


def pool_blocks(cell: Cell, block_size: int) -> int:
    """Manager blocks for the cell's longest sequence, its widest batch and some to spare."""
    built = (
        batches.build(
            name, block_size=block_size, num_speculative_tokens=cell.num_speculative_tokens, lengths=cell.lengths
        )
        for name in batches.NAMES
    )
    longest = -(-model_config.MAX_MODEL_LEN[cell.lengths] // block_size)
    return max(longest, *(blocks_needed(batch, block_size) for batch in built)) + SPARE_BLOCKS


def _build_cache(cell: Cell, config: Any, layer: Any, device: torch.device, blocks: int | None) -> Setup:
    specs = get_kv_cache_spec(config)
    spec = specs[layer.layer_name]
    blocks = blocks or pool_blocks(cell, spec.block_size)
    supported = [layout.name for layout in get_supported_kv_cache_layouts([layer.get_attn_backend()])]
    layout = resolve_kv_cache_layout(config, [supported], specs.values())
    # vLLM sizes its pool by free memory; a cell needs a few blocks of any size.
    config.cache_config.num_gpu_blocks_override = blocks
    memory = spec.page_size_bytes * blocks
    kv_cache_config = get_kv_cache_configs(config, [specs], [memory])[0]
    kv_cache_config.kv_cache_layout = layout.name
    config.cache_config.num_gpu_blocks = kv_cache_config.num_blocks
    groups, graphs, kernel_blocks = init_attn_backend(kv_cache_config, config, device)
    init_kv_cache(
        config.compilation_config.static_forward_context,
        kv_cache_config,
        device,
        kernel_blocks,
        config,
        attn_groups=[group for per_cache in groups for group in per_cache],
    )
    return Setup(
        config=config,
        layer=layer,
        kv_cache_config=kv_cache_config,
        groups=groups,
        kernel_blocks=list(kernel_blocks),
        graph_support=graphs.min_cg_support.name,
        layout=layout.name,
        spec=spec,
        plan=execution.plan(cell, config, graphs, kv_cache_config, device),
    )
