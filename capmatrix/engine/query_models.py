"""vLLM's own configuration of a server with a given speculative method, for questions about its choices.

What a loader and the selector read of a configuration is the kind of model, the method and what the user set:
the layer's own geometry is told to the layer. So one small model a kind serves, and its configuration is
shared by all questions that set the same things.
"""

from __future__ import annotations

import copy
import functools
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..cell import Role
from ..guard.questions import Question
from .model_config import TINY

#: Tokens, and requests: small, since the buffers of a speculator are sized by them.
_MAX_MODEL_LEN = 2048
_MAX_NUM_SEQS = 8
_MAX_BATCHED = 2048

RUNNER_SWITCH = "VLLM_USE_V2_MODEL_RUNNER"

_COMMON: dict[str, Any] = {
    **TINY,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "hidden_size": 256,
    "head_dim": 64,
    "intermediate_size": 256,
    "max_position_embeddings": _MAX_MODEL_LEN,
}
_LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
_LATENT: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "architectures": ["DeepseekV3ForCausalLM"],
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 8,
    "moe_intermediate_size": 64,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 2,
    "num_nextn_predict_layers": 1,
}
#: A target that Transformers knows with a multi-token-prediction layer of full attention.
_DENSE_MTP: dict[str, Any] = {
    "model_type": "glm4_moe",
    "architectures": ["Glm4MoeForCausalLM"],
    "n_routed_experts": 8,
    "moe_intermediate_size": 64,
    "num_experts_per_tok": 2,
    "num_nextn_predict_layers": 1,
}

#: Model classes that these name. vLLM inspects a class in a subprocess (10 to 25 s) unless it is registered.
MODELS: tuple[str, ...] = (
    "LlamaForCausalLM",
    "EagleLlamaForCausalLM",
    "LlamaForCausalLMEagle3",
    "DeepseekV3ForCausalLM",
    "DeepSeekMTPModel",
    "Glm4MoeForCausalLM",
    "Glm4MoeMTPModel",
    "DFlashDraftModel",
    "Qwen3DSparkModel",
)
#: Classes that import only beside a real AITER. Nothing but their names is asked for, so another stands for them.
STAND_INS: tuple[str, ...] = ("DeepSeekV4MTPModel", "DSparkDraftModel")


def target_json(question: Question) -> dict[str, Any]:
    """The Hugging Face config of the target."""
    if question.geometry.mla is not None:
        return _COMMON | _LATENT
    return _COMMON | (_DENSE_MTP if question.method == "mtp" else _LLAMA) | _heads(question)


def _heads(question: Question) -> dict[str, int]:
    """The whole model's heads, where vLLM checks them against the degrees of parallelism."""
    if question.dcp < 2:
        return {}
    g, tp = question.geometry, _degree(question)
    kv = question.total_kv_heads or g.num_kv_heads * tp
    heads = g.num_heads * tp
    return {"num_attention_heads": heads, "num_key_value_heads": kv, "hidden_size": heads * _COMMON["head_dim"]}


def _degree(question: Question) -> int:
    return max(question.tp, question.dcp)


def drafter_json(question: Question) -> dict[str, Any] | None:
    """The Hugging Face config of the drafter; None where the method has no model of its own."""
    method = question.method
    if method in ("none", "ngram", "mtp"):
        return None
    if method in ("dflash", "dspark"):
        causal = question.geometry.causal
        found = _COMMON | {
            "model_type": "qwen3",
            "architectures": ["DFlashDraftModel" if method == "dflash" else "Qwen3DSparkModel"],
            "is_causal": causal,
            "dflash_config": {"target_layer_ids": [0, 1], "mask_token_id": 0, "causal": causal},
            "target_layer_ids": [0, 1],
            "block_size": max(1, question.num_speculative_tokens),
        }
        return found | ({"model_type": question.draft_model_type} if question.draft_model_type else {})
    architecture = {"eagle3": "LlamaForCausalLMEagle3"}.get(method, "LlamaForCausalLM")
    return _COMMON | _LLAMA | {"architectures": [architecture], "draft_vocab_size": 256}


