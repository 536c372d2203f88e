"""FLEX_ATTENTION offline: its kernel is Inductor's Triton template, made by torch.compile for the tensors' device.

There are only CPU tensors here, for which Inductor would write C++. So the call that vLLM makes of the
compiled kernel is traced as it stands, its tensors are declared to be on a GPU, and Inductor's own
lowering, template and compile step run for the virtual architecture. What it would launch is noted in
the route; the result is NaN.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch

from ..archs import Arch
from . import compile_watch, route
from .code_object import resources
from .virtual_arch import arch_of_this_process


class _CodeMade(Exception):
    """Every kernel of the graph is compiled; nothing is left but to launch them."""


def compile_for_the_virtual_gpu() -> None:
    """Replace vLLM's compiled flex_attention by one that compiles for the architecture and computes nothing."""
    from torch.nn.attention.flex_attention import flex_attention
    from vllm.v1.attention.backends import flex_attention as backend

    def call(*args: Any, **kwargs: Any) -> torch.Tensor:
        # The environment switches Dynamo off for all else: PyTorch's own operators say nothing here.
        with (
            mock.patch.dict(os.environ, {"TORCHDYNAMO_DISABLE": "0"}),
            mock.patch.object(torch._dynamo.config, "disable", False),
        ):
            torch._dynamo.reset()
            return torch.compile(flex_attention, fullgraph=True, backend=_backend)(*args, **kwargs)

    backend.flex_attention_compiled = call


def _backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    from torch._guards import detect_fake_mode
    from torch._inductor.compile_fx import compile_fx

    shape = next(x.shape for x in inputs if isinstance(x, torch.Tensor))
    dtype = next(x.dtype for x in inputs if isinstance(x, torch.Tensor))
    mode: Any = detect_fake_mode(inputs)
    with _gpu_build_of_torch(), mode:
        on_gpu = [
            torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda") if isinstance(x, torch.Tensor) else x
            for x in inputs
        ]
    made: list[str] = []
    with (
        compile_watch.compiling("flex_attention"),
        _gpu_build_of_torch(),
        _compiling_only(arch_of_this_process(), made),
    ):
        try:
            compile_fx(graph, on_gpu)
        except Exception as error:
            if not made or not _stopped_on_purpose(error):
                raise
    return lambda *args: (torch.full(shape, float("nan"), dtype=dtype),)


def _stopped_on_purpose(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, _CodeMade) or _CodeMade.__name__ in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextlib.contextmanager
def _gpu_build_of_torch() -> Iterator[None]:
    """What Inductor asks a ROCm build of PyTorch while it generates code, answered by a CPU build."""
    state = torch.zeros(16, dtype=torch.uint8)
    answers: list[tuple[Any, str, Any]] = [
        (torch.version, "hip", "7.0"),
        (torch.cuda, "is_available", lambda: True),
        (torch.cuda, "_lazy_init", lambda: None),
        (torch.cuda, "get_rng_state", lambda *args: state),
        (torch.cuda, "set_rng_state", lambda *args: None),
        (torch.cuda, "_exchange_device", lambda device: 0),
        (torch.cuda, "_maybe_exchange_device", lambda device: 0),
        (torch.cuda, "set_device", lambda device: None),
    ]
    with contextlib.ExitStack() as stack:
        for owner, name, answer in answers:
            stack.enter_context(mock.patch.object(owner, name, answer))
        stack.enter_context(mock.patch.object(torch._C, "_cuda_getCurrentRawStream", lambda device: 0, create=True))
        yield


@contextlib.contextmanager
def _compiling_only(arch: Arch, made: list[str]) -> Iterator[None]:
    import torch._inductor.config as config
    import torch._inductor.fx_passes.joint_graph as joint_graph
    import torch._inductor.runtime.triton_helpers as helpers
    import torch._inductor.runtime.triton_heuristics as heuristics
    import torch._inductor.scheduler as scheduler

    flex = sys.modules["torch._higher_order_ops.flex_attention"]

    def note(tuner: Any) -> None:
        for result in tuner.compile_results:
            _note(result.kernel, arch)
        made.append(tuner.fn.__name__)
        raise _CodeMade(_CodeMade.__name__)

    with contextlib.ExitStack() as stack:
        stack.enter_context(config.patch(compile_threads=1, fx_graph_cache=False, pattern_matcher=False))
        patch = lambda owner, name, value: stack.enter_context(mock.patch.object(owner, name, value))  # noqa: E731
        patch(joint_graph, "lazy_init", lambda *args, **kwargs: None)
        patch(scheduler, "has_triton", lambda *args: True)
        patch(helpers, "set_driver_to_gpu", lambda: None)
        patch(heuristics.CachingAutotuner, "_make_launchers", note)
        # A launcher of Inductor's own would hide the code object.
        patch(heuristics.StaticTritonCompileResult, "can_statically_launch", staticmethod(lambda *args: None))
        patch(flex, "_permute_strides", _permute_strides)
        yield


def _note(kernel: Any, arch: Arch) -> None:
    from triton.runtime.errors import OutOfResources

    metadata = kernel.metadata
    if metadata.shared > arch.lds_bytes:
        raise OutOfResources(metadata.shared, arch.lds_bytes, "shared memory")
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


def _permute_strides(out: torch.Tensor, query_strides: Any) -> torch.Tensor:
    """As PyTorch's, without the copy that a CPU build cannot make of a GPU tensor."""
    order = sorted(range(out.dim()), key=lambda axis: int(query_strides[axis]))
    strides, step = [0] * out.dim(), 1
    for axis in order:
        strides[axis] = step
        step *= int(out.shape[axis])
    return torch.empty_strided(out.shape, strides, dtype=out.dtype, device=out.device)
