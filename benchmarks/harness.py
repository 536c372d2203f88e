"""What the harness costs beside the cells it runs, as ratios within one run; nothing depends on the machine's speed.

python benchmarks/harness.py [--workers N] [--aiter PATH]

1. overhead    the harness's own time on a warm offline cell, as a share of the cell's: pytest's hooks, the worker's
               connection, the run file. Median over cells; below 0.10.
2. compiled    kernels compiled by all workers, over distinct kernels, with an empty cache: 1.0, each once.
3. parallel    the wall time of a matrix on N workers, over the sum of its cells' times divided by N.
4. fresh       a fresh worker after a crash, over a cold import of vLLM: below 0.10.

Every figure is of real cells (offline, the seed's, ROCM_ATTN and TRITON_ATTN). Takes a few minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TARGET = "offline:gfx942"
WORDS = ["eagle3-llama", "--preset", "seed", "--target", TARGET, "-k", "ROCM_ATTN or TRITON_ATTN"]

#: Highest ratios that count as met.
LIMITS = {"overhead": 0.10, "compiled": 1.0, "parallel": 1.5, "fresh": 0.10}


def run(folder: Path, name: str, number: str, cache: Path, more: list[str]) -> Path:
    """One ``capmatrix run`` in a process of its own; returns its run file. Item times lie beside it as JSON."""
    path = folder / f"{name}.jsonl"
    words = [*WORDS, "-n", number, "--run-file", str(path), "--triton-cache", str(cache), *more]
    done = subprocess.run(
        [sys.executable, __file__, "--child", str(path.with_suffix(".json")), *words],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode not in (0, 1) or not path.exists():
        raise SystemExit(f"the run failed:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return path


def child(out: str, words: list[str]) -> int:
    """``capmatrix run`` with a recorder in it."""
    import pytest

    from capmatrix import cli

    seconds: dict[str, float] = {}

    class Recorder:
        """The wall time of every item, from its first hook to its last, in seconds."""

        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_protocol(self, item: Any, nextitem: Any) -> Iterator[None]:
            since = time.perf_counter()
            result = yield
            seconds[item.name] = time.perf_counter() - since
            return result

    parsed = cli._parser().parse_args(["run", *words])
    status = int(pytest.main(cli.pytest_arguments(parsed, []), plugins=[Recorder()]))
    Path(out).write_text(json.dumps(seconds))
    return status


def records(path: Path) -> list[Any]:
    from capmatrix.store import read

    return read(path).records


def engine_seconds(record: Any) -> float:
    return float(sum(record.durations.values()))


def overhead(path: Path) -> tuple[float, str]:
    """The harness's share of a cell that did not have to start anything."""
    items = json.loads(path.with_suffix(".json").read_text())
    shares, costs = [], []
    for record in records(path)[1:]:
        wall, own = items[record.cell_id], engine_seconds(record)
        shares.append((wall - own) / own)
        costs.append(wall - own)
    return statistics.median(shares), f"{statistics.median(costs) * 1000:.1f} ms a cell, {len(shares)} cells"


def compiled(path: Path, cache: Path) -> tuple[float, str]:
    """Compilations of all workers over distinct kernels."""
    events = {(k.name, k.compile_s) for r in records(path) for k in r.route if k.kind == "triton" and k.compile_s}
    distinct = {p.parent for p in cache.rglob("*.hsaco")}
    return len(events) / max(1, len(distinct)), f"{len(events)} compilations, {len(distinct)} kernels"


def parallel(path: Path, workers: int) -> tuple[float, str]:
    """Wall time of all cells over their sum divided by the workers."""
    found = records(path)
    begun = min(datetime.fromisoformat(r.started_at) for r in found)
    ended = max(datetime.fromisoformat(r.ended_at) for r in found)
    wall, total = (ended - begun).total_seconds(), sum(map(engine_seconds, found))
    return wall / (total / workers), f"{wall:.1f} s for {total:.1f} s of cells on {workers} workers"


def fresh(cache: Path) -> tuple[float, str]:
    """A worker after a crash, over the cold start of its server."""
    import signal

    from capmatrix import matrix, paths
    from capmatrix.workers.pool import Pool

    cell = matrix.expand(matrix.load(paths.matrix_path("smoke")), targets=[TARGET])[-1]
    with Pool(options={"aiter": "", "triton_cache": str(cache)}) as pool:
        cold = _outside(pool, cell)
        again = []
        for _ in range(5):
            os.kill(pool._workers[-1].connection.worker.pid, signal.SIGKILL)
            time.sleep(0.2)
            again.append(_outside(pool, cell))
    ratio = statistics.median(again) / cold
    return ratio, f"{statistics.median(again) * 1000:.0f} ms against {cold:.1f} s"


def _outside(pool: Any, cell: Any) -> float:
    """Seconds of one run that were not the cell's own."""
    since = time.perf_counter()
    record = pool.run(cell)
    return time.perf_counter() - since - engine_seconds(record)


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        return child(sys.argv[2], sys.argv[3:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--aiter", default="")
    arguments = parser.parse_args()
    more = ["--aiter", arguments.aiter] if arguments.aiter else []
    number = str(arguments.workers)
    rows: dict[str, tuple[float, str]] = {}
    with tempfile.TemporaryDirectory(prefix="capmatrix-bench-") as name:
        folder = Path(name)
        cache = folder / "triton"
        cold = run(folder, "cold", number, cache, more)
        rows["compiled"] = compiled(cold, cache)
        rows["overhead"] = overhead(run(folder, "warm", "0", cache, more))
        rows["parallel"] = parallel(run(folder, "both", number, cache, more), arguments.workers)
        rows["fresh"] = fresh(cache)
    missed = 0
    for key, (ratio, text) in rows.items():
        met = ratio <= LIMITS[key]
        missed += not met
        print(f"{key:<10}{ratio:>8.3f}  (at most {LIMITS[key]:.2f}: {'met' if met else 'MISSED'})  {text}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
