"""What Triton's interpreter does around a kernel's operations, done once instead of every time; results are the same.

Measured on vLLM's unified attention (Triton 3.7.1, small heads), these took about two thirds of an interpreted kernel:

* Every launch *and every call of a device function* walks through ``triton.language`` to replace its functions. The
  replacements are the same each time: they are found once, applied at the start of a launch and undone at its end.
  (Triton leaves those that a device function applied in place; here they are undone too.)
* Every integer addition, subtraction and multiplication is computed again in int64 for an overflow check whose
  assertion is dropped unless ``options.debug`` is set, which the interpreter never sets: the check is switched off.
* Every tensor builds its shape and type anew: the immutable parts are kept by shape.
* After a launch every argument's whole storage (the KV cache) is copied, onto itself on a CPU: skipped there.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from typing import Any

import numpy as np

_MISSING = object()
_TENSOR_FIELDS = {"handle", "shape", "numel", "type", "dtype"}
_BLOCK_FIELDS = {"element_ty", "shape", "numel", "name"}


def install(interpreter: Any, tl: Any) -> None:
    """Replace the launch machinery of ``interpreter`` (the module triton.runtime.interpreter); call it once."""
    _drop_overflow_checks(interpreter)
    patching = _Patching(interpreter, tl)
    executor = interpreter.GridExecutor
    plain_call, plain_restore = executor.__call__, executor._restore_args_dev

    @functools.wraps(plain_call)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Overflow to infinity and NaN are results like others.
        with patching, np.errstate(all="ignore"):
            return plain_call(self, *args, **kwargs)

    def restore_args(self: Any, args_dev: Any, args_hst: Any, kwargs: Any, kwargs_hst: Any) -> None:
        names = list(kwargs)
        pairs = [*zip(args_dev, args_hst, strict=True), *((kwargs[n], kwargs_hst[n]) for n in names)]
        copied = [pair for pair in pairs if not _same_storage(*pair)]
        if copied:
            plain_restore(self, [dev for dev, _ in copied], [host for _, host in copied], {}, {})

    executor.__call__ = call
    executor._restore_args_dev = restore_args
    interpreter._patch_lang = patching.patch_lang


def _same_storage(device: Any, host: Any) -> bool:
    """Whether copying ``host`` back to ``device`` changes nothing: no tensor, or the same memory."""
    if not hasattr(device, "data_ptr"):
        return not isinstance(device, tuple) and not hasattr(device, "base")
    if hasattr(device, "base"):  # a TensorWrapper: a tensor viewed in another type
        device, host = device.base, host.base
    return bool(device.untyped_storage().data_ptr() == host.untyped_storage().data_ptr())


def _drop_overflow_checks(interpreter: Any) -> None:
    builder = interpreter.InterpreterBuilder
    plain_init = builder.__init__

    def unchecked(options: Any) -> Any:
        return options if options.debug else dataclasses.replace(options, sanitize_overflow=False)

    def init(self: Any) -> None:
        plain_init(self)
        self.options = unchecked(self.options)

    builder.__init__ = init
    shared = interpreter.interpreter_builder
    shared.options = unchecked(shared.options)


class _Patching:
    """The replacements in ``triton.language`` for the time of a launch; a context that a launch enters."""

    def __init__(self, interpreter: Any, tl: Any) -> None:
        self._interpreter, self._tl = interpreter, tl
        self._plain = interpreter._patch_lang
        self._launches = 0
        self._applied = False
        self._changes: list[tuple[Any, str, Any, Any]] = []

    def __enter__(self) -> None:
        self._launches += 1

    def __exit__(self, *_: object) -> None:
        self._launches -= 1

    def patch_lang(self, fn: Any) -> Any:
        """In place of ``_patch_lang``; what it returns is restored by the launch that asked first."""
        if not self._launches:
            return self._plain(fn)
        if self._applied:
            return types.SimpleNamespace(restore=lambda: None)
        if any(_current(obj, name) is not before for obj, name, before, _ in self._changes):
            self._changes = []
        if not self._changes:
            self._changes = self._find()
        for obj, name, _, after in self._changes:
            setattr(obj, name, after)
        self._applied = True
        return types.SimpleNamespace(restore=self._restore)

    def _restore(self) -> None:
        self._applied = False
        for obj, name, before, _ in self._changes:
            if before is _MISSING:
                delattr(obj, name)
            else:
                setattr(obj, name, before)

    def _find(self) -> list[tuple[Any, str, Any, Any]]:
        """(object, attribute, value before, value during a launch) of everything that Triton replaces."""
        tl = self._tl
        scope = self._plain(types.SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
        _keep_shapes(tl, scope)
        _skip_needless_broadcasts(type(self._interpreter.interpreter_semantic), scope)
        touched = {(id(obj), name): (obj, name) for obj, name, _ in scope._changes}
        after = {key: _current(obj, name) for key, (obj, name) in touched.items()}
        scope.restore()
        return [(obj, name, _current(obj, name), after[key]) for key, (obj, name) in touched.items()]


def _current(obj: Any, name: str) -> Any:
    """An attribute as it is stored: of a class its own or an inherited one, not bound."""
    if isinstance(obj, type):
        for base in obj.__mro__:
            if name in base.__dict__:
                return base.__dict__[name]
        return _MISSING
    return obj.__dict__.get(name, _MISSING)


def _keep_shapes(tl: Any, scope: Any) -> None:
    """Block types and tensors take what depends on the shape alone from the first one of that shape.

    Left as they are if this Triton's objects hold other fields than those known here.
    """
    core = tl.core
    plain_block, plain_tensor = core.block_type.__init__, core.tensor.__init__
    constexpr = core.constexpr
    blocks: dict[Any, tuple[Any, Any, str]] = {}
    tensors: dict[Any, tuple[Any, Any]] = {}

    def block_init(self: Any, element_ty: Any, shape: Any) -> None:
        key: Any = tuple([s.value if type(s) is constexpr else s for s in shape])
        if element_ty.is_ptr():
            key = (key, element_ty.name, element_ty.address_space, element_ty.const)
        else:
            key = (key, element_ty.name)
        known = blocks.get(key)
        if known is None:
            plain_block(self, element_ty, shape)
            blocks[key] = (self.shape, self.numel, self.name)
        else:
            self.element_ty = element_ty
            self.shape, self.numel, self.name = known
        self.capmatrix_shape = key[0]

    def tensor_init(self: Any, handle: Any, type: Any) -> None:
        key = getattr(type, "capmatrix_shape", None) if type.is_block() else ()
        known = tensors.get(key)
        if known is None:
            plain_tensor(self, handle, type)
            if key is not None:
                tensors[key] = (self.shape, self.numel)
        else:
            self.handle = handle
            self.type = type
            self.dtype = type.scalar
            self.shape, self.numel = known

    sample = core.block_type(core.float32, [2])
    if set(vars(sample)) == _BLOCK_FIELDS and set(vars(core.tensor(None, sample))) == _TENSOR_FIELDS:
        scope.set_attr(core.block_type, "__init__", block_init)
        scope.set_attr(core.tensor, "__init__", tensor_init)


def _skip_needless_broadcasts(semantic: Any, scope: Any) -> None:
    """Two tensors of one shape, or two scalars, need no broadcast."""
    plain = semantic.broadcast_impl_value

    def broadcast(self: Any, lhs: Any, rhs: Any) -> Any:
        left, right = getattr(lhs.type, "capmatrix_shape", _MISSING), getattr(rhs.type, "capmatrix_shape", _MISSING)
        if left == right and (left is not _MISSING or not (lhs.type.is_block() or rhs.type.is_block())):
            return lhs, rhs
        return plain(self, lhs, rhs)

    scope.set_attr(semantic, "broadcast_impl_value", broadcast)
