"""Make an AITER importable in a worker server: the installed wheel, or a checkout (``--aiter PATH``)."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from typing import Any

from . import aiter_natives, aiter_source, aiter_support
from .aiter_package import AiterFinder
from .aiter_source import Source
from .virtual_arch import arch_of_this_process

#: Instead of a path: vLLM is to find no AITER, though one may be installed.
NONE = "none"

_source: Source | None = None


def load(path: str) -> tuple[str, ...]:
    """Use the AITER at ``path``, the installed one when ``path`` is empty, none for ``NONE``; returns what was changed.

    Called after torch and Triton are imported and before vLLM is: vLLM looks for ``aiter`` while it is
    imported. Where torch has no ROCm, AITER's compiled operators become stand-ins and its
    architecture queries answer for the virtual architecture; where it has, only the import path changes.
    Raises Unavailable when ``path`` holds no AITER.
    """
    import torch

    global _source
    _source = None if path == NONE else aiter_source.find(path)
    if _source is None:
        # Not an AITER, or none: vLLM must not find a package of that name.
        sys.modules.setdefault("aiter", None)  # type: ignore[arg-type]
        return ()
    if torch.version.hip is not None:
        if path:
            sys.path.insert(0, str(_source.package.parent))
        return (_source.label,) if path else ()
    return _load_without_rocm(_source)


def describe() -> dict[str, Any]:
    """``version``, ``commit``, ``source`` (``wheel``, ``checkout`` or empty) and ``path`` of the AITER in use.

    ``version`` and ``commit`` are ``unknown`` where nothing states them, and empty without an AITER;
    ``missing`` names what vLLM asks of AITER and this one lacks (``aiter_support.FEATURES``).
    """
    if _source is None:
        return {"version": "", "commit": "", "source": "", "path": "", "missing": ()}
    return {
        "version": _source.version or "unknown",
        "commit": _source.commit or "unknown",
        "source": _source.kind,
        "path": str(_source.package.parent),
        "missing": aiter_support.missing_features(_source.package),
    }


def _load_without_rocm(source: Source) -> tuple[str, ...]:
    arch = arch_of_this_process()
    finder = AiterFinder(source, arch)
    sys.meta_path.insert(0, finder)
    aiter_natives.read_enumerations_from(source.sources / "csrc" / "include" / "aiter_enum.h")
    if "AITER_LOG_LEVEL" not in os.environ:
        os.environ["AITER_LOG_LEVEL"] = "ERROR"
    importlib.import_module("aiter")
    logging.getLogger("aiter").setLevel(os.environ["AITER_LOG_LEVEL"])
    changed = f"{source.label}: C++, CK and assembly operators are stand-ins, architecture queries answer {arch.name}"
    return (changed, *_failed_parts(finder.problems))


def _failed_parts(problems: list[tuple[str, str]]) -> list[str]:
    """One line a reason: ``not importable here, ModuleNotFoundError: ...: ops.x, ops.y``."""
    by_reason: dict[str, list[str]] = {}
    for module, reason in problems:
        by_reason.setdefault(reason, []).append(module)
    return [f"AITER parts not importable here ({reason}): {', '.join(parts)}" for reason, parts in by_reason.items()]
