"""An engine without vLLM that answers questions: the V1 runner never inherits a backend, V2 does.

The first backend that ASKED_ENGINE names is the default (ROCM_ATTN); one that stands after ``ignores`` has no
effect when named, and one after ``dies`` ends the process; the architecture after ``lacks`` is not to be had.
ASKED_LOG gets a line each opening and each list of questions.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import msgspec

from capmatrix.cell import Environment
from capmatrix.engine import Unavailable
from capmatrix.guard.questions import Answer, Question, Tried


def open_session(target: str, switches: Mapping[str, str], options: Mapping[str, Any]) -> AskedSession:
    """Raises Unavailable for the architecture after ``lacks``."""
    _log(f"open {target} {dict(switches)} {options.get('aiter')}")
    if os.environ.get("ASKED_ENGINE", "").endswith(f"lacks {target.removeprefix('offline:')}"):
        raise Unavailable("no such architecture here")
    return AskedSession(Environment("fake", target, {"vllm": "0.32.0", "aiter": ""}))


def _log(text: str) -> None:
    path = os.environ.get("ASKED_LOG")
    if path:
        with open(path, "a") as file:
            file.write(text + "\n")


class AskedSession:
    """Answers as data."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        said = os.environ.get("ASKED_ENGINE", "").split()
        self.default = said[0] if said else "ROCM_ATTN"
        self.said = dict(zip(said[1::2], said[2::2], strict=False))

    def ask(self, questions: Any) -> Any:
        """One answer a question."""
        _log(f"ask {len(questions)}")
        return [msgspec.to_builtins(self._answer(q)) for q in msgspec.convert(questions, list[Question])]

    def _answer(self, question: Question) -> Answer:
        runner = question.runner or "v2"
        named = question.drafter_backend if question.method != "none" else question.target_backend
        if self.said.get("dies") == named:
            print("the end is near", flush=True)
            os.abort()
        if self.said.get("raises") == named:
            raise ValueError("not a question")
        if self.said.get("refuses") == named:
            return Answer("", "explicit", (), named, runner, "v2", stage="select", error="head_size not supported")
        tried = (Tried("ROCM_ATTN"), Tried("TRITON_ATTN"))
        if named and self.said.get("ignores") != named:
            return Answer(named, "explicit", tried, named, runner, "v2")
        inherits = question.method != "none" and runner == "v2" and question.target_backend
        if inherits:
            backend = question.target_backend
            return Answer(backend, "inherited", tried, backend, runner, "v2", ignored=named)
        return Answer(self.default, "priority", tried, "", runner, "v2", ignored=named)
