"""V2's drafter reads other tokens' keys where the target's backend splits the manager's blocks and its own does not.

The V2 runner asks the backends of all layers for a kernel block and views the KV cache in it. The speculator then makes
metadata builders of the draft layers alone (``DraftModelSpeculator.set_attn``): those keep the manager's block where
the drafter's backend takes it, and leave its block table as it is. EAGLE's and MTP's draft steps after the first, and
every pass of DFlash and of a plain draft model, then attend over other blocks. V1 hands its proposer the kernel block.

Needs PyTorch, Triton and vLLM, nothing of capmatrix: python drafter_kernel_block.py [--device cuda|cpu].
"""

from __future__ import annotations

import argparse
from types import SimpleNamespace
from typing import Any

import plain

BLOCK, HEADS, SIZE, LENGTH = 64, 2, 64, 150

#: The request's blocks, as the manager hands them out, of a pool of eight; the rest of a row of block tables is zero.
TABLE, BLOCKS = (5, 2, 7, 0, 0, 0, 0, 0), 8


def main(options: argparse.Namespace) -> bool:
    """One decode of the draft layer, by the builders of V2's runner and speculator, and by those of V1's proposer."""
    import torch
    from vllm.v1.kv_cache_interface import KVCacheLayout
    from vllm.v1.worker.gpu.attn_utils import init_attn_backend
    from vllm.v1.worker.gpu.spec_decode.speculator import DraftModelSpeculator
    from vllm.v1.worker.utils import AttentionGroup, allocate_kv_cache

    device = torch.device(options.device)
    torch.manual_seed(0)
    config, pool = engine()
    runner, _, kernel_blocks = init_attn_backend(pool, config, device)
    speculator: Any = SimpleNamespace(
        attn_vllm_config=config,
        device=device,
        draft_attn_layer_names={"draft"},
        _configure_decode_metadata_update=lambda: None,
    )
    DraftModelSpeculator.set_attn(speculator, None, pool, None, None, runner)
    # As V1's proposer does: ``SpecDecodeBaseProposer.initialize_attn_backend``.
    proposer = AttentionGroup(runner[0][1].backend, ["draft"], pool.kv_cache_groups[0].kv_cache_spec, 0)
    proposer.create_metadata_builders(config, device, kernel_block_size=kernel_blocks[0])

    cache = allocate_kv_cache(pool, device, KVCacheLayout.LBHNC, kernel_blocks)["draft"]
    print(f"manager blocks of {BLOCK}; the draft layer's cache is in blocks of {cache.shape[2]}: {tuple(cache.shape)}")
    errors = {
        whose: decode(groups, pool, cache)
        for whose, groups in (
            ("V2's runner", runner),
            ("V2's speculator", speculator.attn_groups),
            ("V1's proposer", [[proposer]]),
        )
    }
    for whose, error in errors.items():
        print(f"block table of {whose}: relative error {error:.2g}")
    case = errors.pop("V2's speculator")
    rest = plain.worst(errors.values())
    text = f"relative error {case:.2g} by the metadata of V2's speculator, at most {rest:.2g} by its runner's and V1's"
    return plain.verdict(case, rest, text)


def engine() -> tuple[Any, Any]:
    """A configuration of one target layer and one draft layer, and their pool: one group, blocks of 64 tokens."""
    import torch
    from vllm.config import CUDAGraphMode
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor

    class TargetBackend(TritonAttentionBackend):
        """Takes the kernel blocks that ROCM_AITER_FA does."""

        @staticmethod
        def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
            return [16, 32]

    class Layer(AttentionLayerBase):
        """What is asked of an attention layer here."""

        num_heads = HEADS

        def __init__(self, backend: Any) -> None:
            self.backend = backend

        def get_attn_backend(self) -> Any:
            return self.backend

        def get_kv_cache_spec(self, vllm_config: Any) -> Any:
            return spec

    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=HEADS, head_size=SIZE, dtype=torch.float32)
    layers = {"target": Layer(TargetBackend), "draft": Layer(TritonAttentionBackend)}
    config = SimpleNamespace(
        model_config=SimpleNamespace(
            get_num_attention_heads=lambda parallel: HEADS,
            get_num_kv_heads=lambda parallel: HEADS,
            get_head_size=lambda: SIZE,
            max_model_len=len(TABLE) * BLOCK,
            rswa_window=None,
        ),
        parallel_config=SimpleNamespace(
            use_ubatching=False, num_ubatches=1, decode_context_parallel_size=1, prefill_context_parallel_size=1
        ),
        cache_config=SimpleNamespace(kv_sharing_fast_prefill=False),
        scheduler_config=SimpleNamespace(max_num_seqs=4),
        compilation_config=SimpleNamespace(
            static_forward_context=layers, cudagraph_mode=CUDAGraphMode.NONE, cudagraph_capture_sizes=[]
        ),
        speculative_config=None,
    )
    page = spec.page_size_bytes
    tensor = KVCacheTensor(size=2 * BLOCKS * page, layers=list(layers), layer_stride=BLOCKS * page, block_stride=page)
    return config, KVCacheConfig(BLOCKS, [tensor], [KVCacheGroupSpec(list(layers), spec)])


def decode(groups: list[list[Any]], pool: Any, cache: Any) -> float:
    """The error of TRITON_ATTN's decode of one token over ``LENGTH``, by the metadata that ``groups`` build."""
    import torch
    from vllm.v1.attention.backends.triton_attn import TritonAttentionImpl
    from vllm.v1.worker.gpu.attn_utils import build_attn_metadata

    device = cache.device
    q = torch.randn(1, HEADS, SIZE, device=device)
    k, v = (torch.randn(LENGTH, HEADS, SIZE, device=device) for _ in range(2))
    table = torch.tensor([TABLE], dtype=torch.int32, device=device)
    position = torch.arange(LENGTH, device=device)
    # As ``BlockTables.compute_slot_mappings``: by the manager's blocks.
    slots = table[0].long()[position // BLOCK] * BLOCK + position % BLOCK
    one = torch.ones(1, device=device)
    layer: Any = SimpleNamespace(_q_scale=one, _k_scale=one, _v_scale=one)
    impl = TritonAttentionImpl(HEADS, SIZE, SIZE**-0.5, HEADS, None, None, "auto")
    # As ``triton_reshape_and_cache_flash``: by the cache's own blocks, which slots count as the manager's do.
    cache.zero_()
    cache[slots // cache.shape[2], :, slots % cache.shape[2]] = torch.cat((k, v), -1)
    starts = torch.tensor([0, 1], dtype=torch.int32)
    metadata = build_attn_metadata(
        groups, 1, 1, starts.to(device), starts, 1,
        torch.tensor([LENGTH], dtype=torch.int32, device=device), LENGTH, [table], slots[None, -1:], pool,
    )  # fmt: skip
    out = torch.full_like(q, float("nan"))
    impl.forward(layer, q, k[-1:], v[-1:], cache, metadata["draft"], out)
    return plain.error(out, plain.attention(q, k, v))


if __name__ == "__main__":
    plain.run(main)
