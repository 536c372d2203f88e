"""From a record to what a reproduction must do: how far it goes, on what inputs, and what of them it looks at."""

from __future__ import annotations

import re
from typing import NamedTuple

from .. import batches, summary, vocabulary
from ..batches import Batch
from ..cell import Cell, Environment, Flag, Phase, Record, Verdict
from ..errors import InputError
from ..pair import PairRecord

#: How far a script goes, in this order: the configuration, the layer (vLLM's selector), the KV cache, one call of
#: the layer, and that call's numbers.
STAGES: tuple[str, ...] = ("config", "layer", "cache", "forward", "compare")

#: Where a cell that failed in a phase of set-up ends; every other phase is in the call.
_SETUP: dict[Phase, str] = {Phase.CONFIGURE: "config", Phase.SELECT: "layer", Phase.BUILD: "cache"}

#: Phases after the eager call.
_BEYOND_THE_CALL = (Phase.GRAPH, Phase.TIME)

#: KV cache dtypes that hold one number an element, so that what should be stored is one rounding away.
PLAIN_KV_DTYPES: tuple[str, ...] = ("auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2")

#: Kernels that read a request's new tokens as the model computed them where it has several, not from the cache.
#: The same as ``engine.reads``, which the core may not import; a test compares them.
UNQUANTISED_NEW_TOKENS: tuple[str, ...] = ("_fwd_kernel", "_fwd_kernel_alibi")

#: Checks of a record that a script's comparison can see; the others are about bytes, graphs or scales of their own.
_SEEN = ("forward", "needles", "write", "repeat")
_UNSEEN = ("guard", "graph", "query")

#: Longest sequence, in tokens, that the cell's model admits, by ``Cell.lengths`` (as the engine configures it).
MAX_MODEL_LEN: dict[str, int] = {"short": 2048, "full": 32768}

#: What a record says of a call whose rows were padded for piecewise graphs, and the most rows that one has.
_PADDED = re.compile(r"this batch PIECEWISE: (\d{1,6}) tokens padded to (\d{1,6});", re.ASCII)
_MOST_ROWS = 8192

#: Manager blocks beyond what a batch needs, as in the engine.
_SPARE_BLOCKS = 8

#: Sizes that no attention has; a record that names them is not one that a script can be made of.
_MOST = 1 << 20


class Plan(NamedTuple):
    """What a script does for ``record``.

    ``stage``: one of ``STAGES``. ``batch``: requests in the order of vLLM's worker. ``blocks``: manager blocks of
    the pool. ``needles``: inputs of one dominant key, else normal ones. ``fill``: what unused slots hold (``zeroed``,
    ``stale``, ``nan``). ``calls``: how often the layer is called. ``unquantised``: the kernel reads several new tokens
    before they are quantised. ``arch`` is the AMD architecture that it was seen for, where that is known.
    """

    record: Record
    stage: str
    batch: Batch
    blocks: int
    needles: bool = False
    fill: str = "zeroed"
    calls: int = 1
    unquantised: bool = False
    arch: str = ""

    @property
    def cell(self) -> Cell:
        """The record's cell."""
        return self.record.cell

    def reaches(self, stage: str) -> bool:
        """Whether the script goes as far as ``stage``."""
        return STAGES.index(self.stage) >= STAGES.index(stage)


