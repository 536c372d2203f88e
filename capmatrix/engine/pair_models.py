"""Tiny models that are true in shape: configs with a side's attention geometry, layer kinds and states, nothing else.

Hidden sizes, vocabularies and experts are as small as the model classes allow; what decides KV cache specs, groups
and backends is the side's own: heads of a rank, head sizes, windows, sinks, latent widths, states, kinds of layers.
Layers are fewer than a real model has, in the same order of kinds.
"""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..cell import Geometry
from ..pair import Pair, Side
from .model_config import TINY

#: Longest sequence that a pair's models admit, in tokens: more than any short batch has.
MAX_MODEL_LEN = 1024

#: The same beside block-sparse layers: more blocks of 128 than the 16 that an indexer selects.
SPARSE_MAX_MODEL_LEN = 4096

#: Layers of a dense target: EAGLE3 reads hidden states of layers 2, half and last but three.
_DENSE_LAYERS = 8

_COMMON: dict[str, Any] = {
    **TINY,
    "hidden_size": 64,
    "intermediate_size": 64,
}
_EXPERTS = {"moe_intermediate_size": 64, "num_experts_per_tok": 2, "norm_topk_prob": True}


def _heads(geometry: Geometry) -> dict[str, Any]:
    return {
        "num_attention_heads": geometry.num_heads,
        "num_key_value_heads": geometry.num_kv_heads,
        "head_dim": geometry.head_size,
    }


def _llama(side: Side) -> dict[str, Any]:
    return {"model_type": "llama", "num_hidden_layers": _DENSE_LAYERS, **_heads(side.geometry)}


def _qwen3(side: Side) -> dict[str, Any]:
    return {"model_type": "qwen3", "num_hidden_layers": _DENSE_LAYERS, **_heads(side.geometry)}


