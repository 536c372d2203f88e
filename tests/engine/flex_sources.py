"""The engine that gives a cell's reasons as the sources of the kernels that Inductor rendered for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from unittest import mock

import msgspec

from capmatrix.cell import Cell, Record
from capmatrix.engine import session
from capmatrix.engine.session import Emit


class Watching:
    """Runs a cell and collects what Inductor hands to Triton."""

    def __init__(self, whole: session.Session) -> None:
        self.whole = whole
        self.target = whole.target
        self.environment = whole.environment

    def run(self, cell: Cell, emit: Emit) -> Record:
        """One cell's record, with the sources in place of its reasons."""
        from torch._inductor.async_compile import AsyncCompile

        sources: list[str] = []
        load = AsyncCompile.triton

        def triton(self: Any, name: str, source: str, *more: Any, **options: Any) -> Any:
            sources.append(source)
            return load(self, name, source, *more, **options)

        with mock.patch.object(AsyncCompile, "triton", triton):
            record = self.whole.run(cell, emit)
        return msgspec.structs.replace(record, reasons=tuple(sources))


def open_session(target: str, switches: Mapping[str, str], options: Mapping[str, Any]) -> Watching:
    """As ``capmatrix.engine.session.open_session``."""
    return Watching(session.open_session(target, switches, options))
