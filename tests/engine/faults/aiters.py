"""Faults seeded in AITER's unified attention kernels. Their tiles split the context where it is long."""

from __future__ import annotations

import torch

from capmatrix.cell import Geometry

from . import effects as e
from .fault import CAPPED, SINKS, WINDOWED, Fault
from .models import World, each, lost, merged, overflowing
from .patching import Edit

KERNELS = "aiter.ops.triton._triton_kernels.attention.unified_attention"
BACKEND = "vllm.v1.attention.backends.rocm_aiter_unified_attn"

_FP8 = ("fp8",)

#: Of few keys one more is worth more: with an FP8 query P is FP8 as well, and its bound is wide.
NARROW = Geometry(4, 2, 64, sliding_window=4)


def _tile(w: World) -> int:
    """The 3D kernel's tile, and its segment at these lengths (aiter, ``select_3d_config``)."""
    tile = min(64, 1 << (w.block - 1).bit_length())
    return max(32, tile) if w.stored.itemsize == 1 else tile


def _merged(**what: bool) -> object:
    return lambda w: [merged(call, _tile(w), **what) for call in w.calls]


def _fault(name: str, kernel: str, old: str, new: str, effect: object, batch: str, **more: object) -> Fault:
    edit = Edit(str(more.pop("module", KERNELS)), str(more.pop("function", kernel)), old, new)
    return Fault(
        f"aiter-{name}", f"AITER {kernel}", (edit,), effect, "ROCM_AITER_UNIFIED_ATTN", 64, batch,
        target="interpreter:gfx950", **more,
    )  # type: ignore[arg-type]  # fmt: skip


def aiter_faults() -> list[Fault]:
    """All of them."""
    return [*_both(), *_short_contexts(), *_split_contexts()]


def _both() -> list[Fault]:
    found = []
    for suffix, batch in (("2d", "verify"), ("3d", "long_decode")):
        kernel = f"kernel_unified_attention_{suffix}"
        short = suffix == "2d"
        # Contexts of several big blocks are split, so that the 3D kernel runs, unless there is a window.
        unsplit = {"geometry": WINDOWED} if short else {}
        found += [
            _fault(f"{name}-{suffix}", kernel, old, new, effect, batch, **more)
            for name, old, new, effect, more in (
                ("mask-behind", "seq_mask = seq_offset[None, :] < context_len + query_pos[:, None] + 1",
                 "seq_mask = seq_offset[None, :] < context_len + query_pos[:, None]", each(e.behind), {}),
                ("first-block-twice", "block_tables_ptr + block_table_offset + seq_offset // BLOCK_SIZE",
                 "block_tables_ptr + block_table_offset + tl.maximum(seq_offset // BLOCK_SIZE - 1, 0)",
                 each(e.predecessor_block), unsplit),
                ("scale-doubled", "qk_scale = scale * RCP_LN2", "qk_scale = 2.0 * scale * RCP_LN2", e.scaled(2.0), {}),
                ("k-scale-ignored",
                 "k_descale = tl.load(k_descale_ptr)" if short else "k_scale = tl.load(k_descale_ptr)",
                 "k_descale = 1.0" if short else "k_scale = 1.0",
                 e.stored_times(e.unscaled("k"), e.one), {"kv_cache_dtypes": _FP8}),
                ("v-scale-ignored",
                 "v_descale = tl.load(v_descale_ptr)" if short else "out_factor = tl.load(v_descale_ptr)",
                 "v_descale = 1.0" if short else "out_factor = 1.0",
                 e.stored_times(e.one, e.unscaled("v")), {"kv_cache_dtypes": _FP8}),
                ("v-of-other-head", "+ kv_head_idx * stride_v_cache_2", "+ (1 - kv_head_idx) * stride_v_cache_2",
                 e.heads_flipped(False, True), {}),
                ("stale-slot", "seq_len = tl.load(seq_lens_ptr + seq_idx)",
                 "seq_len = tl.load(seq_lens_ptr + seq_idx) + 1", each(e.one_more_stale_slot), {}),
                ("previous-requests-table", "block_table_offset = seq_idx * block_table_stride",
                 "block_table_offset = tl.maximum(seq_idx - 1, 0) * block_table_stride",
                 e.other_requests_blocks(lambda i, n: max(i - 1, 0)), {}),
                ("no-max-subtraction", 'm_j = tl.where(m_j > float("-inf"), m_j, 0.0)', "m_j = tl.zeros_like(m_j)",
                 overflowing, {}),
            )
        ]  # fmt: skip
    return found


def _short_contexts() -> list[Fault]:
    kernel = "kernel_unified_attention_2d"
    stored = "        acc,\n        mask=dim_mask[None, :] & query_mask_0[:, None]"
    viewed = "key_cache = key_cache.view(self.fp8_dtype)\n        value_cache = value_cache.view(self.fp8_dtype)"
    window = "(context_len + query_pos[:, None] - seq_offset) < SLIDING_WINDOW"
    return [
        _fault(f"{name}-2d", kernel, old, new, effect, "verify", **more)
        for name, old, new, effect, more in (
            ("causal-mask-dropped", "seq_mask = seq_offset[None, :] < context_len + query_pos[:, None] + 1",
             "seq_mask = seq_offset[None, :] < seq_len", each(e.every_key), {}),
            ("window-too-long", window, window.replace("<", "<="), e.window(1), {"geometry": NARROW}),
            ("window-too-short", window, window + " - 1", e.window(-1), {"geometry": WINDOWED}),
            ("sinks-ignored", "if not USE_SINKS:", "if True:", each(e.no_sinks), {"geometry": SINKS}),
            ("soft-cap-ignored", "if USE_SOFTCAP:", "if False:", each(e.no_cap), {"geometry": CAPPED}),
            ("rows-unwritten", stored, stored + " & (query_pos < cur_batch_query_len - 1)[:, None]",
             lost(lambda out: out[-1:]), {}),
            ("accumulator-not-rescaled", "acc = acc * alpha[:, None]", "acc = acc * 1.0",
             e.not_rescaled(_tile, rescale_out=False), {}),
            ("e4m3fn-read-as-fnuz", viewed, viewed.replace("self.fp8_dtype", "torch.float8_e4m3fnuz"),
             e.read_as(torch.float8_e4m3fnuz), {"kv_cache_dtypes": _FP8, "module": BACKEND,
             "function": "RocmAiterUnifiedAttentionImpl.forward"}),
        )
    ]  # fmt: skip


def _split_contexts() -> list[Fault]:
    weigh = "segm_output *= tl.math.exp2(segm_max - overall_max)[:, None]"
    weigh_sums = "segm_expsum = segm_expsum * tl.math.exp2(segm_max - overall_max)"
    count = "act_num_segments = cdiv_fn(seq_len, tiles_per_segment * TILE_SIZE)"
    return [
        _fault(f"merge-{name}", "reduce_segments", old, new, effect, "long_decode")
        for name, old, new, effect in (
            ("outputs-unweighted", weigh, "segm_output *= 1.0", _merged(out=False)),
            ("sums-unweighted", weigh_sums, "segm_expsum = segm_expsum * 1.0", _merged(total=False)),
            ("loses-last", count, count + " - 1", _merged(last=False)),
        )
    ]
