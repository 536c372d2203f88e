"""What a pair's set-up resolved, read off vLLM's own objects: sides, groups, pool, the runner's rules."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from vllm.platforms import current_platform
from vllm.v1.attention import selector
from vllm.v1.attention.backends.registry import AttentionBackendEnum

from ..pair import GroupFacts, Pair, SideFacts
from . import claims
from .pair_setup import Trail


class Question(NamedTuple):
    """What vLLM asked its selector: the backend that was set (None: choose), the layer's needs, query heads."""

    backend: Any
    config: Any
    num_heads: int | None


@contextlib.contextmanager
def questions() -> Iterator[dict[str, list[Question]]]:
    """Collect the questions that model classes ask the selector, under the name that ``label`` last had.

    Yields a dict; its key ``""`` names the list that is being filled.
    """
    asked: dict[str, list[Question]] = {"target": [], "drafter": []}
    own = selector._cached_get_attn_backend

    def watched(backend: Any, attn_selector_config: Any, num_heads: int | None = None, **rest: Any) -> Any:
        from vllm.compilation.backends import model_tag

        side = "target" if model_tag == "backbone" else "drafter"
        asked[side].append(Question(backend, attn_selector_config, num_heads))
        return own(backend=backend, attn_selector_config=attn_selector_config, num_heads=num_heads, **rest)

    selector._cached_get_attn_backend = watched  # type: ignore[assignment]
    try:
        yield asked
    finally:
        selector._cached_get_attn_backend = own


def registry_name(backend: type[Any]) -> str:
    """The backend's name in vLLM's registry; several classes have a ``get_name`` of another backend."""
    path = f"{backend.__module__}.{backend.__qualname__}"
    for member in AttentionBackendEnum:
        with contextlib.suppress(ValueError):
            if member.get_path() == path:
                return member.name
    return str(backend.get_name())


def side(pair: Pair, trail: Trail, role: str, asked: list[Question]) -> SideFacts:
    """What became of one side, as far as set-up got."""
    layers = _layers_of(trail, role)
    backends = Counter(registry_name(layer.get_attn_backend()) for layer in layers.values())
    kinds = Counter(type(trail.specs[name]).__name__ for name in layers if name in trail.specs)
    order, rejections = _choice(asked)
    attention = {name: layer for name, layer in layers.items() if hasattr(layer, "kv_cache_dtype")}
    first = next(iter(attention.values()), None)
    native, reason = native_path(trail, attention)
    model = trail.target if role == "target" else getattr(trail.speculator, "model", None)
    return SideFacts(
        model_class="" if model is None else type(model).__name__,
        backends=dict(backends),
        kinds=dict(kinds),
        how=_how(pair, role, asked),
        order=order,
        rejections=rejections,
        kv_cache_dtype="" if first is None else str(first.kv_cache_dtype),
        layouts=_layouts(layers),
        metadata=tuple(sorted({claims.metadata_class(layer.get_attn_backend()).__name__ for layer in layers.values()})),
        graph_support=_graph_support(trail, layers),
        native_path=native,
        native_reason=reason,
    )


def _layers_of(trail: Trail, role: str) -> dict[str, Any]:
    if trail.config is None:
        return {}
    drafts = role == "drafter"
    known = {name: layer for name, layer in trail.layers.items() if (name in trail.draft_layers) == drafts}
    return {name: layer for name, layer in known.items() if hasattr(layer, "get_attn_backend")}


def _how(pair: Pair, role: str, asked: list[Question]) -> str:
    own = pair.target_model if role == "target" else pair.drafter
    if not asked:
        return ""
    told = asked[0].backend
    if own.backend is not None:
        return "explicit" if told is not None and told.name == own.backend else "ignored"
    return "automatic" if told is None else "inherited"


def _choice(asked: list[Question]) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
    """Valid backends in order of priority, and the reasons of the others, for the side's first question."""
    if not asked:
        return (), {}
    question = asked[0]
    valid, invalid = current_platform.get_valid_backends(
        device_capability=current_platform.get_device_capability(),
        attn_selector_config=question.config,
        num_heads=question.num_heads,
    )
    order = tuple(backend.name for backend, _ in sorted(valid, key=lambda pair: pair[1]))
    return order, {backend.name: tuple(map(str, reasons)) for backend, reasons in invalid.items()}


