"""Reproductions, run: a cell's own verdict and what its script does, in a process without capmatrix's engine around it.

The cells run in a worker, their records become scripts, and all scripts run in one process that has the virtual ROCm
platform and Triton's interpreter. A script's text is the same as for a GPU.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from capmatrix.cell import Flag, Force, Geometry, Phase, Record, Role, Verdict
from capmatrix.repro.script import script

pytestmark = [pytest.mark.engine, pytest.mark.slow]

TARGET = "interpreter:gfx942"
#: Few heads of a small size, in two groups.
SMALL = Geometry(4, 2, 64)
PLAIN: dict[str, Any] = {
    "geometry": SMALL, "method": "none", "role": Role.TARGET, "num_speculative_tokens": 0, "tp": 1,
}  # fmt: skip


class Case(NamedTuple):
    """A cell, its verdict, and what its script's last line says."""

    backend: str
    block: int
    kv: str
    batch: str
    verdict: Verdict
    says: str
    fields: dict[str, Any] = {}


OK = r"OK: every row is within its bound"
WRONG = r"WRONG: \d+ rows are off"
CASES = {
    "an fp8 query, EAGLE3, several lengths": Case(
        "TRITON_ATTN", 64, "fp8", "mixed", Verdict.PASS, OK, {"method": "eagle3", "num_speculative_tokens": 2}
    ),
    "new tokens read before they are quantised": Case("ROCM_ATTN", 64, "fp8", "mixed", Verdict.PASS, OK),
    "a window and sinks": Case(
        "TRITON_ATTN", 16, "auto", "chunked_prefill", Verdict.PASS, OK,
        {"geometry": Geometry(4, 2, 64, sliding_window=38, sinks=True)},
    ),
    "no causal mask": Case(
        "TRITON_ATTN", 16, "auto", "verify", Verdict.PASS, OK,
        {"geometry": Geometry(4, 2, 64, causal=False), "method": "dflash", "num_speculative_tokens": 3},
    ),
    "padded rows, unit scales": Case(
        "TRITON_ATTN", 16, "fp8", "padded", Verdict.PASS, OK, {"dtype": "float16", "scales": "unit"}
    ),
    "a kernel block of another size": Case(
        "TRITON_ATTN", 128, "auto", "decode", Verdict.PASS, OK, {"force": Force.KERNEL_BLOCK, "kernel_block": 32}
    ),
    "a soft cap that is ignored": Case(
        "ROCM_ATTN", 64, "auto", "decode", Verdict.WRONG, WRONG, {"geometry": Geometry(4, 2, 64, logits_soft_cap=30.0)}
    ),
    "one FP8 type written, another read": Case("ROCM_ATTN", 64, "fp8_e5m2", "decode", Verdict.WRONG, WRONG),
    "another FP8 type than asked for": Case("TRITON_ATTN", 64, "fp8_e5m2", "decode", Verdict.WRONG, WRONG),
    "values ahead are lost": Case(
        "TRITON_ATTN", 64, "auto", "chunked_prefill", Verdict.WRONG, WRONG,
        {"geometry": Geometry(4, 2, 64, sliding_window=16, causal=False)},
    ),
    "NaN in evicted blocks": Case(
        "ROCM_ATTN", 64, "auto", "decode", Verdict.PASS, WRONG, {"geometry": Geometry(4, 2, 64, sliding_window=32)}
    ),
    "an assertion in the layer": Case(
        "ROCM_AITER_UNIFIED_ATTN", 64, "fp8_e5m2", "decode", Verdict.ERROR, "AssertionError"
    ),
    "no kernel block that fits": Case(
        "TRITON_ATTN", 64, "auto", "decode", Verdict.ERROR, "ValueError: No common block size for 64",
        {"force": Force.KERNEL_BLOCK, "kernel_block": 48},
    ),
    "refused": Case("ROCM_ATTN", 1, "auto", "decode", Verdict.REJECTED, r"ValueError: .*block_size not supported"),
}  # fmt: skip


class Ran(NamedTuple):
    """A cell's record, its script, and what that script printed and exited with."""

    record: Record
    text: str
    printed: list[str]
    status: int


@pytest.fixture(scope="module")
def ran(run: Callable[..., Record], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """Every case: its cell run in a worker, its script in a process that is none."""
    folder = tmp_path_factory.mktemp("scripts")
    made: dict[str, tuple[Record, Path]] = {}
    for number, (name, case) in enumerate(CASES.items()):
        fields = PLAIN | case.fields
        record = run(TARGET, case.backend, case.block, case.kv, case.batch, **fields)
        path = folder / f"{number}.py"
        path.write_text(script(record), encoding="utf-8")
        made[name] = record, path
    command = [sys.executable, "-m", "capmatrix.engine.standalone", TARGET]
    done = subprocess.run(
        [*command, *(str(path) for _, path in made.values())],
        capture_output=True, text=True, timeout=1800, check=False, env={**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"},
    )  # fmt: skip
    outputs = re.split(r"^exit (-?\d+)\n", done.stdout, flags=re.MULTILINE)
    assert len(outputs) == 2 * len(made) + 1, done.stdout[-4000:] + done.stderr[-4000:]
    return {
        name: Ran(record, path.read_text(encoding="utf-8"), output.strip().splitlines(), int(status))
        for (name, (record, path)), output, status in zip(made.items(), outputs[::2], outputs[1::2], strict=False)
    }


@pytest.mark.parametrize("name", CASES)
def test_a_script_shows_what_the_cell_showed(name: str, ran: dict[str, Ran]) -> None:
    case, found = CASES[name], ran[name]
    assert found.record.verdict is case.verdict, found.record.reasons
    assert re.search(case.says, found.printed[-1]), found.printed
    assert found.status == (0 if case.says is OK else 1)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.verdict is Verdict.ERROR])
def test_a_script_ends_with_the_records_exception(name: str, ran: dict[str, Ran]) -> None:
    failure = ran[name].record.failure
    assert failure is not None
    message = failure.message.splitlines()[0] if failure.message else ""
    assert ran[name].printed[-1] == (f"{failure.type}: {message}" if message else failure.type)


def test_a_failure_at_set_up_has_a_short_script(ran: dict[str, Ran]) -> None:
    found = ran["no kernel block that fits"]
    assert found.record.phase is Phase.BUILD
    assert "set_forward_context" not in found.text
    assert found.text.count("\n") < ran["refused"].text.count("\n") + 25 < 80


def test_a_nan_unsafe_cell_is_shown_with_nan(ran: dict[str, Ran]) -> None:
    found = ran["NaN in evicted blocks"]
    assert Flag.NAN_UNSAFE in found.record.flags
    assert any("got [nan" in line for line in found.printed)


def test_scripts_import_vllm_and_torch_alone(ran: dict[str, Ran]) -> None:
    allowed = {"json", "os", "sys", "tempfile", "torch", "vllm"}
    for found in ran.values():
        names = set()
        for node in ast.walk(ast.parse(found.text)):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names.add(str(node.module).split(".")[0])
        assert names <= allowed
