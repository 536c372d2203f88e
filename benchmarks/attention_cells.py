"""The cells of ``attention_benchmarks.py``: one matrix file for capmatrix, vLLM's batch specifications of the same.

A call is a cell under a workload profile. vLLM's benchmark names its requests (``255q1s8193_q1s8194``: 255 of one new
token at a sequence length of 8193, and one of 8194).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from capmatrix import matrix
from capmatrix.cell import Cell
from capmatrix.grid import Workload

FILE = "attention-benchmarks.toml"

#: 32 query and 8 KV heads of 128, as the defaults of vLLM's benchmark.
DRAFTER = "eagle3-llama3.1-8b"

#: ``long`` reads far more than a GPU's last cache holds, ``short`` takes about as long as a launch does.
PROFILES = {"long": (256, 8192), "short": (8, 1024)}

BATCHES = ("decode", "verify", "prefill")

#: New tokens of a prefill call and of one of its requests, as ``--time`` makes it.
_BUDGET, _CHUNK = 8192, 2048

#: Bytes that the layers of one call read together, so that none finds its cache in the GPU's last one.
_COLD = 512 << 20

#: Most layers; each has a cache of its own.
_MOST_LAYERS = 32

MATRIX = """name = "attention-benchmarks"
description = "The cells of benchmarks/attention_benchmarks.py."

[axes]
backend = {backends}
block_size = {blocks}
kv_cache_dtype = {dtypes}
drafter = ["{drafter}"]
tp = 1
num_speculative_tokens = 2
batch = {batches}
"""

PROFILE = """
[workload.{name}]
concurrency = {concurrency}
input = {input}
output = 1
"""


class Call(NamedTuple):
    """One timed call of one backend: what both sides run. ``key`` says which cell, under which profile."""

    backend: str
    block_size: int
    kv_cache_dtype: str
    batch: str
    profile: str
    spec: str
    layers: int

    @property
    def key(self) -> str:
        """Readable, and the same on both sides."""
        return key(self.backend, self.block_size, self.kv_cache_dtype, self.batch, self.profile)


def key(backend: str, block_size: int, kv_cache_dtype: str, batch: str, profile: str) -> str:
    """``TRITON_ATTN b16 fp8 decode long``."""
    return f"{backend} b{block_size} {kv_cache_dtype} {batch} {profile}"


def matrix_text(backends: Sequence[str], blocks: Sequence[int], dtypes: Sequence[str], batches: Sequence[str]) -> str:
    """The matrix file, with the profiles in it."""

    def listed(names: Iterable[object]) -> str:
        return "[" + ", ".join(f'"{n}"' if isinstance(n, str) else str(n) for n in names) + "]"

    text = MATRIX.format(
        backends=listed(backends), blocks=listed(blocks), dtypes=listed(dtypes), batches=listed(batches),
        drafter=DRAFTER,
    )  # fmt: skip
    return text + "".join(PROFILE.format(name=n, concurrency=c, input=i) for n, (c, i) in PROFILES.items())


def calls(path: Path, target: str) -> list[Call]:
    """The calls of a matrix file on ``target``, in the order of its cells. Raises InputError."""
    loaded = matrix.load(path)
    cells = matrix.expand(loaded, None, [target])
    return [call(cell, name, load) for cell in cells for name, load in loaded.workloads.items()]


def call(cell: Cell, profile: str, workload: Workload) -> Call:
    """A cell under a profile, its requests as capmatrix's ``--time`` makes them."""
    requests = _requests(cell, workload)
    spec = "_".join(_segment(len(list(same)), *request) for request, same in itertools.groupby(requests))
    return Call(
        cell.backend, cell.block_size, cell.kv_cache_dtype, cell.batch, profile, spec, _layers(cell, requests)
    )  # fmt: skip


def _requests(cell: Cell, workload: Workload) -> list[tuple[int, int]]:
    """New tokens and sequence length of each request."""
    start = workload.context + workload.input
    if cell.batch == "prefill":
        return [(_CHUNK, max(_CHUNK, start))] * max(1, min(workload.concurrency, _BUDGET // _CHUNK))
    new = 1 if cell.batch == "decode" else 1 + cell.num_speculative_tokens
    steps = max(1, workload.concurrency - 1)
    return [(new, start + new + workload.output * i // steps) for i in range(workload.concurrency)]


def _segment(count: int, new: int, length: int) -> str:
    return f"{count if count > 1 else ''}q{new}" + (f"s{length}" if length != new else "")


def _layers(cell: Cell, requests: Sequence[tuple[int, int]]) -> int:
    """Layers that vLLM's benchmark is given: enough that a replay does not find the layer's cache in the GPU's.

    It flushes that cache before an eager call, but not between the calls of a graph.
    """
    if cell.batch == "prefill":
        return 1
    g = cell.geometry
    element = 1 if cell.kv_cache_dtype.startswith("fp8") else 2
    one = 2 * g.num_kv_heads * g.head_size * element * sum(length for _, length in requests)
    return min(_MOST_LAYERS, max(1, -(-_COLD // one)))