def _layouts(layers: dict[str, Any]) -> tuple[str, ...] | None:
    """Layouts that every backend of the side supports, in the first one's order; None where any will do."""
    declared = [layer.get_attn_backend().supported_kv_cache_layouts() for layer in layers.values()]
    named = [[layout.name for layout in layouts] for layouts in declared if layouts is not None]
    if not named:
        return None
    return tuple(name for name in named[0] if all(name in other for other in named))


def _graph_support(trail: Trail, layers: dict[str, Any]) -> str:
    """The weakest support for full graphs among the side's groups; empty where no builder was made."""
    found = []
    for group in _attention_groups(trail):
        if set(layers).intersection(group.layer_names):
            found.append(_support_of(trail, group))
    return min(found, key=lambda support: support.value).name if found else ""


def _attention_groups(trail: Trail) -> list[Any]:
    return [group for per_cache in trail.groups for group in per_cache]


def _support_of(trail: Trail, group: Any) -> Any:
    return group.get_metadata_builder(0).get_cudagraph_support(trail.config, group.kv_cache_spec)


def native_path(trail: Trail, layers: dict[str, Any]) -> tuple[bool | None, str]:
    """Whether ROCM_ATTN's layers keep the native kernels at the resolved block and layout, and why (not).

    As ``chunked_prefill_paged_decode`` decides it: the gate of ``use_rocm_custom_paged_attention``, a block that
    is a power of two, and K and V blocks that are packed, which only LHBNC gives.
    """
    mine = {n: x for n, x in layers.items() if registry_name(x.get_attn_backend()) == "ROCM_ATTN"}
    if not mine:
        return None, ""
    name, layer = next(iter(mine.items()))
    if not trail.caches or name not in trail.caches:
        return None, "set-up did not get to a KV cache"
    from vllm.platforms.rocm import use_rocm_custom_paged_attention
    from vllm.v1.attention.ops.chunked_prefill_paged_decode import has_native_kv_cache_layout
    from vllm.v1.attention.ops.paged_attn import PagedAttention

    key, value = PagedAttention.split_kv_cache(layer.kv_cache.transpose(0, 1), layer.num_kv_heads, layer.head_size)
    block = int(value.shape[3])
    packed = has_native_kv_cache_layout(key, value)
    gate = use_rocm_custom_paged_attention(
        trail.config.model_config.dtype,
        layer.head_size,
        block,
        layer.num_heads // layer.num_kv_heads,
        trail.config.model_config.max_model_len,
        (layer.sliding_window - 1, 0) if layer.sliding_window else (-1, -1),  # type: ignore[arg-type]
        layer.kv_cache_dtype,
        None,
        getattr(layer.impl, "sinks", None),
    )
    if gate and packed:
        return True, f"blocks of {block}, packed in {trail.layout}"
    reasons = []
    if not gate:
        shape = f"head {layer.head_size}, block {block}, {layer.num_heads}/{layer.num_kv_heads} heads"
        reasons.append(f"outside the native kernel's gate ({shape})")
    if not packed:
        reasons.append(f"K and V blocks are not packed in {trail.layout}")
    return False, "; ".join(reasons)


def groups(trail: Trail) -> tuple[GroupFacts, ...]:
    """The KV cache groups, with the layers of each by role and backend."""
    if trail.kv_cache_config is None:
        return ()
    found = []
    for index, cache in enumerate(trail.kv_cache_config.kv_cache_groups):
        layers = Counter(_role_and_backend(trail, name) for name in cache.layer_names)
        support = {}
        for group in trail.groups[index] if index < len(trail.groups) else ():
            if group.metadata_builders:
                support[registry_name(group.backend)] = _support_of(trail, group).name
        pages = {trail.specs[name].page_size_bytes for name in cache.layer_names if name in trail.specs}
        found.append(
            GroupFacts(
                spec=type(cache.kv_cache_spec).__name__,
                manager_block=int(cache.kv_cache_spec.block_size),
                kernel_block=trail.kernel_blocks[index] if index < len(trail.kernel_blocks) else None,
                page_bytes=max(pages, default=0),
                layers=dict(sorted(layers.items())),
                graph_support=support,
            )
        )
    return tuple(found)


