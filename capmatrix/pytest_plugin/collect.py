"""Matrix files as pytest collectors, cells as pytest items."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ..cell import Cell, Record
from ..errors import CapmatrixError, printable
from ..outcome import Kind
from . import jobs, timed
from .facts import Facts, facts_of
from .failure import describe, describe_pair
from .jobs import Job
from .shown import shown
from .timed import Timed

if TYPE_CHECKING:
    from .session import MatrixPlugin


class CellWarning(pytest.PytestWarning):
    """A cell that passes and still has something to say, such as ``nan_unsafe``."""


class CellFailed(Exception):
    """A cell contradicts what was expected of it: the whole report of it, and its reason in one line."""

    def __init__(self, text: str, summary: str) -> None:
        super().__init__(text)
        self.summary = summary


class TimesItem(pytest.Item):
    """Cells that are rivals, timed in turn once no other item waits or runs. ``facts`` is set once that is done."""

    def __init__(self, *, rivals: list[Cell], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rivals = rivals
        self.facts: Timed | None = None

    @property
    def plugin(self) -> MatrixPlugin:
        """The session this item belongs to."""
        assert isinstance(self.parent, MatrixFile)
        return self.parent.plugin

    def runtest(self) -> None:
        """Passes where a rival was timed; skipped, with the reason, where none was. What was refused is a warning."""
        self.facts = self.plugin.times_of(self.rivals)
        for line in self.facts["refused"]:
            self.warn(CellWarning(printable(line)))
        if not self.facts["times"]:
            reason = self.facts["idle"] or self.facts["refused"][0]
            raise pytest.skip.Exception(printable(reason), _use_item_location=True)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """What kept the rivals from being timed, not a traceback of the harness."""
        if isinstance(excinfo.value, CapmatrixError):
            return shown(f"the cells were not timed: {self.plugin.told_once(str(excinfo.value))}", self.path)
        return super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[os.PathLike[str] | str, int | None, str]:
        """Where pytest says that the item is: its file."""
        return self.path, 0, self.name


def times_of(items: Sequence[pytest.Item]) -> list[TimesItem]:
    """One item for each group of rivals among the cells that were selected, in the file of its first cell."""
    found = [(item.job, item.parent) for item in items if isinstance(item, CellItem) and isinstance(item.job, Cell)]
    files = dict(reversed(found))
    out = []
    for rivals in timed.groups(cell for cell, _ in found):
        parent = files[rivals[0]]
        assert parent is not None
        out.append(TimesItem.from_parent(parent, name=timed.name(rivals), rivals=rivals))
    return out


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
