"""Which matrix files a pytest command line asks for. Standard library only: it runs in every project.

A TOML file is a matrix where it was named on the command line, or lies under a directory called
``matrices``, and has an ``axes`` table, or ``pair`` tables. Everything else is left to whoever it belongs to.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

#: The directory name that says that TOML files below are capmatrix's.
DIRECTORY = "matrices"

#: Bytes of a file that are looked at to tell whether it is a matrix.
_PEEK = 1 << 20

_AXES_TABLE = re.compile(rb"^\s*(\[\s*axes\s*\]|axes\s*[.=])", re.MULTILINE)
_PAIR_TABLE = re.compile(rb"^\s*\[\s*pair\s*\.", re.MULTILINE)
_PAIR_KEY = re.compile(rb"^\s*target_model\s*=", re.MULTILINE)
_BACKEND_KEY = re.compile(rb"^\s*(axes\s*\.\s*)?[\"']?backend[\"']?\s*=|[{,]\s*backend\s*=", re.MULTILINE)
#: A derived table (``defaults.is_defaults``): both keys at its top level.
_POLICY_KEY = re.compile(rb"\A(?:(?!^\s*\[)[^\n]*\n)*?policy\s*=", re.MULTILINE)
_MARGIN_KEY = re.compile(rb"\A(?:(?!^\s*\[)[^\n]*\n)*?margin_percent\s*=", re.MULTILINE)


#: This plugin's options that take a value, which a parser that does not know them yet takes for a path.
_VALUED = (
    "--target",
    "--preset",
    "--force",
    "--run-file",
    "--aiter",
    "--triton-cache",
    "--limit-compile",
    "--limit-run",
    "--time",
    "--expectations",
    "--capmatrix-engine",
    "--guard-arch",
    "--guard-runner",
    "--guard-target-backend",
    "--guard-switch",
    "--guard-max-age",
    "--guard-tolerance",
)


def command_line(config: Any, words: Sequence[str]) -> list[str]:
    """The paths of a command line, before pytest itself has decided on them: arguments, ``testpaths`` or the directory.

    ``config`` is a ``pytest.Config`` whose known arguments are parsed; ``words`` all that it was called with.
    """
    given = list(config.known_args_namespace.file_or_dir or ())
    for option, value in pairwise(words):
        if option in _VALUED and value in given:
            given.remove(value)  # once: the same word may be a path as well
    if given:
        return given
    if config.invocation_params.dir == config.rootpath:
        found = [p for pattern in config.getini("testpaths") for p in sorted(glob.iglob(pattern, recursive=True))]
        if found:
            return found
    return [str(config.invocation_params.dir)]


def mentions_matrix(arguments: Iterable[str], directory: Path) -> bool:
    """Whether a command line asks for matrices: a ``.toml`` argument, there or mistyped, or a directory with one."""
    arguments = list(arguments)
    if any(a.partition("::")[0].endswith(".toml") for a in arguments):
        return True
    return next(_files(arguments, directory), None) is not None


def matrix_files(arguments: Iterable[str], directory: Path) -> list[Path]:
    """The matrix files that ``arguments`` (paths, node ids, directories) ask for, resolved, each once, in order.

    ``directory`` is what relative arguments are relative to.
    """
    return list(dict.fromkeys(_files(arguments, directory)))


def table_files(arguments: Iterable[str], directory: Path) -> list[Path]:
    """The derived tables that ``arguments`` name as such, resolved, each once, in order."""
    paths = (directory / argument.partition("::")[0] for argument in arguments)
    named = (path for path in paths if path.suffix == ".toml" and path.is_file())
    return list(dict.fromkeys(path.resolve() for path in named if _peek(path, _POLICY_KEY, _MARGIN_KEY)))


def _files(arguments: Iterable[str], directory: Path) -> Iterator[Path]:
    for argument in arguments:
        path = directory / argument.partition("::")[0]
        if path.is_file():
            if path.suffix == ".toml" and (_peek(path, _AXES_TABLE) or _peek(path, _PAIR_TABLE)):
                yield path.resolve()
        elif path.is_dir():
            path = path.resolve()
            root = path if DIRECTORY in path.parts else path / DIRECTORY
            for file in sorted(root.rglob("*.toml")):
                if _peek(file, _AXES_TABLE, _BACKEND_KEY) or _peek(file, _PAIR_TABLE, _PAIR_KEY):
                    yield file.resolve()


def _peek(path: Path, *patterns: re.Pattern[bytes]) -> bool:
    try:
        with path.open("rb") as stream:
            text = stream.read(_PEEK)
    except OSError:
        return False
    return all(p.search(text) for p in patterns)
