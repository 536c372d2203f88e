"""Lines of a script that set a layer up as vLLM's worker does: imports, geometry, config, layer, KV cache.

Values come in as literals: ``repr`` of numbers and quoted words, never a record's text as it is.
"""

from __future__ import annotations

import json

from ..cell import Force
from .needs import FP8, has_drafter_model, has_scales
from .plan import MAX_MODEL_LEN, Plan

#: Longest line of a script.
WIDTH = 120

#: Backends that ask for the worker's scratch workspace (vllm 0.32, ``current_workspace_manager``).
_WORKSPACE = ("ROCM_SEGMENTED_ATTN", "TURBOQUANT", "ULTRAQUANT")


def quoted(text: str) -> str:
    """A Python string literal in double quotes, ASCII alone."""
    return json.dumps(text).replace("\x7f", "\\x7f")


def imports(plan: Plan) -> list[str]:
    """What the script imports, in isort's order; switches are set before vLLM reads them."""
    out = ["import json"]
    out += ["import os"] if plan.cell.switches else []
    out += ["import sys"] if plan.reaches("compare") else []
    out += ["import tempfile", ""]
    if plan.cell.switches:
        out += [f"os.environ[{quoted(name)}] = {quoted(value)}" for name, value in plan.cell.switches]
        out.append("")
    if plan.reaches("layer"):
        out.append("import torch")
    return [*out, *_from_vllm(plan)]


def _from_vllm(plan: Plan) -> list[str]:
    wanted = {"vllm.engine.arg_utils": ["EngineArgs"]}
    if plan.reaches("layer"):
        wanted["vllm.config"] = ["set_current_vllm_config"]
        wanted["vllm.model_executor.layers.attention"] = ["Attention"]
        wanted["vllm.platforms"] = ["current_platform"]
        wanted["vllm.utils.torch_utils"] = ["set_default_torch_dtype"]
    if plan.cell.force is not Force.NONE:
        wanted["vllm.v1.attention.backends.registry"] = ["AttentionBackendEnum"]
    if plan.reaches("cache"):
        wanted["vllm.v1.attention.backends.utils"] = ["get_supported_kv_cache_layouts", "resolve_kv_cache_layout"]
        wanted["vllm.v1.core.kv_cache_utils"] = ["get_kv_cache_configs"]
        wanted["vllm.v1.worker.gpu"] = ["attn_utils"]
        if plan.cell.backend in _WORKSPACE:
            wanted["vllm.v1.worker.workspace"] = ["init_workspace_manager"]
    if plan.reaches("forward"):
        wanted["vllm.forward_context"] = ["set_forward_context"]
    return [f"from {module} import {', '.join(sorted(wanted[module]))}" for module in sorted(wanted)]


def constants(plan: Plan) -> list[str]:
    """Geometry, batch and device."""
    g = plan.cell.geometry
    out = [f"HEADS, KV_HEADS, SIZE = {g.num_heads}, {g.num_kv_heads}, {g.head_size}"]
    if not plan.reaches("layer"):
        return out
    out += [f"DTYPE = torch.{plan.cell.dtype}", 'NAME = "model.layers.0.self_attn.attn"']
    if g.sliding_window is not None and plan.reaches("forward"):
        out.append(f"WINDOW = {int(g.sliding_window)}")
    if g.logits_soft_cap is not None:
        out.append(f"SOFT_CAP = {float(g.logits_soft_cap)!r}")
    if plan.reaches("forward"):
        out += _batch(plan)
    kv = plan.cell.kv_cache_dtype
    if kv in FP8 and (plan.reaches("compare") or plan.fill == "nan"):
        out.append(f"FP8 = {FP8[kv]}")
    return [*out, "device = torch.device(current_platform.device_type, 0)"]


def _batch(plan: Plan) -> list[str]:
    requests = [f"({r.query_len}, {r.seq_len})" for r in plan.batch.requests]
    line = f"BATCH = [{', '.join(requests)}]"
    comment = "new tokens and all tokens of each request"
    if len(line) + len(comment) + 4 <= WIDTH:
        return [f"{line}  # {comment}"]
    count = len(requests)
    period = next((p for p in range(1, count) if requests[p:] == requests[:-p]), count)
    repeated = "" if period == count else f" * {-(-count // period)}"
    out = [f"# {comment.capitalize()}.", "BATCH = [", *packed(requests[:period]), f"]{repeated}  # fmt: skip"]
    return out + ([f"del BATCH[{count}:]"] if count % period else [])


def config_json(plan: Plan) -> list[str]:
    """The Hugging Face config of a one-layer model with the cell's attention geometry."""
    longest = MAX_MODEL_LEN[plan.cell.lengths]
    return [
        'llama = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 1}',
        'llama |= {"num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": SIZE}',
        f'llama |= {{"hidden_size": HEADS * SIZE, "max_position_embeddings": {longest}}}',
    ]


def model(plan: Plan) -> list[str]:
    """A folder that holds only the model's config.json; a function makes it where there are two models."""
    if has_drafter_model(plan):
        return []
    return [
        *config_json(plan),
        "folder = tempfile.mkdtemp()",
        'with open(f"{folder}/config.json", "w") as file:',
        "    json.dump(llama, file)",
    ]


def forcing(plan: Plan) -> list[str]:
    """The backend declares what it does not: the two experiments of ``--force``."""
    cell = plan.cell
    if cell.force is Force.NONE:
        return []
    backend = f"backend = AttentionBackendEnum[{quoted(cell.backend)}].get_class()"
    if cell.force is Force.VALIDATION:
        change = "backend.validate_configuration = classmethod(lambda cls, *args, **kwargs: [])"
        return ["# The backend refuses this configuration; make it accept everything.", backend, change]
    block = int(cell.kernel_block or cell.block_size)
    change = f"backend.get_supported_kernel_block_sizes = staticmethod(lambda *args: [{block}])"
    return [f"# Have the backend declare kernel blocks of {block} tokens.", backend, change]


