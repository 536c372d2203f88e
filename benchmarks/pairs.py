"""What a pair's set-up costs a warm worker, beside a cold start, as ratios within one run.

python benchmarks/pairs.py [--arch ARCH] [--pairs N] [--latent]

The first pair of a worker starts it (vLLM's import and the fork included): that is the cold start. Then N pairs of
each kind of target, set up and not called, after one that is not counted. Prints the median and the slowest of each
kind in seconds, what its longest phases take on average, and the ratio to the cold start. ``--latent`` adds targets
with AITER switched on, which need a worker of their own and take longer.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections import Counter

import msgspec

from capmatrix import paths
from capmatrix.pair import Pair, PairRecord
from capmatrix.pairs import pairfile
from capmatrix.workers.pool import Pool

#: Kind of target -> the preset of the shipped file whose pairs are set up.
KINDS = {
    "dense": "backends",
    "draft KV dtype": "draft-kv-dtype",
    "block-sparse": "seed-runners",
    "hybrid": "hybrid-blocks",
}
LATENT = {"latent, AITER": "latent"}


def chosen(preset: str, target: str, count: int) -> list[Pair]:
    """``count`` pairs and one more of a preset, spread over it, without calls."""
    matrix = pairfile.load(paths.matrices_dir() / "pairs.toml")
    part = matrix.presets[preset]
    lifted = msgspec.structs.replace(part, targets=())
    matrix = msgspec.structs.replace(matrix, presets={preset: lifted})
    found = pairfile.expand(matrix, preset, [target])
    step = max(1, len(found) // (count + 1))
    return [msgspec.structs.replace(pair, batches=()) for pair in found[::step][: count + 1]]


def timed(pool: Pool, pair: Pair) -> tuple[float, PairRecord]:
    """Wall time of one pair, and its record."""
    start = time.perf_counter()
    record = pool.run_pair(pair)
    return time.perf_counter() - start, record


def main() -> None:
    """Runs and prints."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--arch", default="gfx942")
    parser.add_argument("--pairs", type=int, default=8, metavar="N")
    parser.add_argument("--latent", action="store_true")
    arguments = parser.parse_args()
    target = f"offline:{arguments.arch}"
    cold: dict[object, float] = {}
    with Pool(options={"aiter": "", "triton_cache": ""}, retry_alone=False) as pool:
        for kind, preset in {**KINDS, **(LATENT if arguments.latent else {})}.items():
            first, *rest = chosen(preset, target, arguments.pairs)
            spent, record = timed(pool, first)
            start = cold.setdefault(first.switches, spent)
            if start is spent:
                print(f"cold start, with the first pair ({kind}): {spent:.2f} s")
            warm = [timed(pool, pair) for pair in rest]
            seconds = [one for one, _ in warm]
            phases: Counter[str] = Counter()
            for _, record in warm:
                for name, value in record.durations.items():
                    phases[name] += value  # type: ignore[assignment]
            shares = ", ".join(f"{name} {value / len(warm):.3f} s" for name, value in phases.most_common(3))
            median = statistics.median(seconds)
            print(
                f"{kind}: {len(warm)} pairs, median {median:.3f} s, slowest {max(seconds):.3f} s "
                f"({shares}); {median / start:.4f} of the cold start"
            )
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
