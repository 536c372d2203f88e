"""Native operators that a CPU build of vLLM lacks, registered so that vLLM's dispatch runs to its end.

A cache write or an FP8 quantisation has one right answer: the stand-in computes it exactly and the
route names it (``stand_in``). Native attention has no stand-in: the operator is named in the route
(``native``), writes nothing, and the rows it would have written count as unverified.
"""

from __future__ import annotations

from typing import Any

import torch

from . import route

_libraries: list[torch.library.Library] = []

#: Memory that native attention operators would have written since ``forget_claims``: (address, bytes).
_claims: list[tuple[int, int]] = []


def forget_claims() -> None:
    """Forget what native attention would have written."""
    _claims.clear()


def claim(out: torch.Tensor) -> None:
    """Count ``out`` (an attention output or a contiguous slice of one) as written by native attention."""
    _claims.append((out.data_ptr(), out.numel() * out.element_size()))


def claims() -> int:
    """How often native attention was reached since ``forget_claims``."""
    return len(_claims)


def claimed_rows(output: torch.Tensor) -> torch.Tensor:
    """A mask (rows,) of the rows of ``output`` (rows, ...) that lie in claimed memory."""
    mask = torch.zeros(output.shape[0], dtype=torch.bool)
    size = output[0].numel() * output.element_size() if output.shape[0] else 1
    for address, length in _claims:
        first = (address - output.data_ptr()) // size
        if 0 <= first < output.shape[0]:
            mask[first : first + -(-length // size)] = True
    return mask


def single_token_rows(query_start_loc: torch.Tensor) -> list[int]:
    """Rows of requests with one query token, from cumulative query lengths (requests + 1,)."""
    starts = query_start_loc[:-1]
    return [int(row) for row in starts[(query_start_loc[1:] - starts) == 1]]


def fp8_storage(kv_cache_dtype: str) -> torch.dtype | None:
    """The FP8 type in which vLLM's native writers store ``kv_cache_dtype``; None when unquantised."""
    from vllm.platforms import current_platform

    if kv_cache_dtype in ("fp8", "fp8_e4m3"):
        return current_platform.fp8_dtype()
    return torch.float8_e5m2 if kv_cache_dtype == "fp8_e5m2" else None


def quantise(x: torch.Tensor, scale: torch.Tensor, fp8: torch.dtype) -> torch.Tensor:
    """``x / scale`` saturated to ``fp8``'s finite range and rounded to nearest even."""
    limit = torch.finfo(fp8).max
    return (x.float() / scale.float()).clamp(-limit, limit).to(fp8)


def _stored(x: torch.Tensor, scale: torch.Tensor, cache: torch.Tensor, kv_cache_dtype: str) -> torch.Tensor:
    fp8 = fp8_storage(kv_cache_dtype)
    return x.to(cache.dtype) if fp8 is None else quantise(x, scale, fp8).view(cache.dtype)


#: Integers as wide as an element.
_INTEGER = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def _bytes(cache: torch.Tensor) -> torch.Tensor:
    """The same memory as integers: FP8 types cannot be indexed, and moving a NaN as a float may change its bits."""
    return cache.view(_INTEGER[cache.element_size()])


def _placed(slots: torch.Tensor, block_size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Which slots are any token's, and block and offset of each; the others' are slot 0's (see ``_put``)."""
    kept, slots = slots >= 0, slots.clamp_min(0)
    return kept, slots // block_size, slots % block_size


def _put(cache: torch.Tensor, where: tuple[Any, ...], kept: torch.Tensor, stored: torch.Tensor) -> None:
    """``cache[where] = stored`` of the ``kept`` rows, without asking the device how many they are.

    So it can be captured in a graph. Rows that are no token's write back what slot 0 holds; it lies in block 0,
    vLLM's null block, which no token owns.
    """
    mask = kept.view(-1, *[1] * (stored.dim() - 1))
    cache[where] = torch.where(mask, stored, cache[where])


def write_rows(cache: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor, kv_cache_dtype: str) -> None:
    """Store ``rows`` (tokens, ...) with a scale of 1 at ``slots`` of ``cache`` (blocks, block, ...), none below 0."""
    kept, block, offset = _placed(slots, cache.shape[1])
    one = torch.ones((), device=rows.device)
    _put(_bytes(cache), (block, offset), kept, _bytes(_stored(rows, one, cache, kv_cache_dtype)))


def _reshape_and_cache_flash(
    key: Any, value: Any, key_cache: Any, value_cache: Any, slots: Any, kv_cache_dtype: str, k_scale: Any, v_scale: Any
) -> None:
    """Caches (blocks, block, heads, size)."""
    route.launched("_C_cache_ops.reshape_and_cache_flash", "stand_in")
    kept, block, offset = _placed(slots, key_cache.shape[1])
    for new, cache, scale in ((key, key_cache, k_scale), (value, value_cache, v_scale)):
        stored = _bytes(_stored(new[: slots.shape[0]], scale, cache, kv_cache_dtype))
        _put(_bytes(cache), (block, offset), kept, stored)


def _reshape_and_cache(
    key: Any, value: Any, key_cache: Any, value_cache: Any, slots: Any, kv_cache_dtype: str, k_scale: Any, v_scale: Any
) -> None:
    """Key cache (blocks, heads, size / x, block, x); value cache (blocks, heads, size, block)."""
    route.launched("_C_cache_ops.reshape_and_cache", "stand_in")
    kept, block, offset = _placed(slots, key_cache.shape[3])
    x = key_cache.shape[4]
    stored_k = _bytes(_stored(key[: slots.shape[0]], k_scale, key_cache, kv_cache_dtype))
    stored_v = _bytes(_stored(value[: slots.shape[0]], v_scale, value_cache, kv_cache_dtype))
    every = slice(None)
    _put(_bytes(key_cache), (block, every, every, offset, every), kept, stored_k.unflatten(-1, (-1, x)))
    _put(_bytes(value_cache), (block, every, every, offset), kept, stored_v)


def _concat_and_cache_mla(kv_c: Any, k_pe: Any, kv_cache: Any, slots: Any, kv_cache_dtype: str, scale: Any) -> None:
    """Cache (blocks, block, rank + rope)."""
    route.launched("_C_cache_ops.concat_and_cache_mla", "stand_in")
    kept, block, offset = _placed(slots, kv_cache.shape[1])
    rows = torch.cat((kv_c, k_pe.reshape(k_pe.shape[0], -1)), dim=-1)[: slots.shape[0]]
    _put(_bytes(kv_cache), (block, offset), kept, _bytes(_stored(rows, scale, kv_cache, kv_cache_dtype)))


def _gathered(cache: Any, tables: Any, cu_seq_lens: Any, starts: Any) -> Any:
    """Rows (tokens, width) of each request's blocks, from its token ``starts`` on, in the order of the batch."""
    size, parts = cache.shape[1], []
    for i, (first, last) in enumerate(zip(cu_seq_lens[:-1].tolist(), cu_seq_lens[1:].tolist(), strict=True)):
        position = torch.arange(last - first, device=cache.device) + (0 if starts is None else int(starts[i]))
        parts.append(_bytes(cache)[tables[i, position // size].long(), position % size])
    return torch.cat(parts).view(cache.dtype)


def _gather_and_maybe_dequant_cache(
    src: Any, dst: Any, tables: Any, cu_seq_lens: Any, token_to_seq: Any, tokens: int, kv_cache_dtype: str,
    scale: Any, starts: Any = None,
) -> None:  # fmt: skip
    """Latent rows of cache (blocks, block, width) to ``dst`` (tokens, width), dequantised."""
    route.launched("_C_cache_ops.gather_and_maybe_dequant_cache", "stand_in")
    rows = _gathered(src, tables, cu_seq_lens, starts)[:tokens]
    fp8 = fp8_storage(kv_cache_dtype)
    dst[:tokens] = (rows if fp8 is None else rows.view(fp8).float() * scale.float()).to(dst.dtype)


def _cp_gather_cache(src: Any, dst: Any, tables: Any, cu_seq_lens: Any, batch_size: int, starts: Any = None) -> None:
    """Latent rows of cache (blocks, block, width) to ``dst`` (tokens, width), as they are."""
    route.launched("_C_cache_ops.cp_gather_cache", "stand_in")
    rows = _gathered(src, tables[:batch_size], cu_seq_lens[: batch_size + 1], starts)
    _bytes(dst)[: rows.shape[0]] = _bytes(rows)


def _paged_attention(
    out: Any, exp_sums: Any, max_logits: Any, tmp: Any, query: Any, key_cache: Any, value_cache: Any,
    num_kv_heads: int, scale: float, tables: Any, lens: Any, query_start_loc: Any, *rest: Any,
) -> None:  # fmt: skip
    """Writes the rows of requests with one query token, as the HIP kernel does."""
    route.launched("_rocm_C.paged_attention", "native")
    rows = range(lens.shape[0]) if query_start_loc is None else single_token_rows(query_start_loc)
    for row in rows:
        claim(out[row])


def _merge_attn_states(
    out: Any, out_lse: Any, a: Any, a_lse: Any, b: Any, b_lse: Any, tokens: Any = None, scale: Any = None
) -> None:
    """Two partial attentions (tokens, heads, size) with log-sum-exps (heads, tokens) into one."""
    route.launched("_C.merge_attn_states", "stand_in")
    top = torch.maximum(a_lse, b_lse)
    weight_a, weight_b = torch.exp(a_lse - top), torch.exp(b_lse - top)
    total = weight_a + weight_b
    share = (weight_a / total).transpose(0, 1)[..., None]
    merged = a.float() * share + b.float() * (1 - share)
    out.copy_(merged if scale is None else merged / scale)
    if out_lse is not None:
        out_lse.copy_(torch.log(total) + top)
    # Merging what native attention wrote leaves it native attention's.
    for row in (claimed_rows(a) | claimed_rows(b)).nonzero().flatten():
        claim(out[row])


def _static_scaled_fp8_quant(result: Any, input: Any, scale: Any, group_shape: Any = None) -> None:
    route.launched("_C.static_scaled_fp8_quant", "stand_in")
    result.copy_(quantise(input, scale, result.dtype))


#: namespace -> (schema, implementation). Schemas as vLLM 0.32 calls them (vllm/_custom_ops.py).
OPERATORS: dict[str, list[tuple[str, Any]]] = {
    "_C_cache_ops": [
        (
            "reshape_and_cache_flash(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, "
            "Tensor slot_mapping, str kv_cache_dtype, Tensor k_scale, Tensor v_scale) -> ()",
            _reshape_and_cache_flash,
        ),
        (
            "reshape_and_cache(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, "
            "Tensor slot_mapping, str kv_cache_dtype, Tensor k_scale, Tensor v_scale) -> ()",
            _reshape_and_cache,
        ),
        (
            "concat_and_cache_mla(Tensor kv_c, Tensor k_pe, Tensor(a!) kv_cache, Tensor slot_mapping, "
            "str kv_cache_dtype, Tensor scale) -> ()",
            _concat_and_cache_mla,
        ),
        (
            "gather_and_maybe_dequant_cache(Tensor src_cache, Tensor(a!) dst, Tensor block_table, Tensor cu_seq_lens, "
            "Tensor token_to_seq, int num_tokens, str kv_cache_dtype, Tensor scale, Tensor? seq_starts=None) -> ()",
            _gather_and_maybe_dequant_cache,
        ),
        (
            "cp_gather_cache(Tensor src_cache, Tensor(a!) dst, Tensor block_table, Tensor cu_seq_lens, int batch_size, "
            "Tensor? seq_starts=None) -> ()",
            _cp_gather_cache,
        ),
    ],
    "_rocm_C": [
        (
            "paged_attention(Tensor(a!) out, Tensor exp_sums, Tensor max_logits, Tensor tmp_out, Tensor query, "
            "Tensor key_cache, Tensor value_cache, int num_kv_heads, float scale, Tensor block_tables, "
            "Tensor context_lens, Tensor? query_start_loc, int block_size, int max_context_len, "
            "Tensor? alibi_slopes, str kv_cache_dtype, Tensor k_scale, Tensor v_scale, Tensor? fp8_out_scale, "
            "str mfma_type) -> ()",
            _paged_attention,
        ),
    ],
    "_C": [
        (
            "static_scaled_fp8_quant(Tensor(a!) result, Tensor input, Tensor scale, int[]? group_shape=None) -> ()",
            _static_scaled_fp8_quant,
        ),
        (
            "merge_attn_states(Tensor(a!) output, Tensor(b!)? output_lse, Tensor prefix_output, Tensor prefix_lse, "
            "Tensor suffix_output, Tensor suffix_lse, int? prefill_tokens_with_context=None, "
            "Tensor? output_scale=None) -> ()",
            _merge_attn_states,
        ),
    ],
}


def register(key: str = "CPU") -> None:
    """Answer for the operators that this build lacks, on tensors of ``key``; those that it has are left alone.

    A CPU build also declares some without arguments, only so that vLLM can be imported: Python callers
    get the stand-in in their place.
    """
    for namespace, operators in OPERATORS.items():
        library = torch.library.Library(namespace, "FRAGMENT")
        _libraries.append(library)
        for schema, implementation in operators:
            name = schema.partition("(")[0]
            declared = _declared_arguments(namespace, name)
            if declared is None:
                library.define(schema)
                library.impl(name, implementation, key)
            elif declared == 0:
                setattr(getattr(torch.ops, namespace), name, implementation)


def compiled(namespace: str, name: str) -> bool:
    """Whether this build of vLLM itself brings the operator; asked before ``register``."""
    return bool(_declared_arguments(namespace, name))


def _declared_arguments(namespace: str, name: str) -> int | None:
    """How many arguments the operator is declared with, or None when it is not declared."""
    schemas = [s for s in torch._C._jit_get_all_schemas() if s.name == f"{namespace}::{name}"]
    return len(schemas[0].arguments) if schemas else None
