"""The seeded faults: which source they break, in which cell it shows, and what they do to the exact result."""

from __future__ import annotations

import math

import torch

from . import effects as e
from .aiters import aiter_faults
from .fault import CAPPED, SINKS, TINY, WINDOWED, Fault
from .flexes import BY_PYTORCH, flex_faults
from .latent import latent_faults
from .models import Effect, each, lost, overflowing
from .packed import packed_faults
from .patching import Edit
from .segmented import segmented_faults

UNIFIED = "vllm.v1.attention.ops.triton_unified_attention"
HELPERS = "vllm.v1.attention.ops.triton_attention_helpers"
BACKEND = "vllm.v1.attention.backends.triton_attn"
PAGED = "vllm.v1.attention.ops.chunked_prefill_paged_decode"
PREFIX = "vllm.v1.attention.ops.prefix_prefill"
WRITER = "vllm.v1.attention.ops.triton_reshape_and_cache_flash"


def _unified(name: str, function: str, old: str, new: str, effect: Effect, batch: str, **more: object) -> Fault:
    module = more.pop("module", UNIFIED)
    kernel = "kernel_unified_attention, 3D" if batch == "decode" else "kernel_unified_attention, 2D"
    if function == "reduce_segments":
        kernel = "reduce_segments"
    return Fault(
        f"unified-{name}", kernel, (Edit(str(module), function, old, new),), effect, "TRITON_ATTN", 16, batch, **more
    )  # type: ignore[arg-type]


def _paged(name: str, old: str, new: str, effect: Effect, batch: str = "decode", **more: object) -> Fault:
    edit = Edit(PAGED, str(more.pop("function", "kernel_paged_attention_2d")), old, new)
    return Fault(f"paged-{name}", "kernel_paged_attention_2d", (edit,), effect, "ROCM_ATTN", 64, batch, **more)  # type: ignore[arg-type]


def _prefix(name: str, old: str, new: str, effect: Effect, batch: str = "verify", **more: object) -> Fault:
    function = str(more.pop("function", "_fwd_kernel"))
    return Fault(
        f"prefix-{name}", "_fwd_kernel", (Edit(PREFIX, function, old, new),), effect, "ROCM_ATTN", 64, batch, **more
    )  # type: ignore[arg-type]


def _writer(name: str, old: str, new: str, effect: Effect | None, part: str = "write", **more: object) -> Fault:
    function = str(more.pop("function", "reshape_and_cache_kernel_flash"))
    more.setdefault("target", "interpreter:gfx950")
    kernel = function if function.startswith("_") else "reshape_and_cache_kernel_flash"
    return Fault(
        f"writer-{name}", kernel, (Edit(WRITER, function, old, new),), effect, "TRITON_ATTN", 16, "verify",
        part=part, **more,
    )  # type: ignore[arg-type]  # fmt: skip


_FP8 = ("fp8",)
_KERNEL = "kernel_unified_attention"
_TABLE_ENTRY = "block_tables_ptr + block_table_offset + seq_offset // BLOCK_SIZE\n        ).to(tl.int64)\n\n"
_VIEWED = "key_cache = key_cache.view(self.fp8_dtype)\n            value_cache = value_cache.view(self.fp8_dtype)"
_FP8_VIEW = "target_dtype = current_platform.fp8_dtype()"
_STORE = (
    "                output_ptr + output_offset,\n                acc,\n"
    "                mask=dim_mask[None, :] & query_mask_0[:, None]"
)


