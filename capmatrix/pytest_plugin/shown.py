"""A report of our own as pytest's representation of a failure."""

from __future__ import annotations

import os

from _pytest._code.code import ReprEntryNative, ReprExceptionInfo, ReprFileLocation, ReprTraceback

from ..errors import printable
from ..outcome import one_line


def shown(text: str, path: str | os.PathLike[str], summary: str = "") -> ReprExceptionInfo:
    """``text`` under FAILURES, and one line (``summary``, else the first of ``text``) in the short summary.

    A plain string would do for the former, but where CI is set pytest repeats the whole of it in the latter. JUnit XML
    takes its ``message`` from the line, too.
    """
    line = printable(one_line(summary or text.partition("\n")[0]))
    entry = ReprEntryNative([text if text.endswith("\n") else text + "\n"])
    where = ReprFileLocation(str(path), 0, line)
    return ReprExceptionInfo(ReprTraceback([entry], None, "native"), where)
