"""Finding a cell by its id, or by as many of its tokens as single it out."""

from __future__ import annotations

import difflib
import heapq
import re
from collections.abc import Iterable, Sequence
from typing import TypeVar

from ..cell import Record
from ..errors import InputError, printable, short
from ..pair import PairRecord
from . import text

_SHOWN = 8
#: Where a token of a cell id may begin and end: a word of an id means the tightest that any id of the run has.
_EDGES = ("-", "-:.+", "-:.+_")


class CellNotFound(InputError):
    """No cell, or more than one, is meant; the ids that come nearest stand one a line."""

    def __str__(self) -> str:
        out = f"{self.message} (got {short(self.value)})"
        return printable(out + "; nearest:" + "".join(f"\n  {name}" for name in self.allowed))


#: Records of cells, of pairs, or both.
R = TypeVar("R", bound=Record | PairRecord)


def find(query: str, records: Iterable[R]) -> list[R]:
    """The records of the one cell that ``query`` names: its id, or tokens of it separated by spaces.

    A token is any part of an id between its separators (``b128``, ``ROCM_ATTN``, ``gfx942``, ``verify``,
    ``offline:gfx942-ROCM_ATTN``), in any case. A batch named alone (``verify``) does not mean another
    that begins alike. More than one record comes back only where files of several runs hold the cell.

    Raises InputError where no cell or more than one is meant, with the nearest ids.
    """
    by_id: dict[str, list[R]] = {}
    for record in records:
        by_id.setdefault(record.cell_id, []).append(record)
    ids = list(by_id)
    if not by_id:
        raise InputError("the run holds no record", key="cell", value=query)
    # A node id as pytest prints it, matrix file and all, is an id too.
    wanted = query.strip().rpartition("::")[2]
    if wanted in by_id:
        return by_id[wanted]
    tokens = [t for t in wanted.split() if t.lower() != "and"]
    if not tokens:
        raise CellNotFound("no cell is named", value=query, allowed=_shown(ids))
    matches = [_matching(t, ids) for t in tokens]
    hits = [name for name in ids if all(name in m for m in matches)]
    if len(hits) == 1:
        return by_id[hits[0]]
    if hits:
        raise CellNotFound(f"{len(hits):,} cells match; add {_hint(hits)}", value=query, allowed=_shown(hits))
    unknown = [short(t) for t, m in zip(tokens, matches) if not m]
    why = f": none has {' or '.join(unknown)}" if unknown and len(tokens) > 1 else ""
    raise CellNotFound(f"no such cell in the run{why}", value=query, allowed=nearest(wanted, ids))


def nearest(query: str, ids: Sequence[str]) -> list[str]:
    """Up to eight ids, those that share most with ``query`` first."""
    words = {w.lower() for w in re.split(r"[\s-]+", query) if w}
    parts_of = {name: frozenset(re.split(r"[-:.]", name.lower())) for name in ids}
    known = sorted(set().union(*parts_of.values()))
    # A misspelt word counts half for each part that it could be.
    close = {w: frozenset(difflib.get_close_matches(w, known, n=3, cutoff=0.75)) for w in words}

    def shared(name: str) -> float:
        parts, lowered = parts_of[name], name.lower()
        return sum(1.0 if w in parts or w in lowered else 0.5 * bool(close[w] & parts) for w in words)

    def alike(name: str) -> float:
        return difflib.SequenceMatcher(None, query.lower(), name.lower(), autojunk=False).quick_ratio()

    best = heapq.nlargest(200, ids, key=shared)
    return [text.one_line(n, 300) for n in heapq.nlargest(_SHOWN, best, key=lambda n: (shared(n), alike(n)))]


def _matching(token: str, ids: Sequence[str]) -> set[str]:
    """The ids that hold ``token`` between the tightest separators that any id has it between."""
    for edges in _EDGES:
        inner = re.escape(token.strip(edges) or token)
        pattern = re.compile(rf"(?:^|(?<=[{edges}])){inner}(?=$|[{edges}])", re.IGNORECASE)
        found = {name for name in ids if pattern.search(name)}
        if found:
            return found
    return set()


def _shown(ids: list[str]) -> list[str]:
    shown = [text.one_line(n, 300) for n in ids[:_SHOWN]]
    return [*shown, f"and {len(ids) - _SHOWN} more"] if len(ids) > _SHOWN else shown


def _hint(ids: list[str]) -> str:
    """Tokens in which the candidates differ, as a question."""
    parts = [n.split("-") for n in ids]
    common = set(parts[0]).intersection(*parts[1:])
    differing = list(dict.fromkeys(p for ps in parts for p in ps if p not in common))
    shown = [text.one_line(p, 60) for p in differing[:6]]
    return "one of " + ", ".join(shown) + (", ..." if len(differing) > 6 else "")
