"""Set a target and its drafter up as vLLM's engine does: models, specs, layout, groups, kernel blocks, builders.

The order is that of ``EngineCore._initialize_kv_caches`` and of both model runners (vllm 0.32: ``v1/engine/core.py``,
``v1/worker/gpu/model_runner.py``, ``v1/worker/gpu_model_runner.py``); every decision is taken by the function or the
class that takes it there. ``Trail`` keeps what was known when something refused.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.config import set_current_vllm_config
from vllm.distributed.kv_transfer.kv_connector.utils import get_current_attn_backends
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader import get_model
from vllm.platforms import current_platform
from vllm.v1.attention.backends.utils import get_supported_kv_cache_layouts, resolve_kv_cache_layout
from vllm.v1.core.kv_cache_utils import get_kv_cache_configs, get_kv_cache_groups
from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec, init_attn_backend, init_kv_cache

from ..cell import Phase
from ..pair import Pair
from . import mla, pair_models, pair_refusals, workspace

_RUNNER_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"
_RUNNERS = {"v1": "0", "v2": "1"}

#: Blocks of the pool beyond what the longest sequence needs, so that both sides' batches and stale blocks fit.
_SPARE_BLOCKS = 32

Enter = Callable[[Phase, str], None]


@dataclass
class Trail:
    """What set-up has found so far; fields stay empty after the step that refused."""

    config: Any = None
    target: Any = None
    speculator: Any = None
    draft_layers: frozenset[str] = frozenset()
    specs: dict[str, Any] = field(default_factory=dict)
    layouts: tuple[str, ...] = ()
    layout: str = ""
    kv_cache_config: Any = None
    groups: list[Any] = field(default_factory=list)
    draft_groups: list[Any] = field(default_factory=list)
    kernel_blocks: list[int] = field(default_factory=list)
    graph_support: str = ""
    caches: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def uses_v2(self) -> bool:
        """Whether vLLM chose its V2 model runner for this configuration."""
        return bool(self.config.use_v2_model_runner)

    @property
    def layers(self) -> dict[str, Any]:
        """Attention (and state) layers by name, in order of registration."""
        return dict(self.config.compilation_config.static_forward_context)


@contextlib.contextmanager
def runner_of(pair: Pair) -> Iterator[None]:
    """The environment variable that picks the runner, as ``pair.runner`` says; vLLM reads it whenever it asks."""
    before = os.environ.pop(_RUNNER_VARIABLE, None)
    if pair.runner in _RUNNERS:
        os.environ[_RUNNER_VARIABLE] = _RUNNERS[pair.runner]
    elif before is not None:
        os.environ[_RUNNER_VARIABLE] = before
    try:
        yield
    finally:
        os.environ.pop(_RUNNER_VARIABLE, None)
        if before is not None:
            os.environ[_RUNNER_VARIABLE] = before


def build(pair: Pair, trail: Trail, device: torch.device, enter: Enter) -> None:
    """Fill ``trail``; raises whatever vLLM raises. Call inside ``runner_of(pair)``."""
    enter(Phase.CONFIGURE, "engine configuration")
    trail.config = config = EngineArgs(**pair_models.engine_arguments(pair)).create_engine_config()
    with set_current_vllm_config(config):
        _models(pair, trail, device, enter)
        _cache(pair, trail, device, enter)


def _models(pair: Pair, trail: Trail, device: torch.device, enter: Enter) -> None:
    config = trail.config
    _parallel_groups(config)
    enter(Phase.SELECT, "target model")
    trail.target = get_model(vllm_config=config)
    target_layers = frozenset(trail.layers)
    enter(Phase.SELECT, "drafter")
    load = _load_v2 if trail.uses_v2 else _load_v1
    trail.speculator = load(config, trail.target, device)
    trail.draft_layers = frozenset(trail.layers) - target_layers


def _parallel_groups(config: Any) -> None:
    """One-rank groups; vLLM makes the one of experts only while a model that has some is configured."""
    from vllm.distributed import destroy_model_parallel, ensure_model_parallel_initialized, parallel_state

    mla.distributed()
    if config.model_config.is_moe and parallel_state._EP is None:
        destroy_model_parallel()
        ensure_model_parallel_initialized(1, 1)


def _load_v2(config: Any, target: Any, device: torch.device) -> Any:
    """As the V2 runner: its speculator loads the drafter. EAGLE3 and its like first mark the target's layers."""
    from vllm.v1.worker.gpu.spec_decode import init_speculator
    from vllm.v1.worker.gpu.spec_decode.eagle.eagle3_utils import set_eagle3_aux_hidden_state_layers

    if config.speculative_config.method in _READS_HIDDEN_STATES:
        set_eagle3_aux_hidden_state_layers(target, config.speculative_config)
    speculator = init_speculator(config, device, None)  # type: ignore[arg-type]
    speculator.load_model(target)  # type: ignore[attr-defined]
    return speculator


