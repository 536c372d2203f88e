"""The entry point that vLLM asks for a platform: capmatrix's virtual ROCm platform, or none.

vLLM calls ``register`` in every process that imports it wherever capmatrix is installed, so the
answer is None unless capmatrix itself asked for a virtual architecture in this process.
"""

from __future__ import annotations

import os

#: Set by ``bootstrap`` in a worker server, never by a user: the architecture to present.
ARCH_VARIABLE = "CAPMATRIX_VIRTUAL_ARCH"

#: Set beside it where a real GPU of another vendor runs under that architecture's identity.
POSING_VARIABLE = "CAPMATRIX_POSING_GPU"


def register() -> str | None:
    """The qualified name of the platform class, or None to leave vLLM's own choice alone."""
    if os.environ.get(ARCH_VARIABLE) and os.environ.get(POSING_VARIABLE):
        return "capmatrix.engine.posing_platform.PosingRocmPlatform"
    if os.environ.get(ARCH_VARIABLE):
        return "capmatrix.engine.virtual_platform.VirtualRocmPlatform"
    return None
