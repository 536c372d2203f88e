"""What each claim layer of vLLM says of a cell, asked of vLLM itself and recorded apart.

Layers: ``validation`` (the backend's own), ``selector`` (what vLLM picks when nobody chooses),
``kernel_block`` (what the backend declares and what vLLM makes of the manager block for it alone),
``shared_group`` (the same in a group shared with a layer that declares the forced block),
``proposer`` (the V1 runner's allow-list of drafter metadata).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from vllm.platforms import current_platform
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.attention.selector import AttentionSelectorConfig
from vllm.v1.core.kv_cache_utils import get_kv_cache_configs
from vllm.v1.worker.utils import AttentionGroup, prepare_kernel_block_sizes, select_common_block_size

from ..cell import Cell, Claim

#: The one block that MiniMax-M3's sparse layers take (vllm/models/minimax_m3/common/sparse_attention.py).
_PEER_BLOCK = 128
#: Blocks of the pool in which groups are formed: enough for vLLM's check of the longest sequence.
_BLOCKS = 4096


def selector_config(cell: Cell) -> AttentionSelectorConfig:
    """The question vLLM's selector is asked for this cell's layer."""
    g = cell.geometry
    head_size = g.head_size if g.mla is None else g.mla.kv_lora_rank + g.mla.qk_rope_head_dim
    return AttentionSelectorConfig(
        head_size=head_size,
        dtype=getattr(torch, cell.dtype),
        kv_cache_dtype=cell.kv_cache_dtype,
        block_size=cell.block_size,
        use_mla=g.mla is not None,
        has_sink=g.sinks,
        has_sliding_window=g.sliding_window is not None,
        use_non_causal=not g.causal,
    )


def backend_class(name: str) -> type[Any]:
    """The backend's class. Raises ImportError when something it needs is missing."""
    return AttentionBackendEnum[name].get_class()


def validation(cell: Cell) -> Claim:
    """The backend's own ``validate_configuration``."""
    reasons = backend_class(cell.backend).validate_configuration(
        device_capability=current_platform.get_device_capability(), **selector_config(cell)._asdict()
    )
    return Claim("validation", not reasons, "; ".join(reasons), {"reasons": list(reasons)})


def selector(cell: Cell) -> Claim:
    """Whether vLLM would pick this backend by default, the order it tries, and every rejection."""
    capability = current_platform.get_device_capability()
    valid, invalid = current_platform.get_valid_backends(
        device_capability=capability, attn_selector_config=selector_config(cell), num_heads=cell.geometry.num_heads
    )
    order = [backend.name for backend, _ in sorted(valid, key=lambda pair: pair[1])]
    default = order[0] if order else None
    rejections = {backend.name: list(reasons) for backend, reasons in invalid.items()}
    detail = f"the default is {default}" if default else "no backend is valid"
    return Claim(
        "selector", default == cell.backend, detail, {"default": default, "order": order, "rejections": rejections}
    )


def declared_blocks(backend: type[Any], spec: Any = None) -> list[str]:
    """Kernel block sizes a backend declares, as ``16`` or ``multiple of 16``."""
    return [
        str(size) if isinstance(size, int) else f"multiple of {size.base}"
        for size in backend.get_supported_kernel_block_sizes(spec)
    ]


def kernel_block(cell: Cell, spec: Any = None) -> Claim:
    """Declared kernel blocks, whether the manager block is accepted, and what vLLM resolves for it alone."""
    backend = backend_class(cell.backend)
    declared = declared_blocks(backend, spec)
    data: dict[str, Any] = {
        "declared": declared,
        "manager_block": cell.block_size,
        "manager_accepted": backend.supports_block_size(cell.block_size),
    }
    try:
        resolved = select_common_block_size(cell.block_size, [backend], [spec])
    except ValueError as error:
        return Claim("kernel_block", False, str(error), data)
    data["resolved"] = resolved
    split = "" if resolved == cell.block_size else f" (split into {cell.block_size // resolved})"
    return Claim("kernel_block", True, f"{cell.block_size} runs as kernel blocks of {resolved}{split}", data)


def shared_group(cell: Cell, setup: Any) -> Claim:
    """The kernel block of a group shared with a layer that takes only the block the family's target forces.

    The peer is MiniMax-M3's sparse attention, which declares [128]. Specs go through vLLM's own grouping.
    """
    if cell.forced_block != _PEER_BLOCK:
        return Claim("shared_group", None, "no target of this family forces a block that a known peer declares")
    from vllm.models.minimax_m3.common.sparse_attention import MiniMaxM3SparseBackend

    backend = backend_class(cell.backend)
    spec = replace(setup.spec, block_size=cell.forced_block)
    specs = {"drafter": spec, "target": replace(spec)}
    config = get_kv_cache_configs(setup.config, [specs], [spec.page_size_bytes * _BLOCKS])[0]
    groups = [
        [AttentionGroup(peer, [name], spec, index) for name, peer in (("drafter", backend), ("target", MiniMaxM3SparseBackend))]
        for index in range(len(config.kv_cache_groups))
    ]
    data = {"peer": MiniMaxM3SparseBackend.get_name(), "peer_declares": [_PEER_BLOCK], "groups": len(groups)}
    try:
        resolved = prepare_kernel_block_sizes(config, groups)
    except ValueError as error:
        return Claim("shared_group", False, str(error), data)
    return Claim("shared_group", True, f"the group runs kernel blocks of {resolved[0]}", data | {"resolved": resolved[0]})


def proposer(cell: Cell, metadata_class: str, allowed: tuple[str, ...] | None) -> Claim:
    """Whether the V1 proposer's allow-list holds the metadata class; not applicable in V2."""
    if cell.runner != "v1":
        return Claim("proposer", None, "not applicable: the V2 runner has no allow-list")
    if allowed is None:
        return Claim("proposer", None, "not applicable: no list is checked for this method and platform")
    verdict = metadata_class in allowed
    return Claim("proposer", verdict, f"{metadata_class} {'is' if verdict else 'is not'} in the allow-list")