#: Methods for which the V2 runner asks the target for hidden states of some layers (gpu/model_runner.py).
_READS_HIDDEN_STATES = ("eagle3", "dflash", "dspark")


def _load_v1(config: Any, target: Any, device: torch.device) -> Any:
    """As the V1 runner: the proposer of the method loads the drafter (``GPUModelRunner.__init__``, ``load_model``)."""
    speculative = config.speculative_config
    if speculative.uses_draft_model():
        from vllm.v1.spec_decode.draft_model import DraftModelProposer as Proposer
    elif speculative.method == "dflash":
        from vllm.v1.spec_decode.dflash import DFlashProposer as Proposer  # type: ignore[assignment]
    elif speculative.use_eagle():
        from vllm.v1.spec_decode.eagle import EagleProposer as Proposer  # type: ignore[assignment]
    else:
        raise pair_refusals.Refused(f"Unknown speculative decoding method: {speculative.method}")
    proposer = Proposer(config, device, None)
    proposer.load_model(target)
    return proposer


def _cache(pair: Pair, trail: Trail, device: torch.device, enter: Enter) -> None:
    config = trail.config
    enter(Phase.BUILD, "block size")
    current_platform.update_block_size_for_backend(config)
    enter(Phase.BUILD, "KV cache specs")
    trail.specs = get_kv_cache_spec(config)
    enter(Phase.BUILD, "KV cache layout")
    supported = [layout.name for layout in get_supported_kv_cache_layouts(get_current_attn_backends(config))]
    trail.layouts = tuple(supported)
    trail.layout = resolve_kv_cache_layout(config, [supported], trail.specs.values()).name
    enter(Phase.BUILD, "KV cache groups")
    config.cache_config.num_gpu_blocks_override = _blocks(config, trail.specs)
    pool = get_kv_cache_configs(config, [dict(trail.specs)], [0])[0]
    pool.kv_cache_layout = trail.layout
    config.cache_config.num_gpu_blocks = pool.num_blocks
    trail.kv_cache_config = pool
    workspace.start(device)
    enter(Phase.BUILD, "kernel blocks and metadata builders")
    trail.groups, support, kernel_blocks = init_attn_backend(
        pool, config, device, draft_layer_names=set(trail.draft_layers)
    )
    trail.kernel_blocks = list(kernel_blocks)
    trail.graph_support = support.min_cg_support.name
    enter(Phase.BUILD, "the drafter's metadata builders")
    trail.draft_groups = _draft_groups(trail, device)
    enter(Phase.BUILD, "KV cache tensors")
    trail.caches = init_kv_cache(
        config.compilation_config.static_forward_context,
        pool,
        device,
        trail.kernel_blocks,
        config,
        attn_groups=[group for per_cache in (*trail.groups, *trail.draft_groups) for group in per_cache],
    )


def _blocks(config: Any, specs: dict[str, Any]) -> int:
    """Blocks of a small pool in which every group has room for the longest sequence.

    vLLM sizes its pool by free memory, of which a GPU has more.
    """
    specs_of_groups = [group.kv_cache_spec for group in get_kv_cache_groups(config, dict(specs))]
    needed = [-(-spec.max_memory_usage_bytes(config) // spec.page_size_bytes) + 1 for spec in specs_of_groups]
    return _SPARE_BLOCKS + sum(needed)


def _draft_groups(trail: Trail, device: torch.device) -> list[Any]:
    """The drafter's own groups and builders: V2 ``DraftModelSpeculator.set_attn``, V1 ``initialize_attn_backend``."""
    if trail.uses_v2:
        groups, _, _ = init_attn_backend(
            trail.kv_cache_config,
            trail.speculator.attn_vllm_config,
            device,
            active_layer_names=set(trail.draft_layers),
        )
        return list(groups)
    trail.speculator.initialize_attn_backend(trail.kv_cache_config, trail.kernel_blocks)
    per_cache: list[Any] = [[] for _ in trail.kv_cache_config.kv_cache_groups]
    for group in trail.speculator.draft_attn_groups:
        per_cache[group.kv_cache_group_id].append(group)
    return per_cache
