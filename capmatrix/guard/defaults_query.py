"""Asks the installed vLLM what it selects: questions to worker servers, one an architecture and switch set.

A server imports vLLM once (about 7 s); then a question costs a fraction of a millisecond, and a few
milliseconds more for each configuration not seen before. Nothing here imports vLLM.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from .. import codec
from ..cell import Environment, Geometry
from ..engine import Unavailable
from ..errors import CapmatrixError
from ..workers import session
from ..workers.limits import Limits
from ..workers.protocol import Answers, Ask, ConnectionLost, Exit, Hello, send
from .questions import Answer, Question

ENGINE = "capmatrix.engine.default_query:open_session"

#: Questions in one message, and how long their answers may take, in seconds.
_BATCH = 1000
_ANSWER_S = 600.0
#: Servers started at the same time, and left running between calls; each takes about 1 GB.
_SERVERS = 4


#: Stands for every geometry where questions are sorted by the rest.
_ANY = Geometry(1, 1, 1)


class QueryError(CapmatrixError):
    """vLLM could not be asked: infrastructure, not an answer."""


class Selector:
    """The installed vLLM's choices. A context manager: its servers end with it.

    ``aiter``: a checkout's path, empty for the installed AITER, ``none`` for none. ``environments`` holds, by
    (architecture, switches), what answered.
    """

    def __init__(self, aiter: str = "", engine: str = ENGINE, limits: Limits | None = None) -> None:
        self._options = {"aiter": aiter}
        self._engine = engine
        self._limits = limits or Limits()
        self._folder = Path(tempfile.mkdtemp(prefix="capmatrix-ask-"))
        self.environments: dict[tuple[str, tuple[tuple[str, str], ...]], Environment] = {}

    def ask(self, questions: Iterable[Question]) -> dict[Question, Answer]:
        """An answer to every question; each is asked once.

        Raises QueryError where vLLM cannot be asked on this machine or failed to answer, ServerError where its
        server does not start.
        """
        groups: dict[tuple[str, tuple[tuple[str, str], ...]], list[Question]] = {}
        for question in dict.fromkeys(questions):
            groups.setdefault((question.arch, question.switches), []).append(question)
        session.owner_of(self._folder)
        cores = len(os.sched_getaffinity(0))
        at_once = max(1, min(len(groups), _SERVERS, cores))
        answers: dict[Question, Answer] = {}
        with ThreadPoolExecutor(at_once) as threads:
            workers = max(1, cores // at_once)
            for found in threads.map(lambda key: self._group(key, groups[key], workers, len(groups)), groups):
                answers.update(found)
        return {question: answers[question] for questions in groups.values() for question in questions}

    def versions(self) -> dict[str, str]:
        """``vllm`` and ``aiter`` of what answered (the same in all servers); empty before the first question."""
        for environment in self.environments.values():
            found = environment.versions
            return {name: found.get(name, "") for name in ("vllm", "aiter")}
        return {}

    def _group(
        self, key: tuple[str, tuple[tuple[str, str], ...]], questions: Sequence[Question], workers: int, groups: int
    ) -> dict[Question, Answer]:
        """The answers of one server, by up to ``workers`` of its workers."""
        arch, switches = key
        server = session.Server(
            self._folder, self._engine, f"offline:{arch}", dict(switches), self._options, self._limits
        )
        # Those that share a configuration go to one worker, one after the other.
        ordered = sorted(questions, key=_configuration)
        parts = [ordered[start : start + _BATCH] for start in range(0, len(ordered), _BATCH)]
        workers = min(workers, len(parts))
        answers: dict[Question, Answer] = {}
        with ThreadPoolExecutor(workers) as threads:
            for found in threads.map(lambda i: self._worker(server, key, parts[i::workers]), range(workers)):
                answers.update(found)
        if groups > _SERVERS:
            server.stop()
        return answers

    def _worker(
        self, server: session.Server, key: tuple[str, tuple[tuple[str, str], ...]], parts: Sequence[Sequence[Question]]
    ) -> dict[Question, Answer]:
        try:
            connection = server.connect(Hello(memory_bytes=self._limits.memory_bytes))
        except Unavailable as error:
            raise QueryError(f"vLLM cannot be asked here: {error} (see capmatrix doctor)") from None
        try:
            self.environments[key] = connection.environment
            answers: dict[Question, Answer] = {}
            for number, part in enumerate(parts):
                answers.update(zip(part, _exchange(connection, number, part), strict=True))
            return answers
        finally:
            connection.link.close()

    def close(self) -> None:
        """Ends the servers. Idempotent."""
        if self._folder.is_dir():
            session.stop(self._folder)
            shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Selector:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _configuration(question: Question) -> str:
    """Equal for questions whose server is configured the same."""
    kind = question.geometry.mla is None, question.geometry.causal
    return f"{kind} {msgspec.structs.replace(question, geometry=_ANY)}"


def _exchange(connection: session.Connection, number: int, questions: Sequence[Question]) -> list[Answer]:
    try:
        send(connection.link, Ask(number, msgspec.Raw(codec.encode(list(questions)))))
        message = connection.reader.read(time.monotonic() + _ANSWER_S)
    except TimeoutError:
        raise QueryError(f"vLLM did not answer {len(questions)} questions in {_ANSWER_S:g} s") from None
    except (ConnectionLost, OSError) as error:
        raise QueryError(f"the worker that asks vLLM is gone: {error}") from None
    if isinstance(message, Exit):
        raise QueryError(f"the worker that asks vLLM died: {message.output.strip()[-2000:]}")
    if not isinstance(message, Answers) or message.number != number:
        raise QueryError(f"unexpected {type(message).__name__.lower()} from the worker that asks vLLM")
    if message.error:
        raise QueryError(f"the worker that asks vLLM failed: {message.error}")
    found = codec.decode(bytes(message.answers), list[Answer])
    if len(found) != len(questions):
        raise QueryError(f"{len(questions)} questions, {len(found)} answers")
    return found
