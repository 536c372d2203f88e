"""An engine with faults that show only where rows are padded or a call is replayed, for ``capmatrix.workers.pool``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from faults.patching import Edit, edited

from capmatrix.cell import Cell, Record
from capmatrix.engine import session
from capmatrix.engine.session import Emit

_TRITON = "vllm.v1.attention.backends.triton_attn"
_WRITER = "vllm.v1.attention.ops.triton_reshape_and_cache_flash"
_MLA = "vllm.model_executor.layers.attention.mla_attention"

#: By name: what is edited. Each leaves a call without padded rows, and made once, as it is.
EDITS: dict[str, Edit] = {
    "padded-rows-into-slot-0": Edit(
        _WRITER, "reshape_and_cache_kernel_flash", "slot_idx = tl.load(slot_mapping_ptr + token_idx).to(tl.int64)",
        "slot_idx = tl.maximum(tl.load(slot_mapping_ptr + token_idx).to(tl.int64), 0)",
    ),
    "output-from-the-end": Edit(
        _TRITON, "TritonAttentionImpl.forward", "out=output[:num_actual_tokens]", "out=output[-num_actual_tokens:]"
    ),
    "latent-output-from-the-end": Edit(
        _MLA, "MLAAttention.forward_impl", "output = output[:num_actual_toks, ...]",
        "output = output[-num_actual_toks:, ...]",
    ),
    "lengths-of-the-capture": Edit(
        _TRITON, "TritonAttentionMetadataBuilder.build", "seq_lens = common_attn_metadata.seq_lens",
        "seq_lens = common_attn_metadata.seq_lens.clone()",
    ),
    "latent-lengths-of-the-capture": Edit(
        _MLA, "MLACommonMetadataBuilder.build", "seq_lens = common_attn_metadata.seq_lens",
        "seq_lens = common_attn_metadata.seq_lens.clone()",
    ),
    "never-declared": Edit(
        _TRITON, "TritonAttentionMetadataBuilder", "AttentionCGSupport.ALWAYS", "AttentionCGSupport.NEVER"
    ),
}  # fmt: skip


class FaultySession:
    """Runs a cell with the edit that its ``drafter`` names, or unbroken where it names none."""

    def __init__(self, whole: session.Session) -> None:
        self.whole = whole
        self.target = whole.target
        self.environment = whole.environment

    def run(self, cell: Cell, emit: Emit) -> Record:
        """One cell's record."""
        edit = EDITS.get(cell.drafter)
        if edit is None:
            return self.whole.run(cell, emit)
        with edited((edit,)):
            return self.whole.run(cell, emit)


def open_session(target: str, switches: Mapping[str, str], options: Mapping[str, Any]) -> FaultySession:
    """As ``capmatrix.engine.session.open_session``."""
    return FaultySession(session.open_session(target, switches, options))
