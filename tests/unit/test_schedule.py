"""The scheduler, against nodes that finish items in any order, die and come."""

from __future__ import annotations

import random

import pytest
from schedule_nodes import Node, key

from capmatrix.pytest_plugin.schedule import GroupScheduling


def ids(servers: int, groups: int, items: int) -> list[str]:
    return [f"{s}/{g}/{i}" for s in range(servers) for g in range(groups) for i in range(items)]


def begin(collection: list[str], count: int) -> tuple[GroupScheduling, list[Node]]:
    differences: list[str] = []
    scheduler = GroupScheduling(count, key, differences.append)
    nodes = [Node(f"gw{n}") for n in range(count)]
    for node in nodes:
        scheduler.add_node(node)
    assert not scheduler.collection_is_completed
    for node in nodes:
        scheduler.add_node_collection(node, collection)
    assert scheduler.collection_is_completed
    scheduler.schedule()
    assert differences == []
    return scheduler, nodes


def drive(scheduler: GroupScheduling, nodes: list[Node], rng: random.Random) -> list[tuple[str, str]]:
    """Run everything; which node ran which item, in order."""
    assert scheduler.collection is not None
    done = []
    while True:
        ready = [node for node in nodes if node.can_run]
        if not ready:
            return done
        node = rng.choice(ready)
        index = node.items.pop(0)
        done.append((node.name, scheduler.collection[index]))
        scheduler.mark_test_complete(node, index)
        if scheduler.tests_finished:
            for each in nodes:
                each.shutdown()


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 1, 9), (3, 4, 5), (2, 7, 1), (1, 2, 40)])
def test_every_item_runs_once(count: int, shape: tuple[int, int, int]) -> None:
    collection = ids(*shape)
    for seed in range(20):
        scheduler, nodes = begin(collection, count)
        done = drive(scheduler, nodes, random.Random(seed))
        assert sorted(item for _, item in done) == sorted(collection)
        assert not scheduler.has_pending and scheduler.tests_finished


def test_a_group_stays_on_one_node_but_for_the_last_ones() -> None:
    scheduler, nodes = begin(ids(1, 30, 4), 3)
    done = drive(scheduler, nodes, random.Random(0))
    homes: dict[str, set[str]] = {}
    for node, item in done:
        homes.setdefault(str(key(item).group), set()).add(node)
    split = [group for group, where in homes.items() if len(where) > 1]
    assert len(split) <= 3
    assert {node for node, _ in done} == {"gw0", "gw1", "gw2"}


def test_items_of_a_group_run_in_order() -> None:
    scheduler, nodes = begin(ids(1, 1, 10), 1)
    assert [item for _, item in drive(scheduler, nodes, random.Random(0))] == ids(1, 1, 10)


def test_nodes_begin_with_servers_of_their_own_and_keep_them() -> None:
    scheduler, nodes = begin(ids(2, 10, 2), 2)
    done = drive(scheduler, nodes, random.Random(1))
    first = {}
    for node, item in done:
        first.setdefault(node, key(item).server)
    assert len(set(first.values())) == 2
    changes = sum(
        key(a).server != key(b).server
        for node in first
        for a, b in zip([i for n, i in done if n == node], [i for n, i in done if n == node][1:])
    )
    assert changes <= 2


def test_an_idle_node_takes_half_of_a_long_group() -> None:
    scheduler, nodes = begin(ids(1, 1, 40), 2)
    done = drive(scheduler, nodes, random.Random(0))
    by_node = {name: sum(node == name for node, _ in done) for name in ("gw0", "gw1")}
    assert min(by_node.values()) >= 10


def test_a_dead_nodes_items_go_to_the_others_and_its_item_is_tried_again() -> None:
    scheduler, (a, b) = begin(ids(1, 4, 3), 2)
    running = a.items[0]
    assert scheduler.collection is not None
    name = scheduler.collection[running]
    assert scheduler.remove_node(a) == name
    assert scheduler.tried_again(name)
    done = drive(scheduler, [b], random.Random(0))
    assert sorted(item for _, item in done) == sorted(ids(1, 4, 3))


def test_an_item_that_kills_every_node_is_left_alone() -> None:
    scheduler, (a,) = begin(ids(1, 2, 2), 1)
    assert scheduler.collection is not None
    killer = scheduler.collection[a.items[0]]
    scheduler.remove_node(a)
    second = Node("gw1")
    scheduler.add_node(second)
    scheduler.add_node_collection(second, ids(1, 2, 2))
    scheduler.schedule()
    while scheduler.collection[second.items[0]] != killer:
        scheduler.mark_test_complete(second, second.items.pop(0))
    assert scheduler.remove_node(second) == killer
    assert not scheduler.tried_again(killer)
    third = Node("gw2")
    scheduler.add_node(third)
    scheduler.add_node_collection(third, ids(1, 2, 2))
    scheduler.schedule()
    done = [item for _, item in drive(scheduler, [third], random.Random(0))]
    assert killer not in done


def test_an_idle_dead_node_is_no_crash() -> None:
    scheduler, (a, b) = begin(ids(1, 1, 1), 2)
    idle = b if a.items else a
    assert scheduler.remove_node(idle) is None


def test_different_collections_run_nothing_and_are_told() -> None:
    told: list[str] = []
    scheduler = GroupScheduling(2, key, told.append)
    nodes = [Node("gw0"), Node("gw1")]
    for node, collection in zip(nodes, (ids(1, 1, 2), ids(1, 1, 3))):
        scheduler.add_node(node)
        scheduler.add_node_collection(node, collection)
    scheduler.schedule()
    assert len(told) == 1 and "0/0/2" in told[0]
    assert all(node.items == [] and node.shutting_down for node in nodes)


def test_nothing_collected() -> None:
    scheduler, nodes = begin([], 2)
    assert scheduler.tests_finished and not scheduler.has_pending
    assert all(node.shutting_down for node in nodes)
