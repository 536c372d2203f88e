"""Run both sides' attention in the pool that a pair's set-up made: its kernel blocks, its layout, its neighbours.

Each side's layer is called as a cell of its own is (``verdicts``), with everything else in the pool a canary: all
layers share one allocation, whatever is not the call's own slots is filled before it and compared after it.
``pair_pages`` checks beforehand that no block of one layer lies on another block of any other.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from vllm.config import set_current_vllm_config
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.mamba.abstract import MambaBase

from .. import batches
from ..cell import Cell, Check, Flag, Geometry, Phase, Role, Verdict
from ..pair import Pair, SideRun, Uncalled
from ..rungs import reachable
from . import (
    aiter_loader,
    aiter_support,
    failures,
    intended,
    layers,
    mla,
    mla_inputs,
    native_ops,
    pair_builders,
    pair_facts,
    pair_pages,
    route,
    sparse,
    verdicts,
)
from .pair_setup import Trail
from .setup import Setup

Enter = Callable[[Phase, str], None]
OfGpu = Callable[[Exception, Phase], tuple[Verdict, tuple[str, ...]] | None]


class OutOfReach(Exception):
    """A call that says nothing on this target."""


class Place(NamedTuple):
    """A layer with the group of the pool that it lives in."""

    name: str
    role: Role
    layer: Any
    cache_group: int


def run(pair: Pair, trail: Trail, kind: str, enter: Enter, of_gpu: OfGpu) -> Iterator[SideRun]:
    """One batch of one layer after the other: of each side, one layer a kind of attention. ``kind`` of target.

    ``of_gpu`` is asked first what an exception means where it may be a GPU's.
    """
    pages = pair_pages.check(trail)
    for place in places(trail):
        for batch in pair.batches:
            yield _run(pair, trail, place, batch, kind, pages, enter, of_gpu)


def places(trail: Trail) -> list[Place]:
    """The first layer of each kind (role, backend, spec, window) that a cell can call."""
    found: dict[tuple[object, ...], Place] = {}
    for name, layer in trail.layers.items():
        if not hasattr(layer, "get_attn_backend") or _why_not(trail, name, layer):
            continue
        role = _role(trail, name)
        window = getattr(layer, "sliding_window", None)
        key = (role, layer.get_attn_backend(), type(trail.specs[name]), window)
        found.setdefault(key, Place(name, role, layer, _groups_of(trail, name, layer)[0]))
    return sorted(found.values(), key=lambda place: place.role is Role.DRAFTER)


def uncalled(trail: Trail) -> tuple[Uncalled, ...]:
    """The layers that no call reaches, by role, backend and reason."""
    indexers = {
        layer.indexer.index_cache.prefix
        for name, layer in trail.layers.items()
        if sparse.is_sparse(layer) and not _why_not(trail, name, layer)
    }
    found: Counter[tuple[str, str, str]] = Counter()
    for name, layer in trail.layers.items():
        if not hasattr(layer, "get_attn_backend") or name in indexers:
            continue
        reason = _why_not(trail, name, layer)
        if reason:
            backend = pair_facts.registry_name(layer.get_attn_backend())
            found[_role(trail, name).value, backend, reason] += 1
    return tuple(Uncalled(role, backend, count, reason) for (role, backend, reason), count in found.items())


def _role(trail: Trail, name: str) -> Role:
    return Role.DRAFTER if name in trail.draft_layers else Role.TARGET


def _why_not(trail: Trail, name: str, layer: Any) -> str:
    """Why a layer cannot be called; empty where it can: plain, latent and block-sparse attention."""
    if isinstance(layer, MambaBase):
        return "no attention: recurrent states"
    if not (isinstance(layer, Attention) or mla.is_mla(layer) or sparse.is_sparse(layer)):
        return f"no attention of its own: {type(layer).__name__}"
    if name not in trail.caches:
        return "no KV cache of its own"
    return "" if _groups_of(trail, name, layer)[1] else "no attention group of the pool has all its parts"


def _groups_of(trail: Trail, name: str, layer: Any, batch: str = "") -> tuple[int, list[Any]]:
    """The cache group of a layer and the attention groups there that serve ``batch``, an indexer's after its own.

    None where one lacks.
    """
    wanted = [name, *([layer.indexer.index_cache.prefix] if sparse.is_sparse(layer) else [])]
    for index, per_cache in enumerate(pair_builders.groups_of_call(trail, name, batch)):
        found = [group for part in wanted for group in per_cache if part in group.layer_names]
        if len(found) == len(wanted):
            return index, list({id(group): group for group in found}.values())
    return 0, []


def cell_of(pair: Pair, trail: Trail, place: Place, batch: str) -> Cell:
    """The cell that this call is: what was resolved, not what was asked."""
    layer = place.layer
    spec = trail.specs[place.name]
    return Cell(
        target=pair.target,
        backend=pair_facts.registry_name(layer.get_attn_backend()),
        block_size=int(spec.block_size),
        kv_cache_dtype=str(layer.kv_cache_dtype),
        drafter=(pair.drafter if place.role is Role.DRAFTER else pair.target_model).family,
        tp=pair.tp,
        role=place.role,
        method=pair.method,
        geometry=_geometry(pair, trail, place),
        num_speculative_tokens=pair.num_speculative_tokens,
        batch=batch,
        dtype=pair.dtype,
        runner="v2" if trail.uses_v2 else "v1",
        lengths="short",
        switches=pair.switches,
    )


def _geometry(pair: Pair, trail: Trail, place: Place) -> Geometry:
    layer = place.layer
    if mla.is_mla(layer):
        return Geometry(layer.num_heads, 1, layer.head_size, mla=pair.target_model.geometry.mla)
    return Geometry(
        num_heads=layer.num_heads,
        num_kv_heads=layer.num_kv_heads,
        head_size=_head_size(layer),
        sliding_window=getattr(layer, "sliding_window", None),
        sinks=getattr(layer.impl, "sinks", None) is not None,
        causal=causal(trail, place),
    )


def _head_size(layer: Any) -> int:
    return int(layer.head_dim if sparse.is_sparse(layer) else layer.head_size)


def causal(trail: Trail, place: Place) -> bool:
    """Whether the layer attends causally, as the drafter's model says for its own."""
    if place.role is Role.TARGET:
        return True
    model = trail.speculator.model
    if hasattr(model, "get_draft_attn_causal") and hasattr(model, "get_draft_kv_cache_layer_names"):
        by_name = dict(zip(model.get_draft_kv_cache_layer_names(), model.get_draft_attn_causal(), strict=True))
        return bool(by_name.get(place.name, True))
    return not getattr(trail.speculator, "requires_non_causal", False)


