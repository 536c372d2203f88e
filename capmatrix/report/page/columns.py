"""What the page knows of every record at once: one dictionary-encoded column an axis, and a few figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ... import summary
from ...batches import NAMES as BATCHES
from ...cell import RUNGS, Flag, Force, Phase, Record, Verdict
from ...vocabulary import DTYPES, EXECUTIONS, KV_CACHE_DTYPES, METHODS, ROCM_BACKENDS
from .. import explain, text

#: A value of a column: ``tuple`` where a record has several (its flags).
Value = str | int | tuple[str, ...] | None

#: Longest text of a column's value.
_LONGEST = 240


class Home(NamedTuple):
    """Whose table a record belongs to: the place's title and architecture, and the versions in words."""

    title: str
    architecture: str
    versions: str


class Column(NamedTuple):
    """``of`` gives a record's value; ``known`` are values in the order in which they are shown, others follow
    sorted. With ``filter`` users choose by it."""

    name: str
    title: str
    of: Callable[[Record, Home, str], Value]
    known: tuple[Value, ...] = ()
    filter: bool = True


class Measure(NamedTuple):
    """A figure of a record that lists sort by; None where there is none. ``unit`` is ``s``, ``us``, ``B`` or empty."""

    name: str
    title: str
    unit: str
    of: Callable[[Record], float | int | None]


def forced(record: Record) -> str:
    """What the cell overrides, in words; empty for nothing."""
    cell = record.cell
    if cell.force is Force.NONE:
        return ""
    return cell.force.value if cell.kernel_block is None else f"{cell.force.value} {cell.kernel_block}"


def advertised(record: Record) -> str:
    """``over-advertised``, ``under-advertised`` or nothing."""
    if summary.over_advertised(record):
        return "over-advertised"
    return "under-advertised" if summary.under_advertised(record) else ""


def _shown(value: object) -> str:
    return text.one_line(value, _LONGEST)


_VERDICTS = summary.RAN + summary.DID_NOT_RUN

#: In the order of the page's filters.
COLUMNS: tuple[Column, ...] = (
    Column("run", "Run", lambda r, h, run: run),
    Column("arch", "Architecture", lambda r, h, run: h.title),
    Column("versions", "Versions", lambda r, h, run: h.versions),
    Column("target", "Target", lambda r, h, run: _shown(r.cell.target)),
    Column("backend", "Backend", lambda r, h, run: _shown(r.cell.backend), ROCM_BACKENDS),
    Column("block_size", "Block", lambda r, h, run: r.cell.block_size),
    Column("kv_cache_dtype", "KV cache", lambda r, h, run: _shown(r.cell.kv_cache_dtype), KV_CACHE_DTYPES),
    Column("drafter", "Drafter", lambda r, h, run: _shown(r.cell.drafter)),
    Column("tp", "TP", lambda r, h, run: r.cell.tp),
    Column("role", "Role", lambda r, h, run: r.cell.role.value),
    Column("method", "Method", lambda r, h, run: _shown(r.cell.method), METHODS),
    Column("k", "Speculative tokens", lambda r, h, run: r.cell.num_speculative_tokens),
    Column("geometry", "Geometry", lambda r, h, run: _shown(text.heads(r.cell))),
    Column("dtype", "Model dtype", lambda r, h, run: _shown(r.cell.dtype), DTYPES),
    Column("batch", "Batch", lambda r, h, run: _shown(r.cell.batch), tuple(BATCHES)),
    Column("execution", "Execution", lambda r, h, run: _shown(r.cell.execution), EXECUTIONS),
    Column("runner", "Runner", lambda r, h, run: _shown(r.cell.runner)),
    Column("scales", "Scales", lambda r, h, run: _shown(r.cell.scales)),
    Column("switches", "Switches", lambda r, h, run: _shown(summary.switch_words(r.cell.switches)), ("",)),
    Column("force", "Forced", lambda r, h, run: forced(r), ("",)),
    Column("kernel_block", "Kernel block", lambda r, h, run: r.kernel_block),
    Column("verdict", "Verdict", lambda r, h, run: r.verdict.value, tuple(v.value for v in _VERDICTS)),
    Column("rung", "Rung", lambda r, h, run: r.rung.value, tuple(r.value for r in RUNGS)),
    Column("phase", "Ended at", lambda r, h, run: r.phase.value, tuple(p.value for p in Phase)),
    Column("flags", "Marks", lambda r, h, run: tuple(f.value for f in Flag if f in r.flags), ((),)),
    Column("advertised", "Declaration", lambda r, h, run: advertised(r), ("",)),
    Column("lengths", "Lengths", lambda r, h, run: _shown(r.cell.lengths), filter=False),
    Column("reason", "Reason", lambda r, h, run: text.reason(r, _LONGEST), ("",), filter=False),
)


