"""A realistic run for tests of reports: the seed case on a machine without a GPU, with mixed verdicts.

Verdicts and figures follow what vllm 0.32.0 does with these backends offline and interpreted; nothing
here is read by the product.
"""

from __future__ import annotations

from typing import Any

import msgspec

from capmatrix.cell import (
    Cell,
    Check,
    Claim,
    Environment,
    Failure,
    Flag,
    Force,
    Geometry,
    Kernel,
    Phase,
    Record,
    Role,
    Rung,
    Verdict,
)
from capmatrix.codec import cell_id
from capmatrix.selection.defaults import Other, Row

BACKENDS = ("ROCM_ATTN", "TRITON_ATTN", "ROCM_AITER_FA", "ROCM_AITER_UNIFIED_ATTN")
BATCHES = ("decode", "verify", "prefill")
VERSIONS = {
    "vllm": "0.32.0",
    "aiter": "0.1.7.post2.dev18",
    "torch": "2.13.0+cpu",
    "triton": "3.7.1",
    "python": "3.11.2",
}
HEADER: dict[str, Any] = {
    "kind": "run",
    "matrix": "matrices/eagle3-llama.toml",
    "preset": "seed",
    "started_at": "2026-11-20T09:12:44Z",
}


def environment(target: str, **changes: Any) -> Environment:
    """The environment of ``target`` on a CPU machine; its id is ``env-<target>``."""
    arch = target.partition(":")[2] or "gfx942"
    base = Environment(
        id=f"env-{target}",
        target=target,
        versions=dict(VERSIONS),
        hardware={"cpu": "AMD EPYC 9654", "cores": 2, "memory_bytes": 24 << 30},
        identity={"platform": "rocm", "arch": arch},
        switches={"VLLM_ROCM_USE_AITER": "1"},
        extensions=("virtual ROCm platform",)
        + (("interpreter: bf16 and fp8 through torch",) if target.startswith("interpreter") else ()),
    )
    return msgspec.structs.replace(base, **changes)


def cell(**changes: Any) -> Cell:
    """The seed's cell: ROCM_ATTN, block 128, fp8, MiniMax-M3's MHA drafter at TP 4, decode, offline:gfx942."""
    target = changes.get("target", "offline:gfx942")
    small = target.startswith("interpreter")
    base = Cell(
        target=target,
        backend="ROCM_ATTN",
        block_size=128,
        kv_cache_dtype="fp8",
        drafter="minimax-m3-eagle3",
        tp=4,
        role=Role.DRAFTER,
        method="eagle3",
        geometry=Geometry(2, 2, 128, scaled=True) if small else Geometry(16, 16, 128),
        num_speculative_tokens=2,
        batch="decode",
        lengths="short" if small else "full",
    )
    return msgspec.structs.replace(base, **changes)


def record(c: Cell | None = None, verdict: Verdict = Verdict.PASS, **changes: Any) -> Record:
    """A record of ``c`` whose rung and phase fit its target and verdict unless given."""
    c = c or cell()
    interpreted = c.target.startswith("interpreter")
    rung = Rung.INTERPRETED if interpreted else Rung.EXECUTED if c.target == "device" else Rung.COMPILED
    phase = Phase.COMPARE if interpreted else Phase.FORWARD
    if verdict in (Verdict.REJECTED, Verdict.UNAVAILABLE):
        rung, phase = Rung.DECLARED, Phase.SELECT
    ran = verdict not in (Verdict.REJECTED, Verdict.UNAVAILABLE)
    base = Record(
        cell_id=cell_id(c),
        cell=c,
        verdict=verdict,
        rung=rung,
        phase=phase,
        environment=f"env-{c.target}",
        claims=claims(c, verdict),
        implementation=f"vllm.v1.attention.backends.{c.backend.lower()}" if ran else "",
        kernel_block=c.block_size if ran else None,
        layout="LHBNC" if ran else "",
        started_at="2026-11-20T09:13:01.220Z",
        ended_at="2026-11-20T09:13:04.910Z",
    )
    return msgspec.structs.replace(base, **changes)


def claims(c: Cell, verdict: Verdict) -> tuple[Claim, ...]:
    """Claim layers as the engine records them."""
    rejected = verdict is Verdict.REJECTED
    return (
        Claim("validation", not rejected, "kv_cache_dtype not supported" if rejected else ""),
        Claim("selector", c.backend == "ROCM_ATTN", "vLLM would pick ROCM_ATTN", {"default": "ROCM_ATTN"}),
        Claim("kernel_block", True, f"declares multiples of 16; the group resolved {c.block_size}"),
        Claim("proposer", None, "not applicable: the V2 runner has no allow-list"),
    )


PAGED = Kernel(
    name="kernel_paged_attention_2d",
    kind="triton",
    phase="forward",
    grid=(4, 16, 1),
    num_warps=4,
    num_stages=2,
    lds_bytes=32768,
    vgprs=258,
    agprs=0,
    sgprs=96,
    vgpr_spills=0,
    sgpr_spills=0,
    scratch_bytes=0,
    compile_s=3.41,
)
WRITE = Kernel(name="_C_cache_ops.reshape_and_cache", kind="stand_in", phase="cache-write", calls=1)
NATIVE = Kernel(name="_rocm_C.paged_attention", kind="native", phase="forward", grid=(4, 16, 1))


