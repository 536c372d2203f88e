"""What comes last begins when nothing else waits or runs, whatever nodes do, and every item still runs."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from schedule_nodes import Node, key

from capmatrix.pytest_plugin.schedule import MAX_ATTEMPTS, GroupScheduling


def is_last(nodeid: str) -> bool:
    return nodeid.startswith("times")


class Run:
    """A run of some nodes, whose items begin and end one at a time in an order of chance."""

    def __init__(self, collection: list[str], nodes: int, lanes: int, seed: int) -> None:
        self.rng = random.Random(seed)
        self.collection = collection
        self.lanes = lanes or 1000
        self.made = 0
        self.scheduler = GroupScheduling(nodes, key, pytest.fail, is_last, lanes)
        self.nodes: list[Node] = []
        self.begun: list[tuple[str, str]] = []
        self.ended: list[str] = []
        self.left_alone: set[str] = set()
        for _ in range(nodes):
            self.start()
        self.scheduler.schedule()

    def start(self) -> None:
        node = Node(f"gw{self.made}")
        self.made += 1
        self.nodes.append(node)
        self.scheduler.add_node(node)
        self.scheduler.add_node_collection(node, self.collection)

    def begin(self, node: Node) -> None:
        node.running = node.items[0]
        name = self.collection[node.running]
        if is_last(name):
            others = {n for n in self.collection if not is_last(n)} - self.left_alone
            assert others <= set(self.ended), f"{name} began with {len(others - set(self.ended))} others to come"
            workers = {node.name for node in self.nodes} & {name for name, _ in self.begun}
            assert len(workers | {node.name}) <= self.lanes, f"{workers} were there, with their workers"
        self.begun.append((node.name, name))

    def end(self, node: Node) -> None:
        index = node.items.pop(0)
        node.running = None
        self.ended.append(self.collection[index])
        self.scheduler.mark_test_complete(node, index)
        self.after()

    def die(self, node: Node) -> None:
        """As xdist does: what the node ran is said to have crashed, and another node is started."""
        self.nodes.remove(node)
        crashed = self.scheduler.remove_node(node)
        if crashed is not None and not self.scheduler.tried_again(crashed):
            self.left_alone.add(crashed)
        self.start()
        self.scheduler.schedule()
        self.after()

    def leave(self, node: Node) -> None:
        """A node that was told to end has ended."""
        self.nodes.remove(node)
        assert self.scheduler.remove_node(node) is None
        self.after()

    def after(self) -> None:
        if self.scheduler.tests_finished:
            for node in self.nodes:
                node.shutdown()

    def drive(self, deaths: int = 0) -> Run:
        while self.nodes:
            ready = [n for n in self.nodes if n.can_run]
            running = [n for n in self.nodes if n.running is not None]
            ending = [n for n in self.nodes if n.shutting_down and not n.items]
            node = self.rng.choice([*ready, *running, *ending])
            if node in ending:
                self.leave(node)
            elif node.running is None:
                self.begin(node)
            elif deaths and self.rng.random() < 0.2:
                deaths -= 1
                self.die(node)
            else:
                self.end(node)
        return self


def items(cells: int, times: int, groups: int = 3) -> list[str]:
    return [*(f"s{i % 2}/g{i % groups}/{i}" for i in range(cells)), *(f"times/{i}/0" for i in range(times))]


@pytest.mark.parametrize("lanes", [0, 1, 2])
@pytest.mark.parametrize("nodes", [1, 2, 5])
@pytest.mark.parametrize(("cells", "times"), [(0, 3), (1, 1), (1, 5), (7, 1), (7, 2), (30, 4), (12, 0), (3, 20)])
def test_what_comes_last_waits_for_all_else(cells: int, times: int, nodes: int, lanes: int) -> None:
    for seed in range(25):
        run = Run(items(cells, times), nodes, lanes, seed).drive()
        assert sorted(run.ended) == sorted(run.collection)
        assert run.scheduler.tests_finished and not run.scheduler.has_pending


def test_as_many_nodes_as_there_are_lanes_share_it() -> None:
    for lanes in (1, 2, 3):
        for seed in range(20):
            run = Run(items(20, 12), 6, lanes, seed).drive()
            assert len({node for node, name in run.begun if is_last(name)}) <= lanes
    for seed in range(20):
        run = Run(items(20, 40), 4, 0, seed).drive()
        shares = Counter(node for node, name in run.begun if is_last(name))
        assert len(shares) == 4 and min(shares.values()) >= 3


@pytest.mark.parametrize("lanes", [0, 1])
def test_nodes_may_die_at_any_time(lanes: int) -> None:
    for seed in range(200):
        run = Run(items(9, 5), 3, lanes, seed).drive(deaths=4)
        assert Counter(run.ended) == Counter(set(run.collection) - run.left_alone)
        assert max(Counter(name for _, name in run.begun).values()) <= MAX_ATTEMPTS


def test_a_node_that_has_run_out_of_cells_is_not_ended_while_it_may_time() -> None:
    run = Run(items(6, 2, groups=1), 2, 0, 0)
    first, second = run.nodes
    while not any(is_last(run.collection[i]) for i in first.items):
        if first.can_run:
            run.begin(first)
        run.end(first)
    while first.running is not None or first.can_run:
        if first.running is None:
            run.begin(first)
        run.end(first)
    # It holds what comes last, has not begun it, and was not told to end.
    assert [is_last(run.collection[i]) for i in first.items] == [True] and not first.shutting_down
    assert second.items and not run.scheduler.tests_finished
    assert len(run.drive().ended) == 8
