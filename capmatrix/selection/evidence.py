"""Records and published results, sorted by what they speak for: one ``Standing`` a backend and key.

A key is (architecture, drafter family, role, block size, KV dtype, model dtype).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .. import summary
from ..cell import Cell, Force, Verdict
from ..codec import encode
from ..drafters import Family
from ..store import Run
from .defaults import Key, RunName
from .hints import very_slow
from .published import UNKNOWN, Published
from .standing import Piece, Served, Standing, standing


@dataclass(frozen=True)
class Evidence:
    """Standings by key and backend, what was left out, and hints from GPUs that choose nothing."""

    standings: dict[Key, dict[str, Standing]]
    left_out: tuple[str, ...]
    runs: tuple[RunName, ...]
    hints: tuple[str, ...] = ()


def gather(
    runs: Sequence[tuple[str, Run]],
    published: Sequence[Published],
    families: Mapping[str, Family],
    *,
    arch: str = "",
) -> Evidence:
    """Sorts the records of named runs, and published results, by key and backend.

    ``arch``: only this architecture's; ``any``: all, and published results whose GPU is not stated, which join
    every architecture's row (or make one of ``unknown``). The order of the inputs changes nothing.
    """
    names, pieces = _pieces(runs)
    grouped: dict[Key, dict[str, list[Piece]]] = {}
    left: dict[str, int] = {}
    for piece in pieces:
        key, why = _key_of(piece, arch)
        if key is None:
            left[why] = left.get(why, 0) + 1
            continue
        grouped.setdefault(key, {}).setdefault(piece.record.cell.backend, []).append(piece)
    served: dict[Key, dict[str, list[Served]]] = {}
    lost: dict[str, int] = {}
    for one in sorted(published, key=lambda p: p.name):
        keys, why = _keys_of(one, list(grouped), arch)
        for key in keys:
            for number, result in enumerate(one.results, 1):
                ref = Served(result, one, f"{one.name}#{number}")
                served.setdefault(key, {}).setdefault(result.backend, []).append(ref)
        if not keys:
            what = f"{one.source} ({one.name}): {why}"
            lost[what] = len(one.results)
    standings: dict[Key, dict[str, Standing]] = {}
    for key in sorted({*grouped, *served}):
        here, there = grouped.get(key, {}), served.get(key, {})
        shared = key.drafter in families and families[key.drafter].shared_pool
        standings[key] = {
            backend: standing(backend, here.get(backend, []), there.get(backend, []), shared_pool=shared)
            for backend in sorted({*here, *there})
        }
    notes = [f"{n} record{'s' if n != 1 else ''}: {why}" for why, n in sorted(left.items())]
    notes += [f"{n} published result{'s' if n != 1 else ''} of {what}" for what, n in sorted(lost.items())]
    return Evidence(standings, tuple(notes), names, very_slow(pieces))


def _pieces(runs: Sequence[tuple[str, Run]]) -> tuple[tuple[RunName, ...], list[Piece]]:
    """Names of the runs and all their records, in an order that does not hang on how they were given."""
    named: dict[tuple[str, str], Run] = {}
    for name, run in runs:
        digest = hashlib.sha256()
        for line in sorted(encode(record) for record in run.records):
            digest.update(line + b"\n")
        named[name, digest.hexdigest()[:12]] = run
    stems = [name for name, _ in named]
    out: list[Piece] = []
    names = []
    for (name, digest_text), run in sorted(named.items(), key=lambda item: item[0]):
        shown = name if stems.count(name) == 1 else f"{name}@{digest_text}"
        names.append(RunName(shown, digest_text, len(run.records)))
        for record in sorted(run.records, key=lambda r: r.cell_id):
            out.append(Piece(record, run.environments.get(record.environment), f"{shown}::{record.cell_id}"))
    return tuple(names), out


def key_of(cell: Cell, architecture: str) -> Key:
    """The row that a cell belongs to."""
    return Key(architecture, cell.drafter, cell.role.value, cell.block_size, cell.kv_cache_dtype, cell.dtype)


def _key_of(piece: Piece, arch: str) -> tuple[Key | None, str]:
    cell = piece.record.cell
    place = summary.place(piece.record, piece.environment)
    if not place.architecture:
        if piece.record.verdict is Verdict.UNAVAILABLE:
            return None, f"{place.title}: unavailable"
        return None, f"{place.title}: not an AMD GPU, so that it enters no row"
    if arch not in ("", "any", place.architecture):
        return None, f"{place.architecture}: not the architecture asked for"
    if cell.force is not Force.NONE:
        return None, f"{place.architecture}: forced {cell.force.value}, which no default can be"
    return key_of(cell, place.architecture), ""


def _keys_of(one: Published, known: list[Key], arch: str) -> tuple[list[Key], str]:
    """The rows that a published table's results join: one, or where it does not state a thing, all that fit."""
    if not one.drafter:
        return [], "no drafter family of this repository"
    if one.block_size is None:
        return [], "block size not stated"
    if not one.kv_cache_dtype:
        return [], "KV cache dtype not stated"
    if one.arch == UNKNOWN and arch not in ("any", UNKNOWN):
        return [], "GPU not stated (matched with --arch any)"
    if one.arch != UNKNOWN and arch not in ("", "any", one.arch):
        return [], f"{one.arch}: not the architecture asked for"
    mine = (one.drafter, one.role.value, one.block_size, one.kv_cache_dtype)
    dtype = one.dtype if one.dtype not in ("", "auto") else ""
    fitting = [
        key
        for key in known
        if key[1:5] == mine
        and (one.arch in (UNKNOWN, key.architecture))
        and (key.dtype == dtype if dtype else key.dtype != "float32")
    ]
    return fitting or [Key(one.arch, *mine, dtype or "auto")], ""
