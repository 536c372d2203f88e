"""How many seeded faults the engine catches, over blocks and KV cache dtypes, with the real kernels interpreted.

python benchmarks/detection.py [--aiter PATH] [--blocks 16 64 ...] [--only TEXT] [--log FILE]

Each fault breaks a kernel of vLLM or AITER in a worker. Where the exact result with the fault differs from the right
one by at least ten times the bound, the cell must be ``wrong`` in the check that the fault is about; where the input
says too little, the cell is left out and counted as such. Exits with 1 if a fault was missed or an unbroken cell is
not right.

The product takes hours on one core. With ``--log FILE`` each outcome is appended to the file, and what stands there
is not run again: an interrupted run goes on, blocks can be done one at a time, and when all is there the same command
prints the table and runs nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
ENGINE_TESTS = ROOT / "tests" / "engine"
sys.path[:0] = [str(ROOT), str(ENGINE_TESTS)]

import msgspec  # noqa: E402
from faults.catalogue import FAULTS  # noqa: E402
from faults.fault import ENOUGH, Fault  # noqa: E402

from capmatrix import codec  # noqa: E402
from capmatrix.cell import Cell, Record, Verdict  # noqa: E402
from capmatrix.workers.pool import Pool  # noqa: E402

BLOCKS = (16, 64, 128, 272, 544)
SHOWN_BY = {"forward": {"forward", "needles"}, "query": {"query"}, "write": {"write"}, "guard": {"guard"}}


class Tried(NamedTuple):
    """A fault in a cell; an empty ``fault`` is the cell without any. ``told`` begins with the outcome.

    ``cell`` is its id with a hash of all of it behind: ids of these cells tell neither windows, sinks nor lengths.
    """

    fault: str
    cell: str
    kv_cache_dtype: str
    block_size: int
    told: str = ""

    @property
    def outcome(self) -> str:
        """``caught``, ``missed``, ``insensitive``; without a fault ``right`` or ``off``."""
        return self.told.partition(":")[0]


def main() -> int:
    """Run what is not in the log yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--aiter", default="", help="an AITER checkout, to break its kernels as well")
    parser.add_argument("--blocks", type=int, nargs="+", default=list(BLOCKS), help="manager blocks")
    parser.add_argument("--only", default="", help="faults whose name holds this text")
    parser.add_argument("--log", type=Path, help="a file to append outcomes to, and not to repeat those that it has")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ENGINE_TESTS), str(ROOT), os.environ.get("PYTHONPATH", "")])
    chosen = [f for f in FAULTS.values() if options.only in f.name and (options.aiter or not f.aiter)]
    known = {row[:4]: row for row in read(options.log)}
    rows: list[Tried] = []
    with Pool("faults.engine:open_session", {"aiter": options.aiter}, retry_alone=False) as pool:
        for fault, cell in work(chosen, options.blocks):
            row = tried(fault, cell)
            if row[:4] in known:
                rows.append(known[row[:4]])
                continue
            row = row._replace(told=outcome(fault, cell, pool) if fault else unbroken(cell, pool))
            rows.append(row)
            print(said(row), file=sys.stderr, flush=True)
            if options.log:
                with options.log.open("a") as log:
                    log.write(json.dumps(row._asdict()) + "\n")
    print(table(rows))
    trouble = [said(row) for row in rows if row.outcome in ("missed", "off")]
    print("\n".join(trouble) or "Nothing was missed, and every cell without a fault is right.")
    return 1 if trouble else 0


def tried(fault: Fault | None, cell: Cell) -> Tried:
    """The row of a cell that has not run yet."""
    whole = hashlib.sha256(codec.encode(cell)).hexdigest()[:8]
    name = f"{codec.cell_id(cell)}#{whole}"
    return Tried(fault.name if fault else "", name, cell.kv_cache_dtype, cell.block_size)


