"""The options of a matrix run on pytest's command line, and what they amount to."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import pytest

#: What a worker server runs; tests name another.
DEFAULT_ENGINE = "capmatrix.engine.session:open_session"

FORCES = ("validation", "kernel_block")


class Options(NamedTuple):
    """A matrix run's options. ``targets`` empty: those of this machine; limits in seconds, None: the pool's own.

    ``expectations`` as given, empty for those beside the matrix files.
    """

    targets: tuple[str, ...]
    preset: str | None
    force: str | None
    run_file: Path | None
    resume: bool
    aiter: str
    triton_cache: str
    limit_compile: float | None
    limit_run: float | None
    engine: str
    expectations: tuple[str, ...] = ()
    rerun_unexpected: bool = False
    time: str = ""


def add_options(parser: pytest.Parser) -> None:
    """Register the options under a group of their own."""
    group = parser.getgroup("capmatrix", "attention matrices (capmatrix)")
    add = group.addoption
    add(
        "--target",
        dest="capmatrix_targets",
        action="append",
        default=[],
        metavar="TARGET",
        help="where cells run: device, offline:<arch>, interpreter:<arch>; repeatable (default: what is here)",
    )
    add("--preset", dest="capmatrix_preset", default=None, metavar="NAME", help="run one preset of the matrix file")
    add(
        "--force",
        dest="capmatrix_force",
        nargs="?",
        const=FORCES[0],
        default=None,
        choices=FORCES,
        help="also run cells that the backend rejects, past its validation or with a kernel block of its own",
    )
    add(
        "--run-file",
        dest="capmatrix_run_file",
        default=None,
        metavar="PATH",
        help="append records to PATH (default: runs/<UTC time>-<matrix>.jsonl)",
    )
    add(
        "--resume",
        dest="capmatrix_resume",
        action="store_true",
        default=False,
        help="finish a run: do the cells it has no record of, in --run-file or else in the newest run of the matrix",
    )
    add(
        "--aiter",
        dest="capmatrix_aiter",
        default="",
        metavar="PATH",
        help="use this AITER checkout rather than the installed one (also: CAPMATRIX_AITER)",
    )
    add(
        "--triton-cache",
        dest="capmatrix_triton_cache",
        default="",
        metavar="DIR",
        help="keep compiled kernels in DIR (default: Triton's own cache)",
    )
    add(
        "--limit-compile",
        dest="capmatrix_limit_compile",
        type=_seconds,
        default=None,
        metavar="SECONDS",
        help="kill a cell that compiles one kernel for longer: verdict timeout",
    )
    add(
        "--limit-run",
        dest="capmatrix_limit_run",
        type=_seconds,
        default=None,
        metavar="SECONDS",
        help="kill a cell that stays in another phase for longer: verdict timeout",
    )
    add(
        "--expectations",
        dest="capmatrix_expectations",
        action="append",
        default=[],
        metavar="PATH",
        help="a file or folder of expectations; repeatable; none: compare to what backends declare alone "
        "(default: expectations/ beside the matrix file)",
    )
    add(
        "--rerun-unexpected",
        dest="capmatrix_rerun_unexpected",
        action="store_true",
        default=False,
        help="repeat a cell that is not as expected, alone in a fresh worker, to tell a flake from a change",
    )
    add(
        "--time",
        dest="capmatrix_time",
        default="",
        metavar="WORKLOAD",
        help="on a GPU: also time passing decode, verify and prefill cells under these workload profiles (a,b)",
    )
    add("--capmatrix-engine", dest="capmatrix_engine", default=DEFAULT_ENGINE, help=argparse.SUPPRESS)


def read_options(config: pytest.Config) -> Options:
    """The options of one pytest run; relative paths are relative to where pytest was called."""
    option = config.option
    directory = config.invocation_params.dir
    run_file = option.capmatrix_run_file
    cache = option.capmatrix_triton_cache
    return Options(
        targets=tuple(dict.fromkeys(option.capmatrix_targets)),
        preset=option.capmatrix_preset,
        force=option.capmatrix_force,
        run_file=None if run_file is None else directory / run_file,
        resume=option.capmatrix_resume,
        aiter=option.capmatrix_aiter,
        triton_cache=str((directory / cache).resolve()) if cache else "",
        limit_compile=option.capmatrix_limit_compile,
        limit_run=option.capmatrix_limit_run,
        engine=option.capmatrix_engine,
        expectations=tuple(option.capmatrix_expectations),
        rerun_unexpected=option.capmatrix_rerun_unexpected,
        time=option.capmatrix_time,
    )


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value
