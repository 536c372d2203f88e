"""Cells of the shipped matrices drawn at random and run by the interpreter: is a cell without a fault ever wrong?

python benchmarks/sample.py interpreter:gfx942 [--count 500] [--seed 4] [--backends ROCM_ATTN ...] [--aiter PATH]

Draws from all presets of drafters.toml, eagle3-llama.toml and rocm-attention.toml, without latent attention and
without environment switches. Prints what is not right as it comes, then the verdicts by backend and the largest row
error as a part of its bound. Exits with 1 where a cell is ``wrong``.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter

from capmatrix import codec, matrix, paths
from capmatrix.cell import Cell, Flag, Verdict
from capmatrix.workers.pool import Pool

FILES = ("drafters", "eagle3-llama", "rocm-attention")


def main() -> int:
    """Draw, run and count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("target")
    parser.add_argument("--count", type=int, default=500, help="cells at most")
    parser.add_argument("--seed", type=int, default=4)
    parser.add_argument("--backends", nargs="+", default=[], help="these alone")
    parser.add_argument("--aiter", default="", help="an AITER checkout")
    options = parser.parse_args()
    found = cells(options.target, options.backends)
    drawn = random.Random(options.seed).sample(found, min(options.count, len(found)))
    print(f"{len(drawn)} of {len(found)} cells, seed {options.seed}", flush=True)
    verdicts: Counter[tuple[str, str]] = Counter()
    worst = 0.0
    with Pool(options={"aiter": options.aiter}) as pool:
        for cell in drawn:
            record = pool.run(cell)
            flag = " nan_unsafe" if Flag.NAN_UNSAFE in record.flags else ""
            verdicts[cell.backend, record.verdict.value + flag] += 1
            if record.verdict is Verdict.PASS:
                worst = max([worst, *(check.worst_row_error or 0.0 for check in record.checks)])
            elif record.verdict not in (Verdict.REJECTED, Verdict.UNAVAILABLE, Verdict.UNVERIFIED):
                print(f"{record.cell_id}: {record.verdict.value}: {'; '.join(record.reasons[:1])}", flush=True)
    for (backend, verdict), count in sorted(verdicts.items()):
        print(f"{backend}: {count} {verdict}")
    print(f"largest row error of those that pass: {worst:.2f} of its bound")
    return int(any(verdict == Verdict.WRONG.value for _, verdict in verdicts))


def cells(target: str, backends: list[str]) -> list[Cell]:
    """The cells to draw from, each once, in a fixed order."""
    found: dict[str, Cell] = {}
    for name in FILES:
        read = matrix.load(paths.matrices_dir() / f"{name}.toml")
        for preset in read.presets:
            for cell in matrix.expand(read, preset=preset, targets=[target]):
                if cell.geometry.mla is None and not cell.switches and (not backends or cell.backend in backends):
                    found[codec.cell_id(cell)] = cell
    return [found[name] for name in sorted(found)]


if __name__ == "__main__":
    sys.exit(main())
