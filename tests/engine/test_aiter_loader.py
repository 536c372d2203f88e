"""A worker's AITER, each in a process of its own: a made-up package, then the installed wheel through vLLM."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.engine
pytest.importorskip("triton")
pytest.importorskip("torch")

HERE = Path(__file__).resolve().parents[2]

FILES = {
    "aiter/__init__.py": """
        import os
        if os.getenv("AITER_TRITON_ONLY", "0") == "1":
            pass
        else:
            from .jit import core as core
            from .ops.enum import *
            from .ops.broken import *
            from .ops.attention import *
        """,
    "aiter/jit/__init__.py": "",
    "aiter/jit/core.py": "raise RuntimeError('ROCm version file not found')",
    "aiter/jit/utils/chip_info.py": """
        import re
        import subprocess
        from cpp_extension import executable_path
        from torch_guard import torch_compile_guard

        @torch_compile_guard()
        def get_gfx() -> str:
            out = subprocess.run([executable_path("rocminfo")], stdout=subprocess.PIPE, text=True).stdout
            return re.search(r"gfx\\w+", out).group(0)

        def get_cu_num() -> int:
            out = subprocess.run([executable_path("rocminfo")], stdout=subprocess.PIPE, text=True).stdout
            return int(re.search(r"Compute Unit\\s*:\\s*(\\d+)", out).group(1))
        """,
    "aiter/ops/enum.py": """
        from ..jit.core import compile_ops
        @compile_ops("module_core", "QuantType")
        def _QuantType(dummy): ...
        QuantType = type(_QuantType(0))
        """,
    "aiter/ops/broken.py": "import a_module_that_nobody_has",
    "aiter/ops/attention.py": """
        import torch
        from ..jit.core import compile_ops
        from csrc.cpp_itfs.pa.pa_v1 import paged_attention_v1 as core
        from csrc.cpp_itfs.torch_utils import direct_register_custom_op

        def paged_attention_v1(out: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
            core(out, query)
            return out

        direct_register_custom_op("paged_attention_v1", paged_attention_v1, ["out"])

        def _fake(q, k, out=None):
            return torch.empty_like(q), torch.empty(q.shape[0], dtype=torch.float32)

        @compile_ops("module_fmha", fc_name="fwd", gen_fake=_fake)
        def fmha_fwd(q: torch.Tensor, k: torch.Tensor, out: torch.Tensor | None = None) -> list[torch.Tensor]: ...

        @compile_ops("module_quant")
        def static_per_tensor_quant(out: torch.Tensor, input: torch.Tensor, scale: torch.Tensor) -> None: ...

        @compile_ops("module_ps")
        def get_ps_metadata_v1(plan: torch.Tensor) -> None: ...

        @compile_ops("module_plan")
        def plan(lengths: torch.Tensor) -> int: ...
        """,
    "aiter/ops/triton/unified_attention.py": "NUMBER = 7",
    "csrc/cpp_itfs/pa/pa_v1.py": """
        import jinja_that_nobody_has
        def paged_attention_v1(out, query, scale=1.0): raise RuntimeError("compiles C++")
        """,
    "csrc/include/aiter_enum.h": """
        enum class QuantType : int
        {
            No,
            per_Tensor, // one
            per_Token = 7,
            last,
        };
        """,
    "COMMIT": "c" * 40,
}

SCRIPT = """
    import importlib.metadata, importlib.util, json, os, sys, traceback
    os.environ["CAPMATRIX_VIRTUAL_ARCH"] = "gfx950"
    import torch
    from capmatrix.engine import aiter_loader, native_ops, route
    changed = aiter_loader.load(sys.argv[1])
    import aiter
    from aiter.jit.utils import chip_info
    from aiter.ops.triton.unified_attention import NUMBER
    facts = {"changed": changed, "describe": aiter_loader.describe(), "number": NUMBER}
    facts["arch"] = [chip_info.get_gfx(), chip_info.get_cu_num()]
    facts["enum"] = {m.name: int(m) for m in aiter.QuantType}
    facts["metadata"] = importlib.metadata.version("amd-aiter")
    facts["spec"] = importlib.util.find_spec("aiter") is not None
    def told(call):
        route.start(); native_ops.forget_claims()
        out = torch.zeros(4, 2, 8)
        result = call(out)
        kernels = [(k.name, k.kind) for k in route.so_far()]
        return {"kernels": kernels, "rows": native_ops.claimed_rows(out).tolist(), "result": result}
    q = torch.zeros(2, 2, 8)
    facts["paged"] = told(lambda out: torch.ops.aiter.paged_attention_v1(out[1:3], q) is None)
    facts["fmha"] = told(lambda out: [bool(t.isnan().all()) for t in aiter.fmha_fwd(q, q, out=out[3:])])
    codes = torch.zeros(2, 2, 8, dtype=torch.float8_e4m3fn)
    aiter.static_per_tensor_quant(codes, q + 3.0, torch.tensor([2.0]))
    facts["quant"] = told(lambda out: aiter.static_per_tensor_quant(codes, q + 3.0, torch.tensor([2.0])))
    facts["codes"] = codes.float().unique().tolist()
    try:
        aiter.plan(torch.zeros(1))
    except route.NativeMissing as error:
        facts["plan"] = error.name
    try:
        aiter.get_ps_metadata_v1(torch.zeros(1))
    except route.NativeMissing as error:
        facts["ps"] = error.name
    try:
        aiter.fmha_fwd(q, q, sink=q)
    except TypeError as error:
        last = [f for f in traceback.extract_tb(error.__traceback__) if "/aiter/" in f.filename][-1]
        facts["misfit"] = [last.filename.rpartition("/aiter/")[2], last.name]
    facts["left"] = [n for n in ("cpp_extension", "torch_guard") if n in sys.modules]
    print(json.dumps(facts))
    """


def _run(script: str, *arguments: str, **environment: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *arguments],
        env={**os.environ, "PYTHONPATH": str(HERE), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package built like AITER, whose own ``__init__`` cannot run without ROCm."""
    root = tmp_path_factory.mktemp("checkout")
    for name, text in FILES.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text), encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def facts(checkout: Path) -> Any:
    """What one process saw of it."""
    return _run(SCRIPT, str(checkout))


