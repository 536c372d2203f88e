"""What a matrix run runs: cells of matrix files and pairs of pair files, seen alike."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path

from .. import codec
from .. import outcome as cell_outcome
from ..cell import Cell, Record
from ..grid import Matrix
from ..outcome import Expectation, Outcome
from ..pair import Pair, PairRecord, pair_id
from ..pair import server_key as pair_server_key
from ..pairs import pair_outcome, pairfile
from ..pairs.pairfile import PairMatrix

Job = Cell | Pair
JobRecord = Record | PairRecord


def load(file: Path) -> Matrix | PairMatrix:
    """The matrix or pair file. Raises InputError for any mistake in it."""
    from .. import matrix

    return pairfile.load(file) if pairfile.is_pair_file(file) else matrix.load(file)


def expand(file: Path, preset: str | None, targets: Sequence[str], force: str | None) -> list[Job]:
    """The jobs of one file. Pairs know no force."""
    from .. import matrix

    loaded = load(file)
    if isinstance(loaded, PairMatrix):
        return list(pairfile.expand(loaded, preset, list(targets)))
    return list(matrix.expand(loaded, preset=preset, targets=list(targets), force=force))


def name(job: Job) -> str:
    """Its id: the name of its pytest item."""
    return codec.cell_id(job) if isinstance(job, Cell) else pair_id(job)


def setup_key(job: Job) -> Hashable:
    """What jobs that are run on one node share; every pair is set up anew, so pairs spread freely."""
    return codec.setup_key(job) if isinstance(job, Cell) else pair_id(job)


def server_key(job: Job) -> tuple[str, tuple[tuple[str, str], ...]]:
    """What shares a worker server."""
    return codec.server_key(job) if isinstance(job, Cell) else pair_server_key(job)


def record_id(record: JobRecord) -> str:
    """The id of the record's cell or pair."""
    return record.cell_id


def outcome(record: JobRecord, expectation: Expectation | None = None) -> Outcome:
    """The record in pytest's words, compared to what is expected of it."""
    if isinstance(record, Record):
        return cell_outcome.outcome(record, expectation)
    return pair_outcome.outcome(record, expectation)


def told(record: JobRecord) -> bool:
    """Whether anything was learnt of the job itself."""
    return cell_outcome.told(record) if isinstance(record, Record) else pair_outcome.told(record)


def pair_label(job: Pair) -> str:
    """A pair in short, for a status line."""
    sides = " + ".join(f"{s.family}:{s.backend or 'auto'}" for s in (job.target_model, job.drafter))
    text = f"{job.target} {sides} b{job.block_size or 'auto'} {job.kv_cache_dtype} tp{job.tp}"
    return text if job.runner == "auto" else f"{text} {job.runner}"
