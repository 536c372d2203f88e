"""A target and its drafter together, as plain data: pairs, their ids and their records.

A pair is what vLLM's engine set-up decides about both at once: backends, KV cache groups, layout, kernel blocks.
``PairRecord`` is a line of its own kind in a run file, beside the cells' ``Record``. No behaviour beyond ids.
"""

from __future__ import annotations

from typing import Any

import msgspec

from .cell import Cell, Check, Failure, Flag, Geometry, Kernel, Phase, Record, Role, Rung, Verdict

#: Version of the pair record's format. Raised when a reader of the old format would misread the new one.
PAIR_VERSION = 1

#: Runner of a pair: ``auto`` leaves the choice to vLLM, the others set VLLM_USE_V2_MODEL_RUNNER.
RUNNERS: tuple[str, ...] = ("auto", "v1", "v2")

#: Leaves a choice to vLLM: a backend, the block size, the runner.
AUTO = "auto"

#: The draft's KV cache dtype where it is the target's.
SAME = "same"

_DTYPE_TOKENS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


class StateGeometry(msgspec.Struct, frozen=True):
    """Recurrent layers of a hybrid target (gated delta net), heads of one rank; sizes in elements."""

    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int


class Side(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of the two models. ``family`` names a target model or a drafter family; ``architecture`` is the model
    class as its config names it; ``backend`` is what is asked for (None: left to vLLM)."""

    family: str
    architecture: str
    geometry: Geometry
    backend: str | None = None
    state: StateGeometry | None = None


class Pair(msgspec.Struct, frozen=True, omit_defaults=True):
    """A target model and a drafter in one engine.

    ``target`` is where it runs, as for a cell. ``block_size`` in tokens (None: not given);
    ``draft_kv_cache_dtype`` None is the target's; ``batches`` are run on either side where set-up passes (none:
    set-up alone).
    """

    target: str
    target_model: Side
    drafter: Side
    tp: int
    method: str
    num_speculative_tokens: int
    block_size: int | None = None
    kv_cache_dtype: str = "auto"
    draft_kv_cache_dtype: str | None = None
    dtype: str = "bfloat16"
    runner: str = "auto"
    batches: tuple[str, ...] = ()
    switches: tuple[tuple[str, str], ...] = ()


class SideFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What vLLM made of one side.

    ``backends``: layers by the backend they resolved to, registry names; ``kinds``: layers by the class of
    their KV cache spec. ``how``: ``explicit``, ``inherited`` (the target's), ``automatic``, or ``ignored`` (what
    was asked for). ``order`` are the valid backends, first choice first, and ``rejections`` the reasons of the
    others, as the selector was asked for this side's attention. ``kv_cache_dtype`` is the layer's own;
    ``metadata`` are metadata classes. ``native_path``: whether ROCM_ATTN keeps its native kernels in the
    resolved layout (None: not ROCM_ATTN), and ``native_reason`` why.
    """

    model_class: str = ""
    backends: dict[str, int] = {}
    kinds: dict[str, int] = {}
    how: str = ""
    order: tuple[str, ...] = ()
    rejections: dict[str, tuple[str, ...]] = {}
    kv_cache_dtype: str = ""
    layouts: tuple[str, ...] | None = None
    metadata: tuple[str, ...] = ()
    graph_support: str = ""
    native_path: bool | None = None
    native_reason: str = ""


class GroupFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """One KV cache group. Blocks in tokens; ``page_bytes`` of one layer's block. ``layers`` by role and backend."""

    spec: str
    manager_block: int
    kernel_block: int | None
    page_bytes: int
    layers: dict[str, int]
    graph_support: dict[str, str] = {}


class SideRun(msgspec.Struct, frozen=True, omit_defaults=True):
    """One batch of one side's attention, run at the resolved kernel block and layout in the shared pool.

    ``canary`` says what happened to pages and layers that the call does not own (None: not looked at).
    """

    role: str
    layer: str
    backend: str
    batch: str
    verdict: Verdict
    rung: Rung
    phase: Phase
    reasons: tuple[str, ...] = ()
    flags: tuple[Flag, ...] = ()
    failure: Failure | None = None
    kernel_block: int | None = None
    route: tuple[Kernel, ...] = ()
    checks: tuple[Check, ...] = ()
    canary: Check | None = None


