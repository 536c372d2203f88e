"""What an exception of a pair's set-up means: vLLM refuses the pair, a package is missing, or something broke."""

from __future__ import annotations

from ..cell import Verdict
from . import failures, inspection

#: What vLLM says where every candidate lacks a package: nothing is known of the pair then.
_MISSING = "required dependencies not available"

#: Where vLLM 0.32 refuses a configuration: its own checks, the platform's selection, layouts, groups and blocks.
_REFUSERS = (
    "vllm/config/",
    "vllm/engine/arg_utils.py",
    "vllm/platforms/",
    "vllm/v1/attention/selector.py",
    "vllm/v1/attention/backends/utils.py",
    "vllm/v1/core/kv_cache_utils.py",
    "vllm/v1/kv_cache_interface.py",
    "vllm/v1/worker/utils.py",
)


class Refused(ValueError):
    """What vLLM's runner says where it knows no way to draft; raised in its place."""


def refusal(error: Exception) -> tuple[Verdict, tuple[str, ...]]:
    """The verdict of a set-up that raised: refused by vLLM, short of a package, broken, or capmatrix's own fault.

    A ValueError is a refusal where one of vLLM's checks raised it; anywhere else something broke.
    """
    line = failures.first_line(error)
    behind = inspection.cause(error)
    if behind:
        missing = behind.startswith(("ModuleNotFoundError", "ImportError"))
        return Verdict.UNAVAILABLE if missing else Verdict.ERROR, (f"{behind}; vLLM says: {_told(error)}",)
    if isinstance(error, ImportError) or _MISSING in str(error):
        return Verdict.UNAVAILABLE, (line,)
    if "can't allocate memory" in line:
        return Verdict.UNVERIFIED, (f"unverified: memory: more than a worker may have on this machine: {line}",)
    if isinstance(error, Refused):
        return Verdict.REJECTED, (line,)
    if isinstance(error, ValueError) and failures.raised_in(error).startswith(_REFUSERS):
        return Verdict.REJECTED, (_told(error),)
    if not failures.in_the_stack(error):
        return Verdict.UNVERIFIED, (f"unverified: capmatrix itself failed: {line}",)
    return Verdict.ERROR, (_told(error),)


def _told(error: Exception) -> str:
    """The line of a refusal that says why; a validation error's first line only counts its errors."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    if lines and "validation error" in lines[0] and len(lines) > 1:
        said = lines[1].removeprefix("Value error, ").partition(" [type=")[0]
        return f"{type(error).__name__}: {said}"[:400]
    return failures.first_line(error)
