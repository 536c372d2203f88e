"""As many records as a large run has: real evidence under many cells, with a fixed mix of verdicts."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec

from capmatrix import store
from capmatrix.cell import Environment, Flag, Record, Rung, Verdict
from capmatrix.codec import cell_id
from capmatrix.vocabulary import ARCHITECTURES, ROCM_BACKENDS

RESULTS = Path(__file__).resolve().parents[2] / "matrices" / "results" / "h200-gfx950-eagle3-llama.jsonl.gz"
DRAFTERS = ("eagle3-a", "eagle3-b", "eagle3-c", "mtp-a", "mtp-b", "dflash-a", "dspark-a", "ngram")
BLOCKS = (16, 32, 64, 128)
DTYPES = ("auto", "fp8", "fp8_e5m2")

#: Backends whose attention is native: nothing but a GPU can tell.
NATIVE = ("ROCM_AITER_FA", "ROCM_AITER_MLA", "ROCM_AITER_MLA_SPARSE")


def outcome(arch: str, backend: str, drafter: str, block: int, kv: str, batch: str) -> tuple[Verdict, Rung]:
    """What a cell of the large run gives: mostly passes, and failures in regions as real ones have."""
    number = ROCM_BACKENDS.index(backend)
    if kv == "fp8_e5m2" and number % 3:
        return Verdict.REJECTED, Rung.DECLARED
    if backend in NATIVE:
        return (Verdict.PASS, Rung.COMPILED) if batch == "prefill" else (Verdict.UNVERIFIED, Rung.COMPILED)
    if arch == "gfx90a" and block == 128 and kv != "auto":
        return Verdict.ERROR, Rung.COMPILED
    if backend == "TRITON_ATTN" and kv == "fp8_e5m2" and batch.startswith("verify"):
        return Verdict.WRONG, Rung.INTERPRETED
    if backend == "FLEX_ATTENTION" and drafter == "dflash-a":
        return (Verdict.CRASH, Rung.COMPILED) if block == 16 else (Verdict.TIMEOUT, Rung.COMPILED)
    if backend == "ULTRAQUANT" and arch.startswith("gfx1"):
        return Verdict.UNAVAILABLE, Rung.DECLARED
    return Verdict.PASS, Rung.INTERPRETED if arch in ("gfx942", "gfx950") and number % 2 else Rung.COMPILED


def run(count: int) -> store.Run:
    """``count`` records on every architecture; the same ones each time."""
    real = store.read(RESULTS)
    by_batch: dict[str, list[Record]] = {}
    for record in real.records:
        by_batch.setdefault(record.cell.batch, []).append(record)
    environments = {
        arch: Environment(
            id=f"env-{arch}",
            target=f"offline:{arch}",
            versions={"vllm": "0.32.0", "torch": "2.13.0", "triton": "3.7.1"},
            identity={"platform": "rocm", "arch": arch},
        )
        for arch in ARCHITECTURES
    }
    records = []
    points = itertools.product(ARCHITECTURES, ROCM_BACKENDS, DRAFTERS, BLOCKS, DTYPES, sorted(by_batch))
    for i, (arch, backend, drafter, block, kv, batch) in enumerate(itertools.islice(points, count)):
        template = by_batch[batch][i // len(by_batch) % len(by_batch[batch])]
        verdict, rung = outcome(arch, backend, drafter, block, kv, batch)
        target = f"{'interpreter' if rung is Rung.INTERPRETED else 'offline'}:{arch}"
        cell = msgspec.structs.replace(
            template.cell, target=target, backend=backend, drafter=drafter, block_size=block, kv_cache_dtype=kv, tp=4
        )
        failed = verdict is not Verdict.PASS
        records.append(
            msgspec.structs.replace(
                template,
                cell_id=cell_id(cell),
                cell=cell,
                verdict=verdict,
                rung=rung,
                environment=f"env-{arch}",
                reasons=(f"{verdict.value} of {backend} at block {block} with {kv}",) if failed else (),
                flags=(Flag.FALLBACK,) if backend == "ROCM_ATTN" and block > 32 else (),
            )
        )
    return store.Run(
        header={"matrix": "large", "created": "2026-11-30T10:00:00Z", "cells": len(records), "capmatrix": "0.1.0"},
        environments={e.id: e for e in environments.values()},
        records=records,
        summary={},
    )
