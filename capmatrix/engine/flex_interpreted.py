"""FLEX_ATTENTION on an interpreter target: the kernel that Inductor generates for the architecture, run on values.

vLLM's call of its compiled kernel is traced as it stands and lowered as on a ROCm build (``inductor``). Inductor itself
launches its kernels through Triton's interpreter where TRITON_INTERPRET is set; only what its generated code asks of
the GPU is answered here: where buffers are (on the CPU, NaN at first, with bands around them) and the device guard.
vLLM's block mask and its conversion of physical to logical positions run as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from . import bands, compile_watch, inductor

_compiled: Callable[..., torch.Tensor] | None = None


def interpret_for_the_virtual_gpu() -> None:
    """Replace vLLM's compiled flex_attention by one whose kernels Triton's interpreter runs."""
    from vllm.v1.attention.backends import flex_attention as backend

    backend.flex_attention_compiled = _call


def forget() -> None:
    """Forget what was compiled: Dynamo generalises over what it has seen, and no cell may depend on those before it."""
    global _compiled
    bands.made()
    if _compiled is not None:
        _compiled = None
        torch._dynamo.reset()


def _call(*args: Any, **kwargs: Any) -> torch.Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    global _compiled
    with inductor.traced():
        if _compiled is None:
            _compiled = torch.compile(flex_attention, fullgraph=True, backend=_backend)
        return _compiled(*args, **kwargs)


def _backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    from torch._inductor.compile_fx import compile_fx

    on_gpu = inductor.on_the_gpu(inputs)
    allocate = (torch._C._dynamo.guards, "_empty_strided_cuda", _buffer)
    with compile_watch.compiling("flex_attention"), inductor.lowering(allocate):
        code = compile_fx(graph, on_gpu)

    def run(*args: Any) -> Any:
        with inductor.gpu_build_of_torch():
            return code(*args)

    return run


def _buffer(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return bands.empty("a buffer of Inductor's code", size, stride, dtype)
