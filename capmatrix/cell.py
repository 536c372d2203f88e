"""The words of capmatrix as plain data: cells, records and what they are made of.

Everything here is a frozen ``msgspec.Struct`` or a string enum and has no behaviour; ``codec`` turns
it into JSON and back. Nothing here imports torch or vllm.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal

import msgspec

#: Version of the record format. Raised when a reader of the old format would misread the new one.
RECORD_VERSION = 1


class Verdict(str, Enum):
    """What happened to a cell; exactly one per record."""

    PASS = "pass"
    WRONG = "wrong"
    ERROR = "error"
    CRASH = "crash"
    TIMEOUT = "timeout"
    REJECTED = "rejected"
    UNAVAILABLE = "unavailable"
    UNVERIFIED = "unverified"


class Rung(str, Enum):
    """How strong the evidence is; ``RUNGS`` orders them, weakest first."""

    DECLARED = "declared"
    COMPILED = "compiled"
    INTERPRETED = "interpreted"
    EMULATED = "emulated"
    EXECUTED = "executed"
    SERVED = "served"


RUNGS: tuple[Rung, ...] = tuple(Rung)


class Phase(str, Enum):
    """Where a cell ended, in the order a cell goes through them."""

    SELECT = "select"
    CONFIGURE = "configure"
    BUILD = "build"
    COMPILE = "compile"
    CACHE_WRITE = "cache-write"
    FORWARD = "forward"
    GRAPH = "graph"
    COMPARE = "compare"
    TIME = "time"


class Flag(str, Enum):
    """Marks beside a verdict."""

    NAN_UNSAFE = "nan_unsafe"
    FALLBACK = "fallback"
    FORCED_VALIDATION = "forced: validation"
    FORCED_KERNEL_BLOCK = "forced: kernel_block"
    STAND_IN = "stand_in"
    CONFLICT = "conflict"
    STALE = "stale"


class Role(str, Enum):
    """Whose attention a cell is."""

    TARGET = "target"
    DRAFTER = "drafter"


class Force(str, Enum):
    """What a cell overrides; the two are different experiments."""

    NONE = "none"
    VALIDATION = "validation"
    KERNEL_BLOCK = "kernel_block"


class MlaGeometry(msgspec.Struct, frozen=True, omit_defaults=True):
    """Multi-head latent attention widths, in elements."""

    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None = None


class Geometry(msgspec.Struct, frozen=True, omit_defaults=True):
    """Attention geometry of one tensor-parallel rank, as run.

    ``num_heads`` and ``num_kv_heads`` count heads of one rank; ``head_size`` is in elements;
    ``sliding_window`` in tokens. ``scaled`` says that heads were reduced from the family's own
    for a slow target, keeping the GQA ratio.
    """

    num_heads: int
    num_kv_heads: int
    head_size: int
    sliding_window: int | None = None
    sinks: bool = False
    causal: bool = True
    logits_soft_cap: float | None = None
    mla: MlaGeometry | None = None
    scaled: bool = False


class Cell(msgspec.Struct, frozen=True, omit_defaults=True):
    """One point of the matrix.

    ``block_size`` is the manager block in tokens; ``kernel_block`` is only set where ``force`` is
    ``kernel_block``. ``num_speculative_tokens`` is k: a verify has 1 + k query tokens a request.
    ``lengths`` is ``short`` (interpreter) or ``full``: see ``batches``. ``forced_block`` is the block
    size in tokens that the family's target forces on the group. ``switches`` are sorted environment pairs.
    """

    target: str
    backend: str
    block_size: int
    kv_cache_dtype: str
    drafter: str
    tp: int
    role: Role
    method: str
    geometry: Geometry
    num_speculative_tokens: int
    batch: str
    dtype: str = "bfloat16"
    execution: str = "eager"
    runner: str = "v2"
    scales: str = "non_unit"
    lengths: str = "full"
    force: Force = Force.NONE
    kernel_block: int | None = None
    forced_block: int | None = None
    switches: tuple[tuple[str, str], ...] = ()


class Claim(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one claim layer says of a cell.

    ``layer`` is one of ``validation`` (the backend's own), ``selector`` (would vLLM pick it by
    default), ``kernel_block`` (declared sizes and what the group resolved), ``shared_group`` (the
    same with a peer that declares the drafter's forced block), ``proposer`` (V1's allow-list).
    ``accepts`` is None where the layer does not apply or was not asked.
    """

    layer: str
    accepts: bool | None
    detail: str = ""
    data: dict[str, Any] = {}


class Kernel(msgspec.Struct, frozen=True, omit_defaults=True):
    """One kernel or native operator that a cell ran, in order of first launch.

    ``kind``: ``triton``, ``native`` (an operator this target has no code for), ``stand_in`` (a native
    operator whose exact result was computed in PyTorch), ``torch``. ``phase``: ``cache-write``,
    ``forward``, or ``graph`` (compiled as a capture would launch it). Sizes in bytes; registers per lane; ``compile_s``
    in seconds (None: from cache).
    """

    name: str
    kind: str
    phase: str
    calls: int = 1
    grid: tuple[int, ...] | None = None
    num_warps: int | None = None
    num_stages: int | None = None
    lds_bytes: int | None = None
    vgprs: int | None = None
    agprs: int | None = None
    sgprs: int | None = None
    vgpr_spills: int | None = None
    sgpr_spills: int | None = None
    scratch_bytes: int | None = None
    compile_s: float | None = None
    detail: str = ""


