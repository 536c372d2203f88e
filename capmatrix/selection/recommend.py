"""One question to the default-selection table: which backend, why, how sure, and the flags. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .. import archs
from ..cell import Role
from ..drafters import Family
from ..errors import InputError
from .defaults import Defaults, Other, Row
from .published import UNKNOWN, Published


class Wanted(NamedTuple):
    """What is asked: an architecture, a family, the server's block (None: any) and KV cache dtype."""

    arch: str
    family: Family
    block_size: int | None
    kv_cache_dtype: str


class Recommendation(NamedTuple):
    """The row that answers, how sure it is (each a sentence), and backends that fail and are faster, or may be.

    ``family`` is the one whose evidence is used; ``flags`` are words of ``vllm serve``, ``environment`` is what
    the choice was seen to need.
    """

    row: Row
    family: Family
    certainty: tuple[str, ...]
    faster_but_failing: tuple[Other, ...]
    flags: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]


#: What each rung lets one say.
_SURE = {
    "served": "measured by serving requests",
    "executed": "the kernels ran on the GPU, and the numbers were right",
    "emulated": "only emulated: the numbers were right, nothing was timed",
    "interpreted": "only interpreted on a CPU: the numbers were right, nothing was timed",
    "compiled": "only compiled for the architecture: nothing ran",
    "declared": "only declared: nothing ran",
}

#: Marks of a row that say something of how sure it is.
_MARKS = {
    "unrepeated": "it rests on one run that nobody repeated",
    "incomplete": "some batches that the drafter needs have no record",
    "conflict": "evidence conflicts",
    "gpu not stated": "its source does not state the GPU",
    "kept": "an earlier default is kept: the win over it is too small",
    "carried": "carried over from an earlier table; there is no newer evidence",
}


def arch_of(text: str) -> str:
    """An architecture by its name, or by the product that has it (``MI355X``). Raises InputError."""
    for arch in archs.ARCHS.values():
        if text.lower() in (arch.name.lower(), *(p.lower() for p in arch.products)):
            return arch.name
    products = [product for arch in archs.ARCHS.values() for product in arch.products]
    raise InputError("unknown GPU or architecture", value=text, allowed=[*archs.ARCHS, *products])


def known_family(family: Family, families: Mapping[str, Family], tp: int = 0) -> tuple[Family, tuple[str, ...]]:
    """The family with evidence that stands for ``family``, and what differs (a sentence each).

    The same attention (head size, query heads a KV head, window, sinks, causality, latent widths) in the same role;
    of those, the same method and number of heads first. Raises InputError where there is none.
    """
    alike = [f for f in families.values() if _attention(f) == _attention(family)]
    if family.key in families and families[family.key] == family:
        return family, ()
    if not alike:
        heads = f"heads {family.num_heads}/{family.num_kv_heads} of {family.head_size}"
        raise InputError(f"no drafter family has this attention ({heads})", value=family.key, allowed=families)

    def distance(other: Family) -> tuple[bool, bool, int]:
        heads = abs(other.num_heads - family.num_heads) + abs(other.num_kv_heads - family.num_kv_heads)
        return other.role is not family.role, other.method != family.method, heads

    best = min(alike, key=distance)
    notes = [f"evidence is that of {best.key}, which has the same attention"]
    if best.method != family.method:
        notes.append(f"it drafts with {best.method}, not {family.method}")
    if (best.num_heads, best.num_kv_heads) != (family.num_heads, family.num_kv_heads):
        theirs, ours = f"{best.num_heads}/{best.num_kv_heads}", f"{family.num_heads}/{family.num_kv_heads}"
        notes.append(f"it has {theirs} heads, not {ours}")
    return best, tuple(notes)


def _attention(family: Family) -> tuple[object, ...]:
    ratio = family.num_heads // max(1, family.num_kv_heads) if family.mla is None else 0
    return (
        family.head_size, ratio, family.sliding_window, family.sinks, family.causal,
        family.mla is not None, family.role is Role.DRAFTER,
    )  # fmt: skip


