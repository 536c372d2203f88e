"""What a session is to do: options, matrix files and cells, settled once and told to xdist's nodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import InputError
from ..grid import Workload
from . import jobs, runfile
from .jobs import Job
from .options import Options

if TYPE_CHECKING:
    from ..expect.expectations import Expectations

#: ``--expectations`` of a run that is compared to what backends declare, and to nothing else.
NO_EXPECTATIONS = "none"

#: Most profiles of one run.
MOST_PROFILES = 32


class Plan(msgspec.Struct, frozen=True):
    """Settled by the controller (or the only process) and sent to xdist's nodes as JSON.

    ``owner``: process id of the controller. ``session_dir``: where the processes of this run meet.
    ``expectations``: files and folders of them. ``workloads``: profiles that passing cells are timed under, by
    name, and ``time`` as they were asked for.
    """

    files: tuple[str, ...]
    preset: str | None
    targets: tuple[str, ...]
    force: str | None
    run_path: str
    resume: bool
    session_dir: str
    owner: int
    expectations: tuple[str, ...] = ()
    workloads: dict[str, Workload] = {}
    time: str = ""

    def words(self) -> list[str]:
        """The options that change which cells there are, as they would be typed."""
        preset = [] if self.preset is None else ["--preset", self.preset]
        return preset if self.force is None else [*preset, f"--force={self.force}"]


def settle(options: Options, files: Sequence[Path], named: Sequence[Path], directory: Path) -> dict[str, Any]:
    """Preset, targets, force, profiles, run file and whether to resume it, as ``Plan``'s fields.

    A resumed run keeps its own preset, targets, force and profiles where none is given. ``named``: the files given
    as such; those found in a directory that lack the preset asked for are left out. Raises InputError.
    """
    from .. import targets

    preset, force, times = options.preset, options.force, options.time
    chosen = list(options.targets)
    path = options.run_file
    workloads = profiles(times)
    if path is not None and path.is_fifo():
        raise InputError("not a regular file; a run file is needed", file=path)
    if options.resume:
        if path is None:
            path = runfile.newest(directory.resolve(), files, preset)
        elif not path.exists():
            raise InputError("there is no such run to resume", file=path)
        before = runfile.peek(path) or runfile.header_of(path)
        preset = preset if preset is not None else _text(before.get("preset"))
        force = force if force is not None else _text(before.get("force"))
        if not times:
            times = _text(before.get("timed")) or ""
            workloads = _of_run(path, times)
        recorded = before.get("targets")
        if not chosen and isinstance(recorded, list):
            chosen = [t for t in recorded if isinstance(t, str)]
    elif path is not None and path.exists() and path.stat().st_size:
        raise InputError("this run file exists already; continue it with --resume, or name another one", file=path)
    for target in chosen:
        targets.parse(target)
    return {
        "files": tuple(str(f) for f in files if f in named or _has_preset(f, preset)),
        "preset": preset,
        "targets": tuple(chosen or targets.here()),
        "force": force,
        "run_path": str(path if path is not None else runfile.new_path(directory, files)),
        "resume": options.resume,
        "workloads": workloads,
        "time": times,
        "expectations": tuple(map(str, _expectations(options.expectations, files, directory))),
    }


def profiles(names: str) -> dict[str, Workload]:
    """The profiles of ``--time``, by name: ``seed,long`` or ``FILE.toml:NAME``; none where ``names`` is empty.

    Raises InputError for unknown ones, and for a name that would stand for two profiles: a record holds it alone.
    """
    from ..selection import workloads

    if not names:
        return {}
    asked = list(dict.fromkeys(filter(None, (part.strip() for part in names.split(",")))))
    if not asked or len(asked) > MOST_PROFILES:
        raise InputError(f"names 1 to {MOST_PROFILES} workload profiles", key="--time", value=names)
    shipped = workloads.shipped()
    found: dict[str, Workload] = {}
    for name in asked:
        wanted, known = workloads.choose(name, "--time", shipped)
        for others, where in ((shipped, "a shipped matrix has"), (found, "another one that is asked for has")):
            if others.get(wanted, known[wanted]) != known[wanted]:
                raise InputError(f"{where} a profile of this name with other figures", key="--time", value=name)
        found[wanted] = known[wanted]
    return found


def _of_run(path: Path, names: str) -> dict[str, Workload]:
    """The profiles that a resumed run was timed under; its file is named where they are not to be had."""
    try:
        return profiles(names)
    except InputError as error:
        raise InputError(f"its header's profiles: {error}", file=path, key="timed") from None


def expand(plan: Plan) -> dict[Path, list[Job]]:
    """The cells and pairs of every file of the plan. Raises InputError for any mistake in them."""
    return {file: jobs.expand(_shown(file), plan.preset, plan.targets, plan.force) for file in map(Path, plan.files)}


def expectations(plan: Plan) -> Expectations:
    """The expectations of the plan. Raises InputError for any mistake in them."""
    from ..expect import expectation_file

    return expectation_file.load([_shown(Path(p)) for p in plan.expectations])


def _expectations(given: Sequence[str], files: Sequence[Path], directory: Path) -> list[Path]:
    from ..expect import expectation_file

    if not given:
        return list(dict.fromkeys(found for file in files for found in expectation_file.beside(file)))
    if NO_EXPECTATIONS in given:
        if len(given) > 1:
            raise InputError(f"{NO_EXPECTATIONS} and others", key="--expectations", value=" ".join(given))
        return []
    for name in given:
        if not (directory / name).exists():
            raise InputError("no such file or folder", key="--expectations", value=name)
    return [directory / name for name in given]


def _shown(file: Path) -> Path:
    """A file as errors name it: relative to the working directory where it lies below."""
    here = Path.cwd()
    return file.relative_to(here) if file.is_relative_to(here) else file


def _has_preset(file: Path, preset: str | None) -> bool:
    if preset is None:
        return True
    return preset in jobs.load(_shown(file)).presets


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
