"""Blocks of a shared pool: what may lie on what, and that a misplaced one is found."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.engine

if find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

from capmatrix.engine.pair_pages import Span, overlaps  # noqa: E402

BLOCKS = 6


def layer(name: str, group: int, offset: int = 0, page: int = 4, used: int = 4, shape: int = BLOCKS) -> Span:
    """A layer with a page of ``page`` units a block, of which it uses ``used``."""
    return Span(name, group, (shape, used), (page, 1), offset, BLOCKS)


def test_groups_may_overlay_each_other_block_by_block() -> None:
    found = overlaps([layer("attention", 0), layer("state", 1, used=3)], 64, 2)
    assert found.ok is True and "2 groups" in found.detail


def test_layers_of_one_group_may_not() -> None:
    found = overlaps([layer("a", 0), layer("b", 0)], 64, 1)
    assert found.ok is False and "b lies on another layer of its own group" in found.detail


def test_layers_of_one_group_side_by_side() -> None:
    assert overlaps([layer("a", 0), layer("b", 0, offset=24)], 64, 1).ok is True


def test_a_block_on_another_block_is_found() -> None:
    """K and V of all blocks one after the other, beside pages: block b of one lies on another block of the other."""
    kv_first = Span("kv first", 1, (BLOCKS, 2, 2), (2, 12, 1), 0, BLOCKS)
    found = overlaps([layer("state", 0), kv_first], 64, 2)
    assert found.ok is False
    assert found.detail == "block 1 of group 1 lies on block 0 of another"


def test_kernel_blocks_belong_to_their_manager_block() -> None:
    split = layer("kernel blocks", 1, page=2, used=2, shape=2 * BLOCKS)
    assert overlaps([layer("state", 0), split], 64, 2).ok is True