def read(log: Path | None) -> list[Tried]:
    """The log's rows; none where there is no log."""
    if log is None or not log.exists():
        return []
    return [Tried(**json.loads(line)) for line in log.read_text().splitlines()]


def said(row: Tried) -> str:
    """A row in words."""
    return f"{row.fault or 'without a fault'}, {row.cell}: {row.told}"


def work(faults: list[Fault], blocks: list[int]) -> Iterable[tuple[Fault | None, Cell]]:
    """Each cell that a fault is seeded in, first without it; by target, so that servers are not started twice."""
    whole = {}
    for fault in faults:
        if fault.pool_blocks is None:
            for cell in cells(fault, blocks):
                cell = msgspec.structs.replace(cell, drafter="none")
                whole[codec.encode(cell)] = cell
    yield from ((None, cell) for cell in sorted(whole.values(), key=lambda cell: cell.target))
    for fault in sorted(faults, key=lambda f: (f.target, f.aiter)):
        yield from ((fault, cell) for cell in cells(fault, blocks))


def cells(fault: Fault, blocks: list[int]) -> list[Cell]:
    """The fault's cells, at the blocks at which what it breaks runs."""
    here = [block for block in blocks if fault.runs_at(block)]
    return [fault.sensitive_cell(dtype, block) for dtype in fault.kv_cache_dtypes for block in here]


def unbroken(cell: Cell, pool: Pool) -> str:
    """``right``, or ``off: why``."""
    record = pool.run(cell)
    return "right" if record.verdict is Verdict.PASS else f"off: {record.verdict.value}: {first(record)}"


def outcome(fault: Fault, cell: Cell, pool: Pool) -> str:
    """``caught``, ``insensitive`` (the input says too little), or ``missed: why``."""
    if fault.sensitivity(cell) < ENOUGH:
        return "insensitive"
    record = pool.run(cell)
    shown = {check.part for check in record.checks if check.ok is False}
    if record.verdict is Verdict.WRONG and shown & SHOWN_BY[fault.part]:
        return "caught"
    return f"missed: {record.verdict.value}: {first(record)}"


def first(record: Record) -> str:
    """The record's first reason."""
    return record.reasons[0] if record.reasons else ""


def table(rows: list[Tried]) -> str:
    """Caught of sensitive, by kernel and KV cache dtype and by kernel and block, in Markdown."""
    broken = [(FAULTS[row.fault].kernel, row) for row in rows if row.fault]
    dtypes = sorted({row.kv_cache_dtype for _, row in broken})
    blocks = sorted({row.block_size for _, row in broken})
    kernels = sorted({kernel for kernel, _ in broken})
    lines = [
        "| Broken kernel | faults | " + " | ".join([*dtypes, *(f"block {b}" for b in blocks)]) + " |",
        "|---" * (2 + len(dtypes) + len(blocks)) + "|",
    ]
    for kernel in kernels:
        here = [row for name, row in broken if name == kernel]
        by_dtype = [counted(row for row in here if row.kv_cache_dtype == d) for d in dtypes]
        by_block = [counted(row for row in here if row.block_size == b) for b in blocks]
        faults = len({row.fault for row in here})
        lines.append(f"| {kernel} | {faults} | " + " | ".join([*by_dtype, *by_block]) + " |")
    totals = Counter(row.outcome for row in rows)
    lines += [
        "",
        f"{totals['caught']} of {totals['caught'] + totals['missed']} sensitive cells caught, of "
        f"{len({row.fault for _, row in broken})} faults; {totals['insensitive']} left out, their input saying too "
        f"little. {totals['right']} of {totals['right'] + totals['off']} cells without a fault are right.",
    ]
    return "\n".join(lines)


def counted(rows: Iterable[Tried]) -> str:
    """``caught of sensitive``, or a dash where there is no such cell."""
    found = Counter(row.outcome for row in rows)
    tried = found["caught"] + found["missed"]
    return f"{found['caught']} of {tried}" if tried else "–"


if __name__ == "__main__":
    sys.exit(main())
