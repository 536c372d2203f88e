"""The command line: every command is a few lines over the rooms.

Exit status: 0 as expected, 1 cells contradict what is expected of them (or nothing was learnt), 2 wrong use,
3 infrastructure, 130 interrupted. Imports what a command needs when it runs, and never torch or vllm.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from . import __version__
from .commands import bisect, compare, expect, guard, inputs, plot, recommend, repro, selection
from .errors import EXIT_INFRASTRUCTURE, EXIT_OK, EXIT_UNEXPECTED, EXIT_USAGE, CapmatrixError, InputError
from .paths import DEFAULT_MATRIX, matrix_path

if TYPE_CHECKING:
    from .store import Run

EXIT_INTERRUPTED = 130

#: The matrix of the main job, which a command without FILE takes.

#: pytest's exit statuses (ok, failed, interrupted, internal, usage, no tests) to this command's.
_FROM_PYTEST = {
    0: EXIT_OK,
    1: EXIT_UNEXPECTED,
    2: EXIT_INTERRUPTED,
    3: EXIT_INFRASTRUCTURE,
    4: EXIT_USAGE,
    5: EXIT_UNEXPECTED,
}

_EPILOG = """\
exit status: 0 as expected; 1 cells contradict what is expected of them, or no cell was judged;
2 wrong use; 3 infrastructure; 130 interrupted"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the process's exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    words, extra = _split(words)
    arguments = _parser().parse_args(words)
    command: Callable[[argparse.Namespace, list[str]], int] = arguments.command
    try:
        status = command(arguments, extra)
        sys.stdout.flush()
    except CapmatrixError as error:
        print(f"capmatrix: error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # Whoever read our output has had enough; keep Python from complaining about it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return status


def run(arguments: argparse.Namespace, extra: list[str]) -> int:
    """``capmatrix run``: pytest over one matrix file."""
    import pytest

    status = int(pytest.main(pytest_arguments(arguments, extra)))
    return _FROM_PYTEST.get(status, status)


def pytest_arguments(arguments: argparse.Namespace, extra: Sequence[str]) -> list[str]:
    """What ``run`` calls pytest with. ``extra`` are the words after ``--``. InputError for an unknown FILE."""
    file = matrix_path(arguments.file)
    words = [str(file), "--no-header", "-p", _plugin_name()]
    words += ["-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"]  # of course: this is it
    if not file.resolve().is_relative_to(Path.cwd()) or "site-packages" in file.parts:
        # A shipped matrix: no project around it has a say, and nothing is written beside it.
        words += ["--rootdir", str(file.parent), "-c", os.devnull, "-p", "no:cacheprovider"]
    if arguments.number != "0":
        words += _xdist(arguments.number)
    for target in arguments.target:
        words += ["--target", target]
    for option in ("preset", "run_file", "aiter", "triton_cache", "limit_compile", "limit_run", "time"):
        value = getattr(arguments, option)
        if value is not None:
            words += [f"--{option.replace('_', '-')}", value]
    if arguments.force is not None:
        words.append(f"--force={arguments.force}")
    for path in arguments.expectations:
        words += ["--expectations", path]
    for flag in ("resume", "rerun_unexpected"):
        if getattr(arguments, flag):
            words.append(f"--{flag.replace('_', '-')}")
    if arguments.keyword is not None:
        words += ["-k", arguments.keyword]
    return [*words, *extra]


def cells(arguments: argparse.Namespace, extra: list[str]) -> int:
    """``capmatrix cells``: the ids of a matrix file's cells, or how many there are."""
    from . import matrix, targets
    from .codec import cell_id
    from .pairs import pairfile

    for target in arguments.target:
        targets.parse(target)
    path = matrix_path(arguments.file)
    if pairfile.is_pair_file(path):
        return _pairs(path, arguments)
    loaded = matrix.load(path)
    how = {"preset": arguments.preset, "targets": arguments.target or targets.here(), "force": arguments.force}
    if arguments.count:
        print(matrix.count(loaded, **how))
    else:
        sys.stdout.writelines(f"{cell_id(cell)}\n" for cell in matrix.expand(loaded, **how))
    return EXIT_OK


def _pairs(path: Path, arguments: argparse.Namespace) -> int:
    """The ids of a pair file's pairs, or how many there are."""
    from . import targets
    from .pair import pair_id
    from .pairs import pairfile

    found = pairfile.expand(pairfile.load(path), arguments.preset, arguments.target or targets.here())
    if arguments.count:
        print(len(found))
    else:
        sys.stdout.writelines(f"{pair_id(pair)}\n" for pair in found)
    return EXIT_OK


def show(arguments: argparse.Namespace, extra: list[str]) -> int:
    """``capmatrix show``: the support table of runs, on the terminal."""
    from .report import terminal

    found = _read(arguments.runs)
    text = terminal.render(
        found.records,
        found.environments,
        found.header,
        width=terminal.use_width(sys.stdout),
        color=terminal.use_color(sys.stdout),
        unfinished=found.started,
        pairs=found.pairs,
    )
    sys.stdout.write(text)
    return EXIT_OK


def report(arguments: argparse.Namespace, extra: list[str]) -> int:
    """``capmatrix report``: the support table of runs as Markdown, HTML or JSON, or whether a file has it."""
    from .commands import written

    if selection.is_table(arguments.runs):
        return selection.report_table(arguments)
    output, in_section = arguments.output, False
    if arguments.format == "json":
        from .codec import printed

        text = printed(_read(arguments.runs)) + "\n"
    elif arguments.format == "html":
        from .report.page import render

        text = render.render([(inputs.stem(path), inputs.read(path)) for path in arguments.runs])
    else:
        from .report import dialect, markdown
        from .report.table import build

        found = _read(arguments.runs)
        built = build(found.records, found.environments, found.header, found.started, found.pairs)
        in_section = written.has_section(output)
        how = dialect.MKDOCS if arguments.format == "mkdocs" else dialect.GITHUB
        text = markdown.draw(built, how, titled=not in_section)
    return written.put(text, output, check=arguments.check, sections=in_section)


def explain(arguments: argparse.Namespace, extra: list[str]) -> int:
    """``capmatrix explain``: everything known of one cell."""
    from .report import terminal
    from .report.explain import explain as everything_of

    found = _read(arguments.runs)
    width = terminal.use_width(sys.stdout)
    what = (arguments.cell, found.records, found.environments, found.header)
    sys.stdout.write(everything_of(*what, width=width, pairs=found.pairs))
    return EXIT_OK


def doctor(arguments: argparse.Namespace, extra: list[str]) -> int:
    """``capmatrix doctor``: what this machine can run, and why not the rest."""
    from .report import doctor as room
    from .report import terminal
    from .workers import slots

    items = room.here(slots.count)
    sys.stdout.write(room.render(items, width=terminal.use_width(sys.stdout), color=terminal.use_color(sys.stdout)))
    return EXIT_OK


def bundle(arguments: argparse.Namespace, extra: list[str]) -> int:
    """``capmatrix bundle``: pack what a GPU machine without an installed vLLM and a network needs."""
    from . import bundle as room

    made = room.write(Path(arguments.output), Path(arguments.aiter) if arguments.aiter else None)
    versions = ", ".join(f"{name} {version}" for name, version in made.versions.items())
    print(f"{made.archive}: {made.files} files, {made.size / 1e6:.1f} MB ({versions})")
    print(f"beside it: unpack.sh, and wheels.txt with {len(room.WHEELS)} wheels that the machine needs too")
    return EXIT_OK


def _read(paths: Sequence[str]) -> Run:
    from .store import merge

    return merge([inputs.read(path) for path in paths])


def _plugin_name() -> str:
    """How pytest knows the plugin: by its entry point where the package is installed, else by its module."""
    from importlib.metadata import entry_points

    names = {point.name for point in entry_points(group="pytest11")}
    return "capmatrix" if "capmatrix" in names else "capmatrix.plugin"


def _xdist(number: str) -> list[str]:
    from importlib.util import find_spec

    if find_spec("xdist") is None:
        if number == "auto":
            return []
        raise InputError("running cells side by side needs pytest-xdist", key="-n", value=number)
    return ["-n", number]


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in words:
        return words, []
    at = words.index("--")
    return words[:at], words[at + 1 :]


def _number(text: str) -> str:
    if text != "auto" and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor auto")
    return text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="capmatrix",
        description="What vLLM's attention backends really do, cell by cell.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"capmatrix {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, command: Callable[[argparse.Namespace, list[str]], int], text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        made.set_defaults(command=command)
        return made

    one = add("run", run, "Run the cells of a matrix file; words after -- go to pytest.")
    _add_choice_of_cells(one)
    one.add_argument("-n", dest="number", type=_number, default="auto", metavar="N", help="workers (default: auto)")
    one.add_argument("-k", dest="keyword", metavar="EXPR", help='cells to run, such as "ROCM_ATTN and b128-"')
    one.add_argument("--run-file", metavar="PATH", help="append records to PATH (default: under runs/)")
    one.add_argument(
        "--expectations",
        action="append",
        default=[],
        metavar="PATH",
        help="a file or folder of expectations; repeatable; none: what backends declare "
        "(default: expectations/ beside the matrix file)",
    )
    one.add_argument(
        "--rerun-unexpected",
        action="store_true",
        help="repeat cells that are not as expected, alone, to tell a flake from a change",
    )
    one.add_argument("--resume", action="store_true", help="finish --run-file, or the newest run of the matrix")
    one.add_argument("--aiter", metavar="PATH", help="use this AITER checkout rather than the installed one")
    one.add_argument("--triton-cache", metavar="DIR", help="keep compiled kernels in DIR")
    one.add_argument("--limit-compile", metavar="SECONDS", help="for all compilation of a cell")
    one.add_argument("--limit-run", metavar="SECONDS", help="for all the rest of a cell")
    one.add_argument("--time", metavar="WORKLOAD", help="on a GPU: time passing cells under these profiles (a,b)")

    one = add("cells", cells, "List the cells of a matrix file.")
    _add_choice_of_cells(one)
    one.add_argument("--count", action="store_true", help="only say how many there are")

    one = add("show", show, "Show the support table of runs.")
    one.add_argument("runs", nargs="+", metavar="RUN", help="a run file; several are merged")

    one = add("report", report, "Write the support table of runs, or a published or derived table.")
    one.add_argument("runs", nargs="+", metavar="RUN", help="a run file; several are merged; or a table (.toml)")
    one.add_argument("--format", choices=("md", "mkdocs", "html", "json"), default="md", help="default: md")
    where = "where to write (default: standard output); in Markdown with table markers, only between them"
    one.add_argument("-o", dest="output", metavar="FILE", help=where)
    one.add_argument("--check", action="store_true", help="write nothing; exit 1 where FILE is not up to date")

    one = add("explain", explain, "Tell everything that is known of one cell.")
    one.add_argument("cell", metavar="CELL", help='its id, or tokens that only it has: "ROCM_ATTN b128 verify"')
    one.add_argument("runs", nargs="+", metavar="RUN", help="a run file; several are merged")

    one = add("bundle", bundle, "Pack what a GPU machine without an installed vLLM and a network needs to run cells.")
    one.add_argument("-o", dest="output", required=True, metavar="DIR", help="where to write the bundle")
    one.add_argument("--aiter", metavar="PATH", help="an AITER checkout to pack along")

    selection.add_to(add)
    compare.add_to(add)
    expect.add_to(add)
    guard.add_to(add)
    bisect.add_to(add)
    recommend.add_to(add)
    plot.add_to(add)
    repro.add_to(add)
    add("doctor", doctor, "Say what this machine can run, and why not the rest.")
    return parser


def _add_choice_of_cells(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", nargs="?", metavar="FILE", help=f"a matrix file, or a shipped one's name (default: {DEFAULT_MATRIX})"
    )
    parser.add_argument("--preset", metavar="NAME", help="a preset of the file")
    parser.add_argument("--target", action="append", default=[], metavar="TARGET", help="where cells run; repeatable")
    parser.add_argument(
        "--force",
        nargs="?",
        const="validation",
        choices=("validation", "kernel_block"),
        help="also cells that the backend rejects",
    )
