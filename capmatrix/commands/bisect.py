"""``capmatrix bisect``: what turns a failing cell into a passing one, tried rather than guessed."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..argtypes import whole
from ..errors import EXIT_OK, EXIT_UNEXPECTED, InputError
from ..paths import matrix_path
from . import inputs

if TYPE_CHECKING:
    from ..bisect.cells import Run
    from ..bisect.delta import Change, Changes
    from ..cell import Cell, Record
    from ..runwriter import RunWriter
    from ..workers.limits import Limits
    from ..workers.pool import Pool

Add = Callable[[str, Callable[[argparse.Namespace, list[str]], int], str], argparse.ArgumentParser]

#: How long a server without a cell stays, in seconds: so few are alive at once, whatever the number of switch sets.
_IDLE_S = 5.0

#: What starting a worker server takes, for people to expect.
_START = "10 to 20 s"


def add_to(add: Add) -> None:
    """Adds the command's parser; ``add`` is the command line's own."""
    one = add("bisect", bisect, "Find the smallest set of switches that makes a failing cell pass.")
    one.add_argument("cell", metavar="CELL", help='its id, or tokens that only it has: "ROCM_ATTN b128 verify"')
    one.add_argument("file", nargs="?", metavar="FILE", help="the matrix file, or shipped matrix, that the cell is of")
    one.add_argument("--run", metavar="RUN", help="take the cell from a run file instead")
    one.add_argument("--preset", metavar="NAME", help="a preset of FILE")
    one.add_argument("--target", action="append", default=[], metavar="TARGET", help="where FILE's cells run")
    one.add_argument("--switches", action="store_true", help="try every environment switch, and eager for graphs")
    also = "try other values of axes as well: block_size,batch or block_size=16,64; repeatable"
    one.add_argument("--also", action="append", default=[], metavar="AXES", help=also)
    one.add_argument("--servers", type=whole(), default=24, metavar="N", help="most worker servers (default: 24)")
    one.add_argument("--runs", type=whole(), default=120, metavar="N", help="most sets that are run (default: 120)")
    one.add_argument("--json", action="store_true", help="print the result as JSON")
    one.add_argument("--run-file", metavar="PATH", help="where the records go (default: under runs/)")
    one.add_argument("--aiter", metavar="PATH", help="use this AITER checkout rather than the installed one")
    one.add_argument("--limit-compile", type=whole(), metavar="SECONDS", help="for all compilation of a cell")
    one.add_argument("--limit-run", type=whole(), metavar="SECONDS", help="for all the rest of a cell")
    one.set_defaults(engine="")


def bisect(arguments: argparse.Namespace, extra: list[str]) -> int:
    """``capmatrix bisect``: exit 0 where a set was found, else 1."""
    from .. import codec
    from ..bisect import cells as bisecting
    from ..report import bisect as report
    from ..report import terminal
    from ..store import RunWriter
    from ..workers.pool import ENGINE, Pool

    cell, known = _cell(arguments)
    changes = _changes(arguments, cell, known)
    path = Path(arguments.run_file) if arguments.run_file else _new_path()
    options = {"aiter": _aiter(arguments.aiter), "triton_cache": ""}
    limits = bisecting.Limits(arguments.servers, arguments.runs)
    progress = _Progress(limits.servers, len(changes))
    header = {"bisect": codec.cell_id(cell), "targets": [cell.target], "created": _utc()}
    with (
        RunWriter(path, header) as writer,
        Pool(arguments.engine or ENGINE, options, _limits(arguments), retry_alone=False) as pool,
    ):
        result = bisecting.bisect_cell(cell, changes, _runner(pool, writer), progress.tell, limits)
        environment = pool.environments.get(result.baseline.environment)
        versions = dict(environment.versions) if environment else {}
        told = report.data(result, versions, str(path))
        writer.end({"bisect": told})
    if arguments.json:
        sys.stdout.write(codec.printed(told) + "\n")
    else:
        width = terminal.use_width(sys.stdout)
        sys.stdout.write(report.render(result, versions, width=width, run_file=str(path)))
    return EXIT_OK if result.found.smallest is not None else EXIT_UNEXPECTED


def _cell(arguments: argparse.Namespace) -> tuple[Cell, list[Cell]]:
    """The cell that is meant, and all cells of where it is from, on its target."""
    from ..report import lookup

    records = _of_run(arguments) if arguments.run else _of_matrix(arguments)
    cell = lookup.find(arguments.cell, records)[0].cell
    return cell, [record.cell for record in records if record.cell.target == cell.target]


def _of_run(arguments: argparse.Namespace) -> list[Record]:
    if arguments.file or arguments.preset or arguments.target:
        raise InputError("a cell is taken from a run or from a matrix file, not from both", key="--run")
    return inputs.read(arguments.run).records


def _of_matrix(arguments: argparse.Namespace) -> list[Record]:
    """Every cell of the matrix file as a record of nothing yet, which is what a lookup takes."""
    from .. import matrix, targets
    from ..cell import Phase, Record, Rung, Verdict
    from ..codec import cell_id

    wanted = arguments.target or [t for t in targets.known() if t in arguments.cell] or targets.here()
    for target in wanted:
        targets.parse(target)
    loaded = matrix.load(matrix_path(arguments.file))
    return [
        Record(cell_id(cell), cell, Verdict.UNVERIFIED, Rung.DECLARED, Phase.SELECT, "")
        for cell in matrix.expand(loaded, preset=arguments.preset, targets=wanted)
    ]


def _changes(arguments: argparse.Namespace, cell: Cell, known: list[Cell]) -> list[Change]:
    from ..bisect import knobs

    if not arguments.switches and not arguments.also:
        raise InputError("say what to try: --switches, or --also with axes", key="bisect")
    found = knobs.switches(cell) if arguments.switches else []
    return found + [change for change in knobs.also(cell, arguments.also, known) if change not in found]


def _runner(pool: Pool, writer: RunWriter) -> Run:
    """Runs a cell in a fresh worker and keeps its record."""
    from ..bisect.cells import NOWHERE
    from ..cell import Environment
    from ..workers import deaths
    from ..workers.session import ServerError

    told: set[str] = set()
    attempts: dict[str, int] = {}

    def run(cell: Cell) -> Record:
        import msgspec

        from ..codec import cell_id

        name = cell_id(cell)
        attempts[name] = attempts.get(name, 0) + 1
        writer.started(name, attempts[name])
        pool.end_worker(cell)
        try:
            record = pool.run(cell)
            environment = pool.environments.get(record.environment)
        except ServerError as error:
            # With these switches the engine does not even open: an answer, as long as others can be had.
            environment = Environment(f"{NOWHERE}{len(told)}", cell.target, switches=dict(cell.switches))
            reason = f"no worker server with these switches: {' '.join(str(error).split())[:400]}"
            record = deaths.unavailable(cell, environment, reason)
        record = msgspec.structs.replace(record, attempt=attempts[name])
        if environment is not None and environment.id not in told:
            told.add(environment.id)
            writer.environment(environment)
        writer.record(record)
        return record

    return run


class _Progress:
    """Says on standard error what runs: a bisection takes minutes, most of them starting servers."""

    def __init__(self, most: int, changes: int) -> None:
        self.most = most
        self.started = 0.0
        self.servers: dict[object, int] = {}
        cost = f"each switch set starts a worker server of its own, {_START} each, at most {most}"
        print(f"{changes} changes to try; {cost}", file=sys.stderr)

    def tell(self, changes: Changes, cell: Cell, record: Record | None) -> None:
        """Before a set runs, and after."""
        from ..bisect import knobs
        from ..codec import server_key
        from ..report.text import one_line, reason

        if record is None:
            number = self.servers.setdefault(server_key(cell), len(self.servers) + 1)
            self.started = time.monotonic()
            what = knobs.text(changes) if changes else "as it is"
            print(f"[server {number}/{self.most}] {one_line(what, 300)} ... ", end="", file=sys.stderr, flush=True)
            return
        took = time.monotonic() - self.started
        why = f": {reason(record, 80)}" if reason(record, 80) else ""
        print(f"{record.verdict.value}, {took:.0f} s{why}", file=sys.stderr, flush=True)


def _limits(arguments: argparse.Namespace) -> Limits:
    import msgspec

    from ..workers.limits import Limits

    given = {"compile_s": arguments.limit_compile, "run_s": arguments.limit_run}
    changed = {name: float(value) for name, value in given.items() if value is not None}
    if arguments.limit_run is not None:
        changed["emulated_factor"] = 1.0  # a limit that is given is meant as it stands
    return msgspec.structs.replace(Limits(idle_s=_IDLE_S), **changed)


def _aiter(given: str | None) -> str:
    if not given:
        return ""
    path = Path(given).expanduser()
    if not path.is_dir():
        raise InputError("this AITER checkout is not a directory", key="--aiter", value=given)
    return str(path.resolve())


def _new_path() -> Path:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    return Path("runs") / f"{stamp}-bisect.jsonl"


def _utc() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
