"""Matrix files as pytest collectors, cells as pytest items."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ..cell import Record
from ..errors import CapmatrixError
from ..outcome import Kind
from . import jobs
from .facts import Facts, facts_of
from .failure import describe, describe_pair
from .jobs import Job
from .shown import shown

if TYPE_CHECKING:
    from .session import MatrixPlugin


class CellWarning(pytest.PytestWarning):
    """A cell that passes and still has something to say, such as ``nan_unsafe``."""


class CellFailed(Exception):
    """A cell contradicts what was expected of it: the whole report of it, and its reason in one line."""

    def __init__(self, text: str, summary: str) -> None:
        super().__init__(text)
        self.summary = summary


class MatrixFile(pytest.File):
    """One matrix file; its children are its cells, in the order of ``expand``."""

    plugin: MatrixPlugin

    def collect(self) -> Iterator[CellItem]:
        """One item a cell or pair; the file was validated when the session started."""
        for job in self.plugin.cells_of(self.path):
            yield CellItem.from_parent(self, name=jobs.name(job), job=job)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Mistakes in a matrix file are shown as one message."""
        if isinstance(excinfo.value, CapmatrixError):
            return str(excinfo.value)
        return super().repr_failure(excinfo)


class CellItem(pytest.Item):
    """One cell or pair. ``facts`` is set once it has a record."""

    def __init__(self, *, job: Job, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.facts: Facts | None = None

    @property
    def plugin(self) -> MatrixPlugin:
        """The session this item belongs to."""
        parent = self.parent
        assert isinstance(parent, MatrixFile)
        return parent.plugin

    def runtest(self) -> None:
        """Run the cell in an isolated worker and turn its record into pytest's words."""
        record, resumed, expectation = self.plugin.record_of(self.job)
        result = jobs.outcome(record, expectation)
        self.facts = facts_of(record, result, resumed)
        self.user_properties += [("verdict", record.verdict.value), ("rung", record.rung.value)]
        if result.warning:
            self.warn(CellWarning(result.warning))  # without its name, so that pytest can group them
        if result.kind is Kind.SKIPPED:
            raise pytest.skip.Exception(result.text, _use_item_location=True)
        if result.kind is Kind.XFAILED:
            raise pytest.xfail.Exception(result.text)
        if result.kind is Kind.FAILED:
            run_path = self._relative(self.plugin.run_path)
            if isinstance(record, Record):
                raise CellFailed(describe(record, result, self._rerun(), run_path), result.text)
            raise CellFailed(describe_pair(record, result, self._rerun(), run_path), result.text)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The cell's own report, not a traceback of the harness."""
        if isinstance(excinfo.value, CellFailed):
            return shown(str(excinfo.value), self.path, excinfo.value.summary)
        if isinstance(excinfo.value, CapmatrixError):
            return shown(f"the cell was not run: {self.plugin.told_once(str(excinfo.value))}", self.path)
        return super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[os.PathLike[str] | str, int | None, str]:
        """Where pytest says that the item is: its file."""
        return self.path, 0, self.name

    def _rerun(self) -> list[str]:
        options = self.plugin.plan.words()
        return ["pytest", f"{self._relative(self.path)}::{self.name}", *options, "--target", self.job.target]

    def _relative(self, path: Path) -> str:
        here = self.config.invocation_params.dir
        return str(path.relative_to(here) if path.is_relative_to(here) else path)
