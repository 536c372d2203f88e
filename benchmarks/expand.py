"""How long 100,000 cells take, as a ratio to building bare tuples of the same product in the same run.

python benchmarks/expand.py
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from capmatrix import codec, matrix

TARGETS = ["offline:gfx942", "offline:gfx950"]
REPEATS = 5

FILE = """[axes]
backend = ["ROCM_ATTN", "TRITON_ATTN", "ROCM_AITER_FA", "ROCM_AITER_UNIFIED_ATTN"]
block_size = {blocks}
kv_cache_dtype = ["auto", "fp8"]
drafter = ["{drafter}"]
tp = 1
batch = ["decode", "verify", "prefill", "mixed"]

[[exclude]]
backend = "ROCM_ATTN"
block_size = [1, 2, 3]
batch = "mixed"
reason = "a rule costs something too"

[[exclude]]
kv_cache_dtype = "fp8"
target = "interpreter"
reason = "so does one on the target"
"""


def best(function: Callable[[], object]) -> float:
    """Seconds of the quickest of several calls."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> int:
    """Print the times and ratios; nothing depends on them."""
    from capmatrix.drafters import DEFAULT_DIR, load

    drafter = next(key for key, family in load(DEFAULT_DIR).items() if 1 in family.tensor_parallel)
    blocks = list(range(1, 1565))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "many.toml"
        path.write_text(FILE.format(blocks=blocks, drafter=drafter), encoding="utf-8")
        many = matrix.load(path)
        loading = best(lambda: matrix.load(path))
    cells = matrix.expand(many, None, TARGETS)
    axes = [many.whole.axes[a] for a in ("backend", "block_size", "kv_cache_dtype", "drafter", "tp", "batch")]
    floor = best(lambda: list(itertools.product(TARGETS, *axes)))
    print(f"{len(cells):,} cells; the floor is a list of bare tuples of their product: {floor * 1000:.0f} ms")
    for what, seconds in [
        ("load the file", loading),
        ("count", best(lambda: matrix.count(many, None, TARGETS))),
        ("expand", best(lambda: matrix.expand(many, None, TARGETS))),
        ("cell ids", best(lambda: [codec.cell_id(cell) for cell in cells])),
    ]:
        print(f"{what:15} {seconds:7.3f} s  {seconds / floor:7.1f} x the floor")
    return 0


if __name__ == "__main__":
    sys.exit(main())
