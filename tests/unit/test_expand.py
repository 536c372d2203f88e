"""Cells of a matrix: how many, which, in what order, and that rules mean what they say."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from matrix_files import write

from capmatrix import batches, expand, matrix, targets
from capmatrix.cell import Cell, Force, Role
from capmatrix.codec import cell_id, server_key, setup_key
from capmatrix.errors import InputError
from capmatrix.grid import Matrix

PLAIN = """[axes]
backend = ["ROCM_ATTN", "TRITON_ATTN"]
block_size = [16, 128]
kv_cache_dtype = ["auto", "fp8"]
drafter = ["mha", "gqa"]
batch = ["decode", "verify"]
"""
ONE = ("offline:gfx942",)
SLOW = ("interpreter:gfx950",)


def loaded(directory: Path, text: str) -> Matrix:
    return matrix.load(write(directory, text))


def cells(directory: Path, text: str, preset: str | None = None, on: tuple[str, ...] = ONE) -> list[Cell]:
    return matrix.expand(loaded(directory, text), preset, on)


def runs(keys: list[object]) -> int:
    """How many runs of equal neighbours ``keys`` has."""
    return sum(i == 0 or key != keys[i - 1] for i, key in enumerate(keys))


def test_the_product(tmp_path: Path) -> None:
    found = cells(tmp_path, PLAIN)
    # MHA at two degrees, GQA at one.
    assert len(found) == 2 * 2 * 2 * (2 + 1) * 2
    points = {(c.backend, c.block_size, c.kv_cache_dtype, c.drafter, c.tp, c.batch) for c in found}
    drafters = [("mha", 4), ("mha", 8), ("gqa", 1)]
    assert points == {
        (backend, block, kv, *drafter, batch)
        for backend, block, kv, drafter, batch in product(
            ["ROCM_ATTN", "TRITON_ATTN"], [16, 128], ["auto", "fp8"], drafters, ["decode", "verify"]
        )
    }


def test_a_cell_has_what_its_family_says(tmp_path: Path) -> None:
    cell = next(c for c in cells(tmp_path, PLAIN) if c.tp == 4)
    assert (cell.role, cell.method, cell.num_speculative_tokens) == (Role.DRAFTER, "eagle3", 2)
    assert (cell.geometry.num_heads, cell.geometry.num_kv_heads, cell.geometry.head_size) == (16, 16, 128)
    assert (cell.dtype, cell.execution, cell.runner, cell.scales) == ("bfloat16", "eager", "v2", "non_unit")
    assert (cell.lengths, cell.switches, cell.force, cell.kernel_block) == ("full", (), Force.NONE, None)


def test_a_cell_knows_the_block_that_its_family_forces(tmp_path: Path) -> None:
    path = write(tmp_path, PLAIN)
    family = tmp_path / "drafters" / "gqa.toml"
    text = family.read_text(encoding="utf-8").replace("[sources]", "forced_block_size = 544\n[sources]")
    family.write_text(text + 'forced_block_size = "made up"\n', encoding="utf-8")
    found = matrix.expand(matrix.load(path), None, ONE)
    assert {(c.drafter, c.forced_block) for c in found} == {("mha", None), ("gqa", 544)}


def test_an_interpreter_gets_short_sequences_and_few_heads(tmp_path: Path) -> None:
    found = cells(tmp_path, "max_kv_heads = 2\n" + PLAIN, on=SLOW)
    assert {c.lengths for c in found} == {"short"}
    assert {(c.drafter, c.geometry.num_heads, c.geometry.num_kv_heads) for c in found} == {("mha", 2, 2), ("gqa", 8, 2)}
    assert all(c.geometry.scaled for c in found)
    assert not any(c.geometry.scaled for c in cells(tmp_path, "max_kv_heads = 2\n" + PLAIN))


def test_four_kv_heads_unless_said(tmp_path: Path) -> None:
    assert {c.geometry.num_kv_heads for c in cells(tmp_path, PLAIN, on=SLOW)} == {4}


def test_a_presets_bound_outranks_the_files(tmp_path: Path) -> None:
    text = "max_kv_heads = 2\n" + PLAIN + '[preset.p]\ndescription = "p"\nmax_kv_heads = 3\n'
    assert {c.geometry.num_kv_heads for c in cells(tmp_path, text, "p", SLOW)} == {3}


def test_the_tp_axis_outranks_the_family(tmp_path: Path) -> None:
    assert {c.tp for c in cells(tmp_path, PLAIN + "tp = 2\n")} == {2}
    both = cells(tmp_path, PLAIN + 'tp = ["family", 2, 4]\n')
    assert {(c.drafter, c.tp) for c in both} == {("mha", 4), ("mha", 8), ("mha", 2), ("gqa", 1), ("gqa", 2), ("gqa", 4)}


def test_batch_role_is_what_the_method_needs(tmp_path: Path) -> None:
    text = PLAIN.replace('["decode", "verify"]', '"role"').replace('["mha", "gqa"]', '["mha", "gqa", "layer"]')
    found = cells(tmp_path, text)
    for drafter, method, role in [
        ("mha", "eagle3", Role.DRAFTER),
        ("gqa", "dflash", Role.DRAFTER),
        ("layer", "none", Role.TARGET),
    ]:
        assert {c.batch for c in found if c.drafter == drafter} == set(batches.needed(method, role))


def test_batch_role_and_another(tmp_path: Path) -> None:
    found = cells(tmp_path, PLAIN.replace('["decode", "verify"]', '["role", "boundary", "decode"]'))
    assert {c.batch for c in found if c.drafter == "gqa"} == {
        *batches.needed("dflash", Role.DRAFTER),
        "boundary",
        "decode",
    }


def test_k_multiplies_only_batches_that_depend_on_it(tmp_path: Path) -> None:
    found = cells(tmp_path, PLAIN + "num_speculative_tokens = [1, 4]\n")
    assert {(c.batch, c.num_speculative_tokens) for c in found} == {("decode", 1), ("verify", 1), ("verify", 4)}
    own = cells(tmp_path, PLAIN + 'num_speculative_tokens = ["family", 4]\n')
    assert {c.num_speculative_tokens for c in own if c.drafter == "gqa"} == {7, 4}


def test_exclude_drops_cells_that_match_all(tmp_path: Path) -> None:
    rule = '[[exclude]]\nbackend = "ROCM_ATTN"\nblock_size = 128\nbatch = ["verify"]\nreason = "r"\n'
    before, after = cells(tmp_path, PLAIN), cells(tmp_path, PLAIN + rule)
    dropped = [c for c in before if (c.backend, c.block_size, c.batch) == ("ROCM_ATTN", 128, "verify")]
    assert dropped
    assert after == [c for c in before if c not in dropped]


def test_two_exclude_rules_do_not_mix(tmp_path: Path) -> None:
    rules = (
        '[[exclude]]\nbackend = "ROCM_ATTN"\nbatch = "verify"\nreason = "r"\n'
        '[[exclude]]\nblock_size = 128\ntp = 8\nreason = "r"\n'
    )
    before, after = cells(tmp_path, PLAIN), cells(tmp_path, PLAIN + rules)
    gone = [c for c in before if (c.backend, c.batch) == ("ROCM_ATTN", "verify") or (c.block_size, c.tp) == (128, 8)]
    assert after == [c for c in before if c not in gone]


@pytest.mark.parametrize(
    ("condition", "matches"),
    [
        ('method = "dflash"', lambda c: c.method == "dflash"),
        ('role = "target"', lambda c: c.role is Role.TARGET),
        ("mla = true", lambda c: c.geometry.mla is not None),
        ("head_size = [256, 576]", lambda c: c.geometry.head_size in (256, 576)),
        ("num_speculative_tokens = 3", lambda c: c.num_speculative_tokens == 3),
        ("tp = 1", lambda c: c.tp == 1),
        ('drafter = "mha"', lambda c: c.drafter == "mha"),
        ('switches = "on"', lambda c: c.switches != ()),
        ('target = "interpreter"', lambda c: c.target.startswith("interpreter")),
        ('target = "offline:gfx942"', lambda c: c.target == "offline:gfx942"),
        ('target = ["device", "offline"]', lambda c: c.target.startswith("offline")),
    ],
)
def test_a_rule_matches_on(tmp_path: Path, condition: str, matches: object) -> None:
    text = PLAIN.replace('["mha", "gqa"]', '["mha", "gqa", "layer", "latent"]') + 'switches = ["default", "on"]\n'
    text += '[switches.on]\nVLLM_ROCM_USE_AITER = "1"\n'
    on = (*ONE, *SLOW)
    before = cells(tmp_path, text, on=on)
    after = cells(tmp_path, text + f'[[exclude]]\n{condition}\nreason = "r"\n', on=on)
    assert callable(matches)
    assert 0 < len(after) < len(before)
    assert after == [c for c in before if not matches(c)]


def test_include_adds_its_values_with_the_other_axes(tmp_path: Path) -> None:
    rule = '[[include]]\nblock_size = 544\nkv_cache_dtype = "auto"\nreason = "r"\n'
    before, after = cells(tmp_path, PLAIN), cells(tmp_path, PLAIN + rule)
    added = [c for c in after if c not in before]
    assert after[: len(before)] == before
    assert {(c.block_size, c.kv_cache_dtype) for c in added} == {(544, "auto")}
    assert len(added) == 2 * 3 * 2


def test_include_outranks_exclude(tmp_path: Path) -> None:
    rules = (
        '[[exclude]]\nbackend = "ROCM_ATTN"\nreason = "r"\n'
        '[[include]]\nbackend = "ROCM_ATTN"\nblock_size = 16\nbatch = "decode"\nreason = "but this"\n'
    )
    kept = [c for c in cells(tmp_path, PLAIN + rules) if c.backend == "ROCM_ATTN"]
    assert {(c.block_size, c.batch) for c in kept} == {(16, "decode")}


def test_an_included_cell_that_is_there_is_an_error(tmp_path: Path) -> None:
    text = PLAIN + '[[include]]\nblock_size = [128, 544]\nreason = "r"\n'
    with pytest.raises(InputError, match=r"already there: .*-b128-") as caught:
        loaded(tmp_path, text)
    assert caught.value.line == text.count("\n", 0, text.index("[[include]]")) + 1


def test_two_includes_of_one_cell_are_an_error(tmp_path: Path) -> None:
    rule = '[[include]]\nblock_size = 544\nbatch = {}\nreason = "r"\n'
    with pytest.raises(InputError, match="already there"):
        loaded(tmp_path, PLAIN + rule.format('"decode"') + rule.format('["verify", "decode"]'))
    assert loaded(tmp_path, PLAIN + rule.format('"decode"') + rule.format('"verify"'))


def test_presets(tmp_path: Path) -> None:
    example = matrix.load(write(tmp_path))
    found = matrix.expand(example, "seed", ONE)
    points = [(c.backend, c.block_size, c.kv_cache_dtype, c.drafter, c.tp, c.batch, c.switches) for c in found]
    auto = [
        (b, 16, "auto", "mha", 4, batch, ())
        for b in ("ROCM_ATTN", "TRITON_ATTN")
        for batch in ("decode", "verify", "boundary")
    ]
    fp8 = [("ROCM_ATTN", 16, "fp8", "mha", 4, batch, ()) for batch in ("decode", "verify")]
    assert sorted(points) == sorted(auto + fp8)


def test_an_unknown_preset(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        matrix.expand(matrix.load(write(tmp_path)), "sed", ONE)
    assert caught.value.nearest == "seed"


def test_a_preset_runs_on_its_targets(tmp_path: Path) -> None:
    example = matrix.load(write(tmp_path))
    asked = ["device", "offline:gfx1201", "interpreter:gfx942", "interpreter:gfx950"]
    assert {c.target for c in matrix.expand(example, "seed", asked)} == {"offline:gfx1201", "interpreter:gfx950"}
    with pytest.raises(InputError, match="does not run on the targets"):
        matrix.expand(example, "seed", ["device"])


def test_targets_default_to_those_of_this_machine(tmp_path: Path) -> None:
    assert {c.target for c in matrix.expand(loaded(tmp_path, PLAIN))} == set(targets.here())


def test_an_unknown_target(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        matrix.expand(loaded(tmp_path, PLAIN), None, ["offline:gfx943"])
    assert caught.value.nearest in ("offline:gfx942", "offline:gfx950")


def test_a_target_asked_for_twice_runs_once(tmp_path: Path) -> None:
    assert cells(tmp_path, PLAIN, on=ONE * 2) == cells(tmp_path, PLAIN)


@pytest.mark.parametrize(
    ("force", "kinds"),
    [
        (None, {Force.NONE}),
        (False, {Force.NONE}),
        ("validation", {Force.NONE, Force.VALIDATION}),
        (Force.KERNEL_BLOCK, {Force.NONE, Force.KERNEL_BLOCK}),
        (["kernel_block", "validation"], set(Force)),
        (True, set(Force)),
    ],
)
def test_force_adds_cells_beside_the_unforced(tmp_path: Path, force: expand.ForceArgument, kinds: set[Force]) -> None:
    example = loaded(tmp_path, PLAIN)
    plain, found = matrix.expand(example, None, ONE), matrix.expand(example, None, ONE, force)
    assert len(found) == len(plain) * len(kinds) == matrix.count(example, None, ONE, force)
    assert [c for c in found if c.force is Force.NONE] == plain
    assert {c.force for c in found} == kinds
    assert all((c.kernel_block == c.block_size) == (c.force is Force.KERNEL_BLOCK) for c in found)


def test_an_unknown_force(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown kind of force"):
        matrix.expand(loaded(tmp_path, PLAIN), None, ONE, "validaton")


# Two switch sets, degrees that scale to one geometry, and includes that come back to a switch set and a set-up.
MANY = """[axes]
backend = ["ROCM_ATTN", "TRITON_ATTN"]
block_size = [16, 128]
drafter = ["mha", "layer", "gqa"]
batch = "role"
num_speculative_tokens = ["family", 1]
tp = [8, "family"]
switches = ["default", "on"]

