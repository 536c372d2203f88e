"""``triton.language.extra.libdevice`` in Triton's interpreter, where calling one of its functions gives None.

Functions of fp32 and fp64 that numpy has are computed in fp64 and rounded once: within half an ulp, where those of
AMD's device library are within an ulp or a few. A kernel that calls another one, or one of them on other types, is
beyond the interpreter: LibdeviceMissing names it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from .float_codes import Array

_FUNCTIONS: dict[str, Callable[..., Array]] = {
    "abs": np.abs,
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "atanh": np.arctanh,
    "ceil": np.ceil,
    "copysign": np.copysign,
    "cos": np.cos,
    "cosh": np.cosh,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "floor": np.floor,
    "fmod": np.fmod,
    "hypot": np.hypot,
    "log": np.log,
    "log10": np.log10,
    "log1p": np.log1p,
    "log2": np.log2,
    "nearbyint": np.rint,
    "pow": np.power,
    "rint": np.rint,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "sin": np.sin,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
    "trunc": np.trunc,
}


class LibdeviceMissing(NotImplementedError):
    """A function of libdevice that this interpreter does not have, or not on these types."""


def install(interpreter: Any, tl: Any) -> None:
    """Replace the functions of libdevice in this process; ``interpreter`` is the module triton.runtime.interpreter."""
    from triton.language.extra import libdevice

    for name, function in inspect.getmembers(libdevice, inspect.isfunction):
        if function.__module__ == libdevice.__name__:
            setattr(libdevice, name, _replacement(interpreter, tl, name))


def _replacement(interpreter: Any, tl: Any, name: str) -> Callable[..., Any]:
    compute = _FUNCTIONS.get(name)

    def function(*args: Any, **ignored: Any) -> Any:
        tensors = [arg for arg in args if isinstance(arg, tl.core.tensor)]
        types = {tensor.dtype for tensor in tensors}
        if compute is None or not types <= {tl.float32, tl.float64} or len(types) != 1:
            of = ", ".join(sorted(str(dtype) for dtype in types))
            raise LibdeviceMissing(f"libdevice.{name} of {of} in Triton's interpreter")
        (dtype,) = types
        given = [np.asarray(_values(arg), dtype=np.float64) for arg in args]
        out = np.asarray(compute(*given)).astype(interpreter._get_np_dtype(dtype))
        shaped = any(tensor.type.is_block() for tensor in tensors)
        return tl.core.tensor(
            interpreter.TensorHandle(out, dtype), tl.block_type(dtype, list(out.shape)) if shaped else dtype
        )

    return function


def _values(arg: Any) -> Any:
    """What a tensor of a kernel, a constexpr or a number holds."""
    return arg.handle.data if hasattr(arg, "handle") else getattr(arg, "value", arg)