class Uncalled(msgspec.Struct, frozen=True):
    """Layers of one kind that set-up made and that no call reached, and why."""

    role: str
    backend: str
    layers: int
    reason: str


class PairRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A pair's outcome. ``environment`` names an ``Environment`` of the same run file by its id.

    ``phase`` and ``step`` say where set-up ended; ``runner`` is the one vLLM chose and ``rules`` what it does
    about the drafter, one sentence each. ``effective`` is the draft configuration that vLLM loaded with, not
    the one asked for. ``pool`` describes the tensors behind the KV cache. Durations in seconds by phase.
    ``uncalled`` are the layers that calls, where they were asked for, did not reach. ``contradictions`` are what is
    known to be wrong of what set-up built, whether or not a call shows it, one sentence each.
    ``repeats`` are the verdicts of all attempts, in order, where the pair was repeated.
    """

    pair_id: str
    pair: Pair
    verdict: Verdict
    rung: Rung
    phase: Phase
    environment: str
    step: str = ""
    reasons: tuple[str, ...] = ()
    flags: tuple[Flag, ...] = ()
    failure: Failure | None = None
    runner: str = ""
    rules: tuple[str, ...] = ()
    target_model: SideFacts = SideFacts()
    drafter: SideFacts = SideFacts()
    effective: dict[str, Any] = {}
    layout: str = ""
    layouts: tuple[str, ...] = ()
    manager_block: int | None = None
    groups: tuple[GroupFacts, ...] = ()
    graph_support: str = ""
    pool: dict[str, Any] = {}
    contradictions: tuple[str, ...] = ()
    runs: tuple[SideRun, ...] = ()
    uncalled: tuple[Uncalled, ...] = ()
    shims: tuple[str, ...] = ()
    durations: dict[str, float] = {}
    attempt: int = 1
    repeats: tuple[Verdict, ...] = ()
    started_at: str = ""
    ended_at: str = ""
    version: int = PAIR_VERSION

    @property
    def cell_id(self) -> str:
        """Its id, under the name that whatever looks records up by id uses."""
        return self.pair_id


def pair_id(pair: Pair) -> str:
    """Stable and readable, usable as a pytest node id and, token by token, with ``-k``.

    ``<target>-pair-<model>:<backend>+<drafter>:<backend>-b<block>-<KV dtype>...``; ``auto`` is what was not given.
    """
    sides = "+".join(f"{side.family}:{side.backend or 'auto'}" for side in (pair.target_model, pair.drafter))
    kv = pair.kv_cache_dtype
    if pair.draft_kv_cache_dtype is not None:
        kv += f"+{pair.draft_kv_cache_dtype}"
    text = (
        f"{pair.target}-pair-{sides}-b{pair.block_size or 'auto'}-{kv}-tp{pair.tp}"
        f"-k{pair.num_speculative_tokens}-{_DTYPE_TOKENS.get(pair.dtype, pair.dtype)}"
    )
    if pair.runner != "auto":
        text += f"-{pair.runner}"
    for name, value in pair.switches:
        text += f"-{name}={value}"
    return text


def server_key(pair: Pair) -> tuple[str, tuple[tuple[str, str], ...]]:
    """What pairs (and cells) must share to share a worker process."""
    return (pair.target, pair.switches)


def carrier(pair: Pair) -> Cell:
    """A cell that stands for the pair where only its target, switches and name count: servers, limits, deaths."""
    return Cell(
        target=pair.target,
        backend=pair.drafter.backend or "auto",
        block_size=pair.block_size or 0,
        kv_cache_dtype=pair.kv_cache_dtype,
        drafter=pair.drafter.family,
        tp=pair.tp,
        role=Role.DRAFTER,
        method=pair.method,
        geometry=pair.drafter.geometry,
        num_speculative_tokens=pair.num_speculative_tokens,
        batch="pair",
        dtype=pair.dtype,
        switches=pair.switches,
    )


def of_death(record: Record, pair: Pair) -> PairRecord:
    """The record of a pair whose worker died, hung or never started, from what was said of the job it ran."""
    return PairRecord(
        pair_id=pair_id(pair),
        pair=pair,
        verdict=record.verdict,
        rung=record.rung,
        phase=record.phase,
        environment=record.environment,
        reasons=record.reasons,
        failure=record.failure,
        durations=record.durations,
    )
