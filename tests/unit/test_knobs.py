"""What may be changed of a cell, and the cell that changes make."""

from __future__ import annotations

import pytest
from samples import cell

from capmatrix import axes
from capmatrix.bisect import knobs
from capmatrix.bisect.delta import Change
from capmatrix.cell import Force
from capmatrix.errors import InputError


def test_every_switch_of_a_matrix_file_is_a_knob() -> None:
    assert set(knobs.SWITCHES) == set(axes.SWITCH_NAMES)
    assert all(len(values) > 1 for values in knobs.SWITCHES.values())


def test_each_switch_is_offered_its_other_values() -> None:
    offered = knobs.switches(cell())
    assert Change("VLLM_ROCM_USE_AITER", "1") in offered
    assert Change("VLLM_ROCM_USE_AITER_MHA", "0") in offered
    assert [c.value for c in offered if c.knob == "VLLM_ROCM_AITER_MLA_ASM_PADDING"] == ["asm", "gluon"]
    assert not [c for c in offered if c.knob == "execution"]


def test_a_switch_that_is_set_is_offered_its_default() -> None:
    given = cell(switches=(("VLLM_ROCM_USE_AITER", "1"), ("VLLM_ROCM_USE_AITER_MHA", "0")))
    offered = knobs.switches(given)
    assert Change("VLLM_ROCM_USE_AITER", "") in offered and Change("VLLM_ROCM_USE_AITER_MHA", "") in offered
    assert Change("VLLM_ROCM_USE_AITER", "1") not in offered


def test_graphs_are_a_switch_where_the_cell_has_them() -> None:
    assert knobs.switches(cell(execution="full"))[-1] == Change("execution", "eager")


def test_defaults_are_those_of_switches_left_alone() -> None:
    given = cell(switches=(("VLLM_ROCM_USE_AITER", "1"),))
    found = knobs.defaults(knobs.switches(given), given)
    assert Change("VLLM_ROCM_USE_AITER_MHA", "1") in found
    assert not [c for c in found if c.knob in ("VLLM_ROCM_USE_AITER", "execution")]
    assert len([c for c in found if c.knob == "VLLM_ROCM_AITER_MLA_ASM_PADDING"]) == 1


def test_apply_sets_removes_and_replaces() -> None:
    given = cell(switches=(("VLLM_ROCM_USE_AITER", "1"),), block_size=128)
    changed = knobs.apply(
        given, {Change("VLLM_ROCM_USE_AITER", ""), Change("VLLM_BATCH_INVARIANT", "1"), Change("block_size", "64")}
    )
    assert changed.switches == (("VLLM_BATCH_INVARIANT", "1"),)
    assert changed.block_size == 64
    assert knobs.apply(given, ()) == given


def test_switches_of_a_changed_cell_are_sorted() -> None:
    changes = [Change("VLLM_ROCM_USE_AITER_MLA", "0"), Change("VLLM_BATCH_INVARIANT", "1")]
    names = [name for name, _ in knobs.apply(cell(), changes).switches]
    assert names == sorted(names)


def test_a_forced_kernel_block_follows_the_block() -> None:
    given = cell(force=Force.KERNEL_BLOCK, kernel_block=128, block_size=128)
    assert knobs.apply(given, [Change("block_size", "16")]).kernel_block == 16


def test_also_takes_values_of_known_cells_and_the_usual_ones() -> None:
    known = [cell(block_size=544), cell(block_size=128), cell(batch="verify")]
    blocks = knobs.also(cell(block_size=128), ["block_size,batch"], known)
    assert blocks == [Change("block_size", b) for b in ("544", "16", "32", "64")] + [Change("batch", "verify")]


def test_also_takes_the_values_given() -> None:
    assert knobs.also(cell(), ["block_size=16,256", "backend=TRITON_ATTN"], []) == [
        Change("block_size", "16"),
        Change("block_size", "256"),
        Change("backend", "TRITON_ATTN"),
    ]


@pytest.mark.parametrize(
    ("asked", "part"),
    [
        ("colour", "unknown axis"),
        ("colour=red", "unknown axis"),
        ("block_size=0", "unknown value"),
        ("block_size=x", "unknown value"),
        ("batch=role", "unknown value"),
        ("backend=NO_SUCH", "unknown value"),
        ("backend", "no other value"),
        ("block_size=128", "no other value"),
    ],
)
def test_mistakes_are_named(asked: str, part: str) -> None:
    with pytest.raises(InputError, match=part):
        knobs.also(cell(block_size=128), [asked], [])


def test_changes_read_as_they_would_be_typed() -> None:
    changes = {Change("block_size", "64"), Change("VLLM_ROCM_USE_AITER", "1"), Change("VLLM_BATCH_INVARIANT", "")}
    assert knobs.text(changes) == "VLLM_BATCH_INVARIANT not set VLLM_ROCM_USE_AITER=1 block_size=64"
    assert knobs.text([]) == "nothing"
