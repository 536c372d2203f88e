"""A drafter family read from a Hugging Face ``config.json``: the attention geometry of a model of one's own.

Field names as Transformers and vLLM read them (``vllm/transformers_utils/model_arch_config_convertor.py``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ..cell import MlaGeometry, Role
from ..drafters import Family
from ..errors import InputError
from ..vocabulary import METHODS

#: Largest config read, in bytes.
_MAX_BYTES = 4 << 20

#: Architectures by what their name holds, first match first, and the method that drafts with them.
_METHODS: tuple[tuple[str, str], ...] = (
    (r"Eagle3|Peagle", "eagle3"),
    (r"DFlash|LiLiCorr", "dflash"),
    (r"DSpark", "dspark"),
    (r"Eagle", "eagle"),
    (r"MTP", "mtp"),
)
#: Model types whose attention has sinks (vllm 0.32.0, ``vllm/model_executor/models/gpt_oss.py``).
_SINKS = ("gpt_oss",)


def load(path: str | Path, method: str = "") -> Family:
    """The family of a ``config.json``, or of the directory that holds it.

    ``method`` names the speculative method where the architectures do not say (``draft_model``, ``mtp``; ``none``
    for a target). Raises InputError for a file that is no config, lacks a figure, or has one out of range.
    """
    file = Path(path)
    file = file / "config.json" if file.is_dir() else file
    if file.exists() and not file.is_file():
        raise InputError("not a regular file", file=file)
    try:
        with file.open("rb") as stream:
            raw = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", file=file) from None
    if len(raw) > _MAX_BYTES:
        raise InputError("too large to be a config.json", file=file)
    try:
        data = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"not valid JSON: {error}", file=file) from None
    if not isinstance(data, dict):
        raise InputError("must be a JSON object", file=file)
    return of(data, file, method)


def of(data: Mapping[str, Any], file: Path, method: str = "") -> Family:
    """The family of a parsed config; see ``load``."""
    stated = data.get("architectures")
    names = [name for name in stated if isinstance(name, str)] if isinstance(stated, list) else []
    text = data.get("text_config")
    found: Mapping[str, Any] = text if isinstance(text, dict) else data
    if method and method not in METHODS:
        raise InputError("unknown method", key="--method", value=method, allowed=METHODS)
    method = method or _method(names)
    heads = _figure(found, "num_attention_heads", file)
    mla = _mla(found, file)
    if mla is not None:
        kv_heads, head_size = 1, mla.kv_lora_rank + mla.qk_rope_head_dim
    else:
        kv_heads = _figure(found, "num_key_value_heads", file, heads)
        head_size = _figure(found, "head_dim", file, _figure(found, "hidden_size", file, 0) // heads)
        if head_size < 1:
            raise InputError("gives neither head_dim nor hidden_size", file=file)
        if heads % kv_heads:
            message = "query heads are no multiple of KV heads"
            raise InputError(message, file=file, key="num_attention_heads", value=heads)
    window = _window(found, file)
    drafts = method not in ("none", "ngram")
    tokens = found.get("num_nextn_predict_layers") if method == "mtp" else found.get("block_size")
    return Family(
        key=file.resolve().parent.name or "config",
        title=", ".join(names) or str(found.get("model_type", "")),
        method=method,
        role=Role.DRAFTER if drafts else Role.TARGET,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_size=head_size,
        num_speculative_tokens=tokens if isinstance(tokens, int) and 0 < tokens < 1024 and drafts else int(drafts),
        tensor_parallel=(1,),
        sliding_window=window,
        sinks=found.get("model_type") in _SINKS,
        causal=method not in ("dflash", "dspark") or _causal(found),
        mla=mla,
    )


def _method(names: list[str]) -> str:
    for pattern, method in _METHODS:
        if any(re.search(pattern, name) for name in names):
            return method
    return "none"


def _figure(data: Mapping[str, Any], key: str, file: Path, default: int | None = None) -> int:
    value = data.get(key)
    if value is None and default is not None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 1 << 24:
        message = "is missing" if value is None else "must be a whole number above 0"
        raise InputError(message, file=file, key=key, value=value)
    return value


def _mla(data: Mapping[str, Any], file: Path) -> MlaGeometry | None:
    if data.get("kv_lora_rank") is None:
        return None
    widths = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    return MlaGeometry(*(_figure(data, key, file) for key in widths))


def _window(data: Mapping[str, Any], file: Path) -> int | None:
    """The window where every layer has one; a mixture is taken as full attention, the harder case to serve."""
    if data.get("sliding_window") is None or data.get("use_sliding_window") is False:
        return None
    kinds = data.get("layer_types")
    if isinstance(kinds, list) and any(kind != "sliding_attention" for kind in kinds):
        return None
    return _figure(data, "sliding_window", file)


def _causal(data: Mapping[str, Any]) -> bool:
    """As ``_dflash_layer_causal`` of vllm 0.32.0 has it for all layers together."""
    if data.get("is_causal") is not None:
        return bool(data["is_causal"])
    nested = data.get("dflash_config")
    if isinstance(nested, dict) and nested.get("causal") is not None:
        return bool(nested["causal"])
    kinds = data.get("layer_types")
    return isinstance(kinds, list) and bool(kinds) and all(kind == "sliding_attention" for kind in kinds)
