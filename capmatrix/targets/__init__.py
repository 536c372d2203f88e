"""Targets: where a cell runs. One module a kind, each with the same four functions.

``names()`` the targets of that kind; ``availability(name)`` whether this machine has it and why not;
``environment(arch)`` variables to set before torch, triton or vllm are imported; ``prepare(arch)``
what to install after torch and triton but before vllm. The last two run only in a worker server.
Nothing here imports torch at module level.
"""

from __future__ import annotations

from typing import NamedTuple

from ..errors import InputError
from . import device, emulator, interpreter, offline

KINDS = {"device": device, "offline": offline, "interpreter": interpreter, "emulator": emulator}


class Target(NamedTuple):
    """A parsed target; ``arch`` is empty for ``device`` under the machine's own identity.

    An emulated GPU is to the engine what a GPU is: kind ``device``, no ``arch``, and ``emulated`` the architecture.
    """

    kind: str
    arch: str
    emulated: str = ""

    @property
    def name(self) -> str:
        """As written on a command line."""
        if self.emulated:
            return f"emulator:{self.emulated}"
        return f"{self.kind}:{self.arch}" if self.arch else self.kind


def known() -> tuple[str, ...]:
    """Every target that can be named, whether or not this machine has it."""
    return tuple(name for kind in KINDS.values() for name in kind.names())


def parse(text: str) -> Target:
    """``offline:gfx942`` and the like. Raises InputError naming the known targets."""
    if text not in known():
        raise InputError("unknown target", key="target", value=text, allowed=known())
    kind, _, arch = text.partition(":")
    return Target("device", "", arch) if kind == "emulator" else Target(kind, arch)


def availability(name: str) -> tuple[bool, str]:
    """Whether this machine can run the target and, where not, why; imports neither torch nor vllm."""
    parse(name)
    return KINDS[name.partition(":")[0]].availability(name)


def here() -> list[str]:
    """The targets a run uses when none is named: this machine's GPU, or the virtual ones.

    Where there is no GPU, ``device`` is left in, so that a table says that it was not to be had.
    """
    gpu = emulator.available() or device.available()
    if gpu:
        return gpu
    return ["offline:gfx942", "offline:gfx950", "interpreter:gfx950", "device"]