def rich_record() -> Record:
    """An interpreted `wrong` with every field set."""
    return record(
        cell(target="interpreter:gfx950", kv_cache_dtype="fp8_e5m2", block_size=64, batch="verify"),
        Verdict.WRONG,
        reasons=("forward: relative L2 0.55 over the bound 0.0042", "the writer stores e4m3, the readers view e5m2"),
        flags=(Flag.FALLBACK, Flag.STAND_IN),
        kv_cache={"shape": [9, 2, 16, 64, 128], "stride": [262144, 131072, 8192, 128, 1], "dtype": "torch.uint8"},
        graph_support="UNIFORM_SINGLE_TOKEN_DECODE",
        route=(WRITE, PAGED),
        checks=(
            Check("write", True, max_abs=0.98, bound=1.0),
            Check("forward", False, relative_l2=0.55, worst_row=3, worst_row_error=0.81, max_abs=1.4, bound=0.0042,
                  plain_error=0.0017, detail="requests 1 and 2"),
            Check("forward", False, cache="nan", nan_count=512, bound=0.0042),
            Check("accuracy", None, relative_l2=0.56),
        ),
        shims=("torch.cuda.get_device_properties", "torch.accelerator.empty_cache"),
        durations={"select": 0.00012, "build": 0.041, "cache-write": 0.2, "forward": 1.31, "compare": 0.02},
        attempt=2,
    )  # fmt: skip


def failure(kind: str = "AssertionError", message: str = "query and key dtype differ") -> Failure:
    return Failure(
        type=kind,
        message=message,
        frame="vllm/model_executor/layers/attention/attention.py:412 in forward",
        traceback=("attention.py:412 in forward", "rocm_aiter_unified_attn.py:188 in forward"),
    )


def seed_run() -> tuple[list[Record], dict[str, Environment], dict[str, Any]]:
    """Records, environments by id and header of the seed preset."""
    records = []
    for target in ("offline:gfx942", "offline:gfx950", "interpreter:gfx950", "device"):
        for backend in BACKENDS:
            for block in (16, 128):
                for kv in ("auto", "fp8"):
                    for batch in BATCHES:
                        c = cell(target=target, backend=backend, block_size=block, kv_cache_dtype=kv, batch=batch)
                        records.append(_outcome(c))
    environments = {e.id: e for e in map(environment, ("offline:gfx942", "offline:gfx950", "interpreter:gfx950"))}
    return records, environments, {**HEADER, "cells": len(records)}


def _outcome(c: Cell) -> Record:
    interpreted = c.target.startswith("interpreter")
    if c.target == "device":
        return record(c, Verdict.UNAVAILABLE, environment="", claims=(),
                      reasons=("no GPU on this machine: /dev/kfd does not exist",))  # fmt: skip
    if c.backend == "ROCM_ATTN" and c.block_size == 16 and c.batch != "prefill":
        return record(c, Verdict.UNVERIFIED, route=(WRITE, NATIVE), flags=(Flag.STAND_IN,),
                      reasons=("native operator _rocm_C.paged_attention has no code here",))  # fmt: skip
    if c.backend == "ROCM_ATTN" and c.block_size == 128:
        return record(c, route=(WRITE, PAGED), flags=(Flag.FALLBACK, Flag.STAND_IN),
                      reasons=("Triton fallback: native paged attention takes blocks of 16 and 32",))  # fmt: skip
    if c.backend == "ROCM_AITER_FA":
        if c.batch == "verify":
            return record(c, kernel_block=16 if c.block_size == 16 else 32)
        name = "aiter.paged_attention_v1" if c.batch == "decode" else "aiter.flash_attn_varlen_func"
        return record(c, Verdict.UNVERIFIED, kernel_block=16 if c.block_size == 16 else 32,
                      route=(Kernel(name, "native", "forward"),),
                      reasons=(f"native operator {name} has no code here",))  # fmt: skip
    if c.backend == "ROCM_AITER_UNIFIED_ATTN" and c.kv_cache_dtype == "fp8":
        return record(c, Verdict.UNAVAILABLE, reasons=("AITER 0.1.7.post2.dev18, needs 0.1.21.post2 for fp8 queries",))
    if c.backend == "ROCM_AITER_UNIFIED_ATTN" and c.target == "offline:gfx950" and c.block_size == 128:
        return record(c, Verdict.ERROR, phase=Phase.COMPILE, failure=failure("OutOfResources", "shared memory"),
                      reasons=("OutOfResources: shared memory, required 196608, limit 163840",))  # fmt: skip
    if c.backend == "TRITON_ATTN" and interpreted and c.kv_cache_dtype == "fp8" and c.batch == "prefill":
        return record(c, Verdict.WRONG, reasons=("forward: relative L2 0.061 over the bound 0.0042 (row 3)",))
    flags = (Flag.NAN_UNSAFE,) if c.backend == "TRITON_ATTN" and interpreted and c.block_size == 128 else ()
    return record(c, flags=flags, reasons=("NaN in unused slots reaches the output",) if flags else ())


def forced(block: int | None = 128) -> Cell:
    """ROCM_AITER_FA at block 128 with the kernel block (or, without one, the validation) forced."""
    force = Force.KERNEL_BLOCK if block else Force.VALIDATION
    return cell(backend="ROCM_AITER_FA", force=force, kernel_block=block)


def derived_row(*other: Other, **changes: Any) -> Row:
    """A row of a derived table: MiniMax-M3's drafter at block 128, fp8."""
    fields: dict[str, Any] = {
        "architecture": "gfx950",
        "drafter": "minimax-m3-eagle3",
        "role": "drafter",
        "block_size": 128,
        "kv_cache_dtype": "fp8",
        "dtype": "bfloat16",
        "backend": "TRITON_ATTN",
        "reason": "because",
        "policy": "lightest",
        "rung": "served",
        "other": other,
    }
    return Row(**(fields | changes))
