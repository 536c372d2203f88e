"""What is measured of a call, round by round, and what the rounds together say. Pure.

A cell's rivals (cells that differ from it in backend and switches alone) are timed in turn, A B C A B C A B C, so that
what changes on the machine meanwhile meets all of them. How far a cell's own rounds are apart is part of what is said.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import msgspec

from .cell import Cell, Timing

#: Rounds over a cell's rivals, and repeats of a cell over all of them.
ROUNDS, REPEATS = 3, 24

#: Confidence of the interval that a median lies in.
_CONFIDENCE = 0.95

#: The longest time of a call that is taken for one, in microseconds.
LONGEST_US = 1e15

#: How ``Timing.detail`` says that the call was replayed from a graph which vLLM would not capture for this batch.
UNCAPTURED = "vLLM would run this batch"

#: Batches that are timed.
BATCHES = ("decode", "verify", "prefill")


class Sample(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a worker measured of one cell in one round; all of it but ``refused`` is empty where it could not.

    ``microseconds`` of each repeat; ``how`` the call was made. ``requests`` and ``query_tokens`` of the call;
    ``moved_bytes`` the fewest it moves (None: no roofline is drawn of it); ``bandwidth`` bytes a second that the GPU
    moved at best in that process. ``metadata_us`` host time of each build of the metadata; ``synchronisations`` the
    most that one build made. ``clocks`` as the driver said them after the repeats. ``refused`` says why nothing was
    measured. ``environment``: id of what the worker ran on. ``host_us`` host time of each repeat's call; ``gpu`` the
    driver's name of the one GPU.
    """

    microseconds: tuple[float, ...] = ()
    how: str = ""
    requests: int = 0
    query_tokens: int = 0
    moved_bytes: int | None = None
    bandwidth: float | None = None
    metadata_us: tuple[float, ...] = ()
    synchronisations: int | None = None
    clocks: dict[str, float] = {}
    refused: str = ""
    environment: str = ""
    host_us: tuple[float, ...] = ()
    gpu: str = ""


def sound(timing: Timing) -> bool:
    """Whether a record's time is one: above zero, within its interval, nothing beyond ``LONGEST_US``. Records may hold
    anything; a time that is none compares with nothing."""
    return 0 < timing.low_us <= timing.median_us <= timing.high_us <= LONGEST_US and timing.repeats > 0


def applies(cell: Cell) -> bool:
    """Whether cells like this one are timed: one call of a plain batch on a real GPU.

    A latent prefill is not: it is done by a backend of its own, chosen beside the cell's.
    """
    on_gpu = cell.target.partition(":")[0] == "device"
    return on_gpu and cell.batch in (BATCHES if cell.geometry.mla is None else ("decode", "verify"))


def rivals_key(cell: Cell) -> Cell:
    """What rivals share: the cell without its backend and its switches."""
    return msgspec.structs.replace(cell, backend="", switches=())


def shares(repeats: int = REPEATS, rounds: int = ROUNDS) -> tuple[int, ...]:
    """Repeats of each round: as even as can be, at least one."""
    return tuple(max(1, (repeats + i) // rounds) for i in range(rounds))


def interval(values: Sequence[float], confidence: float = _CONFIDENCE) -> tuple[float, float]:
    """The order statistics that hold the median of what ``values`` were drawn from with at least this confidence.

    By the binomial distribution alone, whatever that of the values is; of fewer than six all that there is.
    """
    ordered = sorted(values)
    n, below, rank = len(ordered), 0.0, 0
    for r in range((n + 1) // 2):
        # The median lies below the value of rank r where at most r of the n values lie below the median.
        below += math.comb(n, r) / 2**n
        if 1 - 2 * below < confidence:
            break
        rank = r
    return ordered[rank], ordered[n - 1 - rank]


def summary(cell: Cell, workload: str, rounds: Sequence[Sample], note: str = "") -> Timing:
    """The time of a cell under a profile from its rounds, in order, each with at least one repeat."""
    times = [t for one in rounds for t in one.microseconds]
    medians = tuple(statistics.median(one.microseconds) for one in rounds)
    low, high = interval(times)
    median = statistics.median(times)
    bandwidth = max((one.bandwidth for one in rounds if one.bandwidth), default=None)
    moved = rounds[0].moved_bytes
    built = [us for one in rounds for us in one.metadata_us]
    host = [us for one in rounds for us in one.host_us]
    waits = [one.synchronisations for one in rounds if one.synchronisations is not None]
    return Timing(
        phase=cell.batch,  # type: ignore[arg-type]
        workload=workload,
        median_us=round(median, 2),
        low_us=round(min(low, *medians), 2),
        high_us=round(max(high, *medians), 2),
        repeats=len(times),
        share_of_roofline=None
        if moved is None or not bandwidth
        else float(f"{moved / bandwidth / (median * 1e-6):.4g}"),
        query_tokens=rounds[0].query_tokens,
        detail="; ".join(filter(None, (rounds[0].how, note))),
        rounds=tuple(round(m, 2) for m in medians),
        drifted=not all(low <= m <= high for m in medians),
        requests=rounds[0].requests,
        bandwidth_tb_s=None if bandwidth is None else round(bandwidth / 1e12, 3),
        metadata_us=round(statistics.median(built), 1) if built else None,
        metadata_synchronisations=max(waits, default=None),
        clocks=_ranges([one.clocks for one in rounds]),
        host_us=round(statistics.median(host), 1) if host else None,
        gpu=", ".join(dict.fromkeys(one.gpu for one in rounds if one.gpu)),
    )


def _ranges(said: Sequence[dict[str, Any]]) -> dict[str, tuple[float, float]]:
    """Lowest and highest of each number."""
    names = dict.fromkeys(name for one in said for name in one)
    values = {name: [float(one[name]) for one in said if name in one] for name in names}
    return {name: (min(found), max(found)) for name, found in values.items()}
