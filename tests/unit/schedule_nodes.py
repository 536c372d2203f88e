"""Nodes as xdist's, for tests of the scheduler."""

from __future__ import annotations

from capmatrix.pytest_plugin.schedule import Key


class Node:
    """A node as xdist's: it runs an item only once it knows the next, or that there is none.

    ``running``: the item that has begun, in tests where beginning and ending are apart.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.items: list[int] = []
        self.running: int | None = None
        self.shutting_down = False

    def send_runtest_some(self, indices: list[int]) -> None:
        assert not self.shutting_down
        self.items += indices

    def shutdown(self) -> None:
        self.shutting_down = True

    @property
    def can_run(self) -> bool:
        return self.running is None and (len(self.items) >= 2 or (self.shutting_down and bool(self.items)))


def key(nodeid: str) -> Key:
    """``server/group/item``."""
    server, group, _ = nodeid.split("/")
    return Key(f"{server}/{group}", server)
