"""Which AITER is found, what it lacks, and when a failure is its own: on made-up packages, nothing imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from capmatrix.cell import Failure
from capmatrix.engine import Unavailable, aiter_source, aiter_support

OLD = {"version": "0.1.7.post2.dev18", "missing": ("fp8_query", "sink_ptr", "mla_causal", "mla_return_lse")}
GOOD = {"version": "0.1.20-46-ge4048607a5", "missing": ()}
NONE = {"version": "", "missing": ()}


def _failure(kind: str, message: str, frame: str, *traceback: str) -> Failure:
    return Failure(type=kind, message=message, frame=frame, traceback=(*traceback, frame))


Q_SCALES = _failure(
    "AssertionError", "Q scales not supported", "aiter/ops/triton/unified_attention.py:127 x", "vllm/a:1 f"
)
SINK_PTR = _failure(
    "TypeError",
    "flash_attn_varlen_func() got an unexpected keyword argument 'sink_ptr'",
    "vllm/_aiter_ops.py:4106 flash_attn_varlen_func",
)
IN_AITER = _failure("OutOfResources", "shared memory", "triton/compiler.py:5 f", "vllm/a.py:1 f", "aiter/ops/x.py:9 g")
IN_VLLM = _failure(
    "ValueError", "block size must be even", "vllm/v1/attention/backends/rocm_aiter_fa.py:9 f", "vllm/a:1 f"
)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package with the shapes that vLLM 0.32 asks for."""
    files = {
        "__init__.py": "",
        "ops/triton/attention/unified_attention.py": "def unified_attention(q, q_descale):\n    return q\n",
        "ops/mha.py": "def flash_attn_varlen_func(q, sink_ptr=None):\n    return q\n",
        "mla.py": "def mla_decode_fwd(q, return_lse=False, causal=True):\n    return q\n",
    }
    for name, text in files.items():
        file = tmp_path / "aiter" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return tmp_path / "aiter"


def test_a_package_that_has_everything_lacks_nothing(package: Path) -> None:
    assert aiter_support.missing_features(package) == ()


@pytest.mark.parametrize(
    ("file", "text", "lacks"),
    [
        (
            "ops/triton/attention/unified_attention.py",
            "def unified_attention(q, q_descale):\n    assert q_descale is None, 'Q scales not supported'\n",
            ("fp8_query",),
        ),
        ("ops/mha.py", "def flash_attn_varlen_func(q):\n    sink_ptr = None\n", ("sink_ptr",)),
        ("mla.py", "def mla_decode_fwd(q, return_lse=False):\n    causal = True\n", ("mla_causal",)),
        ("mla.py", "def other(q, causal, return_lse): ...\n", ("mla_causal", "mla_return_lse")),
    ],
)
def test_what_a_package_lacks_is_read_from_signatures(
    package: Path, file: str, text: str, lacks: tuple[str, ...]
) -> None:
    (package / file).write_text(text, encoding="utf-8")
    assert aiter_support.missing_features(package) == lacks


def test_the_older_place_of_a_module_is_found(package: Path) -> None:
    old = package / "ops" / "triton" / "unified_attention.py"
    (package / "ops" / "triton" / "attention" / "unified_attention.py").rename(old)
    assert aiter_support.missing_features(package) == ()


@pytest.mark.parametrize(
    ("version", "answer"),
    [
        ("0.1.7.post2.dev18", False),
        ("0.1.19.post2", False),
        ("0.1.20", True),
        ("0.1.20-46-ge4048607a5", True),
        ("0.1.19.post2-3-gabc1234", False),
        ("0.1.21.post2", True),
        ("0.1.22", False),
        ("unknown", None),
    ],
)
def test_range_of_vllm_032(version: str, answer: bool | None) -> None:
    assert aiter_support.in_range(version, "0.32.0") is answer


def test_an_unknown_vllm_has_no_range() -> None:
    assert aiter_support.in_range("0.1.7", "0.99.0") is None


@pytest.mark.parametrize(
    ("version", "standard"),
    [
        ("0.1.20-46-ge4048607a5", "0.1.20.post46+ge4048607a5"),
        ("0.1.20.post1-2-gabc1234", "0.1.20.post3+gabc1234"),
        ("0.1.21.post2", "0.1.21.post2"),
        ("", "0+unknown"),
    ],
)
def test_describe_as_pep440(version: str, standard: str) -> None:
    assert aiter_source.pep440(version) == standard


