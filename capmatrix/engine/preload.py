"""Import and try once, in the server, what every cell needs, so that forked workers start warm."""

from __future__ import annotations

import contextlib

from vllm.model_executor.models.registry import ModelRegistry
from vllm.v1.attention.backends.registry import AttentionBackendEnum

from ..cell import Cell, Geometry, Role
from ..vocabulary import ROCM_BACKENDS

#: Model classes that ``model_config`` names. vLLM inspects a class in a subprocess (10 to 25 s) unless it is
#: registered as a class; nothing here can touch a GPU, so importing it in this process is safe.
_MODELS = ("LlamaForCausalLM", "LlamaForCausalLMEagle3", "DeepseekV2ForCausalLM")


def backends() -> None:
    """Import every ROCm backend's module that can be imported; the others fail in their own cells."""
    for name in ROCM_BACKENDS:
        with contextlib.suppress(Exception):
            AttentionBackendEnum[name].get_class()
    from . import claims, failures, forward, intended, judge, pool, setup, verdicts  # noqa: F401


def flex(kind: str) -> None:
    """Have FLEX_ATTENTION's kernel, which torch.compile makes, made for the virtual GPU of a target of ``kind``."""
    from . import flex, flex_interpreted

    if kind == "offline":
        flex.compile_for_the_virtual_gpu()
    elif kind == "interpreter":
        flex_interpreted.interpret_for_the_virtual_gpu()


def compiler() -> None:
    """Hash Triton's own files, which it does once a process before it can use its cache (half a second)."""
    from triton.runtime.cache import triton_key

    triton_key()


def models() -> None:
    """Register the model classes of cells and configure one, which fills vLLM's caches."""
    from . import model_config

    for name in _MODELS:
        with contextlib.suppress(Exception):
            ModelRegistry.register_model(name, ModelRegistry.models[name].load_model_cls())
    # What fails here fails again, and is recorded, in a cell.
    with contextlib.suppress(Exception):
        model_config.vllm_config(
            Cell(
                target="",
                backend="TRITON_ATTN",
                block_size=16,
                kv_cache_dtype="auto",
                drafter="",
                tp=1,
                role=Role.DRAFTER,
                method="eagle3",
                geometry=Geometry(4, 4, 64),
                num_speculative_tokens=1,
                batch="decode",
                lengths="short",
            )
        )


def pairs(kind: str) -> None:
    """Make what whole models need importable on a target of ``kind``, and register the classes that pairs load."""
    from . import inspection, pair_models, pair_standins

    inspection.watch()
    # What fails here fails again, and is recorded, in a pair.
    with contextlib.suppress(Exception):
        pair_standins.prepare(has_gpu=kind == "device")
        pair_standins.register(*(name for name in pair_models.BUILDERS if name), *pair_models.DERIVED)
        from . import pair_session  # noqa: F401
