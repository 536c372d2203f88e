"""Import a module of a package whose ``__init__`` needs something that is not installed.

MiniMax-M3's ``__init__`` imports its image processor, and with it torchvision, for which no build goes
with a CPU build of torch; its attention backends need neither.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType

from . import shims


def ensure(package: str) -> None:
    """Make submodules of ``package`` importable: as it is or, where its ``__init__`` fails, without it."""
    if package in sys.modules:
        return
    try:
        importlib.import_module(package)
    except ImportError:
        spec = importlib.util.find_spec(package)
        if spec is None or spec.submodule_search_locations is None:
            raise
        for name in [n for n in sys.modules if n == package or n.startswith(package + ".")]:
            del sys.modules[name]
        bare = ModuleType(package)
        bare.__path__ = list(spec.submodule_search_locations)
        bare.__spec__ = spec
        sys.modules[package] = bare
        shims.note(f"{package} without its __init__")