def _unified_faults() -> list[Fault]:
    both = ("decode", "verify")
    found = []
    for batch in both:
        tile = 16 if batch == "decode" else 32
        suffix = "3d" if batch == "decode" else "2d"
        for name, module, function, old, new, effect, more in (
            ("mask-ahead", HELPERS, "compute_kv_seq_mask", "        seq_mask = seq_offset[None, :] <= query_abs_pos\n",
             "        seq_mask = seq_offset[None, :] <= query_abs_pos + 1\n", each(e.ahead), {}),
            ("mask-behind", HELPERS, "compute_kv_seq_mask",
             "        seq_mask = seq_offset[None, :] <= query_abs_pos\n",
             "        seq_mask = seq_offset[None, :] < query_abs_pos\n", each(e.behind), {}),
            ("last-tile-dropped", HELPERS, "compute_tile_loop_bounds", "cdiv_fn(max_seq_prefix_len, TILE_SIZE)",
             "tl.maximum(cdiv_fn(max_seq_prefix_len, TILE_SIZE) - 1, 1)", e.last_tile_dropped(tile), {}),
            ("first-block-twice", UNIFIED, _KERNEL, _TABLE_ENTRY,
             _TABLE_ENTRY.replace("seq_offset // BLOCK_SIZE", "tl.maximum(seq_offset // BLOCK_SIZE - 1, 0)"),
             each(e.predecessor_block), {}),
            ("scale-doubled", UNIFIED, _KERNEL, "    score_scale = scale\n", "    score_scale = scale * 2.0\n",
             e.scaled(2.0), {}),
            ("k-scale-ignored", UNIFIED, _KERNEL, "K = _cast_kv_tile(K_load, Q, k_scale, KV_QUANT_MODE)",
             "K = K_load.to(Q.dtype)", e.stored_times(e.unscaled("k"), e.one), {"kv_cache_dtypes": _FP8}),
            ("v-scale-ignored", UNIFIED, _KERNEL, "V = _cast_kv_tile(V_load, Q, v_scale, KV_QUANT_MODE)",
             "V = V_load.to(Q.dtype)", e.stored_times(e.one, e.unscaled("v")), {"kv_cache_dtypes": _FP8}),
            ("wrong-gqa-head", UNIFIED, _KERNEL,
             "query_offset_1 = kv_head_idx * num_queries_per_kv + offs_m % num_queries_per_kv",
             "query_offset_1 = kv_head_idx + offs_m % num_queries_per_kv * (num_query_heads // num_queries_per_kv)",
             each(e.kv_head_modulo), {}),
            ("no-max-subtraction", HELPERS, "softmax_step", 'm_j = tl.where(m_j > float("-inf"), m_j, 0.0)',
             "m_j = tl.zeros_like(m_j)", overflowing, {}),
            ("stale-slot", HELPERS, "resolve_seq_and_query_len", "seq_len = tl.load(seq_lens_ptr + seq_idx)",
             "seq_len = tl.load(seq_lens_ptr + seq_idx) + 1", each(e.one_more_slot), {}),
            ("query-start-off", HELPERS, "resolve_seq_and_query_len",
             "cur_start = tl.load(query_start_len_ptr + seq_idx)",
             "cur_start = tl.load(query_start_len_ptr + seq_idx) + 1", lost(lambda out: out[:1]), {}),
            ("table-rows-swapped", BACKEND, "TritonAttentionImpl.forward", "block_table = attn_metadata.block_table",
             "block_table = attn_metadata.block_table.flip(0)", e.other_requests_blocks(lambda i, n: n - 1 - i), {}),
        ):  # fmt: skip
            found.append(_unified(f"{name}-{suffix}", function, old, new, effect, batch, module=module, **more))
    found += [
        _unified("one-wrong-entry", "TritonAttentionImpl.forward", "block_table = attn_metadata.block_table",
                 "block_table = attn_metadata.block_table.clone()\n    block_table[-1, 1] = block_table[-1, 0]",
                 e.second_block_is_first, "decode", module=BACKEND),
        _unified("first-length-for-all", "resolve_seq_and_query_len", "seq_len = tl.load(seq_lens_ptr + seq_idx)",
                 "seq_len = tl.load(seq_lens_ptr)", each(e.first_length), "decode", module=HELPERS),
        _unified("v-of-other-head", _KERNEL, "+ kv_head_idx * stride_v_cache_2",
                 "+ (1 - kv_head_idx) * stride_v_cache_2",
                 e.heads_flipped(False, True), "decode"),
        _unified("v-head-stride-off", _KERNEL, "+ kv_head_idx * stride_v_cache_2",
                 "+ kv_head_idx * (stride_v_cache_2 + 1)", each(e.v_head_stride), "verify"),
        _unified("rows-unwritten", _KERNEL, _STORE, _STORE + " & (query_pos < cur_batch_query_len - 1)[:, None]",
                 lost(lambda out: out[-1:]), "verify"),
        _unified("rows-identical", _KERNEL, "            query_ptr + query_offset,",
                 "            query_ptr + query_offset - query_pos[:, None] * query_stride_0,", each(e.first_query),
                 "verify"),
        _unified("causal-mask-dropped", "compute_kv_seq_mask",
                 "        seq_mask = seq_offset[None, :] <= query_abs_pos\n",
                 "        seq_mask = seq_offset[None, :] < seq_len\n", each(e.every_key), "verify", module=HELPERS),
        _unified("window-too-long", "compute_kv_seq_mask", "sw_left = (query_abs_pos - seq_offset) < SLIDING_WINDOW",
                 "sw_left = (query_abs_pos - seq_offset) <= SLIDING_WINDOW", e.window(1), "verify", module=HELPERS,
                 geometry=WINDOWED),
        _unified("window-too-short", "compute_kv_seq_mask", "sw_left = (query_abs_pos - seq_offset) < SLIDING_WINDOW",
                 "sw_left = (query_abs_pos - seq_offset) < SLIDING_WINDOW - 1", e.window(-1), "decode",
                 module=HELPERS, geometry=WINDOWED),
        _unified("window-starts-late", "compute_tile_loop_bounds",
                 "tile_start = tl.maximum(0, first_allowed_key // TILE_SIZE)",
                 "tile_start = tl.maximum(0, first_allowed_key // TILE_SIZE + 1)", e.window_starts_late(16), "decode",
                 module=HELPERS, geometry=WINDOWED),
        _unified("sinks-ignored", "unified_attention", "USE_SINKS=(sinks is not None),", "USE_SINKS=False,",
                 each(e.no_sinks), "verify", geometry=SINKS),
        _unified("soft-cap-ignored", "unified_attention", "USE_SOFTCAP=(softcap > 0),", "USE_SOFTCAP=False,",
                 each(e.no_cap), "verify", geometry=CAPPED),
        _unified("sum-not-rescaled", "softmax_step", "L_new = L * alpha + l_j", "L_new = L + l_j",
                 e.not_rescaled(32, rescale_sum=False), "verify", module=HELPERS),
        _unified("accumulator-not-rescaled", _KERNEL, "acc = acc * alpha[:, None]", "acc = acc * 1.0",
                 e.not_rescaled(32, rescale_out=False), "verify"),
        _unified("keys-from-value-cache", _KERNEL, "                key_cache_ptr + k_offset,",
                 "                value_cache_ptr + k_offset,", each(e.k_and_v_swapped), "decode",
                 kv_cache_dtypes=("auto",)),
        _unified("half-head", _KERNEL, "S += score_scale * tl.dot(Q, K)",
                 "S += score_scale * tl.dot(tl.where(offs_d[None, :] < HEAD_SIZE // 2, Q, 0.0).to(Q.dtype), K)",
                 each(e.half_head), "verify"),
        _unified("merge-outputs-unweighted", "reduce_segments",
                 "segm_output *= tl.exp(segm_max - overall_max)[:, None]",
                 "segm_output *= 1.0", e.badly_merged(16, 16, out=False), "decode"),
        _unified("merge-sums-unweighted", "reduce_segments",
                 "segm_expsum = segm_expsum * tl.exp(segm_max - overall_max)",
                 "segm_expsum = segm_expsum * 1.0", e.badly_merged(16, 16, total=False), "decode"),
        _unified("merge-loses-last", "reduce_segments",
                 "act_num_segments = cdiv_fn(seq_len, tiles_per_segment * TILE_SIZE)",
                 "act_num_segments = cdiv_fn(seq_len, tiles_per_segment * TILE_SIZE) - 1",
                 e.badly_merged(16, 16, last=False), "decode"),
        _unified("merge-leaves-heads", "reduce_segments", "tl.store(output_ptr + output_offset, acc, mask=dim_mask)",
                 "tl.store(output_ptr + output_offset, acc, mask=dim_mask & (query_head_idx > 0))",
                 lost(lambda out: out[:, :1]), "decode"),
        _unified("padded-row-gets-in", "TritonAttentionImpl.forward", "q=query[:num_actual_tokens],",
                 "q=torch.cat((query[-1:], query[1:num_actual_tokens])),", e.first_row_is_nan, "padded",
                 module=BACKEND),
        _unified("fnuz-read-as-e4m3fn", "TritonAttentionImpl.forward", _VIEWED,
                 _VIEWED.replace("self.fp8_dtype", "torch.float8_e4m3fn"), e.read_as(torch.float8_e4m3fn), "verify",
                 module=BACKEND, kv_cache_dtypes=_FP8),
        _unified("e4m3fn-read-as-fnuz", "TritonAttentionImpl.forward", _VIEWED,
                 _VIEWED.replace("self.fp8_dtype", "torch.float8_e4m3fnuz"), e.read_as(torch.float8_e4m3fnuz), "verify",
                 module=BACKEND, kv_cache_dtypes=_FP8, target="interpreter:gfx950"),
        _unified("e4m3-read-as-e5m2", "TritonAttentionImpl.forward", _VIEWED,
                 _VIEWED.replace("self.fp8_dtype", "torch.float8_e5m2"), e.read_as(torch.float8_e5m2), "decode",
                 module=BACKEND, kv_cache_dtypes=_FP8),
        _unified("block-id-of-16-bits", _KERNEL, _TABLE_ENTRY, _TABLE_ENTRY.rstrip() + " & 0xFFFF\n\n",
                 e.top_block_is_another, "verify", geometry=TINY, pool_blocks=(1 << 16) + 40),
        _unified("offset-of-31-bits", _KERNEL, "physical_block_idx[:, None] * stride_v_cache_0",
                 "((physical_block_idx[:, None] * stride_v_cache_0) & 0x7FFFFFFF)", e.top_block_is_another, "verify",
                 geometry=TINY, pool_blocks=(1 << 21) + 40, kv_cache_dtypes=_FP8),
        _unified("k-token-scale-ignored", _KERNEL, "S += tl.dot(Q, K) * (score_scale * k_token_head_scales[None, :])",
                 "S += tl.dot(Q, K) * score_scale", e.without_token_head_scale("k"), "verify",
                 kv_cache_dtypes=("int8_per_token_head", "fp8_per_token_head")),
        _unified("v-token-scale-ignored", _KERNEL, "P_v = (P * v_token_head_scales[None, :]).to(V.dtype)",
                 "P_v = P.to(V.dtype)", e.without_token_head_scale("v"), "verify",
                 kv_cache_dtypes=("int8_per_token_head", "fp8_per_token_head")),
        _unified("k-token-scale-of-first-slot", _KERNEL, "+ (seq_offset % BLOCK_SIZE) * stride_ks_slot",
                 "+ 0 * stride_ks_slot", e.first_slots_scale, "verify",
                 kv_cache_dtypes=("int8_per_token_head", "fp8_per_token_head")),
    ]  # fmt: skip
    return found


