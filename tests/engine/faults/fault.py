"""What a seeded fault is: the source it breaks, the cell in which it shows, and what it does to the exact result."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from capmatrix.cell import Cell, Geometry, Role

from .models import Effect, sensitivity, write_sensitivity
from .patching import Edit

#: Small enough for the interpreter, with two heads to a KV head and two KV heads.
SMALL = Geometry(4, 2, 64)
WINDOWED = Geometry(4, 2, 64, sliding_window=32)
SINKS = Geometry(4, 2, 64, sinks=True)
CAPPED = Geometry(4, 2, 64, logits_soft_cap=30.0)
#: One KV head of the least size, for pools of very many blocks.
TINY = Geometry(2, 1, 32)

#: How many times its bound a fault must move the exact result, so that a judge who misses it is blind.
ENOUGH = 10.0


@dataclass(frozen=True)
class Fault:
    """One seeded fault.

    ``kernel`` names what is broken; ``part`` is the check that must fail: ``forward`` (or ``needles``), ``query``,
    ``write`` or ``guard``. A guard's bound is nothing at all, so any change is beyond ten times it. ``measured``
    replaces ``effect`` where the attention is not of K and V. ``pool_blocks``: manager blocks that the cell's pool
    must have. ``blocks``: the only block sizes at which what it breaks runs.
    """

    name: str
    kernel: str
    edits: tuple[Edit, ...]
    effect: Effect | None
    backend: str
    block_size: int
    batch: str
    kv_cache_dtypes: tuple[str, ...] = ("auto", "fp8")
    geometry: Geometry = SMALL
    target: str = "interpreter:gfx942"
    part: str = "forward"
    pool_blocks: int | None = None
    blocks: tuple[int, ...] = ()
    k: int = 2
    lengths: str = "short"
    measured: Callable[[Cell], float] | None = None

    @property
    def aiter(self) -> bool:
        """Whether it breaks AITER's code, and needs a checkout of it."""
        return self.backend == "ROCM_AITER_UNIFIED_ATTN"

    def runs_at(self, block_size: int) -> bool:
        """Whether what it breaks runs at this block: ROCM_ATTN is native at 16 and 32, FLEX_ATTENTION wants powers."""
        if self.pool_blocks is not None:
            return block_size == self.block_size
        if self.blocks:
            return block_size in self.blocks
        if self.backend == "ROCM_ATTN":
            return block_size not in (16, 32)
        return self.backend != "FLEX_ATTENTION" or block_size & (block_size - 1) == 0

    def cell(self, kv_cache_dtype: str, block_size: int | None = None) -> Cell:
        """The cell in which the fault shows. Its ``drafter`` names the fault to the engine that seeds it."""
        return Cell(
            target=self.target,
            backend=self.backend,
            block_size=block_size or self.block_size,
            kv_cache_dtype=kv_cache_dtype,
            drafter=self.name,
            tp=1,
            role=Role.DRAFTER,
            method="eagle3" if self.geometry.mla is None else "mtp",
            geometry=self.geometry,
            num_speculative_tokens=self.k,
            batch=self.batch,
            lengths=self.lengths,
        )

    def sensitive_cell(self, kv_cache_dtype: str, block_size: int) -> Cell:
        """``cell``, with long sequences where short ones do not show the fault: all in one big block, for one."""
        cell = self.cell(kv_cache_dtype, block_size)
        if self.sensitivity(cell) >= ENOUGH:
            return cell
        longer = msgspec.structs.replace(cell, lengths="full")
        return longer if self.sensitivity(longer) >= ENOUGH else cell

    def sensitivity(self, cell: Cell) -> float:
        """How many times its bound the fault moves the exact result of ``cell``."""
        if self.measured is not None:
            return self.measured(cell)
        if self.effect is None:
            return math.inf
        return write_sensitivity(cell, self.effect) if self.part == "write" else sensitivity(cell, self.effect)
