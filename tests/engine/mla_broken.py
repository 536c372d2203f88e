"""Runs latent attention cells whole and with one fault each, in this process; prints verdicts as JSON.

``FAULTS``: name -> (edits of vLLM's source, KV cache dtype, batch, the check that must fail).
"""

from __future__ import annotations

import json
import sys
from typing import Any

from faults.patching import Edit, edited

from capmatrix.cell import Cell, Geometry, MlaGeometry, Role

KERNELS = "vllm.v1.attention.ops.triton_decode_attention"
LAYER = "vllm.model_executor.layers.attention.mla_attention"
BACKEND = "vllm.v1.attention.backends.mla.triton_mla"
STAGE1 = "_fwd_grouped_kernel_stage1"

#: The smallest widths that vLLM 0.32 admits: a row of 320, and a prefill backend that takes (64, 64, 128).
SMALL = Geometry(4, 1, 320, mla=MlaGeometry(256, 64, 64, 128))

FAULTS: dict[str, tuple[tuple[Edit, ...], str, str, str]] = {
    "none": ((), "fp8", "verify", ""),
    "rope dropped": (
        (Edit(KERNELS, STAGE1, "qk += tl.dot(qpe,", "qk += 0.0 * tl.dot(qpe,"),),
        "auto",
        "decode",
        "forward",
    ),
    "wrong scale": (
        (Edit(KERNELS, STAGE1, "qk *= sm_scale", "qk *= sm_scale * 1.1"),),
        "auto",
        "decode",
        "forward",
    ),
    "one key too many": (
        (
            Edit(
                KERNELS,
                STAGE1,
                "mask_h[:, None] & (offs_n[None, :] < split_kv_end)",
                "mask_h[:, None] & (offs_n[None, :] <= split_kv_end)",
            ),
        ),
        "auto",
        "decode",
        "forward",
    ),
    "one block for all": (
        (Edit(KERNELS, STAGE1, "+ offs_n // PAGE_SIZE,", "+ offs_n // PAGE_SIZE * 0,"),),
        "auto",
        "decode",
        "forward",
    ),
    "dequantised without scale": (
        (Edit(KERNELS, STAGE1, "k = (k.to(tl.float32) * ks)", "k = (k.to(tl.float32) * 1.0)"),),
        "fp8",
        "decode",
        "forward",
    ),
    "verify not causal": (
        (
            Edit(
                BACKEND,
                "TritonMLAImpl.forward_mqa",
                "seq_lens = (seq_lens.unsqueeze(1) + offsets)",
                "seq_lens = (seq_lens.unsqueeze(1) + 0 * offsets)",
            ),
        ),
        "auto",
        "verify",
        "forward",
    ),
    "values of another head": (
        (Edit(LAYER, "MLAAttention._v_up_proj", "torch.bmm(x, self.W_UV,", "torch.bmm(x, self.W_UV.roll(1, 0),"),),
        "auto",
        "decode",
        "forward",
    ),
    "keys of another head": (
        (
            Edit(
                LAYER,
                "MLAAttention.forward_impl",
                "torch.bmm(mqa_q_nope, W_UK_T, out=mqa_ql_nope.transpose(0, 1))",
                "torch.bmm(mqa_q_nope, W_UK_T.roll(1, 0), out=mqa_ql_nope.transpose(0, 1))",
            ),
        ),
        "auto",
        "decode",
        "query",
    ),
}


def main(target: str) -> None:
    """Run every fault on ``target``."""
    from capmatrix.engine import session

    opened = session.open_session(target, {}, {})
    found: dict[str, Any] = {}
    for name, (edits, kv_cache_dtype, batch, _) in FAULTS.items():
        cell = Cell(
            target=target,
            backend="TRITON_MLA",
            block_size=16,
            kv_cache_dtype=kv_cache_dtype,
            drafter="deepseek-mtp",
            tp=1,
            role=Role.DRAFTER,
            method="mtp",
            geometry=SMALL,
            num_speculative_tokens=2,
            batch=batch,
            lengths="short",
        )
        with edited(edits):
            record = opened.run(cell, lambda kind, data: None)
        found[name] = {
            "verdict": record.verdict.value,
            "reasons": record.reasons,
            "failed": sorted({c.part for c in record.checks if c.ok is False}),
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
