"""FLEX_ATTENTION offline: its kernel is Inductor's Triton template, made by torch.compile for the tensors' device.

There are only CPU tensors here, for which Inductor would write C++. So the call that vLLM makes of the
compiled kernel is traced as it stands, its tensors are declared to be on a GPU, and Inductor's own
lowering, template and compile step run for the virtual architecture. What it would launch is noted in
the route; the result is NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from . import compile_watch, inductor, route
from .code_object import resources


def compile_for_the_virtual_gpu() -> None:
    """Replace vLLM's compiled flex_attention by one that compiles for the architecture and computes nothing."""
    from torch.nn.attention.flex_attention import flex_attention
    from vllm.v1.attention.backends import flex_attention as backend

    def call(*args: Any, **kwargs: Any) -> torch.Tensor:
        with inductor.traced():
            torch._dynamo.reset()
            return torch.compile(flex_attention, fullgraph=True, backend=_backend)(*args, **kwargs)

    backend.flex_attention_compiled = call


def _backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    import torch._inductor.runtime.triton_heuristics as heuristics
    from torch._inductor.compile_fx import compile_fx

    shape = next(x.shape for x in inputs if isinstance(x, torch.Tensor))
    dtype = next(x.dtype for x in inputs if isinstance(x, torch.Tensor))

    def note(result: Any) -> Any:
        _note(result.kernel)
        return SimpleNamespace(config=result.config, cache_hash="", store_cubin=False)

    on_gpu = inductor.on_the_gpu(inputs)
    with (
        compile_watch.compiling("flex_attention"),
        inductor.lowering(
            # Where a kernel is out of LDS, Inductor compiles it again without pipelining; what fits is noted.
            (heuristics.TritonCompileResult, "make_launcher", note),
            # A launcher of Inductor's own would hide the code object.
            (heuristics.StaticTritonCompileResult, "can_statically_launch", staticmethod(lambda *args: None)),
        ),
    ):
        compile_fx(graph, on_gpu)
    return lambda *args: (torch.full(shape, float("nan"), dtype=dtype),)


def _note(kernel: Any) -> None:
    # Triton itself checks the limits while it loads the code object; nothing is launched.
    kernel._init_handles()
    metadata = kernel.metadata
    figures: dict[str, Any] = {**resources(kernel.asm["hsaco"])}
    figures["lds_bytes"] = max(metadata.shared, figures.get("lds_bytes", 0))
    route.launched(
        metadata.name,
        "triton",
        num_warps=metadata.num_warps,
        num_stages=metadata.num_stages,
        compile_s=compile_watch.taken(metadata.name),
        detail="Inductor's flex_attention template",
        **figures,
    )
