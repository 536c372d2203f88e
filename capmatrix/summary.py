"""From many records to one word: over targets, then over batches. Pure; nothing is read or written.

The order of verdicts, and what may be compared with what, decide what a support table says, so both
live here and nowhere else:

- Over batches the worst of what *ran* decides: wrong > crash > timeout > error > unverified > pass.
  ``rejected`` and ``unavailable`` did not run: they are shown only where nothing ran.
- Over targets, for one (architecture, batch, versions), the highest rung decides. ``unverified`` says
  that a target could not tell, so it decides only where no target could. A verdict of another target
  that differs from the deciding one leaves a conflict mark.
- A GPU of another vendor under a ROCm identity is a place of its own, never an AMD architecture's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from .cell import RUNGS, Cell, Environment, Flag, Force, Record, Role, Rung, Verdict

#: Verdicts of a cell that ran, worst first.
RAN: tuple[Verdict, ...] = (
    Verdict.WRONG,
    Verdict.CRASH,
    Verdict.TIMEOUT,
    Verdict.ERROR,
    Verdict.UNVERIFIED,
    Verdict.PASS,
)

#: Verdicts of a cell that did not run, in the order in which they are shown where nothing ran.
DID_NOT_RUN: tuple[Verdict, ...] = (Verdict.REJECTED, Verdict.UNAVAILABLE)

#: Verdicts that say that something does not work.
FAILED: frozenset[Verdict] = frozenset({Verdict.WRONG, Verdict.CRASH, Verdict.TIMEOUT, Verdict.ERROR})

_SEVERITY = {verdict: i for i, verdict in enumerate(RAN + DID_NOT_RUN)}
_STRENGTH = {rung: i for i, rung in enumerate(RUNGS)}

#: Distributions whose versions must agree before two targets speak of the same thing. ROCm and the
#: driver are not among them: a target without a GPU has neither.
COMPARED_VERSIONS: tuple[str, ...] = ("vllm", "aiter", "torch", "triton")

#: A commit that is known; a build may say "unknown".
_COMMIT = re.compile(r"[0-9a-fA-F]{7,}.*")


class Place(NamedTuple):
    """Whose column a record belongs to.

    ``architecture`` is the AMD architecture that the record may speak for, empty where it may not;
    ``title`` is what a table shows.
    """

    title: str
    architecture: str = ""


class Point(NamedTuple):
    """A cell without its target, its batch and what a target scales (heads, lengths)."""

    backend: str
    block_size: int
    kv_cache_dtype: str
    drafter: str
    tp: int
    role: Role
    method: str
    num_speculative_tokens: int
    dtype: str
    execution: str
    runner: str
    scales: str
    force: Force
    kernel_block: int | None
    switches: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Finding:
    """One batch over all targets of a place: the record that decides, and the others."""

    batch: str
    record: Record
    others: tuple[Record, ...] = ()
    conflicts: tuple[Record, ...] = ()

    @property
    def ran(self) -> bool:
        """Whether the deciding record is of a cell that ran."""
        return self.record.verdict not in DID_NOT_RUN


@dataclass(frozen=True)
class Summary:
    """All batches of a point. ``verdict`` and ``rung`` are those of ``deciding``, the rung lowered to the
    weakest among equals where the verdict is one that every batch must share (pass, unverified)."""

    verdict: Verdict
    rung: Rung
    flags: tuple[Flag, ...]
    deciding: Finding
    findings: tuple[Finding, ...]


#: What a record's check ``execution`` says of a batch begins so, and the mode's name follows.
_BATCH_RAN = "; this batch "


def execution_detail(server: str, mode: str, said: str) -> str:
    """The detail of a check ``execution``: the server's mode, the batch's (NONE, PIECEWISE or FULL), and the rest."""
    return f"server {server}{_BATCH_RAN}{mode}: {said}"


def batch_mode(record: Record) -> str:
    """The mode that a record says its batch ran in: NONE, PIECEWISE or FULL; "" where it does not say."""
    for check in record.checks:
        if check.part == "execution":
            if check.detail.startswith("server NONE"):
                return "NONE"
            mode = check.detail.partition(_BATCH_RAN)[2].partition(":")[0]
            return mode if mode in ("NONE", "PIECEWISE", "FULL") else ""
    return ""


def strength(rung: Rung) -> int:
    """Position of a rung, weakest 0."""
    return _STRENGTH[rung]


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict that stands for all of them. Raises ValueError when there is none."""
    return min(verdicts, key=_SEVERITY.__getitem__)


def place(record: Record, environment: Environment | None) -> Place:
    """Whose column ``record`` belongs to.

    ``offline:<arch>`` and ``interpreter:<arch>`` speak for their architecture. A ``device`` record does
    only where its environment says that the hardware is AMD's; on another vendor's (``device:<arch>`` is
    always one) it names hardware and identity instead, and where nothing was recorded it speaks for no
    architecture.
    """
    return place_of(record.cell.target, environment)


