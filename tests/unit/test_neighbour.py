"""The nearest passing neighbour: fewest axes, evidence as strong, the same place, and always the same answer."""

from __future__ import annotations

import random

import msgspec
from samples import cell, environment, failure, record

from capmatrix.analysis.neighbour import Difference, differences, nearest
from capmatrix.cell import Geometry, Rung, Verdict

FAILING = record(cell(kv_cache_dtype="fp8", block_size=128), Verdict.ERROR, failure=failure())


def test_the_fewest_axes_win() -> None:
    one = record(cell(kv_cache_dtype="auto", block_size=128))
    two = record(cell(kv_cache_dtype="auto", block_size=64))
    found = nearest(FAILING, [two, one])
    assert found is not None and found.record is one
    assert found.differences == (Difference("KV cache dtype", "fp8", "auto"),)


def test_a_block_size_nearby_is_nearer() -> None:
    near, far = (record(cell(block_size=size)) for size in (64, 16))
    for records in ([near, far], [far, near]):
        found = nearest(FAILING, records)
        assert found is not None and found.record is near


def test_only_passes_count() -> None:
    others = [
        record(cell(block_size=64), verdict)
        for verdict in Verdict
        if verdict is not Verdict.PASS
    ]  # fmt: skip
    assert nearest(FAILING, [FAILING, *others]) is None


def test_weaker_evidence_does_not_count() -> None:
    wrong = record(cell(target="interpreter:gfx942"), Verdict.WRONG)
    compiled = record(cell(target="interpreter:gfx942", block_size=64), rung=Rung.COMPILED)
    interpreted = record(cell(target="interpreter:gfx942", block_size=16))
    assert nearest(wrong, [compiled]) is None
    found = nearest(wrong, [compiled, interpreted])
    assert found is not None and found.record is interpreted


def test_another_place_does_not_count() -> None:
    elsewhere = record(cell(target="offline:gfx950", kv_cache_dtype="fp8", block_size=128))
    known = {e.id: e for e in map(environment, ("offline:gfx942", "offline:gfx950"))}
    assert nearest(FAILING, [elsewhere], known) is None
    found = nearest(FAILING, [elsewhere])  # nothing known of the environments: the target is an axis
    assert found is not None and found.differences == (Difference("target", "offline:gfx942", "offline:gfx950"),)


def test_the_order_of_records_does_not_matter() -> None:
    records = [
        record(cell(backend=backend, block_size=block, batch=batch))
        for backend in ("TRITON_ATTN", "ROCM_AITER_FA")
        for block in (32, 64, 256)
        for batch in ("decode", "verify")
    ]
    answers = set()
    for seed in range(10):
        random.Random(seed).shuffle(records)
        found = nearest(FAILING, records)
        assert found is not None
        answers.add(found.record.cell_id)
    assert len(answers) == 1


def test_another_drafter_is_one_axis_with_all_that_follows_from_it() -> None:
    other = cell(drafter="gpt-oss-eagle3", tp=8, geometry=Geometry(8, 1, 64, sinks=True), num_speculative_tokens=3)
    assert [d.axis for d in differences(cell(), other)] == ["drafter"]
    same = cell(tp=8, geometry=Geometry(8, 8, 128))
    assert [d.axis for d in differences(cell(), same)] == ["tensor-parallel degree", "geometry"]


def test_every_field_of_a_cell_is_an_axis() -> None:
    changed = {
        "target": "device", "backend": "X", "block_size": 1, "kv_cache_dtype": "x", "drafter": "x", "tp": 64,
        "role": "target", "method": "x", "geometry": Geometry(1, 1, 1), "num_speculative_tokens": 60, "batch": "x",
        "dtype": "x", "execution": "x", "runner": "x", "scales": "x", "lengths": "x", "force": "validation",
        "kernel_block": 7, "switches": (("A", "1"),),
    }  # fmt: skip
    for field in msgspec.structs.fields(type(cell())):
        if field.name == "forced_block":  # a fact of the family, no choice of the cell
            continue
        other = msgspec.convert(
            msgspec.to_builtins(cell()) | {field.name: msgspec.to_builtins(changed[field.name])}, type(cell())
        )
        assert len(differences(cell(), other)) == 1, field.name