def test_triton_modules_come_from_the_checkout(facts: Any, checkout: Path) -> None:
    assert facts["number"] == 7
    assert facts["spec"] is True
    described = facts["describe"]
    assert (described["source"], described["path"], described["commit"]) == ("checkout", str(checkout), "c" * 40)
    assert described["version"] == "unknown"
    assert facts["metadata"] == "0+unknown"


def test_one_broken_part_is_named_and_takes_nothing_with_it(facts: Any) -> None:
    assert any("ops.broken" in line and "a_module_that_nobody_has" in line for line in facts["changed"])
    assert not any("ops.attention" in line for line in facts["changed"])


def test_architecture_queries_answer_the_virtual_architecture(facts: Any) -> None:
    assert facts["arch"] == ["gfx950", 256]
    assert facts["left"] == []


def test_enumerations_are_those_of_the_header(facts: Any) -> None:
    assert facts["enum"] == {"No": 0, "per_Tensor": 1, "per_Token": 7, "last": 8}


def test_a_native_operator_claims_the_rows_it_was_given(facts: Any) -> None:
    assert facts["paged"]["kernels"] == [["aiter.paged_attention_v1", "native"]]
    assert facts["paged"]["rows"] == [False, True, True, False]
    assert facts["fmha"]["kernels"] == [["aiter.fmha_fwd", "native"]]
    assert facts["fmha"]["rows"] == [False, False, False, True]


def test_what_a_native_operator_returns_is_nan(facts: Any) -> None:
    assert facts["fmha"]["result"] == [True, True]