class Check(msgspec.Struct, frozen=True, omit_defaults=True):
    """One numeric comparison.

    ``part``: ``write`` (the cache write alone), ``forward`` (attention over K and V as stored), ``needles`` (the
    same with one dominant key), ``query`` (how the kernels' query was made), ``selection`` (the blocks that an
    indexer selected), ``repeat`` (a second call against the first), ``guard`` (bytes that nobody may change),
    ``accuracy`` (against unquantised inputs; reported, not judged), ``execution`` (the mode that vLLM runs the batch
    in; said, not judged), ``graph`` (a replay of a captured graph, or of the call that one would hold). ``cache``: what
    unused slots held: ``zeroed``, ``stale``, ``nan``.

    ``relative_l2``, ``plain_error`` and ``bound`` are norms over all judged rows, relative to the reference's norm:
    the error, that of plain PyTorch in the same dtypes, and the derived unit-roundoff budget. Rows are judged one by
    one as well: ``worst_row`` is the row (token * heads + head, among the rows judged) whose error is largest against
    its own bound, and ``worst_row_error`` is that ratio, error to bound: above 1 the row is off. ``max_abs`` is the
    largest error of one element; of ``write``, in half-ulps of the requested dtype or half-steps of a stored scale, so
    that ``bound`` is 1 there. ``ok`` is None where the part is reported only or could not be told.
    """

    part: str
    ok: bool | None
    cache: str = "zeroed"
    relative_l2: float | None = None
    worst_row: int | None = None
    worst_row_error: float | None = None
    max_abs: float | None = None
    nan_count: int = 0
    unwritten_count: int = 0
    bound: float | None = None
    plain_error: float | None = None
    detail: str = ""


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """An exception or a death: type and message, the deepest frame in vllm, aiter or triton, and tails."""

    type: str
    message: str
    frame: str = ""
    traceback: tuple[str, ...] = ()
    exit_code: int | None = None
    signal: str = ""
    stderr_tail: str = ""


class Timing(msgspec.Struct, frozen=True, omit_defaults=True):
    """How long one attention call of a phase took, cache write included, under a workload profile.

    ``phase``: ``decode`` (one query token a request), ``verify`` (1 + k) or ``prefill``. ``workload`` names
    the profile that gave the batch its requests and lengths. Times in microseconds a call of one layer of
    one rank: the median over ``repeats`` repeats, and the interval it lies in (``low_us`` to ``high_us``, 95 %,
    and never narrower than the rounds are apart). ``share_of_roofline`` is the bytes the call must move at the
    machine's measured bandwidth, over the time (1: at the roofline). ``query_tokens`` is how many new tokens the
    call has over all its requests (0: not recorded); ``detail`` says what else matters.

    ``rounds``: the median of each round in order, the cell's rivals having run between them (empty: not recorded).
    ``drifted``: a round's median lay outside the interval of all repeats, which was widened for it. ``requests`` of
    the call (0: not recorded). ``bandwidth_tb_s``: 10^12 bytes a second that plain sums and copies moved in the same
    process. ``metadata_us``: host time of one build of the attention metadata, and ``metadata_synchronisations``: how
    often that build made the host wait for the GPU. ``clocks``: lowest and highest of what the driver said after the
    rounds: clocks in MHz, power in W, temperature in degrees Celsius, each by a name that says so. ``host_us``: what
    the host took to make the call, which is no part of the time; ``gpu``: which GPU it was, as the driver names it.
    """

    phase: Literal["decode", "verify", "prefill"]
    workload: str
    median_us: float
    low_us: float
    high_us: float
    repeats: int
    share_of_roofline: float | None = None
    query_tokens: int = 0
    detail: str = ""
    rounds: tuple[float, ...] = ()
    drifted: bool = False
    requests: int = 0
    bandwidth_tb_s: float | None = None
    metadata_us: float | None = None
    metadata_synchronisations: int | None = None
    clocks: dict[str, tuple[float, float]] = {}
    host_us: float | None = None
    gpu: str = ""


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """One cell's outcome. ``environment`` names an ``Environment`` of the same run file by its id.

    ``reasons`` are one line each, the first being the one a table shows. ``durations`` in seconds by
    phase. ``kernel_block`` is None when set-up did not get that far. ``times`` are measured kernel times, of
    cells that passed. ``repeats`` are the verdicts of a cell that was repeated because it was not as expected,
    the first one first; where they differ the record is the worst one's. Points in time are UTC, ISO 8601.
    """

    cell_id: str
    cell: Cell
    verdict: Verdict
    rung: Rung
    phase: Phase
    environment: str
    reasons: tuple[str, ...] = ()
    flags: tuple[Flag, ...] = ()
    failure: Failure | None = None
    claims: tuple[Claim, ...] = ()
    implementation: str = ""
    kernel_block: int | None = None
    layout: str = ""
    kv_cache: dict[str, Any] = {}
    graph_support: str = ""
    route: tuple[Kernel, ...] = ()
    checks: tuple[Check, ...] = ()
    shims: tuple[str, ...] = ()
    durations: dict[str, float] = {}
    times: tuple[Timing, ...] = ()
    attempt: int = 1
    repeats: tuple[Verdict, ...] = ()
    started_at: str = ""
    ended_at: str = ""
    version: int = RECORD_VERSION


class Environment(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one worker server ran on. ``id`` is a digest of the rest.

    ``versions`` by distribution (vllm, aiter, torch, triton, python, rocm, driver); ``commits`` where
    known; ``hardware`` what the machine has; ``identity`` the platform vLLM was told it has;
    ``extensions`` what capmatrix itself changed (interpreter extension, virtual platform).
    """

    id: str
    target: str
    versions: dict[str, str] = {}
    commits: dict[str, str] = {}
    hardware: dict[str, Any] = {}
    identity: dict[str, Any] = {}
    switches: dict[str, str] = {}
    extensions: tuple[str, ...] = ()