@pytest.mark.parametrize(
    ("aiter", "failure", "parts"),
    [
        (OLD, Q_SCALES, ["AITER 0.1.7.post2.dev18", ">=0.1.20", "0.1.21.post2", "FP8 query", "0.1.12"]),
        (OLD, SINK_PTR, ["AITER 0.1.7.post2.dev18", "sink_ptr", "0.1.10"]),
        (OLD, IN_AITER, ["AITER 0.1.7.post2.dev18", "OutOfResources"]),
        (OLD, None, ["AITER 0.1.7.post2.dev18", "results"]),
        ({"version": "unknown", "missing": ("fp8_query",)}, Q_SCALES, ["AITER unknown", "FP8 query"]),
        (NONE, _failure("ModuleNotFoundError", "No module named 'aiter'", "vllm/x.py:1 f"), ["no AITER is installed"]),
    ],
)
def test_failures_that_are_aiters(aiter: dict[str, Any], failure: Failure | None, parts: list[str]) -> None:
    reason = aiter_support.classify("ROCM_AITER_UNIFIED_ATTN", aiter, failure)
    assert reason is not None
    assert [part for part in parts if part not in reason] == []


@pytest.mark.parametrize(
    ("backend", "aiter", "failure"),
    [
        ("ROCM_AITER_UNIFIED_ATTN", GOOD, IN_AITER),
        ("ROCM_AITER_UNIFIED_ATTN", GOOD, Q_SCALES),
        ("ROCM_AITER_UNIFIED_ATTN", GOOD, None),
        ("ROCM_AITER_FA", OLD, IN_VLLM),
        ("ROCM_ATTN", OLD, None),
        ("ROCM_ATTN", NONE, IN_VLLM),
        ("ROCM_AITER_FA", {"version": "unknown", "missing": ()}, IN_AITER),
    ],
)
def test_failures_that_are_the_backends(backend: str, aiter: dict[str, Any], failure: Failure | None) -> None:
    assert aiter_support.classify(backend, aiter, failure) is None


GLUON = _failure(
    "CompilationError",
    "at 318:8:\n  gl.load(x)\n  ^\nexpected offsets type layout",
    "triton/experimental/gluon/_runtime.py:40 make_ir",
    "aiter/ops/triton/gluon/mla_gluon.py:1046 mla_gluon",
    "triton/compiler/compiler.py:307 compile",
)


@pytest.mark.parametrize(("triton", "blamed"), [("3.7.1", True), ("3.7.0+amd.rocm7.2", False), ("", False)])
def test_upstreams_triton_is_no_fault_of_a_gluon_kernels_backend(triton: str, blamed: bool) -> None:
    reason = aiter_support.classify("ROCM_AITER_MLA", GOOD, GLUON, triton=triton)
    assert (reason is not None) is blamed
    if reason is not None:
        assert reason.startswith("Triton 3.7.1 ")
        assert reason.endswith("expected offsets type layout")


def test_a_compile_error_outside_gluon_is_the_backends() -> None:
    elsewhere = _failure("CompilationError", "at 1:1", "triton/compiler/compiler.py:1 f", "aiter/ops/triton/x.py:1 f")
    assert aiter_support.classify("ROCM_AITER_UNIFIED_ATTN", GOOD, elsewhere, triton="3.7.1") is None


def test_a_checkout_is_found_by_its_root_or_its_package(package: Path) -> None:
    commit = "e" * 40
    (package.parent / "COMMIT").write_text(commit + "\n", encoding="utf-8")
    (package / "_version.py").write_text("__version__ = '0.1.21'\n", encoding="utf-8")
    for path in (package.parent, package):
        found = aiter_source.find(str(path))
        assert found is not None
        assert (found.kind, found.package, found.version, found.commit) == ("checkout", package, "0.1.21", commit)


def test_what_nothing_states_stays_unknown(package: Path) -> None:
    found = aiter_source.find(str(package))
    assert found is not None
    assert (found.version, found.commit) == ("", "")
    assert "unknown version" in found.label


def test_a_clone_is_described_by_git(package: Path) -> None:
    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        command = ["git", "-C", str(package.parent), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    try:
        git("init", "-q")
    except OSError:
        pytest.skip("git is not installed")
    git("add", "-A")
    git("commit", "-qm", "one")
    git("tag", "v0.1.20")
    git("commit", "-qm", "two", "--allow-empty")
    found = aiter_source.find(str(package.parent))
    assert found is not None
    commit = git("rev-parse", "HEAD")
    assert found.commit == commit
    assert found.version == "0.1.20-1-g" + git("rev-parse", "--short", "HEAD")


def test_a_path_without_aiter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no AITER at"):
        aiter_source.find(str(tmp_path))


def test_an_unrelated_package_named_aiter_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "aiter").mkdir()
    (tmp_path / "aiter" / "__init__.py").write_text("", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "aiter", raising=False)
    assert aiter_source.find("") is None
