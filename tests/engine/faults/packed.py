"""Faults seeded in the kernels of INT4 caches, two codes in a byte with a scale and a zero point a token and head.

Effects are those on codes of K and V as they are. vLLM turns both by an orthonormal transform first, which changes
no product of Q and K and turns back in the output: what a fault does to the exact result is of the same size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from . import effects as e
from .fault import Fault
from .models import Effect, World, each, exact, int4
from .patching import Edit

KERNELS = "vllm.v1.attention.ops.int4_per_token_head"
HELPERS = "vllm.v1.attention.ops.triton_attention_helpers"

_READER = "_attn_packed"
_WRITER = "_reshape_cache_int4_kernel"

#: Codes (length, heads, size), zero points and scales (length, heads, 1), to what the kernel makes of them.
Dequantise = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def _swapped(codes: torch.Tensor, zero: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (codes.unflatten(-1, (-1, 2)).flip(-1).flatten(-2) - zero) * scale


def _read(name: str, dequantise: Dequantise) -> Effect:
    """K or V dequantised in another way."""

    def effect(w: World) -> list[torch.Tensor]:
        given = w.values.k if name == "k" else w.values.v
        return [exact(replace(call, **{name: dequantise(*int4(x))})) for call, x in zip(w.calls, given, strict=True)]

    return effect


def _written(name: str, dequantise: Dequantise) -> Effect:
    """K or V stored in another way."""
    return e.only(name, lambda w, x: dequantise(*int4(x)))


def _reader(
    name: str, old: str, new: str, effect: Effect, batch: str = "verify", module: str = KERNELS, function: str = _READER
) -> Fault:
    return Fault(
        f"int4-{name}", _READER, (Edit(module, function, old, new),), effect, "TRITON_ATTN", 16, batch,
        ("int4_per_token_head",),
    )  # fmt: skip


def _writer(name: str, old: str, new: str, effect: Effect) -> Fault:
    edit = Edit(KERNELS, _WRITER, old, new)
    kinds = ("int4_per_token_head",)
    return Fault(f"int4-{name}", _WRITER, (edit,), effect, "TRITON_ATTN", 16, "verify", kinds, part="write")


def packed_faults() -> list[Fault]:
    """All of them."""
    mask = "        seq_mask = seq_offset[None, :] <= query_abs_pos\n"
    table = "block_tables_ptr + block_table_offset + seq_offset // BLOCK_SIZE"
    return [
        _reader("mask-behind", mask, mask.replace("<=", "<"), each(e.behind), "decode", HELPERS, "compute_kv_seq_mask"),
        _reader("first-block-twice", table, table.replace("seq_offset // BLOCK_SIZE",
                "tl.maximum(seq_offset // BLOCK_SIZE - 1, 0)"), each(e.predecessor_block)),
        _reader("k-zero-point-ignored", "(raw_dot - Q_sum[:, None] * k_zp[None, :])", "raw_dot",
                _read("k", lambda codes, zero, scale: codes * scale)),
        _reader("v-zero-point-ignored", "Pv_zp_sum = tl.sum(P_v * v_zp[None, :], axis=1)",
                "Pv_zp_sum = tl.sum(P_v * 0.0, axis=1)", _read("v", lambda codes, zero, scale: codes * scale)),
        _reader("k-scale-ignored", "scale * k_token_head_scales[None, :]", "scale",
                _read("k", lambda codes, zero, scale: codes - zero)),
        _reader("v-scale-ignored", "P_v = (P * v_token_head_scales[None, :])", "P_v = (P * 1.0)",
                _read("v", lambda codes, zero, scale: codes - zero)),
        _reader("v-nibbles-swapped", "V_s0_u, V_s1_u = unpack_int4_nibbles(V_packed)",
                "V_s1_u, V_s0_u = unpack_int4_nibbles(V_packed)", _read("v", _swapped), "decode"),
        _writer("slot-off", "slot_in_blk = slot % block_size", "slot_in_blk = (slot + 1) % block_size",
                e.one_slot_late),
        _writer("zero-point-lost", "(k_scale_bits & -16) | (k_zp_int & 0xF)", "(k_scale_bits & -16) | (k_zp_int & 0x0)",
                _written("k", lambda codes, zero, scale: codes * scale)),
        _writer("nibbles-swapped", "pack_int4_nibbles(v_even_q.to(tl.uint8), v_odd_q.to(tl.uint8))",
                "pack_int4_nibbles(v_odd_q.to(tl.uint8), v_even_q.to(tl.uint8))", _written("v", _swapped)),
    ]  # fmt: skip