def speculative(question: Question) -> dict[str, Any] | None:
    """``--speculative-config`` of the question's server."""
    method, k = question.method, max(1, question.num_speculative_tokens)
    if method == "none":
        return None
    found: dict[str, Any] = {"method": method, "num_speculative_tokens": k}
    if method == "ngram":
        found |= {"prompt_lookup_max": 4, "prompt_lookup_min": 1}
    drafter = drafter_json(question)
    if drafter is not None:
        found["model"] = _directory(json.dumps(drafter, sort_keys=True))
    if question.drafter_backend:
        found["attention_backend"] = question.drafter_backend
    return found


def configuration_key(question: Question) -> tuple[object, ...]:
    """What two questions must share to share a configuration: all but the layer's own geometry."""
    g = question.geometry
    return (
        question.arch, question.block_size, question.kv_cache_dtype, question.dtype, question.method,
        question.num_speculative_tokens, question.runner, question.target_backend, question.drafter_backend,
        question.draft_model_type, question.kv_connector, question.dcp, question.role, g.mla is None, g.causal,
        json.dumps(_heads(question)),
    )  # fmt: skip


def configure(question: Question) -> Any:
    """``VllmConfig`` through vLLM's own ``EngineArgs``. Raises what vLLM raises."""
    from vllm.config import KVTransferConfig
    from vllm.engine.arg_utils import EngineArgs

    given: dict[str, Any] = {}
    if question.block_size is not None:
        given["block_size"] = question.block_size
    if question.target_backend:
        given["attention_backend"] = question.target_backend
    if question.kv_connector:
        given["kv_transfer_config"] = KVTransferConfig(kv_connector=question.kv_connector, kv_role="kv_both")
    if question.dcp > 1:
        # Ranks that this process never starts; their number alone is asked for.
        given["tensor_parallel_size"] = _degree(question)
        given["decode_context_parallel_size"] = question.dcp
        given["distributed_executor_backend"] = "mp"
    config = EngineArgs(
        model=_directory(json.dumps(target_json(question) | {"torch_dtype": question.dtype}, sort_keys=True)),
        skip_tokenizer_init=True,
        load_format="dummy",
        dtype=question.dtype,
        kv_cache_dtype=question.kv_cache_dtype,
        max_model_len=_MAX_MODEL_LEN,
        max_num_seqs=_MAX_NUM_SEQS,
        max_num_batched_tokens=_MAX_BATCHED,
        enforce_eager=True,
        speculative_config=speculative(question),
        **given,
    ).create_engine_config()
    if not question.geometry.causal and question.method not in ("dflash", "dspark"):
        config.attention_config.use_non_causal = True
    return config


def read_each_config_once() -> None:
    """Have vLLM parse a config.json once a process: Transformers takes half of a configuration's time for it.

    What vLLM gets is a copy of its own, since it writes into it.
    """
    from vllm.transformers_utils.config import HFConfigParser

    parse = HFConfigParser.parse
    parsed: dict[str, Any] = {}
    kept: list[Any] = []  # a function of the arguments is known by its address, so it must stay where it is

    def once(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        key = repr((str(model), args, sorted(kwargs.items())))
        if key not in parsed:
            parsed[key] = parse(self, model, *args, **kwargs)
            kept.append((args, kwargs))
        return copy.deepcopy(parsed[key])

    HFConfigParser.parse = once


@contextmanager
def runner_set(runner: str) -> Iterator[None]:
    """vLLM reads which model runner to use whenever it asks; this sets it for a while (empty: as it is)."""
    before = os.environ.get(RUNNER_SWITCH)
    if runner:
        os.environ[RUNNER_SWITCH] = "1" if runner == "v2" else "0"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(RUNNER_SWITCH, None)
        else:
            os.environ[RUNNER_SWITCH] = before


def is_drafter(question: Question) -> bool:
    """Whether the layer is loaded by a drafter's loader."""
    return question.role is Role.DRAFTER and question.method not in ("none", "ngram")


@functools.cache
def _directory(config: str) -> str:
    """A directory holding only that config.json; one a process and text."""
    path = Path(tempfile.mkdtemp(prefix="capmatrix-query-"))
    (path / "config.json").write_text(config)
    return str(path)
