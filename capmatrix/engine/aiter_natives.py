"""AITER's C++, CK and assembly operators where there is no GPU to compile and run them.

They are all made by one decorator, ``aiter.jit.core.compile_ops``, or live under ``csrc.cpp_itfs``.
What stands in for an operator notes it in the route. One with a single right answer is computed
(``stand_in``); any other writes nothing, claims the outputs that it was given, and answers NaN in the
shapes that AITER itself declares for it (``native``), so that whatever depends on it shows.
"""

from __future__ import annotations

import ast
import enum
import functools
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from . import native_ops, route

#: Parameters of AITER's attention operators that receive the attention's result.
OUTPUTS = ("out", "out_", "output", "o", "O", "final_output", "Out")

_POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD
_KEYWORD = inspect.Parameter.KEYWORD_ONLY

_libraries: dict[str, torch.library.Library] = {}


def _static_per_tensor_quant(out: torch.Tensor, input: torch.Tensor, scale: torch.Tensor) -> None:
    out.copy_(native_ops.quantise(input, scale, out.dtype))


#: Operators with one right answer, computed exactly. vLLM 0.32's attention writes its cache with its own operators.
EXACT: dict[str, Callable[..., Any]] = {"static_per_tensor_quant": _static_per_tensor_quant}

#: Operators whose results vLLM reads on the host to size what follows: without them a cell cannot go on.
PLANNED_ON = ("get_ps_metadata_v1",)