def _gpt_oss(side: Side) -> dict[str, Any]:
    # Layers alternate, sliding first (vllm/model_executor/models/gpt_oss.py: layer_idx % 2).
    kinds = ["sliding_attention", "full_attention"] * (_DENSE_LAYERS // 2)
    return {
        "model_type": "gpt_oss",
        "num_hidden_layers": _DENSE_LAYERS,
        "sliding_window": side.geometry.sliding_window,
        "layer_types": kinds,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "rope_scaling": None,
        **_heads(side.geometry),
    }


def _deepseek(side: Side) -> dict[str, Any]:
    mla = side.geometry.mla
    assert mla is not None
    return {
        "model_type": "deepseek_v3",
        "num_hidden_layers": _DENSE_LAYERS,
        "num_attention_heads": side.geometry.num_heads,
        "num_key_value_heads": side.geometry.num_heads,
        "kv_lora_rank": mla.kv_lora_rank,
        "q_lora_rank": None,
        "qk_nope_head_dim": mla.qk_nope_head_dim,
        "qk_rope_head_dim": mla.qk_rope_head_dim,
        "v_head_dim": mla.v_head_dim,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "first_k_dense_replace": 2 * _DENSE_LAYERS,
        "moe_layer_freq": 1,
        "n_group": 1,
        "topk_group": 1,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "routed_scaling_factor": 1.0,
        "num_nextn_predict_layers": 1,
        **_EXPERTS,
    }


def _minimax_m3(side: Side) -> dict[str, Any]:
    # Three dense layers, then sparse ones; every KV head of a rank has its indexer head
    # (vllm/transformers_utils/configs/minimax_m3.py; MinimaxM3QKVParallelLinearWithIndexer asserts it).
    kinds = [0] * 3 + [1] * 3
    text = {
        **_COMMON,
        "hidden_act": "swigluoai",
        "num_hidden_layers": len(kinds),
        "dense_intermediate_size": 64,
        "shared_intermediate_size": 64,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "moe_layer_freq": kinds,
        "sparse_attention_config": {
            "use_sparse_attention": True,
            "sparse_index_dim": 128,
            "sparse_num_index_heads": side.geometry.num_kv_heads,
            "sparse_topk_blocks": 16,
            "sparse_block_size": 128,
            "sparse_disable_index_value": kinds,
            "sparse_score_type": "max",
            "sparse_init_block": 0,
            "sparse_local_block": 1,
            "sparse_attention_freq": kinds,
        },
        **_heads(side.geometry),
    }
    vision = {
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 1,
        "num_channels": 3,
        "patch_size": 14,
        "layer_norm_eps": 1e-5,
        "hidden_act": "gelu",
        "rope_theta": 10000.0,
        "img_token_compression_config": {"spatial_merge_size": 2, "temporal_patch_size": 2},
    }
    return {"model_type": "minimax_m3_vl", "image_token_index": 3, "text_config": text, "vision_config": vision}


def _state(side: Side) -> dict[str, Any]:
    state = side.state
    assert state is not None
    return {
        "linear_num_key_heads": state.num_key_heads,
        "linear_num_value_heads": state.num_value_heads,
        "linear_key_head_dim": state.key_head_dim,
        "linear_value_head_dim": state.value_head_dim,
        "linear_conv_kernel_dim": state.conv_kernel,
        # Three recurrent layers for each one of full attention.
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2,
        "num_hidden_layers": 8,
        "full_attention_interval": 4,
    }


def _qwen3_next(side: Side) -> dict[str, Any]:
    return {
        "model_type": "qwen3_next",
        "partial_rotary_factor": 0.25,
        "decoder_sparse_step": 1,
        "shared_expert_intermediate_size": 64,
        "num_experts": 4,
        "mlp_only_layers": [],
        **_EXPERTS,
        **_state(side),
        **_heads(side.geometry),
    }


def _qwen3_5(side: Side) -> dict[str, Any]:
    text = {**_COMMON, "model_type": "qwen3_5_text", **_state(side), **_heads(side.geometry)}
    vision = {
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_heads": 4,
        "depth": 1,
        "out_hidden_size": 64,
        "patch_size": 14,
        "deepstack_visual_indexes": [],
    }
    return {"model_type": "qwen3_5", "text_config": text, "vision_config": vision}


def _eagle3(side: Side) -> dict[str, Any]:
    return {"model_type": "llama", "num_hidden_layers": 1, "draft_vocab_size": 256, **_heads(side.geometry)}


def _eagle(side: Side) -> dict[str, Any]:
    return {"model_type": "llama", "num_hidden_layers": 1, **_heads(side.geometry)}


def _dflash(side: Side) -> dict[str, Any]:
    # Five layers, of which four slide where the family does (SpecForge configs/qwen3.6-27b-dflash.json).
    window = side.geometry.sliding_window
    kinds = ["sliding_attention"] * 4 + ["full_attention"] if window else ["full_attention"] * 5
    return {
        "model_type": "qwen3",
        "num_hidden_layers": len(kinds),
        "layer_types": kinds,
        "use_sliding_window": window is not None,
        "sliding_window": window,
        "block_size": 16,
        "num_target_layers": _DENSE_LAYERS,
        "dflash_config": {"mask_token_id": 3, "target_layer_ids": [1, 3, 5]},
        **_heads(side.geometry),
    }


def _dspark(side: Side) -> dict[str, Any]:
    return {
        **_dflash(side),
        "dspark_noise_token_id": 3,
        "markov_rank": 8,
        "target_layer_ids": [1, 3, 5],
        "block_size": 7,
    }


#: Model class -> config of a tiny model with a side's geometry, without what all have in common.
BUILDERS: dict[str, Callable[[Side], dict[str, Any]]] = {
    "LlamaForCausalLM": _llama,
    "Qwen3ForCausalLM": _qwen3,
    "GptOssForCausalLM": _gpt_oss,
    "DeepseekV3ForCausalLM": _deepseek,
    "MiniMaxM3SparseForConditionalGeneration": _minimax_m3,
    "Qwen3NextForCausalLM": _qwen3_next,
    "Qwen3_5ForConditionalGeneration": _qwen3_5,
    "LlamaForCausalLMEagle3": _eagle3,
    "EagleLlamaForCausalLM": _eagle,
    "DFlashDraftModel": _dflash,
    "Qwen3DSparkModel": _dspark,
}

#: Classes that a config does not name itself: vLLM derives them from the method and the model type.
DERIVED = (
    "MiniMaxM3SparseForCausalLM",
    "Qwen3NextMTP",
    "Qwen3_5MTP",
    "DeepSeekMTPModel",
    "Eagle3LlamaForCausalLM",
)


def config_json(side: Side, dtype: str, max_model_len: int) -> dict[str, Any]:
    """The Hugging Face config of a tiny model of this side."""
    own = BUILDERS[side.architecture](side)
    config = {
        "architectures": ["LlamaForCausalLM" if side.architecture == "EagleLlamaForCausalLM" else side.architecture],
        "torch_dtype": dtype,
        "max_position_embeddings": max_model_len,
        **({} if "text_config" in own else _COMMON),
        **own,
    }
    if "text_config" in own:
        config["text_config"] = {"max_position_embeddings": max_model_len, "torch_dtype": dtype, **own["text_config"]}
    return config


@functools.cache
def _root() -> Path:
    return Path(tempfile.mkdtemp(prefix="capmatrix-pairs-"))


@functools.cache
def model_dir(side: Side, dtype: str, max_model_len: int) -> str:
    """A directory holding only that config.json; made once a process, side and length."""
    path = Path(tempfile.mkdtemp(dir=_root()))
    (path / "config.json").write_text(json.dumps(config_json(side, dtype, max_model_len)))
    return str(path)


def speculative_config(pair: Pair, max_model_len: int) -> dict[str, Any]:
    """What ``--speculative-config`` would say; an MTP drafter is inside the target's own checkpoint."""
    asked: dict[str, Any] = {"method": pair.method, "num_speculative_tokens": pair.num_speculative_tokens}
    if pair.method != "mtp":
        asked["model"] = model_dir(_unasked(pair.drafter), pair.dtype, max_model_len)
    if pair.drafter.backend is not None:
        asked["attention_backend"] = pair.drafter.backend
    if pair.draft_kv_cache_dtype is not None:
        asked["kv_cache_dtype"] = pair.draft_kv_cache_dtype
    return asked


def engine_arguments(pair: Pair) -> dict[str, Any]:
    """What ``vllm serve`` would be called with, for ``EngineArgs``."""
    sparse = pair.target_model.architecture == "MiniMaxM3SparseForConditionalGeneration"
    longest = SPARSE_MAX_MODEL_LEN if sparse else MAX_MODEL_LEN
    arguments: dict[str, Any] = {
        "model": model_dir(_unasked(pair.target_model), pair.dtype, longest),
        "skip_tokenizer_init": True,
        "load_format": "dummy",
        "dtype": pair.dtype,
        "kv_cache_dtype": pair.kv_cache_dtype,
        "max_model_len": longest,
        "max_num_seqs": 64,
        "max_num_batched_tokens": longest,
        "speculative_config": speculative_config(pair, longest),
    }
    if pair.block_size is not None:
        arguments["block_size"] = pair.block_size
    if pair.target_model.backend is not None:
        arguments["attention_backend"] = pair.target_model.backend
    if pair.target_model.architecture.endswith("ForConditionalGeneration"):
        arguments["language_model_only"] = True
    return arguments


def _unasked(side: Side) -> Side:
    """The side without what is asked of it, which its config does not hold."""
    return Side(side.family, side.architecture, side.geometry, state=side.state)