def _rocm_faults() -> list[Fault]:
    ignored = {"kv_cache_dtypes": _FP8}
    return [
        _paged("mask-ahead", "boundary = tl.full([BLOCK_SIZE], seq_len, dtype=tl.int32)",
               "boundary = tl.full([BLOCK_SIZE], seq_len + 1, dtype=tl.int32)", each(e.ahead)),
        _paged("last-block-dropped", "num_blocks = cdiv_fn(seq_len, BLOCK_SIZE)",
               "num_blocks = tl.maximum(cdiv_fn(seq_len, BLOCK_SIZE) - 1, 1)", e.last_tile_dropped(e.paged_tile)),
        _paged("first-block-twice", "l_block_idx = abs_token_idx // PHYSICAL_BLOCK_SIZE",
               "l_block_idx = tl.maximum(abs_token_idx // PHYSICAL_BLOCK_SIZE - 1, 0)", each(e.predecessor_block)),
        _paged("scale-doubled", "qk = scale * tl.dot(Q, K)", "qk = 2.0 * scale * tl.dot(Q, K)", e.scaled(2.0)),
        _paged("k-scale-ignored", "K = (K_load.to(tl.float32) * tl.load(k_scale)).to(Q.dtype)",
               "K = K_load.to(Q.dtype)",
               e.stored_times(e.unscaled("k"), e.one), **ignored),
        _paged("v-scale-ignored", "V = (V_load.to(tl.float32) * tl.load(v_scale)).to(Q.dtype)",
               "V = V_load.to(Q.dtype)",
               e.stored_times(e.one, e.unscaled("v")), **ignored),
        _paged("wrong-kv-head", "+ kv_head_idx * stride_k_cache_1", "+ (1 - kv_head_idx) * stride_k_cache_1",
               e.heads_flipped(True, False)),
        _paged("wrong-query-heads", "kv_head_idx * num_queries_per_kv + tl.arange(",
               "kv_head_idx * (num_queries_per_kv - 1) + tl.arange(", lost(lambda out: out[:, -1:])),
        _paged("no-max-subtraction", "p = tl.exp(S - m_j[:, None])", "p = tl.exp(S)", overflowing),
        _paged("window-too-long", "(context_len - seq_offset) < SLIDING_WINDOW",
               "(context_len - seq_offset) <= SLIDING_WINDOW",
               e.window(1), geometry=WINDOWED),
        _paged("window-too-short", "(context_len - seq_offset) < SLIDING_WINDOW",
               "(context_len - seq_offset) < SLIDING_WINDOW - 1", e.window(-1), geometry=WINDOWED),
        _paged("accumulator-not-rescaled", "acc = acc * alpha[:, None]", "acc = acc * 1.0",
               e.not_rescaled(e.paged_tile, rescale_out=False)),
        _paged("sum-not-rescaled", "L = L * alpha + l_j", "L = L + l_j",
               e.not_rescaled(e.paged_tile, rescale_sum=False)),
        _paged("overwrites-verify-rows", "if cur_batch_query_len > 1:", "if cur_batch_query_len > 100:",
               each(e.first_row_reads_all), "verify_uneven", k=8),
        _paged("previous-requests-table", "block_table_offset = seq_idx * block_table_stride",
               "block_table_offset = tl.maximum(seq_idx - 1, 0) * block_table_stride",
               e.other_requests_blocks(lambda i, n: max(i - 1, 0))),
        _paged("e4m3-read-as-e5m2", _FP8_VIEW, "target_dtype = torch.float8_e5m2", e.read_as(torch.float8_e5m2),
               function="chunked_prefill_paged_decode", **ignored),
        _prefix("causal-mask-dropped", "attn_mask = valid_kv & (offs_m[:, None] >= (start_n + offs_n[None, :]))",
                "attn_mask = valid_kv", each(e.every_key)),
        _prefix("mask-behind", "(offs_m[:, None] >= (start_n + offs_n[None, :]))",
                "(offs_m[:, None] > (start_n + offs_n[None, :]))", each(e.behind)),
        _prefix("context-ahead", "(start_n + offs_bs_n[None, :]) < cur_batch_ctx_len, qk",
                "(start_n + offs_bs_n[None, :]) <= cur_batch_ctx_len, qk", each(e.first_new_key_twice)),
        _prefix("context-short", "0, cur_batch_ctx_len, BLOCK_SIZE, loop",
                "0, cur_batch_ctx_len - BLOCK_SIZE, BLOCK_SIZE, loop",
                e.last_tile_dropped(32, context_only=True)),
        _prefix("scale-ignored", "qk *= sm_scale", "qk *= 1.0",
                e.scaled(8.0), "prefill"),
        _prefix("k-scale-ignored", "k = (k_load.to(tl.float32) * tl.load(k_scale)).to(q.dtype)",
                "k = k_load.to(q.dtype)",
                e.stored_times(e.unscaled("k"), e.one, context_only=True), **ignored),
        _prefix("v-scale-ignored", "v = (v_load.to(tl.float32) * tl.load(v_scale)).to(q.dtype)",
                "v = v_load.to(q.dtype)",
                e.stored_times(e.one, e.unscaled("v"), context_only=True), **ignored),
        _prefix("fnuz-read-as-e4m3fn", _FP8_VIEW, "target_dtype = torch.float8_e4m3fn",
                e.read_as(torch.float8_e4m3fn, context_only=True), function="context_attention_fwd", **ignored),
        _prefix("wrong-gqa-head", "cur_kv_head = cur_head // num_queries_per_kv",
                "cur_kv_head = cur_head % num_queries_per_kv",
                each(e.kv_head_modulo)),
        _prefix("no-max-subtraction", "p = tl.exp(qk - m_ij[:, None])", "p = tl.exp(qk)", overflowing),
        _prefix("window-too-long", "< SLIDING_WINDOW", "<= SLIDING_WINDOW", e.window(1), geometry=WINDOWED),
        _prefix("window-too-short", "< SLIDING_WINDOW", "< SLIDING_WINDOW - 1", e.window(-1), geometry=WINDOWED),
        _prefix("query-start-off", "cur_batch_in_all_start_index = tl.load(B_Start_Loc + cur_batch)",
                "cur_batch_in_all_start_index = tl.load(B_Start_Loc + cur_batch) + 1", lost(lambda out: out[:1])),
        _prefix("previous-requests-table", "B_Loc + cur_batch * stride_b_loc_b",
                "B_Loc + tl.maximum(cur_batch - 1, 0) * stride_b_loc_b",
                e.other_requests_blocks(lambda i, n: max(i - 1, 0), context_only=True),
                function="_paged_kv_cache_offsets"),
        _prefix("accumulator-not-rescaled", "acc = acc * alpha[:, None]", "acc = acc * 1.0",
                e.not_rescaled(32, rescale_out=False)),
        _prefix("rows-unwritten", "out_ptrs, acc, mask=dim_mask[None, :] & (offs_m[:, None] < cur_batch_query_len)",
                "out_ptrs, acc, mask=dim_mask[None, :] & (offs_m[:, None] < cur_batch_query_len - 1)",
                lost(lambda out: out[-1:])),
    ]  # fmt: skip