def plan(record: Record | PairRecord, environment: Environment | None = None) -> Plan:
    """What reproduces ``record``, made in ``environment``.

    Raises InputError for what no short script can show, with the reason.
    """
    if isinstance(record, PairRecord):
        raise _no_script(
            "a pair is what vLLM's engine makes of two models at once; reproduce it with `vllm serve` and the two "
            "configs, or ask for the cell of one side",
            record.cell_id,
        )
    check_words(record.cell)
    if record.verdict is Verdict.UNAVAILABLE:
        raise _no_script("the cell was unavailable, so nothing of it ran", record.cell_id)
    if record.cell.geometry.mla is not None:
        raise _no_script(
            "latent attention (MLA) takes projections, their absorption and a prefill backend of its own, more than a "
            "short script holds",
            record.cell_id,
        )
    stage = _stage(record)
    batch = _batch(record)
    bad = [c for c in record.checks if c.ok is False]
    parts = {c.part for c in bad}
    _check_shown(record, stage, parts)
    numbers = [c.cache for c in bad if c.part in ("forward", "needles")]
    block = manager_block(record)
    longest = -(-MAX_MODEL_LEN[record.cell.lengths] // block)
    needed = max(longest, sum(-(-request.seq_len // block) for request in batch.requests))
    return Plan(
        record=record,
        stage=stage,
        batch=batch,
        blocks=needed + _SPARE_BLOCKS,
        needles="needles" in parts and "forward" not in parts,
        fill=_fill(record, numbers),
        calls=2 if "repeat" in parts else 1,
        unquantised=any(k.name in UNQUANTISED_NEW_TOKENS for k in record.route),
        arch=architecture(record, environment),
    )


def architecture(record: Record, environment: Environment | None) -> str:
    """The AMD architecture that the record is about, posed ones included; empty where none is known."""
    found = summary.place(record, environment).architecture or record.cell.target.partition(":")[2]
    return found if found in vocabulary.ARCHITECTURES else ""


def _no_script(why: str, cell_id: str) -> InputError:
    return InputError(f"there is no script for it: {why}", key="cell", value=cell_id)


def check_words(cell: Cell) -> None:
    """A record is input: every word of it that a script would use as more than a text must be known."""
    known: tuple[tuple[str, str, tuple[str, ...]], ...] = (
        ("backend", cell.backend, vocabulary.ROCM_BACKENDS + vocabulary.OTHER_BACKENDS),
        ("kv_cache_dtype", cell.kv_cache_dtype, vocabulary.KV_CACHE_DTYPES),
        ("dtype", cell.dtype, vocabulary.DTYPES),
        ("batch", cell.batch, batches.NAMES),
        ("lengths", cell.lengths, tuple(MAX_MODEL_LEN)),
        ("method", cell.method, vocabulary.METHODS),
        ("execution", cell.execution, vocabulary.EXECUTIONS),
        ("scales", cell.scales, vocabulary.SCALES),
    )
    for key, value, allowed in known:
        if value not in allowed:
            raise InputError(
                "the record's cell has a word that is not known here", key=key, value=value, allowed=allowed
            )
    g = cell.geometry
    sizes = {
        "block_size": cell.block_size,
        "num_heads": g.num_heads,
        "num_kv_heads": g.num_kv_heads,
        "head_size": g.head_size,
        "num_speculative_tokens": cell.num_speculative_tokens + 1,
        "sliding_window": g.sliding_window if g.sliding_window is not None else 1,
        "kernel_block": cell.kernel_block if cell.kernel_block is not None else 1,
    }
    for key, size in sizes.items():
        if not 0 < size <= _MOST:
            raise InputError("the record's cell has a size that no attention has", key=key, value=size)
    if g.logits_soft_cap is not None and not 0 < g.logits_soft_cap <= _MOST:
        raise InputError(
            "the record's cell has a cap that no attention has", key="logits_soft_cap", value=g.logits_soft_cap
        )
    if g.num_heads % g.num_kv_heads:
        raise InputError("does not divide the query heads", key="num_kv_heads", value=g.num_kv_heads)


def _stage(record: Record) -> str:
    """Where the script ends: at the exception of a set-up, after the call that failed, or with its numbers."""
    if record.verdict is Verdict.REJECTED:
        return "layer"
    if record.verdict in (Verdict.ERROR, Verdict.CRASH, Verdict.TIMEOUT):
        return _SETUP.get(record.phase, "forward")
    return "compare"


def _check_shown(record: Record, stage: str, parts: set[str]) -> None:
    """Raises InputError where one eager call, compared with a reference, does not show what failed."""
    cell = record.cell
    if stage == "compare" and cell.kv_cache_dtype not in PLAIN_KV_DTYPES:
        raise _no_script(
            f"a {cell.kv_cache_dtype} cache packs codes with scales of their own, which a short script cannot state",
            record.cell_id,
        )
    elsewhere = record.phase in _BEYOND_THE_CALL and record.verdict is not Verdict.PASS
    if elsewhere or (parts and not parts & set(_SEEN)):
        what = ", ".join(part for part in _UNSEEN if part in parts) or "a check that is not known here"
        what = record.phase.value if elsewhere else what
        raise _no_script(
            f"what failed ({what}) is not in the output of one eager call, which is all that a short script makes",
            record.cell_id,
        )


def manager_block(record: Record) -> int:
    """The manager block that set-up gave the layer's group, in tokens; the cell's where it did not get that far."""
    found = record.kv_cache.get("manager_block")
    if isinstance(found, int) and not isinstance(found, bool) and 0 < found <= _MOST:
        return found
    return record.cell.block_size


def _batch(record: Record) -> Batch:
    cell = record.cell
    built = batches.build(
        cell.batch,
        block_size=manager_block(record),
        num_speculative_tokens=cell.num_speculative_tokens,
        lengths=cell.lengths,
    )
    ordered = batches.in_worker_order(built, 1 + cell.num_speculative_tokens)
    padded = _padded_to(record)
    return ordered._replace(padded_tokens=padded - sum(r.query_len for r in ordered.requests)) if padded else ordered


def _padded_to(record: Record) -> int:
    """Rows that the record says a call between piecewise graphs had; 0 where it says none that could be."""
    said = next((c.detail for c in record.checks if c.part == "execution"), "")
    found = _PADDED.search(said) if record.cell.execution != "eager" else None
    real, rows = (int(n) for n in found.groups()) if found else (0, 0)
    return rows if real < rows <= _MOST_ROWS else 0


def _fill(record: Record, failing: list[str]) -> str:
    if Flag.NAN_UNSAFE in record.flags and record.verdict is Verdict.PASS:
        return "nan"
    return next((fill for fill in ("zeroed", "stale", "nan") if fill in failing), "zeroed")
