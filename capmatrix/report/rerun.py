"""The commands that run one cell again, and that tell everything of it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ..cell import Force, Record
from . import text


def pytest_command(record: Record, header: Mapping[str, Any]) -> str:
    """The pytest command that runs exactly this cell.

    ``header`` is the run file's; the matrix's folder is not in it, so that the shipped one is assumed.
    """
    path = matrix_path(header) or "MATRIX.toml"
    return _line(["pytest", f"{path}::{record.cell_id}", *_options(record, header)])


def matrix_path(header: Mapping[str, Any]) -> str:
    """The run's one matrix file as pytest is given it: in the shipped folder unless it says where; "" for none."""
    file = _file(header)
    return file if "/" in file or not file else f"matrices/{file}"


def commands(record: Record, header: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Title and command: the cell by pytest, by ``capmatrix run`` where a keyword can name it, and ``explain``."""
    out = [("pytest", pytest_command(record, header))]
    if "=" not in record.cell_id:  # pytest's -k has no sign for it
        words = ["capmatrix", "run", _file(header) or "MATRIX.toml", *_options(record, header), "-k", record.cell_id]
        out.append(("capmatrix", _line(words)))
    return [*out, ("explain", _line(["capmatrix", "explain", record.cell_id, "RUN"]))]


def files_of(header: Mapping[str, Any]) -> list[str]:
    """The matrix files that a run's header names; a header may hold anything."""
    named = header.get("files")
    return [name for name in named if isinstance(name, str)] if isinstance(named, list) else []


def _file(header: Mapping[str, Any]) -> str:
    files = files_of(header)
    return files[0] if len(files) == 1 else str(header.get("matrix") or "") if not files else ""


def _options(record: Record, header: Mapping[str, Any]) -> list[str]:
    out = ["--target", record.cell.target]
    if header.get("preset"):
        out += ["--preset", str(header["preset"])]
    if record.cell.force is not Force.NONE:
        out.append(f"--force={record.cell.force.value}")
    return out


def _line(words: Sequence[str]) -> str:
    return text.one_line(" ".join(shlex.quote(text.one_line(w, 1000)) for w in words), 3000)