def recommend(table: Defaults, wanted: Wanted, notes: Sequence[str] = ()) -> Recommendation:
    """The answer. Raises InputError naming what the table has where no row fits."""
    row, more = _row(table, wanted)
    certainty = [_SURE.get(row.rung, row.rung or "no evidence"), *notes, *more]
    certainty += [text for mark, text in _MARKS.items() if mark in row.marks]
    if row.stale:
        certainty.append(f"stale: {row.stale}")
    mine = row.times_fastest or 1.0
    # A backend that fails has no time as a rule; one that does not even start is still what people try.
    failing = [o for o in row.other if o.why in ("failed", "barred", "rejected") and (o.times_best or 0.0) < mine]
    return Recommendation(
        row, wanted.family, tuple(certainty), tuple(failing), flags(row, wanted),
        tuple((n, v) for n, _, v in (switch.partition("=") for switch in row.switches)),
    )  # fmt: skip


def _row(table: Defaults, wanted: Wanted) -> tuple[Row, list[str]]:
    """The row that fits, exactly or, for an unknown GPU, as far as its source goes."""
    key = wanted.family.key
    rows = [r for r in table.row if r.drafter == key and r.kv_cache_dtype == wanted.kv_cache_dtype]
    if wanted.block_size is not None:
        rows = [r for r in rows if r.block_size == wanted.block_size]
    for arch in (wanted.arch, UNKNOWN):
        here = [r for r in rows if r.architecture == arch]
        backends = {r.backend for r in here}
        if here and len(backends) > 1:
            message = "the answer depends on the block size: give --block-size"
            raise InputError(message, key="--block-size", allowed=sorted({r.block_size for r in here}))
        if here:
            note = [] if arch == wanted.arch else [f"no evidence for {wanted.arch} itself"]
            return here[0], note
    has = sorted({f"{r.architecture} {r.drafter} b{r.block_size} {r.kv_cache_dtype}" for r in table.row})
    asked = f"{wanted.arch} {key} b{wanted.block_size or '?'} {wanted.kv_cache_dtype}"
    raise InputError("the table has no row for this", value=asked, allowed=has)


def flags(row: Row, wanted: Wanted) -> tuple[str, ...]:
    """Words of ``vllm serve`` that start the server the row speaks of. None where the row has no backend."""
    if not row.backend:
        return ()
    block = wanted.block_size or row.block_size
    words = ["--block-size", str(block), "--kv-cache-dtype", wanted.kv_cache_dtype]
    if not drafts(wanted.family):
        return (*words, "--attention-backend", row.backend)
    family = wanted.family
    speculative = {
        "method": family.method,
        "model": "DRAFTER",
        "num_speculative_tokens": family.num_speculative_tokens,
        "attention_backend": row.backend,
    }
    if family.method == "mtp":
        del speculative["model"]
    return (*words, "--speculative-config", json.dumps(speculative))


def drafts(family: Family) -> bool:
    """Whether the family's layers are a drafter's own."""
    return family.role is Role.DRAFTER and family.method not in ("none", "ngram")


def families_by_model(tables: Iterable[Published], families: Mapping[str, Family]) -> dict[str, str]:
    """Drafter families by the models that published results name for them, in lower case."""
    found: dict[str, str] = {}
    for table in tables:
        if table.draft_model and table.drafter in families:
            found.setdefault(table.draft_model.lower(), table.drafter)
    return found


def as_data(found: Recommendation) -> dict[str, Any]:
    """For ``--format json``."""
    return {
        "backend": found.row.backend,
        "reason": found.row.reason,
        "certainty": found.certainty,
        "rung": found.row.rung,
        "faster_but_failing": [{"backend": o.backend, "why": o.why, "detail": o.detail}
                               for o in found.faster_but_failing],
        "flags": found.flags,
        "environment": dict(found.environment),
    }  # fmt: skip
