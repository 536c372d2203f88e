"""Exceptions, deaths and printed tracebacks as a record's ``Failure``."""

from __future__ import annotations

import re
import traceback

from ..cell import Failure
from ..errors import printable
from . import gpu_faults

_PACKAGES = ("vllm", "aiter", "triton")
_IN_PACKAGE = re.compile(r"[/\\](vllm|aiter|triton)[/\\].*\.py$")
_FAULTHANDLER_LINE = re.compile(r'^  File "([^"]+)", line (\d+) in (\S+)', re.MULTILINE)
#: Lines of output that say why a process died, most telling first; what a GPU's runtime says goes before them.
_TELLING = (
    re.compile(r"LLVM ERROR:.*"),
    re.compile(r"what\(\):.*"),
    re.compile(r"Assertion .* failed.*"),
    re.compile(r"terminate called .*"),
    re.compile(r"Fatal Python error: .*"),
)
_MARK = "\x1ecapmatrix cell "


def mark(number: int) -> bytes:
    """Written to a worker's stderr before cell ``number``, so that its output can be told from earlier ones'."""
    return f"{_MARK}{number}\n".encode()


def tail(output: str, number: int, limit: int) -> str:
    """The last ``limit`` characters of what cell ``number`` printed."""
    _, found, rest = output.rpartition(f"{_MARK}{number}\n")
    text = rest if found else output
    return printable(text[-limit:]).strip()


def of_exception(error: BaseException, limit: int = 12) -> Failure:
    """Type, message, deepest frame in vllm, aiter or triton, and the last ``limit`` frames of an exception."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [f for f in frames if _IN_PACKAGE.search(f.filename)]
    deepest = (inside or frames)[-1:]
    return Failure(
        type=type(error).__name__,
        message=printable(str(error))[:4000],
        frame="".join(_frame(f.filename, f.lineno or 0, f.name) for f in deepest),
        traceback=tuple(_frame(f.filename, f.lineno or 0, f.name) for f in frames[-limit:]),
    )


def of_output(text: str) -> tuple[str, str, tuple[str, ...]]:
    """From a dead worker's output: its telling line, the deepest frame in vllm, aiter or triton, all frames.

    Frames are those that faulthandler printed for the current thread, deepest last.
    """
    fault = gpu_faults.classify(text)
    reason = fault.sentence if fault else ""
    reason = reason or next((m.group(0).strip()[:300] for pattern in _TELLING if (m := pattern.search(text))), "")
    # faulthandler lists every thread; the one that died, or was asked, is the current one.
    at = max(text.rfind("Current thread"), text.rfind("Stack (most recent call first)"))
    stack = text[at:].partition("\n\n")[0] if at >= 0 else ""
    frames = [(name, int(line), function) for name, line, function in _FAULTHANDLER_LINE.findall(stack)]
    inside = [f for f in frames if _IN_PACKAGE.search(f[0])]
    deepest = _frame(*inside[0]) if inside else ""
    return reason, deepest, tuple(_frame(*f) for f in reversed(frames[:12]))


def _frame(file: str, line: int, function: str) -> str:
    """``vllm/v1/x.py:12 in f``: from the package on, so that installations compare."""
    found = None
    for package in _PACKAGES:
        at = file.rfind(f"/{package}/")
        if at >= 0 and (found is None or at < found):
            found = at
    return printable(f"{file[found + 1 :] if found is not None else file}:{line} in {function}")