def _writer_faults() -> list[Fault]:
    half = "tile_pos < (num_heads * head_size)"
    last = "value_cache_ptr + tgt_idx_v,\n        value_tile,\n        mask=" + half + ",\n    )\n"
    quantised = ("int8_per_token_head", "fp8_per_token_head")
    return [
        _writer("slot-off", "block_offset = slot_idx % block_size", "block_offset = (slot_idx + 1) % block_size",
                e.one_slot_late),
        _writer("into-another-block", last,
                last + f"    tl.store(value_cache_ptr + tgt_idx_v - block_stride, value_tile, mask={half})\n",
                None, part="guard"),
        _writer("past-the-end", last,
                last + "    if token_idx == tl.num_programs(0) - 1:\n"
                f"        tl.store(value_cache_ptr + tgt_idx_v + head_size, value_tile, mask={half})\n",
                None, part="guard"),
        _writer("v-scale-inverse", "value_tile = value_load / tl.load(v_scale)",
                "value_tile = value_load * tl.load(v_scale)", e.only("v", lambda w, x: x * w.scales["v"] ** 2),
                kv_cache_dtypes=_FP8),
        _writer("keys-are-values", "key_ptr + src_key_idx + tile_pos", "value_ptr + src_key_idx + tile_pos",
                e.keys_are_values),
        _writer("last-token-skipped", "if slot_idx < 0:", "if (slot_idx < 0) | (token_idx == tl.num_programs(0) - 1):",
                e.last_token_missing),
        _writer("first-head-only", last, last.replace(half, "tile_pos < head_size"),
                e.only("v", lambda w, x: torch.cat((x[:, :1], torch.full_like(x[:, 1:], math.nan)), 1))),
        _writer("first-tokens-key", "src_key_idx = token_idx * key_stride", "src_key_idx = 0 * key_stride",
                e.only("k", lambda w, x: x[:1].expand_as(x))),
        _writer("stored-as-e5m2", "current_platform.fp8_dtype()\n        if is_quantized_kv_cache(kv_cache_dtype)",
                "torch.float8_e5m2\n        if is_quantized_kv_cache(kv_cache_dtype)", e.in_type(torch.float8_e5m2),
                function="triton_reshape_and_cache_flash", kv_cache_dtypes=_FP8),
        _writer("token-scales-too-small", "k_scale = tl.maximum(tl.max(tl.abs(k_h)) / QUANT_MAX, 1e-6)",
                "k_scale = tl.maximum(tl.max(tl.abs(k_h)) / 1024.0, 1e-6)", e.cut_off,
                function="_reshape_cache_per_token_head", kv_cache_dtypes=quantised),
        _writer("token-scale-of-first-head", "+ head * stride_ks_head,\n        k_scale,",
                "+ 0 * head,\n        k_scale,",
                e.only("k", lambda w, x: torch.cat((x[:, :1], torch.full_like(x[:, 1:], math.nan)), 1)),
                function="_reshape_cache_per_token_head", kv_cache_dtypes=quantised),
    ]  # fmt: skip


