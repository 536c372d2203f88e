"""vLLM's own default against the default-selection table. Pure: answers in, findings out.

A row is contradicted where vLLM's default is a backend that failed, is slower than the best by more than the
tolerance, or where nothing is selected at all. An explicit choice must win, or be refused with reasons.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from ..cell import Role
from ..drafters import Family
from ..errors import InputError
from ..selection.defaults import Defaults, Other, Row
from ..selection.published import UNKNOWN
from ..vocabulary import ROCM_BACKENDS
from .family_question import Server, question
from .questions import Answer, Question

#: ``Other.why`` of a backend that cannot serve the row, and of one whose evidence says nothing either way.
FAILING = ("failed", "rejected", "barred")
UNTOLD = ("unverified", "unavailable", "incomplete", "not run")


class Status(str, Enum):
    """What the guard says of a row or an explicit choice."""

    AGREES = "agrees"
    TOLERATED = "tolerated"
    FAILING = "failing"
    SLOW = "slow"
    NOTHING = "nothing"
    UNJUDGED = "unjudged"
    IGNORED = "ignored"


#: Those that a CI job fails for.
BAD = (Status.FAILING, Status.SLOW, Status.NOTHING, Status.IGNORED)


class Asked(NamedTuple):
    """A row, the architecture it is asked for, and the question. ``skipped`` says why it is not asked."""

    row: Row
    arch: str
    question: Question | None
    skipped: str = ""


class Finding(NamedTuple):
    """What is said of one row: a status, one sentence, whose layer it is, and the answer it rests on.

    ``stale`` is why the row's evidence is out of date, empty where it is not.
    """

    status: Status
    sentence: str
    row: Row
    arch: str
    question: Question | None = None
    answer: Answer | None = None
    stale: str = ""

    @property
    def bad(self) -> bool:
        """Whether it contradicts the table."""
        return self.status in BAD


class Choice(NamedTuple):
    """An explicit choice: what was asked, for which option, and how it ended; ``reasons`` of a refusal."""

    status: Status
    backend: str
    option: str
    question: Question
    sentence: str
    reasons: str = ""


def questions(
    table: Defaults, families: Mapping[str, Family], server: Server, archs: Sequence[str] = ()
) -> list[Asked]:
    """What to ask for every row of the table, in its order.

    ``archs``: only these; rows of an unknown GPU are asked for each of them, and else skipped. A row's drafter
    that is no known family is skipped. Raises InputError for what ``server`` does not fit, and where
    ``archs`` names an architecture of no row while none is of an unknown GPU.
    """
    covered = {row.architecture for row in table.row}
    for arch in archs:
        if arch not in covered and UNKNOWN not in covered:
            raise InputError("no row of the table is of this architecture", key="--arch", value=arch, allowed=covered)
    asked = []
    for row in table.row:
        wanted = [row.architecture] if row.architecture != UNKNOWN else list(archs)
        if not wanted:
            asked.append(Asked(row, UNKNOWN, None, "its GPU is not stated: name one with --arch"))
            continue
        for arch in wanted:
            if archs and arch not in archs:
                continue
            asked.append(_asked(row, arch, families, server))
    return asked


def _asked(row: Row, arch: str, families: Mapping[str, Family], server: Server) -> Asked:
    family = families.get(row.drafter)
    if family is None:
        return Asked(row, arch, None, f"{row.drafter} is no known drafter family")
    return Asked(row, arch, question(family, arch, row.block_size, row.kv_cache_dtype, row.dtype, server))


def judge(asked: Asked, answer: Answer | None, tolerance_percent: float) -> Finding:
    """What is said of one row."""
    row = asked.row
    if asked.question is None or answer is None:
        return Finding(Status.UNJUDGED, f"not asked for {what(row)}: {asked.skipped}", row, asked.arch, stale=row.stale)
    status, sentence = _judged(row, answer, tolerance_percent)
    return Finding(status, sentence, row, asked.arch, asked.question, answer, row.stale)


def _judged(row: Row, answer: Answer, tolerance: float) -> tuple[Status, str]:
    default = answer.backend
    subject = f"{_SOURCE[answer.source]} {default}"
    if not default:
        where = {"configure": "the configuration is refused", "load": "the drafter cannot be loaded"}
        why = f"{where.get(answer.stage, 'no backend is selected')}: {answer.error}"
        if not row.backend:
            return Status.AGREES, f"nothing is selected for {what(row)}, and nothing works there"
        return Status.NOTHING, f"default resolves to nothing for {what(row)}, where {row.backend} works ({why})"
    if default == row.backend:
        if answer.source == "inherited":
            return Status.AGREES, f"the drafter inherits {default} from the target for {what(row)}, as the table has it"
        return Status.AGREES, f"{subject} for {what(row)}, as the table has it"
    other = next((o for o in row.other if o.backend == default), None)
    if other is None:
        return Status.UNJUDGED, f"{subject} for {what(row)}, of which the table knows nothing"
    if other.why in FAILING:
        instead = f"; {row.backend} works" if row.backend else ""
        return Status.FAILING, f"{subject} is a failing cell for {what(row)}: {_detail(other)}{instead}"
    if other.why in UNTOLD:
        return Status.UNJUDGED, f"{subject} for {what(row)}, which the table cannot tell: {_detail(other)}"
    if other.times_best is None:
        return Status.TOLERATED, f"{subject} for {what(row)} works; how fast, is not measured"
    best = row.fastest or row.backend
    slower = f"{_times(other.times_best)} slower than {best} for {what(row)}"
    if other.times_best > 1 + tolerance / 100:
        return Status.SLOW, f"{subject} is {slower}"
    if other.times_best <= 1:
        return Status.AGREES, f"{subject} is the fastest for {what(row)}; the table has {row.backend}: {row.reason}"
    return Status.TOLERATED, f"{subject} is {slower}, within {tolerance:g} %"


_SOURCE = {"priority": "default", "inherited": "inherited", "explicit": "chosen"}


def what(row: Row) -> str:
    """The row's key in words: ``minimax-m3-eagle3 at block 128, fp8``."""
    return f"{row.drafter} at block {row.block_size}, {row.kv_cache_dtype}"


