"""FLEX_ATTENTION without a GPU: its kernel is Inductor's, made by torch.compile for the tensors' own device.

On CPU tensors Inductor would compile for the CPU and eager PyTorch would compute over the whole pool;
neither says anything of the kernel for the architecture. Offline, the call ends here by name.
"""

from __future__ import annotations

from typing import Any

from . import route

NAME = "torch.compile(flex_attention)"


def stop_at_the_kernel() -> None:
    """Make vLLM's call of the compiled kernel raise NativeMissing, after everything that leads to it."""
    from vllm.v1.attention.backends import flex_attention

    def reached(*args: Any, **kwargs: Any) -> Any:
        route.launched(NAME, "native")
        raise route.NativeMissing(NAME, "Inductor makes it for the device of its tensors")

    flex_attention.flex_attention_compiled = reached