def _most(record: Record, name: str) -> int | None:
    found = [v for v in (getattr(k, name) for k in record.route) if v is not None]
    return max(found, default=None)


def _spills(record: Record) -> int | None:
    found = [(k.vgpr_spills or 0) + (k.sgpr_spills or 0) for k in record.route if k.vgpr_spills is not None]
    return max(found, default=None)


def _compile(record: Record) -> float | None:
    found = [k.compile_s for k in record.route if k.compile_s is not None]
    return _rounded(sum(found)) if found else None


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.4g}")


def _error(record: Record) -> float | None:
    found = [c.worst_row_error for c in record.checks if c.ok is not None and c.worst_row_error is not None]
    return _rounded(max(found, default=None))


def _time(record: Record) -> float | None:
    return _rounded(record.times[0].median_us) if record.times else None


MEASURES: tuple[Measure, ...] = (
    Measure("time_us", "Time of a call", "us", _time),
    Measure("error", "Worst row, of its bound", "", _error),
    Measure("lds_bytes", "LDS, most", "B", lambda r: _most(r, "lds_bytes")),
    Measure("vgprs", "VGPRs, most", "", lambda r: _most(r, "vgprs")),
    Measure("spills", "Spills, most", "", _spills),
    Measure("compile_s", "Compile time", "s", _compile),
    Measure("seconds", "Cell's time", "s", lambda r: _rounded(sum(r.durations.values())) if r.durations else None),
)


def encode(values: Sequence[Value], known: Sequence[Value] = ()) -> tuple[list[Value], list[int]]:
    """The distinct values in the order shown, and for each entry the index of its value there."""
    rank = {value: i for i, value in enumerate(known)}

    def order(value: Value) -> tuple[Any, ...]:
        number = value if isinstance(value, int) else 0
        return value is not None, rank.get(value, len(rank)), not isinstance(value, int), number, str(value)

    distinct = sorted(set(values), key=order)
    code = {value: i for i, value in enumerate(distinct)}
    return distinct, [code[value] for value in values]


def packed(codes: Sequence[int]) -> list[int]:
    """Runs of equal codes as ``code, length, code, length ...``; see ``data``."""
    out: list[int] = []
    for code in codes:
        if out and out[-2] == code:
            out[-1] += 1
        else:
            out += [code, 1]
    return out


def legend() -> dict[str, Any]:
    """Words and meanings::

    verdicts  [{name, meaning, ran, failed, tells}], worst first, those that ran before those that did not;
              ``tells``: says whether the cell works
    rungs     [{name, tag, meaning}], weakest first: what a pass on it means
    marks     [{name, letter, meaning}]: the flags that a tile marks
    flags, layers, kinds, checks  {name: words}: other flags, claim layers, kinds of kernels, parts of the numerics
    not_run   what "not run" means
    """
    return {
        "verdicts": [
            {
                "name": v.value,
                "meaning": text.VERDICT_MEANING[v],
                "ran": v not in summary.DID_NOT_RUN,
                "failed": v in summary.FAILED,
                "tells": v is Verdict.PASS or v in summary.FAILED,
            }
            for v in _VERDICTS
        ],
        "rungs": [{"name": r.value, "tag": text.RUNG_TAG[r], "meaning": text.RUNG_MEANING[r]} for r in RUNGS],
        "marks": [{"name": f.value, "letter": m[0], "meaning": m[2]} for f, m in text.MARKS.items()],
        "flags": {f.value: meaning for f, meaning in explain.FLAGS.items()},
        "layers": explain.LAYERS,
        "kinds": explain.KINDS,
        "checks": explain.CHECKS,
        "not_run": text.NOT_RUN_MEANING,
    }