def _role_and_backend(trail: Trail, name: str) -> str:
    role = "drafter" if name in trail.draft_layers else "target"
    return f"{role} {registry_name(trail.layers[name].get_attn_backend())}"


def pool(trail: Trail) -> dict[str, Any]:
    """What stands behind the KV cache: blocks, bytes, how many allocations and tensors, layers that share."""
    if not trail.caches:
        return {}
    tensors = [t for cache in trail.caches.values() for t in (cache if isinstance(cache, (list, tuple)) else (cache,))]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return {
        "blocks": int(trail.kv_cache_config.num_blocks),
        "allocations": len(storages),
        "bytes": sum(storages.values()),
        "layers": len(trail.caches),
        "tensors": len(trail.kv_cache_config.kv_cache_tensors),
    }


def effective(pair: Pair, trail: Trail) -> dict[str, Any]:
    """The draft configuration that vLLM loaded with, whatever was asked."""
    if trail.config is None:
        return {}
    speculative = trail.config.speculative_config
    found: dict[str, Any] = {
        "method": speculative.method,
        "num_speculative_tokens": speculative.num_speculative_tokens,
        "attention_backend": getattr(speculative.attention_backend, "name", None),
        "kv_cache_dtype": speculative.kv_cache_dtype or trail.config.cache_config.cache_dtype,
        "architectures": list(speculative.draft_model_config.architectures),
        "block_size": trail.config.cache_config.block_size,
        "prefix_caching": trail.config.cache_config.enable_prefix_caching,
        "graphs": trail.config.compilation_config.cudagraph_mode.name,
    }
    layer = next(iter(_layers_of(trail, "drafter").values()), None)
    if layer is not None and hasattr(layer, "num_kv_heads"):
        found["heads"] = f"{layer.num_heads}/{layer.num_kv_heads} of {layer.head_size}"
    return found


def rules(pair: Pair, trail: Trail, drafted: list[Question]) -> tuple[str, ...]:
    """What the chosen runner does about the drafter, one sentence each; ``drafted`` are the drafter's questions."""
    if trail.config is None:
        return ()
    v2 = trail.uses_v2
    said = ["V2 model runner" if v2 else "V1 model runner"]
    method = trail.config.speculative_config.method
    if not v2:
        said.append("the drafter never inherits the target's backend (_create_draft_vllm_config)")
    elif method in ("dflash", "dspark"):
        said.append(f"{method} selects its own backend; only what speculative_config names is passed on")
    elif method == "draft_model":
        said.append("a draft model takes the target's backend, whatever is asked (StandaloneARSpeculator)")
    else:
        said.append("an unset drafter backend inherits the target's (apply_draft_overrides)")
    if pair.drafter.backend is not None and drafted and _how(pair, "drafter", drafted) == "ignored":
        got = getattr(drafted[0].backend, "name", "its own choice")
        said.append(f"the backend asked for the drafter, {pair.drafter.backend}, is dropped: {got}")
    refusal = allow_list(pair, trail)
    if v2:
        said.append("no allow-list of metadata classes")
    elif refusal is not None:
        said.append(refusal or "the drafter's metadata classes are in the proposer's allow-list")
    return tuple(said)


def allow_list(pair: Pair, trail: Trail) -> str | None:
    """What V1's proposer says at the second draft step: empty where it accepts, None where it does not ask."""
    if trail.config is None or trail.uses_v2 or trail.speculator is None:
        return None
    allowed = getattr(trail.speculator, "allowed_attn_types", None)
    sequential = not getattr(trail.speculator, "parallel_drafting", False) and pair.num_speculative_tokens > 1
    if allowed is None or not sequential:
        return None
    for layer in _layers_of(trail, "drafter").values():
        kind = claims.metadata_class(layer.get_attn_backend())
        if not issubclass(kind, allowed):
            return (
                "Unsupported attention metadata type for speculative decoding with num_speculative_tokens > 1: "
                f"{kind.__name__}"
            )
    return ""


def dtype_of(cache: torch.Tensor) -> str:
    """A tensor's element type without its package."""
    return str(cache.dtype).removeprefix("torch.")
