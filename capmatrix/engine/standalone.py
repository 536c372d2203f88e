"""Run scripts that know nothing of capmatrix where a target's cells run.

    python -m capmatrix.engine.standalone TARGET FILE...

The process is prepared as a worker server is (virtual platform, interpreter, stand-ins), then each script runs in a
child of its own, as ``__main__``. What one prints, its traceback included, goes to standard output, and last a line
``exit N``. The exit status is the last script's.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
import traceback
from collections.abc import Sequence

from .. import targets
from ..errors import CapmatrixError
from ..guard.family_question import switch_pairs
from . import bootstrap


def main(arguments: Sequence[str] | None = None) -> int:
    """Prepare this process for the target and run the scripts, one after the other."""
    parser = argparse.ArgumentParser(prog="python -m capmatrix.engine.standalone")
    parser.add_argument("target")
    parser.add_argument("files", nargs="+")
    switch = "an environment switch to start with; repeatable"
    parser.add_argument("--switch", action="append", default=[], metavar="NAME=VALUE", help=switch)
    parser.add_argument("--aiter", default="", metavar="PATH", help="use this AITER checkout")
    given = parser.parse_args(arguments)
    try:
        target = targets.parse(given.target)
        bootstrap.boot(target, dict(switch_pairs(given.switch)), given.aiter)
    except CapmatrixError as error:
        print(f"capmatrix: error: {error}", file=sys.stderr)
        return error.exit_code
    from . import preload

    preload.backends()
    preload.flex(target.kind)
    preload.models()
    preload.compiler()
    status = 0
    for file in given.files:
        sys.stdout.flush()
        child = os.fork()
        if not child:
            _run(file, target.kind)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(f"exit {status}", flush=True)
    return status if status >= 0 else 128 - status


def _run(file: str, kind: str) -> None:
    """Run one script in this process, and end it."""
    os.dup2(1, 2)
    status = 1
    try:
        if kind == "device":
            from . import device_boot

            device_boot.take()
        runpy.run_path(file, run_name="__main__")
        status = 0
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code)
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException as error:
        frames = traceback.TracebackException.from_exception(error)
        # As Python itself would show it: without what runs the script.
        ours = next((i for i, frame in enumerate(frames.stack) if frame.filename == file), 0)
        del frames.stack[:ours]
        print("".join(frames.format()), end="")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
