"""Whose metadata builders serve which draft pass, and whether they and the KV cache mean the same blocks.

V2 (vllm 0.32, ``v1/worker/gpu/model_runner.py``, ``initialize_kv_cache``) hands every pass the manager's block table;
an ``AttentionGroup`` maps it to the kernel blocks that it took when it was made. The runner makes its groups of all
layers of a KV cache group, and views the cache in the kernel blocks that these have in common. The speculator makes
its own of the draft layers alone (``DraftModelSpeculator.set_attn``), which may take larger blocks than the cache has.
V1 hands its proposer the runner's kernel blocks (``initialize_metadata_builders``).
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.kv_cache_interface import AttentionSpec
from vllm.v1.worker.gpu.spec_decode.target_dependent_ar.speculator import TargetDependentARSpeculator

from .pair_setup import Trail


def groups_of_call(trail: Trail, name: str, batch: str) -> list[Any]:
    """The attention groups, by KV cache group, whose builders make the metadata of ``batch`` for the layer ``name``.

    A drafter that needs its target's state (EAGLE, MTP) runs its first pass on the runner's metadata under V2
    (``TargetDependentARSpeculator.propose``), and its own builders serve the decodes that follow it.
    """
    if name not in trail.draft_layers or not _own_builders(trail, batch == "decode"):
        return trail.groups
    return trail.draft_groups


def _own_builders(trail: Trail, later: bool) -> bool:
    """Whether the drafter's own builders serve a pass: the first, or a ``later`` one, which takes a second token."""
    if not (trail.uses_v2 and isinstance(trail.speculator, TargetDependentARSpeculator)):
        return True
    return later and trail.speculator.num_speculative_steps > 1


def contradictions(trail: Trail) -> tuple[str, ...]:
    """Draft layers whose builders take blocks of another size than those of the cache they read, one sentence each.

    Nothing has to run to know it: writes go by slots, which both count alike, and reads by a block table in which
    block b stands for other tokens than it does in the cache. Empty where set-up did not get to a cache.
    """
    if not trail.caches or not _own_builders(trail, later=True):
        return ()
    found = {}
    for group in (group for per_cache in trail.draft_groups for group in per_cache):
        spec = group.kv_cache_spec
        if not isinstance(spec, AttentionSpec):
            continue
        # ``map_kv_cache_to_kernel_blocks`` compares the same two figures where the group splits its blocks.
        taken = group.kernel_block_size or spec.block_size
        rows = spec.get_num_kernel_states(taken)
        for name in group.layer_names:
            cache = trail.layers[name].kv_cache
            if isinstance(cache, torch.Tensor) and cache.dim() > 2 and cache.shape[-2] != rows:
                found[group.kv_cache_group_id, taken] = _sentence(trail, taken, taken * cache.shape[-2] // rows)
    return tuple(found.values())


def _sentence(trail: Trail, taken: int, viewed: int) -> str:
    last = trail.speculator.num_speculative_steps
    when = "every draft pass reads"
    if not _own_builders(trail, later=False):
        when = "draft step 2 reads" if last == 2 else f"draft steps 2 to {last} read"
    return (
        f"{when} other tokens' keys: the drafter's own metadata builder counts blocks of {taken}, "
        f"the KV cache is in blocks of {viewed} (DraftModelSpeculator.set_attn)"
    )
