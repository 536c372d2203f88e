"""The latent attention layer of a cell: vLLM's own ``MLAAttention``, called as DeepSeek V2's model calls it.

``kv_b_proj`` is a real linear layer with drawn weights; vLLM absorbs it into W_UK and W_UV. Single tokens
and short uniform verifies run over the latent itself (``forward_mqa``); longer queries run over keys and
values projected up from it (``forward_mha``) through the prefill backend that vLLM picks for the platform.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ..cell import Cell
from . import bands, mla_inputs, native_ops, shims


class Watched:
    """What a forward went through: the absorbed ``query`` as the kernels got it, and its ``native`` rows.

    ``read`` are the buffers that the kernels may only read.
    """

    def __init__(self) -> None:
        self.query: torch.Tensor | None = None
        self.native: torch.Tensor | None = None
        self.read: list[bands.Banded] = []

    def around(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """A copy of ``x`` with bands around it, watched."""
        banded = bands.around(name, x)
        self.read.append(banded)
        return banded.view


def make(cell: Cell, config: Any, name: str) -> Any:
    """Build the layer inside ``set_current_vllm_config(config)``, default dtype set; the selector runs here.

    Raises what vLLM raises: a ValueError means that no backend, or no prefill backend, is valid.
    """
    from vllm.model_executor.layers.attention import MLAAttention
    from vllm.model_executor.layers.linear import ColumnParallelLinear

    from . import mla_prefill

    distributed()
    g, m = cell.geometry, mla_inputs.widths(cell.geometry)
    dtype = getattr(torch, cell.dtype)
    kv_b_proj = ColumnParallelLinear(
        m.kv_lora_rank,
        g.num_heads * (m.qk_nope_head_dim + m.v_head_dim),
        bias=False,
        params_dtype=dtype,
        prefix=name.replace(".attn", ".kv_b_proj"),
    )
    kv_b_proj.weight.data.copy_(mla_inputs.weight(g, dtype))
    kv_b_proj.quant_method.process_weights_after_loading(kv_b_proj)
    with mla_prefill.flash_attn_counted_as_installed():
        layer = MLAAttention(
            num_heads=g.num_heads,
            scale=(m.qk_nope_head_dim + m.qk_rope_head_dim) ** -0.5,
            qk_nope_head_dim=m.qk_nope_head_dim,
            qk_rope_head_dim=m.qk_rope_head_dim,
            v_head_dim=m.v_head_dim,
            q_lora_rank=m.q_lora_rank,
            kv_lora_rank=m.kv_lora_rank,
            kv_b_proj=kv_b_proj,
            cache_config=config.cache_config,
            prefix=name,
            non_causal_multi_token_decode=not g.causal,
        )
    with _without_warm_up():
        layer.process_weights_after_loading(dtype)
    # ``Attention`` has it; what fills the pool asks.
    layer.dtype = dtype
    return layer


def distributed() -> None:
    """One-rank groups, which vLLM's parallel linear layers insist on; once a process."""
    if torch.distributed.is_initialized():
        return
    from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment

    meeting = Path(tempfile.mkdtemp(prefix="capmatrix-rank-")) / "meeting"
    init_distributed_environment(1, 0, f"file://{meeting}", 0, "gloo")
    ensure_model_parallel_initialized(1, 1)


@contextlib.contextmanager
def _without_warm_up() -> Iterator[None]:
    """Within, AITER's FP8 products are not launched: vLLM compiles them for 1,024 batch sizes and drops the results."""
    from vllm._aiter_ops import rocm_aiter_ops

    own = rocm_aiter_ops.__dict__["triton_fp8_bmm"]
    rocm_aiter_ops.triton_fp8_bmm = shims.answering("no warm-up of AITER's FP8 products", None)
    try:
        yield
    finally:
        rocm_aiter_ops.triton_fp8_bmm = own