def compile_ops(
    module: str, fc_name: str | None = None, gen_func: Any = None, gen_fake: Callable[..., Any] | None = None,
    **kind: Any,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:  # fmt: skip
    """Stands in for ``aiter.jit.core.compile_ops``: nothing is compiled, the operator becomes a stand-in."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        if function.__name__.startswith("_") and list(inspect.signature(function).parameters) == ["dummy"]:
            return functools.partial(_enumeration, fc_name or function.__name__)
        code, signature = function.__code__, inspect.signature(function)
        name = function.__name__.lstrip("_")
        stand_in = _stand_in(name, signature, gen_fake, code.co_filename, code.co_firstlineno)
        return torch_compile_guard()(functools.wraps(function)(stand_in))

    return decorate


def _stand_in(
    name: str, signature: inspect.Signature, gen_fake: Callable[..., Any] | None, file: str, line: int
) -> Callable[..., Any]:
    def reached(bound: inspect.BoundArguments, args: Any, kwargs: Any) -> Any:
        bound.apply_defaults()
        exact = EXACT.get(name)
        if exact is not None:
            route.launched(f"aiter.{name}", "stand_in")
            return exact(**bound.arguments)
        route.launched(f"aiter.{name}", "native")
        if name in PLANNED_ON:
            raise route.NativeMissing(f"aiter.{name}", "its plan is needed to go on")
        given = [bound.arguments[p] for p in OUTPUTS if isinstance(bound.arguments.get(p), torch.Tensor)]
        for out in given:
            native_ops.claim(out)
        return _answer(name, signature.return_annotation, given, gen_fake, args, kwargs)

    def operator(*args: Any, custom_build_args: Any = None, **kwargs: Any) -> Any:
        return reached(signature.bind(*args, **kwargs), args, kwargs)

    # A call that does not fit AITER's signature is told as raised where AITER states it.
    operator.__code__ = operator.__code__.replace(co_filename=file, co_firstlineno=line, co_name=name)
    return operator


def _answer(
    name: str, annotation: Any, given: list[Any], gen_fake: Callable[..., Any] | None, args: Any, kwargs: Any
) -> Any:
    if gen_fake is not None:
        return _as_nan(gen_fake(*args, **kwargs), given)
    if annotation in (None, type(None), "None", inspect.Signature.empty):
        return None
    if given:
        return given[0]
    raise route.NativeMissing(f"aiter.{name}", "its result is needed to go on")


def _as_nan(result: Any, given: list[Any]) -> Any:
    """Whatever depends on what a native operator returned shows as NaN."""
    if isinstance(result, (tuple, list)):
        return type(result)(_as_nan(part, given) for part in result)
    if isinstance(result, torch.Tensor) and result.is_floating_point() and not any(result is out for out in given):
        if result.element_size() == 1:
            result.view(torch.uint8).fill_(0x7F)
        else:
            result.fill_(float("nan"))
        if not given:
            native_ops.claim(result)
    return result


def torch_compile_guard(*options: Any, calling_func_: Any = None, **more: Any) -> Callable[[Any], Any]:
    """Stands in for AITER's decorator of the same name, which registers for the GPU: the function stays plain."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        return function

    return decorate


def direct_register_custom_op(op_name: str, op_func: Callable[..., Any], mutates_args: list[str], *rest: Any,
                              **more: Any) -> None:  # fmt: skip
    """Stands in for ``csrc.cpp_itfs.torch_utils.direct_register_custom_op``, on CPU tensors."""
    library = _libraries.setdefault("aiter", torch.library.Library("aiter", "FRAGMENT"))
    library.define(op_name + torch.library.infer_schema(op_func, mutates_args=mutates_args))

    def without_result_alias(*args: Any, **kwargs: Any) -> Any:
        result = op_func(*args, **kwargs)
        # PyTorch warns of results that alias inputs; callers use the output that they passed.
        return result.clone() if isinstance(result, torch.Tensor) else result

    for key in ("CPU", "CUDA"):
        library.impl(op_name, without_result_alias, key)


def interface(file: Path) -> dict[str, Callable[..., Any]]:
    """Stand-ins for the public functions of a module that leads to compiled code, by the parameters it states."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    found = {node.name: _stand_in(node.name, _signature(node), None, str(file), node.lineno) for node in functions}
    for node in tree.body:
        # name = other_name
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id in found:
            found.update({t.id: found[node.value.id] for t in node.targets if isinstance(t, ast.Name)})
    return found


def _signature(node: ast.FunctionDef) -> inspect.Signature:
    positional = node.args.posonlyargs + node.args.args
    required = len(positional) - len(node.args.defaults)
    parameters = [
        # A default's value is of no interest to what computes nothing.
        inspect.Parameter(a.arg, _POSITIONAL, default=None if i >= required else inspect.Parameter.empty)
        for i, a in enumerate(positional)
    ]
    for a, default in zip(node.args.kwonlyargs, node.args.kw_defaults):
        parameters.append(
            inspect.Parameter(a.arg, _KEYWORD, default=inspect.Parameter.empty if default is None else None)
        )
    if node.args.kwarg is not None:
        parameters.append(inspect.Parameter(node.args.kwarg.arg, inspect.Parameter.VAR_KEYWORD))
    return inspect.Signature(parameters)


_header: Path | None = None


def read_enumerations_from(header: Path) -> None:
    """AITER's C++ enumerations are read from its own header (csrc/include/aiter_enum.h)."""
    global _header
    _header = header


def _enumeration(name: str, dummy: Any = 0) -> Any:
    text = _header.read_text(encoding="utf-8") if _header is not None and _header.is_file() else ""
    found = re.search(rf"enum class {name}\s*:\s*int\s*\{{(.*?)\}}", text, re.DOTALL)
    if found is None:
        raise route.NativeMissing(f"aiter.{name}", "its header states no such enumeration")
    members: dict[str, int] = {}
    following = 0
    for entry in re.sub(r"//[^\n]*", "", found.group(1)).split(","):
        key, _, value = entry.partition("=")
        if key.strip():
            following = int(value) if value.strip() else following
            members[key.strip()] = following
            following += 1
    kind: Any = enum.IntEnum(name, members)  # type: ignore[misc]
    return kind(next(iter(members.values())))


def get_module(name: str) -> Any:
    """Stands in for ``aiter.jit.core.get_module``: there is no compiled module."""
    raise route.NativeMissing(f"aiter.{name}", "AITER's compiled modules need ROCm")