[[exclude]]
backend = "ROCM_ATTN"
tp = 8
batch = "mixed"
reason = "r"

[[include]]
switches = "on"
block_size = 544
reason = "r"

[[include]]
switches = "default"
batch = ["boundary", "padded"]
reason = "r"

[switches.on]
VLLM_ROCM_USE_AITER = "1"
"""


def many(directory: Path) -> Matrix:
    return loaded(directory, MANY)


def test_cells_that_share_a_setup_or_a_worker_are_neighbours(tmp_path: Path) -> None:
    found = matrix.expand(many(tmp_path), None, [*ONE, *SLOW], force=True)
    for key in (setup_key, server_key, lambda c: c.target):
        keys = [key(cell) for cell in found]
        assert runs(keys) == len(set(keys))


def test_degrees_of_one_geometry_share_a_setup(tmp_path: Path) -> None:
    found = [c for c in cells(tmp_path, PLAIN, on=SLOW) if c.drafter == "mha"]
    assert {c.tp for c in found} == {4, 8}
    assert len({setup_key(c) for c in found}) * 2 * 2 == len(found)


def test_ids_are_unique(tmp_path: Path) -> None:
    ids = [cell_id(c) for c in matrix.expand(many(tmp_path), force=True)]
    assert len(set(ids)) == len(ids)


def test_expansion_is_deterministic(tmp_path: Path) -> None:
    first = matrix.expand(many(tmp_path), force=True)
    assert matrix.expand(many(tmp_path), force=True) == first
    assert matrix.count(many(tmp_path), force=True) == len(first)


def test_the_order_is_the_files(tmp_path: Path) -> None:
    found = cells(tmp_path, PLAIN)
    assert cell_id(found[0]) == "offline:gfx942-ROCM_ATTN-b16-auto-mha-tp4-heads16.16-h128-bf16-decode"
    assert list(dict.fromkeys(c.drafter for c in found)) == ["mha", "gqa"]
    assert list(dict.fromkeys(c.backend for c in found)) == ["ROCM_ATTN", "TRITON_ATTN"]
    assert [c.batch for c in found[:4]] == ["decode", "verify"] * 2
    turned = cells(tmp_path, PLAIN.replace('["ROCM_ATTN", "TRITON_ATTN"]', '["TRITON_ATTN", "ROCM_ATTN"]'))
    assert turned[0].backend == "TRITON_ATTN"


def test_latent_families_meet_every_backend_asked_for(tmp_path: Path) -> None:
    found = cells(tmp_path, PLAIN.replace('["mha", "gqa"]', '"latent"'))
    assert {c.backend for c in found} == {"ROCM_ATTN", "TRITON_ATTN"}
    assert all(c.geometry.mla is not None for c in found)


def test_a_hundred_thousand_cells(tmp_path: Path) -> None:
    found = cells(tmp_path, PLAIN.replace("[16, 128]", str(list(range(1, 4097)))))
    assert len(found) == 2 * 4096 * 2 * 3 * 2
    assert len(set(map(cell_id, found))) == len(found)