def without_bound(layer: Any) -> str:
    """Why the absorbed path of ``layer`` has no bound, or the empty string."""
    if hasattr(layer, "W_UK_T"):
        return ""
    kind = "MXFP4" if layer.is_aiter_triton_fp4_bmm_enabled else "FP8"
    return f"unverified: vLLM quantises W_UK and W_UV to {kind} here; the error is reported without a bound"


def is_mla(layer: Any) -> bool:
    """Whether ``layer`` attends over a latent."""
    return hasattr(layer, "kv_lora_rank")


def call(layer: Any, q: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Output (tokens, heads * v) of queries (tokens, heads, nope + rope) with latent rows (tokens, 1, ...)."""
    return call_with(layer, q, *parts(layer, rows))


def call_with(layer: Any, q: torch.Tensor, kv_c: torch.Tensor, k_pe: torch.Tensor) -> torch.Tensor:
    """As ``call``, with the rows in their two parts."""
    output: torch.Tensor = layer(q, kv_c, k_pe, output_shape=(q.shape[0], layer.num_heads * layer.v_head_dim))
    return output


def write(layer: Any, rows: torch.Tensor, slots: torch.Tensor) -> None:
    """Store latent rows with the layer's own writer."""
    kv_c, k_pe = parts(layer, rows)
    layer.update_kv_cache(kv_c, k_pe, layer.kv_cache, slots, None, layer.kv_cache_dtype, layer._k_scale)


def parts(layer: Any, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``kv_c_normed`` (tokens, rank) and ``k_pe`` (tokens, 1, rope), as the model's norm and split leave them."""
    kv_c, k_pe = rows.split([layer.kv_lora_rank, layer.qk_rope_head_dim], dim=-1)
    return kv_c.squeeze(1).contiguous(), k_pe


@contextlib.contextmanager
def absorbing(layer: Any) -> Iterator[list[torch.Tensor]]:
    """Collect a copy of the absorbed query that the kernels get, and nothing else, while the layer runs."""
    seen: list[torch.Tensor] = []
    own = layer.impl.forward_mqa

    def forward_mqa(q: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append((torch.cat(q, dim=-1) if isinstance(q, tuple) else q).clone())
        return own(q, *args, **kwargs)

    layer.impl.forward_mqa = forward_mqa
    try:
        yield seen
    finally:
        del layer.impl.forward_mqa


@contextlib.contextmanager
def watched(layer: Any) -> Iterator[Watched]:
    """Collect the absorbed query, and which rows native operators would have written, while the layer runs.

    Both paths compute into temporaries of their own, so a native operator's claim is carried to the rows
    of the output that come from it.
    """
    seen = Watched()
    impl = layer.impl
    own_mqa, own_mha = impl.forward_mqa, getattr(impl, "forward_mha", None)

    def forward_mqa(q: Any, *args: Any, **kwargs: Any) -> Any:
        seen.query = (torch.cat(q, dim=-1) if isinstance(q, tuple) else q).clone()
        if not isinstance(q, tuple):
            q = seen.around("the absorbed query", q)
        since = native_ops.claims()
        result = own_mqa(q, *args, **kwargs)
        latent = result[0] if isinstance(result, tuple) else result
        if native_ops.claims() > since:
            seen.native = torch.ones(latent.shape[0], dtype=torch.bool)
        return result

    def forward_mha(*args: Any, **kwargs: Any) -> Any:
        since = native_ops.claims()
        result = own_mha(*args, **kwargs)  # type: ignore[misc]
        if native_ops.claims() > since:
            native_ops.claim(kwargs["output"])
        return result

    impl.forward_mqa = forward_mqa
    if own_mha is not None:
        impl.forward_mha = forward_mha
    try:
        yield seen
    finally:
        del impl.forward_mqa
        if own_mha is not None:
            del impl.forward_mha


def native_rows(seen: Watched, output: torch.Tensor) -> torch.Tensor:
    """A mask (rows,) of the rows of ``output`` that native operators would have written."""
    rows = native_ops.claimed_rows(output)
    if seen.native is not None:
        rows[: seen.native.shape[0]] |= seen.native
    return rows
