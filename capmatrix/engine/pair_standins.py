"""What loading whole models needs and this machine lacks: placeholders, each noted by name in the record.

``prepare`` is called once a server, before it forks; nothing of it runs for single cells.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import importlib.util
import re
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch

from . import shims
from .bare_package import ensure

_libraries: list[torch.library.Library] = []
_M3 = "vllm.models.minimax_m3"


def prepare(has_gpu: bool) -> None:
    """Make vLLM's compilation package importable and, where there is no GPU, streams constructible."""
    if not has_gpu:
        torch.cuda.Stream = _Stream  # type: ignore[misc,assignment]
    _compilation_importable()


def register(*architectures: str) -> None:
    """Register model classes as classes: vLLM inspects others in a subprocess, 10 to 25 s each.

    A class that cannot be imported stays unregistered; its pairs say why.
    """
    from vllm.model_executor.models.registry import ModelRegistry

    # A bare package may have taken the place of one whose classes are wanted here.
    for name in [n for n in sys.modules if n == _M3 or n.startswith(_M3 + ".")]:
        if getattr(sys.modules.get(_M3), "MiniMaxM3MTP", None) is None:
            del sys.modules[name]
    with _image_processors_importable():
        for name in architectures:
            with contextlib.suppress(Exception):
                ModelRegistry.register_model(name, ModelRegistry.models[name].load_model_cls())
    ensure(_M3)


class _Stream:
    """A stream where everything is done by the time it is asked for."""

    cuda_stream = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        shims.note("torch.cuda.Stream")

    def wait_stream(self, stream: Any) -> None:
        """Nothing is pending."""

    def wait_event(self, event: Any) -> None:
        """Nothing is pending."""

    def synchronize(self) -> None:
        """Nothing is pending."""


def _compilation_importable() -> None:
    """Import ``vllm.compilation.backends``, which names overloads of native operators while it is imported.

    Operators that this build lacks are declared without arguments; those answered by a plain function step
    aside meanwhile. None of them is called.
    """
    namespace = torch.ops._C
    plain = {n: f for n, f in vars(namespace).items() if isinstance(f, types.FunctionType)}
    for name in plain:
        delattr(namespace, name)
    try:
        for _ in range(100):
            try:
                importlib.import_module("vllm.compilation.backends")
                break
            except AttributeError as error:
                missing = re.search(r"'_OpNamespace' '(\w+)' object has no attribute '(\w+)'", str(error))
                if missing is None:
                    raise
                library = torch.library.Library(missing[1], "FRAGMENT")
                _libraries.append(library)
                library.define(f"{missing[2]}() -> ()")
                shims.note(f"{missing[1]}.{missing[2]} declared")
    finally:
        for name, function in plain.items():
            setattr(namespace, name, function)


class _Anything:
    """Stands for every class, function and constant of a package whose names alone are needed."""

    BICUBIC = BILINEAR = NEAREST = None


class _Names(types.ModuleType):
    """A module in which every public name exists."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything


@contextlib.contextmanager
def _image_processors_importable() -> Iterator[None]:
    """Model classes of image-and-text models import image processors, and those torchvision, which a CPU build lacks.

    No image is processed here, so names are enough, and only while the classes are imported.
    """
    if importlib.util.find_spec("torchvision") is not None:
        yield
        return
    added = []
    for name in ("torchvision", *(f"torchvision.transforms{part}" for part in ("", ".v2", ".functional"))):
        module = _Names(name)
        module.__path__ = []
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        sys.modules[name] = module
        added.append(name)
    shims.note("names of torchvision")
    try:
        yield
    finally:
        for name in added:
            sys.modules.pop(name, None)