def test_an_operator_with_one_right_answer_is_computed(facts: Any) -> None:
    assert facts["quant"]["kernels"] == [["aiter.static_per_tensor_quant", "stand_in"]]
    assert facts["codes"] == [1.5]


def test_a_number_that_only_native_code_knows_ends_the_cell(facts: Any) -> None:
    assert facts["plan"] == "aiter.plan"
    assert facts["ps"] == "aiter.get_ps_metadata_v1"


def test_a_call_that_does_not_fit_is_told_as_raised_in_aiter(facts: Any) -> None:
    assert facts["misfit"] == ["ops/attention.py", "fmha_fwd"]


def test_changed_code_is_not_cached_beside_aiters(facts: Any, checkout: Path) -> None:
    assert not list((checkout / "aiter" / "__pycache__").glob("__init__*"))


def test_without_an_aiter_vllm_finds_none() -> None:
    script = """
        import importlib.util, json
        from capmatrix.engine import aiter_loader, aiter_source
        aiter_source.find = lambda path: None
        changed = aiter_loader.load("")
        found = importlib.util.find_spec("aiter")
        print(json.dumps([list(changed), found is None, aiter_loader.describe()["version"]]))
        """
    assert _run(script) == [[], True, ""]


CELLS = """
    import json, sys
    from capmatrix.cell import Cell, Geometry, Role
    from capmatrix.engine.session import open_session
    session = open_session(sys.argv[1], {}, {"aiter": ""})
    def run(backend, kv, batch):
        cell = Cell(sys.argv[1], backend, 16, kv, "d", 1, Role.DRAFTER, "eagle3", Geometry(4, 2, 64), 2, batch)
        record = session.run(cell, lambda kind, data: None)
        return {
            "verdict": record.verdict.value,
            "reasons": record.reasons,
            "kernels": {k.name.partition("_num_query_heads")[0]: k.kind for k in record.route},
        }
    print(json.dumps({
        "unified": run("ROCM_AITER_UNIFIED_ATTN", "auto", "decode"),
        "unified_fp8": run("ROCM_AITER_UNIFIED_ATTN", "fp8", "decode"),
        "flash": run("ROCM_AITER_FA", "auto", "decode"),
        "version": session.environment.versions.get("aiter"),
    }))
    """


@pytest.fixture(scope="module")
def wheel() -> Any:
    """Three cells through vLLM with the installed wheel, offline for gfx942."""
    pytest.importorskip("vllm")
    try:
        importlib.metadata.version("amd-aiter")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("amd-aiter is not installed")
    return _run(CELLS, "offline:gfx942")


@pytest.mark.slow
def test_the_wheels_unified_attention_compiles_through_vllm(wheel: Any) -> None:
    assert wheel["version"] == importlib.metadata.version("amd-aiter")
    assert wheel["unified"]["verdict"] == "pass", wheel["unified"]
    assert any(
        n.startswith("kernel_unified_attention") and k == "triton" for n, k in wheel["unified"]["kernels"].items()
    )


@pytest.mark.slow
def test_the_wheels_flash_attention_ends_at_its_native_operator(wheel: Any) -> None:
    assert wheel["flash"]["kernels"]["aiter.paged_attention_v1"] == "native"
    assert wheel["flash"]["verdict"] == "unverified"
    assert "aiter.paged_attention_v1" in wheel["flash"]["reasons"][0]


@pytest.mark.slow
def test_an_aiter_too_old_for_vllm_is_not_the_backends_error(wheel: Any) -> None:
    from capmatrix.engine import aiter_support

    if aiter_support.in_range(wheel["version"]):
        assert wheel["unified_fp8"]["verdict"] == "pass"
    else:
        assert wheel["unified_fp8"]["verdict"] == "unavailable", wheel["unified_fp8"]
        assert wheel["version"] in wheel["unified_fp8"]["reasons"][0]
        assert "0.1.21.post2" in wheel["unified_fp8"]["reasons"][0]
