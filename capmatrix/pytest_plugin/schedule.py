"""How cells are spread over xdist's nodes: cells that share a set-up stay on one node, groups balance.

xdist calls the methods below (its ``Scheduling`` protocol). A node is sent items one at a time and holds
at most two, the one it runs and the next: xdist's node needs to know the next item before it runs one.
The rest of its group waits here, where an idle node can take half of it.

Items that come last (times, which want a GPU to themselves) begin when no other item waits or runs any more. Since a
node does not begin its last item before it knows the next one, a node that has run out of other items is given one
such item at once, which it then holds and does not begin until it is given another one or told that there is none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple, NoReturn

#: Items a node holds: the one it runs and the one after.
HELD = 2

#: How often a node may die under the same item before the item is left alone.
MAX_ATTEMPTS = 2


class Key(NamedTuple):
    """``group``: what shares a set-up; ``server``: what shares a worker server."""

    group: Hashable
    server: Hashable


class GroupScheduling:
    """Spread items by group.

    Args:
        numnodes: nodes that will submit a collection.
        key: group and server of a node id.
        differ: called with a text where two nodes collected different items.
        last: whether an item comes last.
        lanes: nodes that share the items that come last; 0 for any number of them.
    """

    def __init__(
        self,
        numnodes: int,
        key: Callable[[str], Key],
        differ: Callable[[str], None],
        last: Callable[[str], bool] = lambda nodeid: False,
        lanes: int = 0,
    ) -> None:
        self.numnodes = numnodes
        self.collection: list[str] | None = None
        self._key = key
        self._differ = differ
        self._collections: dict[Any, Sequence[str]] = {}
        self._held: dict[Any, list[int]] = {}
        self._claimed: dict[Any, deque[int]] = {}
        self._server: dict[Any, Hashable] = {}
        self._queue: dict[Hashable, deque[deque[int]]] = {}
        self._deaths: dict[int, int] = {}
        self._is_last = last
        self._lanes = lanes
        self._last: deque[int] = deque()
        self._lasts: frozenset[int] = frozenset()
        self._finishers: set[Any] = set()

    @property
    def nodes(self) -> list[Any]:
        """The active nodes."""
        return list(self._held)

    @property
    def collection_is_completed(self) -> bool:
        """Whether every initial node has submitted its collection."""
        return len(self._collections) >= self.numnodes

    @property
    def tests_finished(self) -> bool:
        """Whether nothing waits here and every node runs its last item."""
        if not self.collection_is_completed or self._waiting():
            return False
        if not self._first_done() and any(map(self._is_parked, self.nodes)):
            return False
        return all(len(held) < HELD for held in self._held.values())

    @property
    def has_pending(self) -> bool:
        """Whether any item is waiting or running."""
        return self._waiting() or any(self._held.values())

    def add_node(self, node: Any) -> None:
        """A node is ready."""
        self._held[node] = []
        self._claimed[node] = deque()

    def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
        """A node has collected. A late one, started for a dead one, must have collected the same."""
        reference = self.collection
        if reference is None and self._collections:
            reference = list(next(iter(self._collections.values())))
        if reference is not None and list(collection) != reference:
            self._differ(_difference(reference, collection))
        self._collections[node] = collection

    def schedule(self) -> None:
        """Hand out items; called again, give new nodes their share."""
        if self.collection is None:
            self.collection = list(next(iter(self._collections.values())))
            if any(list(c) != self.collection for c in self._collections.values()):
                self.collection = []
            self._lasts = frozenset(i for i, name in enumerate(self.collection) if self._is_last(name))
            self._enqueue(range(len(self.collection)))
        self._feed_all()

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """A node has finished an item."""
        self._held[node].remove(item_index)
        self._feed(node)
        if self._first_done():
            self._feed_all()

    def remove_node(self, node: Any) -> str | None:
        """A node is gone; what it held and had claimed goes to the others.

        Returns the node id of the item it died under, if any. That item is tried again, unless a node
        died under it before.
        """
        held = self._held.pop(node)
        rest = self._claimed.pop(node)
        self._server.pop(node, None)
        self._finishers.discard(node)
        crashed: str | None = None
        if held:
            assert self.collection is not None
            crashed = self.collection[held[0]]
            self._deaths[held[0]] = self._deaths.get(held[0], 0) + 1
            if not self.tried_again(crashed):
                held = held[1:]
        self._enqueue([*held, *rest])
        self._feed_all()
        return crashed

    def tried_again(self, nodeid: str) -> bool:
        """Whether an item that a node died under will be run once more."""
        assert self.collection is not None
        return self._deaths.get(self.collection.index(nodeid), 0) < MAX_ATTEMPTS

    def mark_test_pending(self, item: str) -> NoReturn:
        """Not offered: an item that a node died under is tried again anyway."""
        raise RuntimeError("cells are rerun by --resume")

    def remove_pending_tests_from_node(self, node: Any, indices: Sequence[int]) -> NoReturn:
        """Not offered: nodes hold too little to give back."""
        raise RuntimeError("nodes of a matrix run give no items back")

    def _waiting(self) -> bool:
        return bool(self._queue) or bool(self._last) or any(self._claimed.values())

    def _first_done(self) -> bool:
        """Whether nothing waits or runs but what comes last, and who has no part in that is gone, with its worker."""
        if self._queue or any(self._claimed.values()):
            return False
        if not self._finishers.issuperset(self._held):
            return False
        return all(index in self._lasts for held in self._held.values() for index in held)

    def _is_parked(self, node: Any) -> bool:
        """Whether a node holds an item that comes last: whatever it is sent now begins that item."""
        return any(index in self._lasts for index in self._held[node])

    def _enqueue(self, indices: Iterable[int]) -> None:
        collection = self.collection or []
        groups: dict[Hashable, tuple[Hashable, deque[int]]] = {}
        for index in indices:
            if index in self._lasts:
                self._last.append(index)
                continue
            key = self._key(collection[index])
            groups.setdefault(key.group, (key.server, deque()))[1].append(index)
        for server, group in groups.values():
            self._queue.setdefault(server, deque()).append(group)

    def _feed_all(self) -> None:
        for node in self.nodes:
            self._feed(node)
        if self._first_done():
            # The last of them may have been what the others waited for.
            for node in self.nodes:
                self._feed(node)

    def _feed(self, node: Any) -> None:
        if node.shutting_down:
            return
        while len(self._held[node]) < HELD:
            if self._is_parked(node) and not self._first_done():
                return
            if not self._claimed[node]:
                self._claim(node)
            if self._claimed[node]:
                index = self._claimed[node].popleft()
            elif self._last and self._finishes(node):
                index = self._last.popleft()
            else:
                node.shutdown()
                return
            self._held[node].append(index)
            node.send_runtest_some([index])

    def _finishes(self, node: Any) -> bool:
        """Whether a node is one of those that share what comes last."""
        if node not in self._finishers and self._lanes and len(self._finishers) >= self._lanes:
            return False
        self._finishers.add(node)
        return True

    def _claim(self, node: Any) -> None:
        """Give a node its next group: of its last server, else of the one fewest nodes use, else half of another's."""
        if self._queue:
            server = self._server.get(node)
            if server not in self._queue:
                users = list(self._server.values())
                server = min(self._queue, key=users.count)
            groups = self._queue[server]
            self._claimed[node] = groups.popleft()
            if not groups:
                del self._queue[server]
            self._server[node] = server
            return
        richest = max(self.nodes, key=lambda n: len(self._claimed[n]))
        claimed = self._claimed[richest]
        for _ in range(len(claimed) // 2):
            self._claimed[node].appendleft(claimed.pop())
        if self._claimed[node]:
            self._server[node] = self._server.get(richest)


def _difference(reference: Sequence[str], other: Sequence[str]) -> str:
    missing, extra = set(reference) - set(other), set(other) - set(reference)
    text = f"xdist nodes collected different items: {len(reference)} and {len(other)}"
    for name in sorted(missing)[:3]:
        text += f"\n  only one has {name}"
    for name in sorted(extra)[:3]:
        text += f"\n  only another has {name}"
    return text
