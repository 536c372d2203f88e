"""Hints from GPUs whose times choose no default: what is very slow there is worth measuring where it counts.

A GPU of another vendor under a ROCm identity runs the portable kernels for real. The order of backends carries
over, the size of a gap does not, so that only a gap beyond any doubt is said, and only said.
"""

from __future__ import annotations

from collections.abc import Iterable

from .. import summary
from ..cell import Verdict
from ..timings import sound
from .standing import Piece

#: How many times the fastest backend's time counts as very slow.
VERY_SLOW = 5.0


def very_slow(pieces: Iterable[Piece]) -> tuple[str, ...]:
    """One sentence for every phase in which a backend takes over ``VERY_SLOW`` times the fastest one's time.

    Compared are medians of one place, drafter, block, KV dtype, model dtype, degree, workload and phase.
    """
    groups: dict[tuple[str, ...], dict[str, float]] = {}
    for piece in pieces:
        record = piece.record
        place = summary.place(record, piece.environment)
        if place.architecture or record.verdict is not Verdict.PASS:
            continue
        cell = record.cell
        for timing in filter(sound, record.times):
            what = f"{cell.drafter}, tp {cell.tp}, block {cell.block_size}, {cell.kv_cache_dtype}, {cell.dtype}"
            key = (place.title, what, timing.workload, timing.phase)
            times = groups.setdefault(key, {})
            times[cell.backend] = max(timing.median_us, times.get(cell.backend, 0.0))
    out = []
    for (title, what, workload, phase), times in sorted(groups.items()):
        best = min(times, key=lambda backend: (times[backend], backend))
        for backend in sorted(times):
            factor = times[backend] / times[best] if times[best] > 0 else 0.0
            if factor > VERY_SLOW:
                where = f"{what}, workload {workload}"
                out.append(f"{title}: {backend} takes {factor:.1f} times {best}'s time in {phase} ({where})")
    return tuple(out)
