"""An exception as a record shows it: type, message, the deepest frame in vllm, aiter or triton."""

from __future__ import annotations

import traceback

from ..cell import Failure

_ROOMS = ("vllm", "aiter", "triton")
_LIMIT = 2000


def describe(error: BaseException) -> Failure:
    """The failure of ``error``; messages cut at 2,000 characters, frames relative to their package."""
    frames = traceback.extract_tb(error.__traceback__)
    shown = [f"{_relative(f.filename)}:{f.lineno} {f.name}" for f in frames]
    ours = [text for text in shown if text.split("/", 1)[0] in _ROOMS]
    message = str(error)
    return Failure(
        type=type(error).__name__,
        message=message if len(message) <= _LIMIT else message[:_LIMIT] + "...",
        frame=ours[-1] if ours else (shown[-1] if shown else ""),
        traceback=tuple(shown[-12:]),
    )


def in_the_stack(error: BaseException) -> bool:
    """Whether the exception came out of vLLM, AITER, Triton or torch, not out of capmatrix's own code.

    Frames below capmatrix's last one decide, so that a check of ours that raises inside vLLM is still ours.
    """
    frames = [_relative(f.filename).split("/", 1)[0] for f in traceback.extract_tb(error.__traceback__)]
    below = frames[len(frames) - frames[::-1].index("capmatrix") :] if "capmatrix" in frames else frames
    return any(room in (*_ROOMS, "torch") for room in below)


def raised_in(error: BaseException) -> str:
    """The file that raised ``error``, relative to its package; empty without a traceback.

    Of a validation error of pydantic's, which hides it, the check that failed, or who asked for a validation.
    """
    for inside in _validation_errors(error):
        found = raised_in(inside)
        if found:
            return found
    files = [_relative(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]
    return next((name for name in reversed(files) if not name.startswith("pydantic")), "")


def _validation_errors(error: BaseException) -> list[BaseException]:
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return []
    told = [one.get("ctx", {}).get("error") for one in error.errors()]
    return [one for one in told if isinstance(one, BaseException)]


def first_line(error: BaseException) -> str:
    """``Type: first line of the message``, for a table."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


def _relative(filename: str) -> str:
    for marker in ("site-packages/", "dist-packages/"):
        if marker in filename:
            return filename.split(marker, 1)[1]
    for room in (*_ROOMS, "capmatrix"):
        if f"/{room}/" in filename:
            return room + "/" + filename.rsplit(f"/{room}/", 1)[1]
    return filename.rsplit("/", 1)[-1]
