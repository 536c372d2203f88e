"""Which AITER the installed vLLM supports, and whether a failure is that AITER's rather than the backend's.

vLLM states a pin and a floor in its source and checks neither while it starts; an older AITER then
fails inside a cell. Such a cell is `unavailable` with both versions, never an error of the backend.
What an AITER outside the range can still run is shown under its own version. Nothing is imported here.
"""

from __future__ import annotations

import ast
import importlib.metadata
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..cell import Failure

#: vLLM's backends that call AITER whatever the switches.
BACKENDS = (
    "ROCM_AITER_FA",
    "ROCM_AITER_UNIFIED_ATTN",
    "ROCM_AITER_MLA",
    "ROCM_AITER_TRITON_MLA",
    "ROCM_AITER_MLA_SPARSE",
)


class Support(NamedTuple):
    """What one series of vLLM says of AITER. ``versions``: a specifier; ``pinned``: what it is built with."""

    versions: str
    pinned: str
    source: str


#: By vLLM's major and minor version. The ceiling is the pin's own minor series: nothing later is stated.
SUPPORTED: dict[str, Support] = {
    "0.32": Support(
        ">=0.1.20,<0.1.22",
        "0.1.21.post2",
        "vllm 0.32.0: v1/attention/backends/mla/rocm_aiter_mla.py (comments: 'pinned AITER v0.1.21.post2'); "
        "_aiter_ops.py, mla_decode_supports_non_causal ('Added in aiter v0.1.20. A missing argument is a hard error')",
    ),
}


class Feature(NamedTuple):
    """Something that vLLM 0.32's attention asks of AITER and that older releases lack.

    ``since``: the first release that has it (AITER's tags). ``files``: where, in the order to look, relative
    to the package. ``function``: its name; ``parameter``: one that it must take; ``without``: text that it
    must not contain. ``signs``: what a failure for want of it says.
    """

    text: str
    since: str
    files: tuple[str, ...]
    function: str
    parameter: str = ""
    without: str = ""
    signs: tuple[str, ...] = ()


FEATURES: dict[str, Feature] = {
    "fp8_query": Feature(
        "an FP8 query in unified_attention",
        "0.1.12",
        ("ops/triton/attention/unified_attention.py", "ops/triton/unified_attention.py"),
        "unified_attention",
        without="Q scales not supported",
        signs=("Q scales not supported",),
    ),
    "sink_ptr": Feature(
        "sink_ptr in flash_attn_varlen_func",
        "0.1.10",
        ("ops/mha.py",),
        "flash_attn_varlen_func",
        parameter="sink_ptr",
        signs=("unexpected keyword argument 'sink_ptr'",),
    ),
    "mla_causal": Feature(
        "causal in mla_decode_fwd",
        "0.1.20",
        ("mla.py",),
        "mla_decode_fwd",
        parameter="causal",
        signs=("unexpected keyword argument 'causal'", "mla_decode_fwd(..., causal=)"),
    ),
    "mla_return_lse": Feature(
        "return_lse in mla_decode_fwd",
        "0.1.9",
        ("mla.py",),
        "mla_decode_fwd",
        parameter="return_lse",
        signs=("unexpected keyword argument 'return_lse'",),
    ),
}


def missing_features(package: Path) -> tuple[str, ...]:
    """Keys of ``FEATURES`` that the AITER at ``package`` lacks, read from its source without importing it."""
    return tuple(key for key, feature in FEATURES.items() if not _has(package, feature))


