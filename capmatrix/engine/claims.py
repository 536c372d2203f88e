"""What each claim layer of vLLM says of a cell, asked of vLLM itself and recorded apart.

Layers: ``validation`` (the backend's own), ``selector`` (what vLLM picks when nobody chooses),
``kernel_block`` (what the backend declares and what vLLM makes of the manager block for it alone),
``shared_group`` (the same in a group shared with a layer that declares the forced block),
``proposer`` (the V1 runner's allow-list of drafter metadata), and for latent attention ``mla_prefill``
(the prefill backend that vLLM picks beside it, without which it builds no layer).
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import torch
from vllm.platforms import current_platform
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.attention.backends.utils import get_supported_kv_cache_layouts, resolve_kv_cache_layout
from vllm.v1.attention.selector import AttentionSelectorConfig
from vllm.v1.core.kv_cache_utils import get_kv_cache_configs
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.worker.utils import AttentionGroup, prepare_kernel_block_sizes, select_common_block_size

from ..cell import Cell, Claim, Force
from . import bare_package, failures, mla_prefill, model_config

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


def shared_group(cell: Cell) -> Claim:
    """The kernel block of a group shared with a layer that takes only the block the family's target forces.

    The peer is MiniMax-M3's sparse attention, which declares [128]. Specs go through vLLM's own grouping.
    """
    if cell.forced_block != _PEER_BLOCK or cell.geometry.mla is not None:
        return Claim("shared_group", None, "no target of this family forces a block that a known peer declares")
    bare_package.ensure("vllm.models.minimax_m3")
    from vllm.models.minimax_m3.common.sparse_attention import MiniMaxM3SparseBackend

    g = cell.geometry
    spec = FullAttentionSpec(
        block_size=_PEER_BLOCK, num_kv_heads=g.num_kv_heads, head_size=g.head_size, dtype=getattr(torch, cell.dtype)
    )
    layers = {"drafter": backend_class(cell.backend), "target": MiniMaxM3SparseBackend}
    specs = {name: replace(spec) for name in layers}
    # A pool for the longest sequence, in any configuration of this model: blocks are all that grouping reads.
    config = model_config.vllm_config(replace_cell(cell, block_size=_PEER_BLOCK, backend="TRITON_ATTN"))
    data = {"peer": MiniMaxM3SparseBackend.get_name(), "peer_declares": [_PEER_BLOCK]}
    try:
        layouts = [layout.name for layout in get_supported_kv_cache_layouts(layers.values())]
        resolve_kv_cache_layout(config, [layouts], specs.values())
        pool = get_kv_cache_configs(config, [specs], [spec.page_size_bytes * _BLOCKS])[0]
        groups = [
            [AttentionGroup(layers[name], [name], spec, index) for name in group.layer_names]
            for index, group in enumerate(pool.kv_cache_groups)
        ]
        data["groups"] = len(groups)
        resolved = prepare_kernel_block_sizes(pool, groups)
    except ValueError as error:
        return Claim("shared_group", False, str(error), data)
    return Claim("shared_group", True, f"the group runs kernel blocks of {resolved[0]}", data | {"resolved": resolved})


#: Methods whose proposer goes on drafting with one token after its first pass (vllm/v1/spec_decode).
_SEQUENTIAL = ("eagle", "eagle3", "mtp", "draft_model")


def proposer(cell: Cell) -> Claim:
    """Whether the V1 proposer's allow-list holds the backend's metadata class; not applicable in V2."""
    if cell.runner != "v1":
        return Claim("proposer", None, "not applicable: the V2 runner has no allow-list")
    if cell.method not in _SEQUENTIAL or cell.num_speculative_tokens < 2:
        return Claim("proposer", None, "not applicable: no second sequential draft step, so no list is checked")
    bare_package.ensure("vllm.models.minimax_m3")
    from vllm.v1.spec_decode.eagle import EagleProposer

    any_backend = "TRITON_ATTN" if cell.geometry.mla is None else "TRITON_MLA"
    config = model_config.vllm_config(replace_cell(cell, backend=any_backend, method="eagle3"))
    allowed = EagleProposer(config, torch.device("cpu")).allowed_attn_types
    metadata = metadata_class(backend_class(cell.backend))
    if allowed is None:
        return Claim("proposer", None, "not applicable: vLLM checks no list on this platform")
    names = [kind.__name__ for kind in allowed]
    accepts = issubclass(metadata, allowed)
    detail = f"{metadata.__name__} {'is' if accepts else 'is not'} in the V1 proposer's allow-list"
    return Claim("proposer", accepts, detail, {"allowed": names})


def metadata_class(backend: type[Any]) -> type[Any]:
    """The class that the backend's builder builds, from its declaration as a generic; ``object`` if undeclared."""
    for base in backend.get_builder_cls().__mro__:
        for declared in getattr(base, "__orig_bases__", ()):
            for argument in typing.get_args(declared):
                if isinstance(argument, type):
                    return argument
    return object


def replace_cell(cell: Cell, **fields: Any) -> Cell:
    """The cell with other fields, unforced."""
    return msgspec.structs.replace(cell, force=Force.NONE, kernel_block=None, **fields)


#: Every claim layer, in the order of a record, with what answers it.
LAYERS: dict[str, Callable[[Cell], Claim]] = {
    "validation": validation,
    "selector": selector,
    "kernel_block": kernel_block,
    "shared_group": shared_group,
    "proposer": proposer,
}


def ask(cell: Cell) -> list[Claim]:
    """What every layer says. A layer that cannot be asked claims nothing and says why.

    Raises ImportError where the backend itself cannot be imported.
    """
    backend_class(cell.backend)
    claims = []
    layers = LAYERS if cell.geometry.mla is None else LAYERS | {"mla_prefill": mla_prefill.claim}
    for layer, answer in layers.items():
        try:
            claims.append(answer(cell))
        except Exception as error:
            claims.append(Claim(layer, None, f"could not be asked: {failures.first_line(error)}"))
    return claims