def _probes() -> list[Fault]:
    """Not wrong numbers but what else a kernel may do: their cells end as their tests say."""
    scale = "softmax_scale=self.scale,"
    calls = 'self.__dict__.setdefault("calls", []).append(1) or len(self.calls)'
    second = f"softmax_scale=self.scale * (1.0, 2.0)[({calls}) == 2],"
    first = second.replace("== 2", "== 1")
    end = "    return output\n"
    mask = "                value_cache_ptr + v_offset,\n                mask=dim_mask[None, :] & tile_mask[:, None],"
    behind = _STORE + " & query_mask_1[:, None],\n            )\n"
    beyond = "            tl.store(output_ptr + output_offset + output_stride_0, acc, mask=query_mask_0[:, None])\n"
    forward = "TritonAttentionImpl.forward"
    made = (
        ("unmasked-tail", UNIFIED, _KERNEL, mask, mask.replace(" & tile_mask[:, None]", ""), "forward"),
        ("warm-call-differs", BACKEND, forward, scale, second, "repeat"),
        ("cold-call-differs", BACKEND, forward, scale, first, "forward"),
        ("query-changed", BACKEND, forward, end, "    query[0] += 1\n" + end, "guard"),
        ("seq-lens-changed", BACKEND, forward, end, "    attn_metadata.seq_lens.add_(1)\n" + end, "guard"),
        ("writes-behind-output", UNIFIED, _KERNEL, behind, behind + beyond, "guard"),
    )
    return [
        Fault(name, function, (Edit(module, function, old, new),), None, "TRITON_ATTN", 16, "verify", part=part)
        for name, module, function, old, new, part in made
    ]


PROBES: dict[str, Fault] = {fault.name: fault for fault in (*_probes(), BY_PYTORCH)}

_ALL = (
    _unified_faults, _rocm_faults, _writer_faults, packed_faults, latent_faults, flex_faults, segmented_faults,
    aiter_faults,
)  # fmt: skip

FAULTS: dict[str, Fault] = {fault.name: fault for faults in _ALL for fault in faults()}
