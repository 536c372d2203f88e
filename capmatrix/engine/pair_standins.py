"""What loading whole models needs and this machine lacks: placeholders, each noted by name in the record.

``prepare`` is called once a server, before it forks; nothing of it runs for single cells.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
import types
from typing import Any

import torch

from . import shims
from .bare_package import ensure

_libraries: list[torch.library.Library] = []
_IMAGE_PROCESSOR = "vllm.transformers_utils.processors.minimax_m3"


def prepare() -> None:
    """Make vLLM's compilation package and MiniMax-M3's model class importable, and streams constructible."""
    torch.cuda.Stream = _Stream  # type: ignore[misc,assignment]
    _compilation_importable()
    _minimax_m3_importable()


def register(*architectures: str) -> None:
    """Register model classes as classes: vLLM inspects others in a subprocess, 10 to 25 s each.

    A class that cannot be imported stays unregistered; its pairs say why.
    """
    from vllm.model_executor.models.registry import ModelRegistry

    for name in architectures:
        with contextlib.suppress(Exception):
            ModelRegistry.register_model(name, ModelRegistry.models[name].load_model_cls())


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


def _minimax_m3_importable() -> None:
    """MiniMax-M3's model needs its image processor's names, and that needs torchvision, which a CPU build lacks.

    No image is processed here, so the names are enough.
    """
    package = "vllm.models.minimax_m3"
    try:
        importlib.import_module(package)
        return
    except ImportError:
        for name in [n for n in sys.modules if n == package or n.startswith(package + ".")]:
            del sys.modules[name]
    names = ("MIN_SHORT_SIDE_PIXEL", "MiniMaxM3VLImageProcessor", "MiniMaxM3VLVideoProcessor", "MiniMaxVLProcessor")
    stand_in = types.ModuleType(_IMAGE_PROCESSOR)
    for name in (*names, "smart_resize"):
        setattr(stand_in, name, type(name, (), {}))
    sys.modules.setdefault(_IMAGE_PROCESSOR, stand_in)
    try:
        importlib.import_module(package)
        shims.note(f"{_IMAGE_PROCESSOR} without torchvision")
    except ImportError:
        sys.modules.pop(_IMAGE_PROCESSOR, None)
        ensure(package)