def setup_of(trail: Trail, place: Place, batch: str, is_causal: bool) -> Setup:
    """The pair's set-up as one layer's in ``batch``: its group of the pool alone, the pool itself unchanged."""
    cache_group = trail.kv_cache_config.kv_cache_groups[place.cache_group]
    config = trail.config
    if config.attention_config.use_non_causal == is_causal:
        config = copy.copy(config)
        config.attention_config = dataclasses.replace(config.attention_config, use_non_causal=not is_causal)
    return Setup(
        config=config,
        layer=place.layer,
        kv_cache_config=dataclasses.replace(trail.kv_cache_config, kv_cache_groups=[cache_group]),
        groups=[_groups_of(trail, place.name, place.layer, batch)[1]],
        kernel_blocks=[trail.kernel_blocks[place.cache_group]],
        graph_support=trail.graph_support,
        layout=trail.layout,
        spec=trail.specs[place.name],
    )


def _run(
    pair: Pair,
    trail: Trail,
    place: Place,
    batch_name: str,
    kind: str,
    pages: Check,
    enter: Enter,
    of_gpu: OfGpu,
) -> SideRun:
    cell = cell_of(pair, trail, place, batch_name)
    setup = setup_of(trail, place, batch_name, cell.geometry.causal)
    reached = [Phase.BUILD]

    def entered(phase: Phase) -> None:
        reached[0] = phase
        enter(phase, f"{place.role.value} {batch_name}")

    route.start()
    native_ops.forget_claims()
    findings: dict[str, Any] = {"has_decode": True}
    failure = None
    unreachable = sparse.out_of_reach(place.layer) if sparse.is_sparse(place.layer) else ""
    try:
        if unreachable:
            raise OutOfReach(unreachable)
        with set_current_vllm_config(setup.config):
            _as_a_cell(cell, place.layer)
            batch = batches.build(
                batch_name,
                block_size=setup.block_size,
                num_speculative_tokens=pair.num_speculative_tokens,
                lengths="short",
            )
            if sparse.is_sparse(place.layer):
                batch = sparse.with_selection(batch, place.layer)
            batch = batches.in_worker_order(batch, 1 + pair.num_speculative_tokens)
            findings["has_decode"] = any(request.query_len == 1 for request in batch.requests)
            judge = verdicts.compiled if kind == "offline" else verdicts.computed
            verdict = judge(cell, setup, batch, findings, entered)
    except OutOfReach as error:
        verdict, findings["reasons"] = Verdict.UNVERIFIED, (f"unverified: {error}",)
    except Exception as error:
        said = of_gpu(error, reached[0]) or verdicts.of_exception(cell, error, reached[0], findings)
        verdict, findings["reasons"] = said
        failure = failures.describe(error)
    verdict, findings["reasons"] = _without_blame(cell, verdict, tuple(findings.get("reasons", ())), failure)
    if pages.ok is False and verdict is not Verdict.ERROR:
        verdict, findings["reasons"] = Verdict.WRONG, (f"pages: {pages.detail}", *findings.get("reasons", ()))
    checks = tuple(findings.get("checks", ()))
    kernels = route.so_far()
    return SideRun(
        role=place.role.value,
        layer=place.name,
        backend=cell.backend,
        batch=batch_name,
        verdict=verdict,
        rung=reachable(pair.target),
        phase=reached[0],
        reasons=tuple(findings.get("reasons", ())),
        flags=tuple(sorted(_flags(cell, findings, kernels), key=lambda flag: flag.value)),
        failure=failure,
        kernel_block=setup.kernel_blocks[0],
        route=kernels,
        checks=checks,
        canary=canary(pages, checks),
    )


