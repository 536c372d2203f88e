"""Latent attention: vLLM's MLA backends compiled and interpreted, and the reference that judges them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from engine_helpers import checks, claim, kernel

torch = pytest.importorskip("torch")

from faults.latent import SMALL  # noqa: E402

from capmatrix import batches  # noqa: E402
from capmatrix.cell import Cell, Flag, Geometry, MlaGeometry, Record, Role, Rung, Verdict  # noqa: E402

pytestmark = pytest.mark.engine

#: DeepSeek V3's MTP layer at TP 8, and with the heads that AITER's assembly takes.
DEEPSEEK = Geometry(16, 1, 576, mla=MlaGeometry(512, 128, 64, 128, 1536))
MTP: dict[str, Any] = {"drafter": "deepseek-mtp", "tp": 8, "method": "mtp", "num_speculative_tokens": 3}

Run = Callable[..., Record]


@pytest.mark.parametrize("batch", ["decode", "verify", "boundary", "padded"])
@pytest.mark.parametrize("dtype", ["auto", "fp8"])
def test_triton_mla_is_right_over_the_latent(run: Run, batch: str, dtype: str) -> None:
    record = run("interpreter:gfx950", "TRITON_MLA", 16, dtype, batch, geometry=SMALL, **MTP)
    assert (record.verdict, record.rung) == (Verdict.PASS, Rung.INTERPRETED), record.reasons
    kernel(record, "_fwd_grouped_kernel_stage1")
    assert record.implementation == "TritonMLAImpl" and record.kernel_block == 16
    (forward,) = checks(record, "forward")
    assert forward.cache == "nan" and forward.nan_count == 0 and forward.unwritten_count == 0
    assert forward.relative_l2 is not None and forward.bound is not None
    assert 0 < forward.relative_l2 < forward.bound < 0.03
    parts = {c.part for c in record.checks if c.ok}
    assert parts == {"write", "guard", "query", "forward", "needles", "repeat"}
    accuracy = checks(record, "accuracy")[0].relative_l2
    assert accuracy is not None and accuracy >= forward.relative_l2 * 0.5
    assert (accuracy > 0.01) == (dtype == "fp8")


def test_prefill_is_native_and_decode_beside_it_is_judged(run: Run) -> None:
    record = run("interpreter:gfx950", "TRITON_MLA", 16, "auto", "mixed", geometry=SMALL, **MTP)
    assert record.verdict is Verdict.UNVERIFIED
    # The verify of 1 + 3 leads, as vLLM's worker orders it; 1, 20 and 24 tokens go to the prefill backend.
    assert "flash_attn.flash_attn_varlen_func wrote 45 of 49 rows" in record.reasons[0]
    assert kernel(record, "_C_cache_ops.gather_and_maybe_dequant_cache").kind == "stand_in"
    (forward,) = checks(record, "forward")
    assert forward.ok is True and forward.relative_l2 is not None and forward.relative_l2 > 0


def test_triton_mla_compiles_within_its_limits(run: Run) -> None:
    record = run("offline:gfx942", "TRITON_MLA", 128, "fp8", "decode", geometry=DEEPSEEK, **MTP)
    assert (record.verdict, record.rung) == (Verdict.PASS, Rung.COMPILED), record.reasons
    stage = kernel(record, "_fwd_grouped_kernel_stage1")
    assert stage.lds_bytes is not None and 0 < stage.lds_bytes <= 65536
    assert stage.vgprs is not None and 0 < stage.vgprs <= 512 and stage.vgpr_spills == 0
    assert record.kv_cache["shape"][1:] == [128, 576] and record.kv_cache["dtype"] == "uint8"
    assert Flag.STAND_IN in record.flags
    assert kernel(record, "_C_cache_ops.concat_and_cache_mla").phase == "cache-write"


def test_a_reservation_of_many_gigabytes_is_not_needed(run: Run) -> None:
    # vLLM reserves 38 GB for 128 heads and 9 tokens of each of 256 requests; the batch touches a little.
    many = Geometry(128, 1, 576, mla=DEEPSEEK.mla)
    record = run(
        "offline:gfx942", "TRITON_MLA", 64, "auto", "verify", geometry=many, **MTP | {"num_speculative_tokens": 8}
    )
    assert record.verdict is Verdict.PASS, record.reasons


def test_claims_say_which_prefill_backend_there_is(run: Run) -> None:
    record = run("offline:gfx942", "TRITON_MLA", 16, "auto", "prefill", geometry=DEEPSEEK, **MTP)
    said = claim(record, "mla_prefill")
    # Neither flash-attn nor AITER is switched on here; a ROCm image has the first.
    assert said.accepts is False and "FLASH_ATTN: [required dependencies not available]" in said.detail
    assert kernel(record, "flash_attn.flash_attn_varlen_func").kind == "native"
    assert claim(record, "selector").data["default"] == "TRITON_MLA"


def test_widths_without_a_prefill_backend_are_rejected(run: Run) -> None:
    widths = Geometry(4, 1, 320, mla=MlaGeometry(256, 32, 64, 64))
    record = run("offline:gfx942", "TRITON_MLA", 16, "auto", "decode", geometry=widths, **MTP)
    assert record.verdict is Verdict.REJECTED
    assert "Model does not have supported MLA dimensions" in record.reasons[0]


def test_the_sparse_backend_refuses_a_dense_layer(run: Run) -> None:
    record = run("offline:gfx942", "ROCM_AITER_MLA_SPARSE", 64, "auto", "decode", geometry=DEEPSEEK, **MTP)
    assert (record.verdict, record.reasons) == (Verdict.REJECTED, ("non-sparse not supported",))


def test_aiters_assembly_is_named_and_not_judged(run: Run) -> None:
    # 12 heads: vLLM pads them to 16, and a model's widths must still be a multiple of them.
    twelve = Geometry(12, 1, 576, mla=DEEPSEEK.mla)
    record = run("offline:gfx942", "ROCM_AITER_MLA", 1, "auto", "decode", geometry=twelve, **MTP)
    if record.verdict is Verdict.UNAVAILABLE:
        # No AITER, or one older than vLLM needs; both are named.
        assert "aiter" in record.reasons[0].lower()
        return
    assert record.verdict is Verdict.UNVERIFIED and record.kernel_block == 1, record.reasons
    assert kernel(record, "aiter.mla_decode_stage1_asm_fwd").kind == "native"


def test_a_block_of_1_is_rejected_by_triton_mla(run: Run) -> None:
    record = run("offline:gfx942", "TRITON_MLA", 1, "auto", "decode", geometry=DEEPSEEK, **MTP)
    assert (record.verdict, record.reasons) == (Verdict.REJECTED, ("block_size not supported",))


# The reference itself, without vLLM: absorbed and projected-up attention in the model's type against it.


def _cell(geometry: Geometry) -> Cell:
    return Cell(
        target="interpreter:gfx950",
        backend="TRITON_MLA",
        block_size=16,
        kv_cache_dtype="auto",
        role=Role.DRAFTER,
        geometry=geometry,
        batch="verify",
        lengths="short",
        **MTP,
    )


def _both_paths(path: str, change: Callable[[Any], Any] = lambda x: x, scale: float = 1.0) -> float:
    """The largest error of a row over its bound, of a plain bf16 computation; ``change`` is done to rows as read."""
    from capmatrix.engine import mla_inputs, mla_reference, reference

    cell, m = _cell(SMALL), mla_inputs.widths(SMALL)
    batch = batches.build("verify", block_size=16, num_speculative_tokens=3, lengths="short")
    bf16 = torch.bfloat16
    values = mla_inputs.random_values(batch, SMALL, bf16)
    w_uk, w_uv = (w.to(bf16) for w in mla_inputs.up_projections(SMALL, bf16))
    nope, rope = values.q.split([m.qk_nope_head_dim, m.qk_rope_head_dim], dim=-1)
    query = torch.cat((torch.einsum("thp,lhp->thl", nope.float(), w_uk.float()).to(bf16), rope), dim=-1)
    outs, at = [], 0
    for request, rows in zip(batch.requests, values.k, strict=True):
        rows = change(rows)[:, 0]
        latent = rows[:, : m.kv_lora_rank].float()
        here = slice(at, at + request.query_len)
        at += request.query_len
        if path == "absorbed":
            logits = torch.einsum("qhd,kd->hqk", query[here].float(), rows.float())
        else:
            key = torch.einsum("kl,lhp->khp", latent, w_uk.float()).to(bf16)
            key = torch.cat((key, rows[:, None, m.kv_lora_rank :].expand(-1, SMALL.num_heads, -1)), dim=-1)
            logits = torch.einsum("qhd,khd->hqk", values.q[here].float(), key.float())
        logits = logits * mla_reference.softmax_scale(cell) * scale
        mask = reference.allowed(request.query_len, request.seq_len, reference.Mask(True, None))
        weight = torch.softmax(logits.masked_fill(~mask, float("-inf")), -1).to(bf16).float()
        if path == "absorbed":
            attended = torch.einsum("hqk,kl->qhl", weight, latent).to(bf16).float()
            outs.append(torch.einsum("qhl,lhv->qhv", attended, w_uv.float()).to(bf16))
        else:
            value = torch.einsum("kl,lhv->khv", latent, w_uv.float()).to(bf16).float()
            outs.append(torch.einsum("hqk,khv->qhv", weight, value).to(bf16))
    absorbed = mla_reference.Absorbed(
        query if path == "absorbed" else query[:0], 1.0, reference.rounding(bf16, bf16, bf16)
    )
    rows = [x.double() for x in values.k]
    want, bound = mla_reference.expected(cell, batch, values, rows, bf16, absorbed)
    return float(((torch.cat(outs).double() - want).norm(dim=-1) / bound).max())


@pytest.mark.parametrize("path", ["absorbed", "projected"])
def test_a_plain_computation_keeps_to_the_bound(path: str) -> None:
    # A bound that a plain bf16 computation does not come near would let faults through.
    assert 0.03 < _both_paths(path) < 1.0


def _without_rope(rows: Any) -> Any:
    rows = rows.clone()
    rows[..., 256:] = 0
    return rows


def _swapped(rows: Any) -> Any:
    rows = rows.clone()
    rows[[0, 1]] = rows[[len(rows) - 5, len(rows) - 6]]
    return rows


@pytest.mark.parametrize("path", ["absorbed", "projected"])
@pytest.mark.parametrize("fault", [{"scale": 1.05}, {"change": _without_rope}, {"change": _swapped}])
def test_a_wrong_computation_does_not(path: str, fault: dict[str, Any]) -> None:
    assert _both_paths(path, **fault) > 1.5


def test_both_paths_of_the_reference_agree() -> None:
    from capmatrix.engine import mla_inputs, mla_reference, reference

    cell, m = _cell(SMALL), mla_inputs.widths(SMALL)
    batch = batches.build("verify", block_size=16, num_speculative_tokens=3, lengths="short")
    values = mla_inputs.random_values(batch, SMALL, torch.float64)
    w_uk, _ = mla_inputs.up_projections(SMALL, torch.float64)
    nope, rope = values.q.split([m.qk_nope_head_dim, m.qk_rope_head_dim], dim=-1)
    query = torch.cat((torch.einsum("thp,lhp->thl", nope, w_uk), rope), dim=-1)
    budget = reference.rounding(torch.float64, torch.float64, torch.float64)
    found = [
        mla_reference.expected(
            cell, batch, values, list(values.k), torch.float64, mla_reference.Absorbed(q, 1.0, budget)
        )[0]
        for q in (query, query[:0])
    ]
    torch.testing.assert_close(found[0], found[1], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(mla_reference.exact(cell, batch, values), found[0], rtol=1e-10, atol=1e-10)