def _has(package: Path, feature: Feature) -> bool:
    for name in feature.files:
        file = package / name
        if not file.is_file():
            continue
        text = file.read_text(encoding="utf-8")
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and node.name == feature.function:
                taken = {a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
                body = ast.get_source_segment(text, node) or ""
                return (not feature.parameter or feature.parameter in taken) and (
                    not feature.without or feature.without not in body
                )
    return False


def support(vllm: str) -> Support | None:
    """What the vLLM of this version (``0.32.0``) says of AITER; None for a version that is not known."""
    return SUPPORTED.get(".".join(vllm.split(".")[:2]))


def in_range(version: str, vllm: str = "0.32.0") -> bool | None:
    """Whether an AITER version (PEP 440, or ``git describe``'s) is in vLLM's range; None if it cannot be told."""
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion, Version

    from .aiter_source import pep440

    known = support(vllm)
    try:
        parsed = Version(pep440(version))
    except InvalidVersion:
        return None
    return known and SpecifierSet(known.versions).contains(parsed, prereleases=True)


def classify(
    backend: str,
    aiter: Mapping[str, Any],
    failure: Failure | None,
    vllm: str = "0.32.0",
    triton: str | None = None,
) -> str | None:
    """Why a cell that failed is ``unavailable`` because of its AITER; None when the failure is the backend's own.

    Args:
        backend: the cell's backend.
        aiter: ``aiter_loader.describe()``.
        failure: what was raised; None for a cell that ran and was wrong.
        vllm: the installed vLLM's version.
        triton: the installed Triton's version; asked of its metadata when None.

    A failure is AITER's when it was raised under, or in calling, AITER's code, and that AITER is outside
    vLLM's range or lacks the very thing that vLLM asked for. A wrong result of an AITER backend is AITER's
    when that AITER is outside the range. An AITER in range, and none that vLLM does not reach, is never
    an excuse. Nor is it the backend's failure when upstream's Triton cannot compile one of AITER's Gluon
    kernels: AITER's README asks for AMD's build.
    """
    version = str(aiter.get("version") or "")
    if failure is None:
        blamed = backend in BACKENDS and in_range(version, vllm) is False
        return _reason(version, vllm, "its results are off") if blamed else None
    if not version:
        return _reason("", vllm, "") if backend in BACKENDS and _not_found(failure) else None
    if _in_gluon(failure):
        found = _triton_version() if triton is None else triton
        if found and "amd" not in found:
            return f"Triton {found} is upstream's, AITER {version}'s Gluon kernels need AMD's build: {_line(failure)}"
    lacking = _lacking(failure, aiter.get("missing", ()))
    if lacking is not None:
        return _reason(version, vllm, f"{lacking.text} came with {lacking.since}")
    if in_range(version, vllm) is False and _reached_aiter(failure):
        return _reason(version, vllm, _line(failure))
    return None


def _line(failure: Failure) -> str:
    """Type and the message's last line: Triton's compiler quotes the source first."""
    lines = failure.message.strip().splitlines()
    return f"{failure.type}: {lines[-1][:200]}" if lines else failure.type


def _reason(version: str, vllm: str, detail: str) -> str:
    known = support(vllm)
    needs = f"needs {known.versions} (vLLM {vllm} pins {known.pinned})" if known else "outside what is known"
    which = f"AITER {version}" if version else "no AITER is installed"
    return f"{which}, {needs}" + (f": {detail}" if detail else "")


def _lacking(failure: Failure, missing: Iterable[str]) -> Feature | None:
    for key in missing:
        if any(sign in failure.message for sign in FEATURES[key].signs):
            return FEATURES[key]
    return None


def _not_found(failure: Failure) -> bool:
    return failure.type in ("ModuleNotFoundError", "ImportError") and "aiter" in failure.message


_MISMATCH = re.compile(r"\w+\(\) (got an unexpected keyword argument|missing \d+ required|takes .* positional)")


def _reached_aiter(failure: Failure) -> bool:
    """Whether AITER's code is on the stack, or a call into it did not fit its signature or found nothing."""
    if any(line.startswith(("aiter/", "csrc/")) for line in (failure.frame, *failure.traceback)):
        return True
    at_the_door = failure.frame.startswith("vllm/") and "aiter" in failure.frame
    return at_the_door and (
        (failure.type == "TypeError" and _MISMATCH.search(failure.message) is not None)
        or (failure.type in ("ImportError", "ModuleNotFoundError", "AttributeError") and "aiter" in failure.message)
    )


def _in_gluon(failure: Failure) -> bool:
    frames = (failure.frame, *failure.traceback)
    return any(f.startswith("aiter/ops/triton/gluon/") for f in frames) and any(
        f.startswith("triton/experimental/gluon/") for f in frames
    )


def _triton_version() -> str:
    """Of the distribution ``triton``; empty where another one (PyTorch's ROCm build) provides it."""
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return ""
