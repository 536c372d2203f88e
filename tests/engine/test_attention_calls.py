"""What the benchmark beside vLLM's own relies on in the engine, and does to tensors."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import attention_vllm  # noqa: E402

SAME = """
import sys
from pathlib import Path
sys.path.insert(0, {benchmarks!r})
import attention_cells as cells
from capmatrix import matrix, targets
from capmatrix.engine import bootstrap
bootstrap.boot(targets.parse("offline:gfx942"), {{}})
from capmatrix.engine import timing
path = Path({path!r})
path.write_text(cells.matrix_text(["TRITON_ATTN"], [16], ["auto"], cells.BATCHES))
loaded = matrix.load(path)
count = 0
for cell in matrix.expand(loaded, None, ["device"]):
    for load in loaded.workloads.values():
        made = sorted((r.query_len, r.seq_len) for r in timing._batch(cell, load).requests)
        assert made == sorted(cells._requests(cell, load)), (cell.batch, load)
        count += 1
assert timing._FLUSH_BYTES == cells._COLD
print("same", count)
"""


@pytest.mark.engine
@pytest.mark.slow
def test_calls_are_those_that_time_makes(tmp_path: Path) -> None:
    if find_spec("vllm") is None:
        pytest.skip("vLLM is not installed")
    text = SAME.format(benchmarks=str(BENCHMARKS), path=str(tmp_path / "m.toml"))
    done = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.split()[-2:] == ["same", "6"], done.stderr[-2000:]


def metadata(lengths: list[int], counts: list[int], size: int) -> SimpleNamespace:
    """As vLLM's benchmark makes it: blocks numbered through, new tokens in the first slots."""
    width = -(-max(lengths) // size)
    starts = torch.tensor([0, *counts]).cumsum(0).int()
    return SimpleNamespace(
        block_table=torch.arange(len(lengths) * width, dtype=torch.int32).view(len(lengths), width),
        query_start_loc=starts,
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        slot_mapping=torch.arange(sum(counts)),
    )


def test_new_tokens_go_to_their_own_requests_last_slots() -> None:
    made = metadata([33, 48, 17], [3, 1, 2], 16)
    table, slots = made.block_table, made.slot_mapping
    attention_vllm.scatter(made, 16)
    assert made.block_table is table and made.slot_mapping is slots
    assert sorted(table.flatten().tolist()) == list(range(9))
    assert table.flatten().tolist() != list(range(9)), "not scattered (once in 362,880 runs)"
    expected = []
    for i, (length, count) in enumerate(((33, 3), (48, 1), (17, 2))):
        expected += [int(table[i, p // 16]) * 16 + p % 16 for p in range(length - count, length)]
    assert slots.tolist() == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2])
def test_random_caches_are_finite_and_of_both_signs(dtype: torch.dtype) -> None:
    whole = torch.zeros(2, 4, 8, 16, 256, dtype=torch.uint8).view(dtype)
    one = whole[0].transpose(1, 2)
    attention_vllm.randomise(one)
    values = one.float()
    assert bool(values.isfinite().all()) and bool((values > 0).any()) and bool((values < 0).any())
    assert not whole[1].view(torch.uint8).any(), "the layer beside it is not to be touched"
