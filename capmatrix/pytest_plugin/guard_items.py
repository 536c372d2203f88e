"""A derived table as pytest items: a row or an explicit choice each, judged against the installed vLLM.

``pytest defaults.toml`` collects the table; vLLM is asked once, for all items together, by whoever runs one first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from .. import drafters
from ..errors import CapmatrixError
from ..guard import ages
from ..guard import judge as guard
from ..guard.defaults_query import ENGINE, Selector
from ..guard.family_question import Server, switch_pairs
from ..guard.questions import Answer, Question
from ..guard.tolerance import TOLERANCE, percent
from ..report import guard as report
from ..selection import defaults
from .options import DEFAULT_ENGINE
from .shown import shown


class GuardWarning(pytest.PytestWarning):
    """A row that rests on evidence out of date."""


class Contradiction(Exception):
    """vLLM's default contradicts a row, or a choice has no effect; the text is the whole report of it."""


def add_options(parser: pytest.Parser) -> None:
    """Register the guard's options; ``--aiter`` is shared with matrices."""
    add = parser.getgroup("capmatrix-guard", "vLLM's defaults against a derived table (capmatrix)").addoption
    add("--guard-arch", action="append", default=[], metavar="ARCH", help="only this architecture; repeatable")
    add("--guard-runner", choices=("v1", "v2"), default="", help="model runner (default: the one vLLM takes)")
    add("--guard-target-backend", default="", metavar="NAME", help="--attention-backend of the server (default: unset)")
    add("--guard-switch", action="append", default=[], metavar="NAME=VALUE", help="environment switch; repeatable")
    add("--guard-max-age", default="", metavar="AGE", help="rows whose evidence is older, such as 90d, are stale")
    add(
        "--guard-tolerance", default=TOLERANCE, type=percent, metavar="PERCENT",
        help=f"how much slower than the best a default may be (default: {TOLERANCE:g})",
    )  # fmt: skip


class Plan(NamedTuple):
    """What is asked of one table: its rows and the explicit choices."""

    asked: list[guard.Asked]
    choices: list[tuple[str, str, Question]]


class GuardPlugin:
    """Collects the tables named on the command line, and asks vLLM for all of them at once."""

    def __init__(self, config: pytest.Config, files: list[Path]) -> None:
        self._config = config
        self._plans: dict[Path, Plan] = {}
        self._answers: dict[Question, Answer] | None = None
        self._versions: dict[str, str] = {}
        families = drafters.load(drafters.DEFAULT_DIR)
        option = config.option
        server = Server(
            runner=option.guard_runner,
            target_backend=option.guard_target_backend,
            switches=switch_pairs(option.guard_switch),
        )
        for file in files:
            asked = guard.questions(defaults.load(file), families, server, option.guard_arch)
            self._plans[file] = Plan(asked, guard.choice_questions(asked))

    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> TableFile | None:
        """The tables that were asked for, and nothing else."""
        path = file_path.resolve()
        if path not in self._plans:
            return None
        collected: TableFile = TableFile.from_parent(parent, path=path)
        collected.plan = self._plans[path]
        collected.plugin = self
        return collected

    def answer(self, question: Question) -> Answer:
        """The answer to one question. Raises CapmatrixError where vLLM cannot be asked."""
        if self._answers is None:
            option = self._config.option
            engine = ENGINE if option.capmatrix_engine == DEFAULT_ENGINE else option.capmatrix_engine
            wanted = [a.question for p in self._plans.values() for a in p.asked if a.question is not None]
            wanted += [choice[2] for p in self._plans.values() for choice in p.choices]
            with Selector(option.capmatrix_aiter, engine) as selector:
                self._answers = selector.ask(wanted)
                self._versions = selector.versions()
        return self._answers[question]

    def judge(self, asked: guard.Asked) -> guard.Finding:
        """The finding of one row, aged against the vLLM that answered."""
        option = self._config.option
        answer = self.answer(asked.question) if asked.question is not None else None
        days = ages.parse_age(option.guard_max_age) if option.guard_max_age else None
        today = datetime.now(timezone.utc).date()
        why = ages.stale(asked.row, max_age_days=days, today=today, vllm=self._versions.get("vllm", ""))
        return guard.judge(asked, answer, option.guard_tolerance)._replace(stale=why)


class TableFile(pytest.File):
    """One derived table."""

    plan: Plan
    plugin: GuardPlugin

    def collect(self) -> Iterator[pytest.Item]:
        """One item a row, then one an explicit choice."""
        for asked in self.plan.asked:
            row = asked.row
            name = f"{asked.arch}-{row.drafter}-{row.role}-b{row.block_size}-{row.kv_cache_dtype}-{row.dtype}"
            yield RowItem.from_parent(self, name=name, asked=asked)
        for choice in self.plan.choices:
            q = choice[2]
            kind = "latent" if q.geometry.mla is not None else "dense"
            yield ChoiceItem.from_parent(self, name=f"choice-{q.arch}-{q.method}-{kind}-{choice[0]}", choice=choice)


class _Item(pytest.Item):
    @property
    def plugin(self) -> GuardPlugin:
        """The session this item belongs to."""
        assert isinstance(self.parent, TableFile)
        return self.parent.plugin

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The guard's own report, not a traceback of the harness."""
        if isinstance(excinfo.value, (Contradiction, CapmatrixError)):
            return shown(str(excinfo.value), self.path)
        return super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[os.PathLike[str] | str, int | None, str]:
        """Where pytest says that the item is: its file."""
        return self.path, 0, self.name


class RowItem(_Item):
    """One row, for one architecture."""

    def __init__(self, *, asked: guard.Asked, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.asked = asked

    def runtest(self) -> None:
        """Fails where vLLM's default contradicts the row; skipped where that cannot be told."""
        found = self.plugin.judge(self.asked)
        self.user_properties.append(("guard", found.status.value))
        if found.stale:
            self.warn(GuardWarning(f"stale row: {found.stale}"))
        if found.status is guard.Status.UNJUDGED:
            raise pytest.skip.Exception(found.sentence, _use_item_location=True)
        if found.bad:
            raise Contradiction("\n".join([report.finding(found), *report.details(found)]))


class ChoiceItem(_Item):
    """One explicit choice."""

    def __init__(self, *, choice: tuple[str, str, Question], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.choice = choice

    def runtest(self) -> None:
        """Fails where the choice has no effect; a refusal with reasons passes."""
        found = guard.judge_choice(*self.choice, self.plugin.answer(self.choice[2]))
        if found.status in guard.BAD:
            raise Contradiction(found.sentence)


def plugin_for(config: pytest.Config, files: list[Path]) -> GuardPlugin:
    """The plugin, or pytest's own usage error for a mistake in a table or an option."""
    try:
        return GuardPlugin(config, files)
    except CapmatrixError as error:
        raise pytest.UsageError(str(error)) from None