def place_of(target: str, environment: Environment | None) -> Place:
    """``place`` of whatever ran on ``target`` in ``environment``."""
    kind, _, arch = target.partition(":")
    if arch and kind != "device":
        return Place(arch, arch)
    hardware = environment.hardware if environment else {}
    identity = environment.identity if environment else {}
    vendor = str(hardware.get("vendor", "")).lower()
    if vendor == "amd":
        found = _architecture(hardware) or _architecture(identity)
        if found:
            return Place(found, found)
    name = str(hardware.get("name", "") or "").strip()
    if not vendor and not name:
        return Place(kind)
    shown = name if name.lower().startswith(vendor) else f"{vendor.upper()} {name}".strip()
    posing = _architecture(identity)
    return Place(f"{shown} with a ROCm {posing} identity" if posing else shown)


def _architecture(facts: Mapping[str, object]) -> str:
    for key in ("arch", "architecture", "gcn_arch"):
        value = str(facts.get(key, "") or "").split(":")[0]
        if value.startswith("gfx"):
            return value
    return ""


def versions(environment: Environment | None) -> tuple[tuple[str, str], ...]:
    """The versions that must agree for two records to be compared, without build labels (``+cpu``).

    A known commit is part of the version: two checkouts of AITER with one version are two things.
    """
    if environment is None:
        return ()
    out = []
    for name in COMPARED_VERSIONS:
        version = environment.versions.get(name, "").split("+")[0]
        commit = environment.commits.get(name, "")[:12]
        commit = commit if _COMMIT.fullmatch(commit) else ""
        text = f"{version} ({commit})" if version and commit else version or commit
        if text:
            out.append((name, text))
    return tuple(out)


def point(cell: Cell) -> Point:
    """What two targets must share to speak of the same point."""
    return Point(
        cell.backend,
        cell.block_size,
        cell.kv_cache_dtype,
        cell.drafter,
        cell.tp,
        cell.role,
        cell.method,
        cell.num_speculative_tokens,
        cell.dtype,
        cell.execution,
        cell.runner,
        cell.scales,
        cell.force,
        cell.kernel_block,
        cell.switches,
    )


def over_targets(records: Iterable[Record]) -> Finding:
    """One batch of one point over the targets of one place and one set of versions.

    Raises ValueError when there is no record.
    """
    ordered = sorted(records, key=_authority)
    if not ordered:
        raise ValueError("a finding needs at least one record")
    first, others = ordered[0], tuple(ordered[1:])
    conflicts: tuple[Record, ...] = ()
    if _tells(first) or first.verdict is Verdict.REJECTED:
        conflicts = tuple(r for r in others if r.verdict is not first.verdict and _claims(r))
    return Finding(first.cell.batch, first, others, conflicts)


def _tells(record: Record) -> bool:
    return record.verdict is Verdict.PASS or record.verdict in FAILED


def _claims(record: Record) -> bool:
    """Whether a record says anything that another could contradict."""
    return _tells(record) or record.verdict is Verdict.REJECTED


def _authority(record: Record) -> tuple[int, int, int]:
    if _tells(record):
        group = 0
    elif record.verdict is Verdict.UNVERIFIED:
        group = 1
    else:
        group = 2 + DID_NOT_RUN.index(record.verdict)
    return group, -_STRENGTH[record.rung], _SEVERITY[record.verdict]


def over_batches(findings: Iterable[Finding]) -> Summary:
    """All batches of one point at one place. Raises ValueError when there is none."""
    found = tuple(findings)
    if not found:
        raise ValueError("a summary needs at least one finding")
    considered = [f for f in found if f.ran] or list(found)
    verdict = worst(f.record.verdict for f in considered)
    equals = [f for f in considered if f.record.verdict is verdict]
    # One failure proves itself, so the best evidence for it is shown; a pass is as weak as its weakest batch.
    pick = max if verdict in FAILED else min
    deciding = pick(equals, key=lambda f: _STRENGTH[f.record.rung])
    flags = {flag for f in considered for flag in f.record.flags}
    if any(f.conflicts for f in found):
        flags.add(Flag.CONFLICT)
    return Summary(verdict, deciding.record.rung, tuple(f for f in Flag if f in flags), deciding, found)


def summarise(records: Iterable[Record]) -> Summary:
    """Records of one point, place and versions: over targets for each batch, then over batches."""
    batches: dict[str, list[Record]] = {}
    for record in records:
        batches.setdefault(record.cell.batch, []).append(record)
    return over_batches(over_targets(group) for group in batches.values())


def declared_supported(record: Record) -> bool | None:
    """What the backend's own validation said, None where it was not asked."""
    for claim in record.claims:
        if claim.layer == "validation":
            return claim.accepts
    return None


def over_advertised(record: Record) -> bool:
    """Declared supported, observed failing (a forced kernel block is no declaration)."""
    return record.verdict in FAILED and declared_supported(record) is True and record.cell.force is Force.NONE


def under_advertised(record: Record) -> bool:
    """Declared rejected, passes with validation forced, above the declared rung."""
    return (
        record.verdict is Verdict.PASS
        and record.cell.force is Force.VALIDATION
        and declared_supported(record) is not True
        and _STRENGTH[record.rung] > 0
    )


def switch_words(switches: Iterable[tuple[str, str]]) -> str:
    """Environment switches as a command line has them: ``A=1 B=0``; "" for none."""
    return " ".join(f"{name}={value}" for name, value in switches)
