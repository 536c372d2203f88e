"""Faults of FLEX_ATTENTION: in vLLM's mask, which Inductor compiles into its kernel, and in Inductor's template."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from . import effects as e
from .fault import WINDOWED, Fault
from .models import Call, Effect, World, each, exact, overflowing, positions
from .patching import Edit

FLEX = "vllm.v1.attention.backends.flex_attention"
TEMPLATE = "torch._inductor.kernel.flex.flex_attention"


def _block(w: World) -> int:
    """The kernel's tile: vLLM makes it the block."""
    return w.block


def next_key(w: World, call: Call) -> Call:
    """Each row reads the key behind its own, where the sequence has one."""
    mask = call.mask.clone()
    mask[torch.arange(call.new - 1), positions(call)[:-1] + 1] = True
    return replace(call, mask=mask)


def _later_requests_read_all(w: World) -> list[torch.Tensor]:
    """Rows of every request but the first count from the batch's first row, so that no key is ahead of them."""
    return [exact(w.calls[0]), *(exact(e.every_key(w, call)) for call in w.calls[1:])]


def _last_block_dropped(w: World) -> list[torch.Tensor]:
    """The last of a group's blocks is left out: the last request's last."""
    call = w.calls[-1]
    start = (-(-call.length // w.block) - 1) * w.block
    return [*map(exact, w.calls[:-1]), exact(replace(call, mask=call.mask & (torch.arange(call.length) < start)))]


def _one_block_for_all(w: World) -> list[torch.Tensor]:
    """Every block of a group is read from where its first is."""
    outs = []
    for call in w.calls:
        source = torch.arange(call.length) % w.block
        parts = {}
        for name, first in (("k", w.calls[0].k), ("v", w.calls[0].v)):
            block = torch.zeros(w.block, *first.shape[1:], dtype=torch.float64)
            block[: first.shape[0]] = first[: w.block]
            parts[name] = block[source]
        outs.append(exact(replace(call, **parts)))
    return outs


def _last_row_lost(w: World) -> list[torch.Tensor]:
    """The batch's last row is not written."""
    outs = [exact(call) for call in w.calls]
    outs[-1][-1] = math.nan
    return outs


def _fault(name: str, edits: tuple[Edit, ...], effect: Effect | None, batch: str, **more: object) -> Fault:
    kernel = "flex_attention template" if edits[0].module == TEMPLATE else "flex_attention mask"
    return Fault(
        f"flex-{name}", kernel, edits, effect, "FLEX_ATTENTION", 16, batch, kv_cache_dtypes=("auto",), **more
    )  # type: ignore[arg-type]  # fmt: skip


def _template(name: str, old: str, new: str, effect: Effect | None, batch: str, **more: object) -> Fault:
    return _fault(name, (Edit(TEMPLATE, "flex_attention_template", old, new),), effect, batch, **more)


def _mask(name: str, function: str, old: str, new: str, effect: Effect, batch: str, **more: object) -> Fault:
    return _fault(name, (Edit(FLEX, function, old, new),), effect, batch, **more)


def flex_faults() -> list[Fault]:
    """All of them; FP8 caches are rejected by the backend."""
    gfx950 = {"target": "interpreter:gfx950"}
    convert = "FlexAttentionMetadata._convert_physical_to_logical"
    no_maximum = (
        ("tl.math.exp2(m_i - m_ij_masked)", 'tl.where(m_i == float("-inf"), 0.0, 1.0)'),
        ("tl.math.exp2(post_mod_scores - m_ij_masked[:, None])", "tl.math.exp2(post_mod_scores)"),
    )
    return [
        _mask("mask-behind", "causal_mask_mod", "q_idx >= kv_idx", "q_idx > kv_idx", each(e.behind), "verify"),
        _mask("mask-ahead", "causal_mask_mod", "q_idx >= kv_idx", "q_idx + 1 >= kv_idx", each(next_key), "verify",
              **gfx950),
        _mask("window-too-long", "FlexAttentionMetadata.get_sliding_window_mask_mod", "< self.sliding_window",
              "<= self.sliding_window", e.window(1), "verify", geometry=WINDOWED),
        _mask("query-starts-ignored", convert, "q_idx - self.query_start_loc[q_req]", "q_idx + 0",
              _later_requests_read_all, "prefill"),
        _template("scale-doubled", "qk *= SM_SCALE", "qk *= SM_SCALE * 2.0", e.scaled(2.0), "decode"),
        _template("last-block-dropped", "tl.minimum(kv_num_blocks * SPARSE_KV_MULTIPLE",
                  "tl.minimum((kv_num_blocks - 1) * SPARSE_KV_MULTIPLE", _last_block_dropped, "decode"),
        _template("one-block-for-all", "kv_offset += offset", "kv_offset += offset * 0", _one_block_for_all, "decode"),
        _template("out-not-rescaled", "acc = acc * alpha[:, None]", "acc = acc * 1.0",
                  e.not_rescaled(_block, rescale_out=False), "verify", **gfx950),
        _template("sum-not-rescaled", "l_i = l_i * alpha + tl.sum(p, 1)", "l_i = l_i + tl.sum(p, 1)",
                  e.not_rescaled(_block, rescale_sum=False), "decode"),
        _template("wrong-kv-head", "off_hkv = off_hq // GQA_SHARED_HEADS",
                  "off_hkv = off_hq % (HQ // GQA_SHARED_HEADS)", each(e.kv_head_modulo), "verify"),
        _template("v-of-the-other-head", "v_offset = off_zkv * stride_vz + off_hkv * stride_vh",
                  "v_offset = off_zkv * stride_vz + (1 - off_hkv) * stride_vh", e.heads_flipped(False, True), "decode",
                  **gfx950),
        _fault("no-maximum", tuple(Edit(TEMPLATE, "flex_attention_template", *pair) for pair in no_maximum),
               overflowing, "decode"),
        _template("last-row-unwritten", "mask = (idx_m < Q_LEN)", "mask = (idx_m < Q_LEN - 1)", _last_row_lost,
                  "verify"),
        _template("rows-behind-the-last", "mask = (idx_m < Q_LEN) & (idx_d < V_HEAD_DIM)",
                  "mask = idx_d < V_HEAD_DIM", None, "verify", part="guard"),
    ]  # fmt: skip


#: No fault: PyTorch computes the attention as it does on a CPU, and Inductor's kernel does not run.
BY_PYTORCH = _fault(
    "by-pytorch",
    (Edit("capmatrix.engine.flex_interpreted", "_call", "return _compiled(", "return flex_attention("),),
    None,
    "verify",
)
