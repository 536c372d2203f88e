"""The architecture this process presents, read from its environment (fixed before vLLM's import)."""

from __future__ import annotations

import os

from ..archs import Arch, get
from .platform_plugin import ARCH_VARIABLE


def arch_of_this_process() -> Arch:
    """The virtual architecture. Raises KeyError when this process presents none."""
    return get(os.environ[ARCH_VARIABLE])
