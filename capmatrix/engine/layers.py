"""The attention layer of a cell: vLLM's own ``Attention`` or ``MLAAttention``, with scales and sinks of our own."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from vllm.model_executor.layers.attention import Attention

from ..cell import Cell
from . import mla

LAYER_NAME = "model.layers.0.self_attn.attn"

#: Scales that differ from 1 and from each other, powers of two so that applying one adds no rounding.
NON_UNIT_SCALES = {"q": 0.5, "k": 0.25, "v": 2.0}


def make(cell: Cell, config: Any, device: torch.device) -> Any:
    """Build the layer inside ``set_current_vllm_config(config)``; vLLM's selector runs here.

    Raises what vLLM raises: a ValueError of the selector means that the backend is rejected.
    """
    g = cell.geometry
    dtype = getattr(torch, cell.dtype)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        # As vLLM's model loader does; on a CPU it is the default anyway.
        with device if device.type != "cpu" else contextlib.nullcontext():
            layer = _dense(cell, config, dtype) if g.mla is None else mla.make(cell, config, LAYER_NAME)
    finally:
        torch.set_default_dtype(before)
    if cell.scales == "non_unit" and cell.kv_cache_dtype.startswith("fp8"):
        set_scales(layer)
    return layer


def _dense(cell: Cell, config: Any, dtype: torch.dtype) -> Any:
    g = cell.geometry
    extra: dict[str, Any] = {}
    if g.sinks:
        # Of the size of a sum over a batch's keys, so that a sink takes a fair share of the weight.
        extra["sinks"] = torch.linspace(2.0, 6.0, g.num_heads).to(dtype)
    layer = Attention(
        g.num_heads,
        g.head_size,
        g.head_size**-0.5,
        num_kv_heads=g.num_kv_heads,
        cache_config=config.cache_config,
        logits_soft_cap=g.logits_soft_cap,
        per_layer_sliding_window=g.sliding_window,
        prefix=LAYER_NAME,
        **extra,
    )
    layer.process_weights_after_loading(dtype)
    return layer


def set_scales(layer: Any) -> None:
    """Give the layer's q, k and v scales three different values, on host and device as vLLM keeps them."""
    values = dict(NON_UNIT_SCALES)
    if not quantises_query(layer):
        # vLLM refuses a q scale where the query stays unquantised.
        values["q"] = 1.0
    for name, value in values.items():
        getattr(layer, f"_{name}_scale").fill_(value)
        setattr(layer, f"_{name}_scale_float", value)
        cpu = getattr(layer, f"_{name}_scale_cpu", None)
        if cpu is not None:
            cpu.fill_(value)


def quantises_query(layer: Any) -> bool:
    """Whether this layer hands its kernels an FP8 query."""
    if mla.is_mla(layer):
        return bool(layer.impl.supports_quant_query_input)
    return getattr(layer, "query_quant", None) is not None