def _detail(other: Other) -> str:
    return f"{other.why} ({other.detail})" if other.detail else other.why


def _times(ratio: float) -> str:
    """``3.47x``; below 1.1 in percent, which reads better."""
    return f"{ratio:.2f}x" if ratio >= 1.1 else f"{(ratio - 1) * 100:.1f} %"


def choice_questions(asked: Iterable[Asked]) -> list[tuple[str, str, Question]]:
    """What to ask of explicit choices: (backend, option, question) for every ROCm backend.

    One layer an (architecture, switches, method, kind of attention) stands for all: the option that its user
    would give is ``--attention-backend`` for a target's layer, ``speculative_config.attention_backend`` else.
    """
    from msgspec.structs import replace

    seen: dict[tuple[object, ...], Question] = {}
    for one in asked:
        q = one.question
        if q is not None:
            seen.setdefault((q.arch, q.switches, q.method, q.role, q.geometry.mla is None), q)
    found = []
    for q in seen.values():
        drafter = q.role is Role.DRAFTER and q.method not in ("none", "ngram")
        option = "speculative_config.attention_backend" if drafter else "--attention-backend"
        field = "drafter_backend" if drafter else "target_backend"
        found += [(backend, option, replace(q, **{field: backend})) for backend in ROCM_BACKENDS]
    return found


def judge_choice(backend: str, option: str, question: Question, answer: Answer) -> Choice:
    """Whether the choice won, was refused with reasons, or had no effect."""
    whose = f"{option} {backend} ({question.arch}, {question.method}, runner {answer.runner or question.runner})"
    if answer.ignored:
        got = f"the layer gets {answer.backend} ({answer.source})"
        return Choice(Status.IGNORED, backend, option, question, f"{whose} has no effect: {got}")
    if answer.backend:
        return Choice(Status.AGREES, backend, option, question, f"{whose} wins")
    if not answer.error:
        return Choice(Status.IGNORED, backend, option, question, f"{whose} is refused without a reason")
    return Choice(Status.AGREES, backend, option, question, f"{whose} is refused", answer.error)


def failed(findings: Iterable[Finding], choices: Iterable[Choice], *, ignore_stale: bool = False) -> bool:
    """Whether a CI job fails. ``ignore_stale``: contradictions by stale rows are told, and fail nothing."""
    rows = any(f.bad and not (ignore_stale and f.stale) for f in findings)
    return rows or any(c.status in BAD for c in choices)