def configuration(plan: Plan) -> list[str]:
    """vLLM's own configuration, through ``EngineArgs``."""
    cell = plan.cell
    longest = MAX_MODEL_LEN[cell.lengths]
    speculative = _speculative(plan)
    arguments = [
        f"model={'model()' if has_drafter_model(plan) else 'folder'}",
        f"dtype={quoted(cell.dtype)}",
        f"kv_cache_dtype={quoted(cell.kv_cache_dtype)}",
        f"block_size={int(cell.block_size)}",
        f"attention_backend={quoted(cell.backend)}",
        f"max_model_len={longest}",
        f"max_num_batched_tokens={longest}",
        "max_num_seqs=256",
        f"enforce_eager={cell.execution == 'eager'}",
        *(['compilation_config={"cudagraph_mode": "PIECEWISE"}'] if cell.execution == "piecewise" else []),
        "skip_tokenizer_init=True",
        'load_format="dummy"',
        *(["speculative_config=speculative"] if speculative else []),
    ]
    out = [*speculative, "config = EngineArgs(", *packed(arguments), ").create_engine_config()  # fmt: skip"]
    return [*out, *([] if cell.geometry.causal else ["config.attention_config.use_non_causal = True"])]


def packed(words: list[str]) -> list[str]:
    """Arguments or elements, each with a comma behind it, on as few indented lines as they fit on."""
    out, line = [], "   "
    for word in words:
        if len(line) + len(word) + 2 > WIDTH - 4:
            out.append(line)
            line = "   "
        line += f" {word},"
    return [*out, line]


def _speculative(plan: Plan) -> list[str]:
    """What the metadata builders read the tokens of a verify from; EAGLE methods have a drafter of this geometry."""
    k = plan.cell.num_speculative_tokens
    if plan.cell.method == "none" or k == 0:
        return []
    if has_drafter_model(plan):
        return [
            'drafter = model(architectures=["LlamaForCausalLMEagle3"], draft_vocab_size=256)',
            f'speculative = {{"method": "eagle3", "model": drafter, "num_speculative_tokens": {k}}}',
        ]
    counts = f'"num_speculative_tokens": {k}, "prompt_lookup_max": 4, "prompt_lookup_min": 1'
    return [f'speculative = {{"method": "ngram", {counts}}}']


def layer(plan: Plan) -> list[str]:
    """vLLM's attention layer; its selector runs here."""
    g = plan.cell.geometry
    arguments = ["num_kv_heads=KV_HEADS", "cache_config=config.cache_config", "prefix=NAME"]
    if g.logits_soft_cap is not None:
        arguments.append("logits_soft_cap=SOFT_CAP")
    if g.sliding_window is not None:
        arguments.append(f"per_layer_sliding_window={'WINDOW' if plan.reaches('forward') else int(g.sliding_window)}")
    out = ["with set_current_vllm_config(config), set_default_torch_dtype(DTYPE), device:"]
    if g.sinks:
        out.append("    sinks = torch.linspace(2.0, 6.0, HEADS)")
        arguments.append("sinks=sinks")
    words = ["HEADS", "SIZE", "SIZE**-0.5", *arguments]
    line = f"    layer = Attention({', '.join(words)})"
    if len(line) <= WIDTH:
        return [*out, line]
    return [*out, "    layer = Attention(", *(f"    {row}" for row in packed(words)), "    )  # fmt: skip"]


def scales(plan: Plan) -> list[str]:
    """Three different scales, powers of two so that applying one adds no rounding."""
    out = ["layer.process_weights_after_loading(DTYPE)"]
    if plan.cell.kv_cache_dtype in FP8 and (has_scales(plan) or plan.reaches("compare")):
        out.append("quantised = layer.query_quant is not None and layer.impl.supports_quant_query_input")
    if not has_scales(plan):
        return out
    return [
        *out,
        'for name, value in {"q": 0.5 if quantised else 1.0, "k": 0.25, "v": 2.0}.items():',
        '    setattr(layer, f"_{name}_scale_float", value)',
        '    for tensor in (f"_{name}_scale", f"_{name}_scale_cpu"):',
        "        getattr(layer, tensor, torch.empty(1)).fill_(value)",
    ]


def cache(plan: Plan) -> list[str]:
    """KV cache spec, layout, groups, kernel blocks and the pool, by vLLM's own functions."""
    out = [f"blocks = {plan.blocks}", "with set_current_vllm_config(config):"]
    if plan.cell.backend in _WORKSPACE:
        out.append("    init_workspace_manager(device)")
    return [
        *out,
        "    specs = attn_utils.get_kv_cache_spec(config)",
        "    supported = [layout.name for layout in get_supported_kv_cache_layouts([layer.get_attn_backend()])]",
        "    layout = resolve_kv_cache_layout(config, [supported], specs.values())",
        "    config.cache_config.num_gpu_blocks = config.cache_config.num_gpu_blocks_override = blocks",
        "    kv_config = get_kv_cache_configs(config, [specs], [specs[NAME].page_size_bytes * blocks])[0]",
        "    kv_config.kv_cache_layout = layout.name",
        "    groups, _, kernel_blocks = attn_utils.init_attn_backend(kv_config, config, device)",
        '    print(f"layout {layout.name}, kernel block {kernel_blocks[0]}")',
        "    layers = config.compilation_config.static_forward_context",
        "    attn_utils.init_kv_cache(layers, kv_config, device, kernel_blocks, config, attn_groups=groups[0])",
    ]
