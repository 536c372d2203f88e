"""How many seeded faults the engine catches, over blocks and KV cache dtypes, with the real kernels interpreted.

python benchmarks/detection.py [--aiter PATH] [--blocks 16 64 ...] [--only TEXT]

Each fault breaks a kernel of vLLM or AITER in a worker. Where the exact result with the fault differs from the right
one by at least ten times the bound, the cell must be ``wrong`` in the check that the fault is about; where the input
says too little, the cell is left out and counted as such. Exits with 1 if a fault was missed or an unbroken cell is
not right.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENGINE_TESTS = ROOT / "tests" / "engine"
sys.path[:0] = [str(ROOT), str(ENGINE_TESTS)]

import msgspec  # noqa: E402
from faults.catalogue import FAULTS, Fault  # noqa: E402

from capmatrix import codec  # noqa: E402
from capmatrix.cell import Cell, Record, Verdict  # noqa: E402
from capmatrix.workers.pool import Pool  # noqa: E402

BLOCKS = (16, 64, 128, 272, 544)
SHOWN_BY = {"forward": {"forward", "needles"}, "write": {"write"}, "guard": {"guard"}}


def main() -> int:
    """Run the product and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--aiter", default="", help="an AITER checkout, to break its kernels as well")
    parser.add_argument("--blocks", type=int, nargs="+", default=list(BLOCKS), help="manager blocks")
    parser.add_argument("--only", default="", help="faults whose name holds this text")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ENGINE_TESTS), str(ROOT), os.environ.get("PYTHONPATH", "")])
    chosen = [f for f in FAULTS.values() if options.only in f.name and (options.aiter or not aiters(f))]
    counts: Counter[tuple[str, str, str]] = Counter()
    trouble: list[str] = []
    with Pool("faults.engine:open_session", {"aiter": options.aiter}, retry_alone=False) as pool:
        for cell in unbroken(chosen, options.blocks):
            record = pool.run(cell)
            if record.verdict is not Verdict.PASS:
                trouble.append(f"without a fault: {record.cell_id}: {record.verdict.value}: {first(record)}")
        for fault in sorted(chosen, key=lambda f: (f.target, aiters(f))):
            for cell in cells(fault, options.blocks):
                told = outcome(fault, cell, pool)
                counts[fault.kernel, cell.kv_cache_dtype, told.partition(":")[0]] += 1
                line = f"{fault.name}, {cell.kv_cache_dtype}, block {cell.block_size}: {told}"
                print(line, file=sys.stderr, flush=True)
                if told.startswith("missed"):
                    trouble.append(line)
    print(table(counts))
    print("\n".join(trouble) or "Nothing was missed, and every cell without a fault is right.")
    return 1 if trouble else 0


def aiters(fault: Fault) -> bool:
    """Whether the fault is in one of AITER's kernels."""
    return fault.name.startswith("aiter")


def cells(fault: Fault, blocks: list[int]) -> list[Cell]:
    """The fault's cells. ROCM_ATTN has its native kernels, not those that are broken, at blocks 16 and 32."""
    if fault.pool_blocks is not None:
        blocks = [fault.block_size]
    elif fault.backend == "ROCM_ATTN":
        blocks = [b for b in blocks if b not in (16, 32)]
    return [fault.cell(dtype, block) for dtype in fault.kv_cache_dtypes for block in blocks]


def unbroken(faults: list[Fault], blocks: list[int]) -> list[Cell]:
    """The cells of all faults without any, each once."""
    whole = {}
    for fault in faults:
        if fault.pool_blocks is None:
            for cell in cells(fault, blocks):
                cell = msgspec.structs.replace(cell, drafter="none")
                whole[codec.encode(cell)] = cell
    return sorted(whole.values(), key=lambda cell: cell.target)


def outcome(fault: Fault, cell: Cell, pool: Pool) -> str:
    """``caught``, ``insensitive`` (the input says too little), or ``missed: why``."""
    if fault.sensitivity(cell) < 10.0:
        return "insensitive"
    record = pool.run(cell)
    shown = {check.part for check in record.checks if check.ok is False}
    if record.verdict is Verdict.WRONG and shown & SHOWN_BY[fault.part]:
        return "caught"
    return f"missed: {record.verdict.value}: {first(record)}"


def first(record: Record) -> str:
    """The record's first reason."""
    return record.reasons[0] if record.reasons else ""


def table(counts: Counter[tuple[str, str, str]]) -> str:
    """Caught of sensitive by kernel and KV cache dtype, in Markdown."""
    kernels = sorted({kernel for kernel, _, _ in counts})
    dtypes = sorted({dtype for _, dtype, _ in counts})
    lines = [
        "| Broken kernel | " + " | ".join(dtypes) + " | insensitive input |",
        "|---" * (len(dtypes) + 2) + "|",
    ]
    for kernel in kernels:
        row = []
        for dtype in dtypes:
            caught, missed = counts[kernel, dtype, "caught"], counts[kernel, dtype, "missed"]
            row.append(f"{caught} of {caught + missed}" if caught + missed else "–")
        silent = sum(counts[kernel, dtype, "insensitive"] for dtype in dtypes)
        lines.append(f"| {kernel} | " + " | ".join(row) + f" | {silent} |")
    totals = Counter(told for (_, _, told), n in counts.items() for _ in range(n))
    lines.append("")
    lines.append(
        f"{totals['caught']} of {totals['caught'] + totals['missed']} sensitive cells caught; "
        f"{totals['insensitive']} left out, their input saying too little."
    )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
