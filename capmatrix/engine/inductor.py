"""Inductor's code for a GPU that is not there: what it asks of a ROCm build of PyTorch, answered by a CPU build.

Traced by Dynamo, a call's tensors are declared to be on a GPU; Inductor then lowers it for the virtual architecture
as a ROCm build would. What becomes of the kernels is the caller's: ``flex`` compiles them, ``flex_interpreted`` runs
them.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch._subclasses import fake_tensor
from torch.utils._python_dispatch import TorchDispatchMode

from .shims import note


@contextlib.contextmanager
def traced() -> Iterator[None]:
    """Within, Dynamo traces: the environment switches it off for all else, as PyTorch's own operators say nothing.

    What the compiler raises comes out as it was, not in Dynamo's wrapping, whose first line does not tell it. A GPU
    build of PyTorch would save its GPU's random state first; there is none, whatever the stand-ins count.
    """
    from torch._dynamo.exc import BackendCompilerFailed

    with (
        mock.patch.dict(os.environ, {"TORCHDYNAMO_DISABLE": "0"}),
        mock.patch.object(torch._dynamo.config, "disable", False),
        mock.patch.object(torch.cuda, "is_available", lambda: False),
    ):
        try:
            yield
        except BackendCompilerFailed as error:
            raise error.inner_exception from None


def on_the_gpu(inputs: list[Any]) -> list[Any]:
    """A traced graph's inputs with each tensor's shape, strides and type, declared to be on a GPU."""
    from torch._guards import detect_fake_mode

    mode: Any = detect_fake_mode(inputs)
    with gpu_build_of_torch(), mode:
        return [
            torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda") if isinstance(x, torch.Tensor) else x
            for x in inputs
        ]


@contextlib.contextmanager
def gpu_build_of_torch() -> Iterator[None]:
    """What Inductor, and the code it generates, ask a ROCm build of PyTorch."""
    note("a ROCm build of torch")
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
        # torch 2.11 makes a real tensor there before the first fake one.
        (fake_tensor, "init_gpu_context", lambda device: None),
    ]
    with contextlib.ExitStack() as stack:
        for owner, name, answer in answers:
            stack.enter_context(mock.patch.object(owner, name, answer))
        stack.enter_context(mock.patch.object(torch._C, "_cuda_getCurrentRawStream", lambda device: 0, create=True))
        yield


@contextlib.contextmanager
def lowering(*more: tuple[Any, str, Any]) -> Iterator[None]:
    """Within, Inductor lowers for the virtual GPU in this process alone; ``more``: (owner, name, replacement)."""
    import torch._dynamo.device_interface as device_interface
    import torch._inductor.config as config
    import torch._inductor.fx_passes.joint_graph as joint_graph
    import torch._inductor.runtime.triton_helpers as helpers
    import torch._inductor.scheduler as scheduler

    folder = joint_graph.UniformValueConstantFolder
    deduce = folder._deduce_value

    def deduce_on_the_cpu(self: Any, node: Any) -> Any:
        with _OnTheCpu():
            return deduce(self, node)

    replaced = (
        (joint_graph, "lazy_init", lambda *args, **kwargs: None),
        (folder, "_deduce_value", deduce_on_the_cpu),
        (scheduler, "has_triton", lambda *args: True),
        (helpers, "set_driver_to_gpu", lambda: None),
        (device_interface.CudaInterface, "exchange_device", staticmethod(lambda device: 0)),
        (device_interface.CudaInterface, "maybe_exchange_device", staticmethod(lambda device: 0)),
        (sys.modules["torch._higher_order_ops.flex_attention"], "_permute_strides", _permute_strides),
        *more,
    )
    with gpu_build_of_torch(), contextlib.ExitStack() as stack:
        stack.enter_context(config.patch(compile_threads=1, fx_graph_cache=False, pattern_matcher=False))
        for owner, name, value in replaced:
            stack.enter_context(mock.patch.object(owner, name, value))
        yield


class _OnTheCpu(TorchDispatchMode):
    """Constants that Inductor makes to see what they hold are made on the CPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        if given.get("device") is not None:
            given["device"] = torch.device("cpu")
        return func(*args, **given)


def _permute_strides(out: torch.Tensor, query_strides: Any) -> torch.Tensor:
    """As PyTorch's, without the copy that a CPU build cannot make of a GPU tensor."""
    order = sorted(range(out.dim()), key=lambda axis: int(query_strides[axis]))
    strides, step = [0] * out.dim(), 1
    for axis in order:
        strides[axis] = step
        step *= int(out.shape[axis])
    return torch.empty_strided(out.shape, strides, dtype=out.dtype, device=out.device)
