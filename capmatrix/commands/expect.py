"""``capmatrix expect``: committed expectations written and updated from runs."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import EXIT_OK, EXIT_UNEXPECTED, InputError
from ..paths import matrix_path
from . import inputs

if TYPE_CHECKING:
    from ..expect.observe import Observation

Add = Callable[[str, Callable[[argparse.Namespace, list[str]], int], str], argparse.ArgumentParser]


def add_to(add: Add) -> None:
    """Adds the command's parser; ``add`` is the command line's own."""
    one = add("expect", expect, "Write what runs show that backends do not declare as expectations.")
    one.add_argument("runs", nargs="+", metavar="RUN", help="a run file; several may be of different versions")
    one.add_argument(
        "-o",
        dest="output",
        metavar="FILE",
        help="the file to write or update (default: expectations/<matrix>.toml beside the run's matrix file; "
        "-: standard output)",
    )
    one.add_argument("--check", action="store_true", help="write nothing; exit 1 where something would change")
    one.add_argument("--link", default="", metavar="LINK", help="where new entries are reported (default: unreported)")
    one.add_argument("--reason", default="", metavar="TEXT", help="why (default: what the first cell's record says)")
    one.add_argument(
        "--properties",
        metavar="NAMES",
        help="of a new file: what may become a condition, comma-separated: target, arch, vllm, aiter, triton, rocm",
    )


def expect(arguments: argparse.Namespace, extra: list[str]) -> int:
    """``capmatrix expect RUN...``: update a file of expectations, or check that it is up to date."""
    from ..expect import expectation_file
    from ..expect.expectations import CELLS, PAIRS
    from ..expect.observe import observe
    from ..expect.update import merged, update
    from ..toml import tomlfile, tomlwrite

    link = arguments.link or expectation_file.UNREPORTED
    _check_texts(link, arguments.reason)
    runs = [inputs.read(name) for name in arguments.runs]
    to_standard_output = arguments.output == "-"
    path = _default(runs[0].header) if arguments.output in (None, "-") else Path(arguments.output)
    head, file = _existing(path, arguments.properties)
    folder = [path.parent] if path.parent.name == expectation_file.DIRECTORY and path.parent.is_dir() else []
    others = [
        entry
        for other in expectation_file.load_files(folder)
        if Path(other.path).resolve() != path.resolve()
        for entry in other.entries
    ]

    def parse(data: Mapping[str, Any]) -> expectation_file.File:
        return expectation_file.from_toml(tomlfile.parse(tomlwrite.dumps(data).encode(), path))

    observations = observe(([*run.records, *run.pairs], run.environments) for run in runs)
    made = None
    for kind in (CELLS, PAIRS):
        own = [one for one in observations if one.kind == kind]
        if own or made is None:
            before = file if made is None else parse(made.data)
            then = update(before, others, own, parse, link=link, reason=arguments.reason)
            made = then if made is None else merged(made, then)
    assert made is not None
    text = head + tomlwrite.dumps(made.data)
    for word, lines in (("+", made.added), ("~", made.changed), ("-", made.removed), ("!", made.conflicts)):
        for line in lines:
            print(f"{word} {line}", file=sys.stderr)
    counts = f"{len(made.added)} added, {len(made.changed)} changed, {len(made.removed)} removed"
    counts += f" for {_of(observations)}"
    if arguments.check:
        state = "not up to date" if made.changes else "up to date"
        print(f"{path}: {state}: {counts}", file=sys.stderr)
        return EXIT_UNEXPECTED if made.changes else EXIT_OK
    if to_standard_output:
        sys.stdout.write(text)
    elif made.changes or not path.exists():
        _write(path, text)
    print(f"{path}: {counts}", file=sys.stderr)
    return EXIT_UNEXPECTED if made.conflicts else EXIT_OK


def _of(observations: Sequence[Observation]) -> str:
    """``12 cells``, ``3 pairs``, or both."""
    counts = Counter(one.kind for one in observations)
    return " and ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "0 cells"


def _check_texts(link: str, reason: str) -> None:
    import re

    from ..expect.expectation_file import LINK_FORMS, LINK_PATTERN
    from ..toml.tomlcheck import MAX_TEXT

    if not re.fullmatch(LINK_PATTERN, link):
        raise InputError("not a link", key="--link", value=link, allowed=LINK_FORMS)
    if len(reason) > MAX_TEXT:
        raise InputError(f"longer than {MAX_TEXT} characters", key="--reason")


def _default(header: Mapping[str, Any]) -> Path:
    from ..expect.expectation_file import DIRECTORY

    files = header.get("files")
    name = files[0] if isinstance(files, list) and files and isinstance(files[0], str) else ""
    # A run may be somebody else's: what it names is only looked for below this folder, or among the shipped ones.
    if not name.endswith(".toml") or Path(name).is_absolute() or ".." in Path(name).parts:
        raise InputError("the run does not say which matrix file it is of; name the file to write", key="-o")
    matrix = matrix_path(name)
    return matrix.parent / DIRECTORY / f"{matrix.stem}.toml"


def _existing(path: Path, properties: str | None) -> tuple[str, Any]:
    """The comments a file begins with, and the file; a new one for a path that is not there."""
    from ..expect import expectation_file
    from ..expect.expectations import PROPERTIES
    from ..toml import tomlfile

    if path.exists():
        if properties is not None:
            raise InputError("the file is there already and states its own", file=path, key="--properties")
        file = expectation_file.from_toml(tomlfile.load(path))
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        count = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
        return "".join(lines[:count]), file
    names = PROPERTIES if properties is None else tuple(filter(None, properties.split(",")))
    for name in names:
        if name not in PROPERTIES:
            raise InputError("unknown property", key="--properties", value=name, allowed=PROPERTIES)
    head = "#:schema ../schema/expectations.schema.json\n"
    return head, expectation_file.File(path=str(path), properties=names)


def _write(path: Path, text: str) -> None:
    """Write the whole file or nothing of it."""
    import os

    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise InputError(f"cannot write: {error.strerror or error}", key="-o", value=str(path)) from None