def _without_blame(
    cell: Cell, verdict: Verdict, reasons: tuple[str, ...], failure: Any
) -> tuple[Verdict, tuple[str, ...]]:
    """A failure that an AITER outside vLLM's range brings is nobody's else: ``unavailable``, as for a cell."""
    import vllm

    if verdict not in (Verdict.ERROR, Verdict.WRONG, Verdict.UNAVAILABLE):
        return verdict, reasons
    blamed = aiter_support.classify(cell.backend, aiter_loader.describe(), failure, vllm.__version__)
    return (Verdict.UNAVAILABLE, (blamed, *reasons)) if blamed else (verdict, reasons)


def _flags(cell: Cell, findings: dict[str, Any], kernels: tuple[Any, ...]) -> set[Flag]:
    flags = set(findings.get("flags", ()))
    if any(kernel.kind == "stand_in" for kernel in kernels):
        flags.add(Flag.STAND_IN)
    if intended.fallback(cell.backend, tuple(kernel.name for kernel in kernels), findings["has_decode"]):
        flags.add(Flag.FALLBACK)
    return flags


def _as_a_cell(cell: Cell, layer: Any) -> None:
    """Scales and latent weights as a cell's layer has them; a model's own are dummies."""
    dtype = getattr(torch, cell.dtype)
    if sparse.is_sparse(layer):
        sparse.prepare(layer, dtype)
        return
    if cell.kv_cache_dtype.startswith("fp8"):
        layers.set_scales(layer)
    if mla.is_mla(layer):
        layer.dtype = dtype
        weight = mla_inputs.weight(cell.geometry, dtype)
        if not torch.equal(layer.kv_b_proj.weight, weight):
            layer.kv_b_proj.weight.data.copy_(weight)
            layer.process_weights_after_loading(dtype)


def canary(pages: Check, checks: tuple[Check, ...]) -> Check:
    """What happened to bytes that the call does not own: the pages' geometry and every guard that was looked at."""
    guards = [check for check in checks if check.part == "guard"]
    bad = [check for check in (pages, *guards) if check.ok is False]
    if bad:
        return Check("canary", False, detail="; ".join(check.detail for check in bad))
    looked = "compared after the call" if guards else "not compared: nothing ran on values"
    return Check("canary", pages.ok, detail=f"{pages.detail}; bytes outside the call's slots {looked}")
