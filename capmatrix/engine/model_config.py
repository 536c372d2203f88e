"""A tiny model directory with a cell's attention geometry, and vLLM's own configuration for it."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

from ..cell import Cell, Geometry

#: Longest sequence a cell's model admits, in tokens, by ``Cell.lengths``: at least the longest batch.
MAX_MODEL_LEN = {"short": 2048, "full": 32768}

#: vLLM's mode by a cell's ``execution``. Full is vLLM's default: batches without a full graph run piecewise.
CUDAGRAPH_MODES = {"piecewise": "PIECEWISE", "full": "FULL_AND_PIECEWISE"}

#: What a small model's config needs and no cell depends on.
TINY: dict[str, Any] = {
    "vocab_size": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@functools.cache
def _root() -> Path:
    return Path(tempfile.mkdtemp(prefix="capmatrix-models-"))


def config_json(geometry: Geometry, dtype: str, max_model_len: int) -> dict[str, Any]:
    """A one-layer Hugging Face config of this geometry: Llama, or DeepSeek V2 for latent attention."""
    common = TINY | {
        "num_hidden_layers": 1,
        "num_attention_heads": geometry.num_heads,
        "intermediate_size": 256,
        "max_position_embeddings": max_model_len,
        "torch_dtype": dtype,
    }
    if geometry.mla is None:
        return common | {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": geometry.num_heads * geometry.head_size,
            "num_key_value_heads": geometry.num_kv_heads,
            "head_dim": geometry.head_size,
        }
    mla = geometry.mla
    return common | {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        # transformers insists on a multiple of the heads.
        "hidden_size": 32 * geometry.num_heads,
        "num_key_value_heads": geometry.num_heads,
        "kv_lora_rank": mla.kv_lora_rank,
        "q_lora_rank": mla.q_lora_rank,
        "qk_nope_head_dim": mla.qk_nope_head_dim,
        "qk_rope_head_dim": mla.qk_rope_head_dim,
        "v_head_dim": mla.v_head_dim,
        "first_k_dense_replace": 1,
    }


@functools.cache
def model_dir(geometry: Geometry, dtype: str, max_model_len: int) -> str:
    """A directory holding only that config.json; made once a process and geometry."""
    path = Path(tempfile.mkdtemp(dir=_root()))
    (path / "config.json").write_text(json.dumps(config_json(geometry, dtype, max_model_len)))
    return str(path)


@functools.cache
def drafter_dir(geometry: Geometry, dtype: str, max_model_len: int) -> str:
    """A directory with the config.json of an EAGLE3 drafter of this geometry."""
    config = config_json(geometry, dtype, max_model_len) | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": 256,
    }
    path = Path(tempfile.mkdtemp(dir=_root()))
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


def speculative_config(cell: Cell, max_model_len: int) -> dict[str, Any] | None:
    """What the cell's drafter adds to the configuration; builders read the tokens of a verify from it.

    EAGLE methods are given a drafter of the cell's geometry. Other methods need no model to say how many
    tokens are verified: ``ngram`` says it.
    """
    k = cell.num_speculative_tokens
    if cell.method == "none" or k == 0:
        return None
    if cell.method in ("eagle", "eagle3") and cell.geometry.mla is None:
        model = drafter_dir(cell.geometry, cell.dtype, max_model_len)
        return {"method": "eagle3", "model": model, "num_speculative_tokens": k}
    return {"method": "ngram", "num_speculative_tokens": k, "prompt_lookup_max": 4, "prompt_lookup_min": 1}


def vllm_config(cell: Cell, longest: int | None = None) -> Any:
    """vLLM's ``VllmConfig`` for the cell, through its own ``EngineArgs``. Raises what vLLM raises.

    ``longest``: most tokens of a sequence, where the cell's own length (``MAX_MODEL_LEN``) is not meant.
    """
    from vllm.engine.arg_utils import EngineArgs

    usual = MAX_MODEL_LEN[cell.lengths]
    longest = longest or usual
    graphs = {} if cell.execution == "eager" else {"cudagraph_mode": CUDAGRAPH_MODES[cell.execution]}
    config = EngineArgs(
        model=model_dir(cell.geometry, cell.dtype, longest),
        skip_tokenizer_init=True,
        load_format="dummy",
        dtype=cell.dtype,
        block_size=cell.block_size,
        kv_cache_dtype=cell.kv_cache_dtype,
        attention_backend=cell.backend,
        max_model_len=longest,
        max_num_seqs=256,
        max_num_batched_tokens=usual,
        enforce_eager=cell.execution == "eager",
        compilation_config=graphs,
        speculative_config=speculative_config(cell, longest),
    ).create_engine_config()
    if not cell.geometry.causal:
        config.attention_config.use_non_causal = True
    return config
