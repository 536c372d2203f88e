"""The shipped matrix files: they load, are bounded, and have the axis values that they promise."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from capmatrix import batches, expand, matrix, paths, targets, vocabulary
from capmatrix.axes import AXES, PROPERTIES
from capmatrix.cell import Cell
from capmatrix.codec import cell_id, setup_key
from capmatrix.grid import Matrix, Workload
from capmatrix.pairs import pairfile

FILES = {path.stem: path for path in sorted(paths.matrices_dir().glob("*.toml")) if not pairfile.is_pair_file(path)}
OFFLINE = ("offline:gfx942",)
#: Cells of a preset of rocm-attention.toml over all the targets of a machine without a GPU.
MOST_CELLS = 2000


@pytest.fixture(scope="module")
def loaded() -> dict[str, Matrix]:
    return {name: matrix.load(path) for name, path in FILES.items()}


def parts() -> list[tuple[str, str | None]]:
    return [(name, preset) for name, path in FILES.items() for preset in (None, *matrix.load(path).presets)]


def values(cells: list[Cell], field: str) -> set[object]:
    return {getattr(cell, field) for cell in cells}


def test_what_ships() -> None:
    assert {"eagle3-llama", "drafters", "rocm-attention", "mla", "smoke"} <= set(FILES)


@pytest.mark.parametrize(("name", "preset"), parts())
def test_ids_are_unique_and_setups_stay_together(loaded: dict[str, Matrix], name: str, preset: str | None) -> None:
    # A preset of its own targets runs on those; the others on what this machine has.
    named = loaded[name].presets[preset].targets if preset else ()
    on = [t for t in targets.known() if expand.on_target(named, t)] if named else None
    cells = matrix.expand(loaded[name], preset, on)
    ids = [cell_id(cell) for cell in cells]
    assert len(set(ids)) == len(ids) == matrix.count(loaded[name], preset, on)
    keys = [setup_key(cell) for cell in cells]
    assert sum(i == 0 or key != keys[i - 1] for i, key in enumerate(keys)) == len(set(keys))


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_called_as_its_name_says(loaded: dict[str, Matrix], name: str) -> None:
    assert loaded[name].name == name
    assert loaded[name].description


def test_every_switch_set_and_probe_is_used(loaded: dict[str, Matrix]) -> None:
    for name, file in loaded.items():
        products = [file.whole, *file.presets.values()]
        used = {value for part in products for axis in ("switches", "drafter") for value in part.axes[axis]}
        defined = {*file.switches, *(key for key in file.families if key.startswith("probe-"))}
        assert defined - {"default"} <= used, name


def test_the_seed(loaded: dict[str, Matrix]) -> None:
    cells = matrix.expand(loaded["eagle3-llama"], "seed", OFFLINE)
    backends = {"ROCM_ATTN", "TRITON_ATTN", "ROCM_AITER_FA", "ROCM_AITER_UNIFIED_ATTN"}
    assert len(cells) == 4 * 2 * 2 * 3
    assert values(cells, "backend") == backends
    assert values(cells, "block_size") == {16, 128}
    assert values(cells, "kv_cache_dtype") == {"auto", "fp8"}
    assert (values(cells, "drafter"), values(cells, "tp")) == ({"minimax-m3-eagle3"}, {4})
    assert values(cells, "batch") == {"decode", "verify", "prefill"}
    assert {(c.geometry.num_heads, c.geometry.num_kv_heads, c.geometry.head_size) for c in cells} == {(16, 16, 128)}
    assert loaded["eagle3-llama"].workloads["seed"] == Workload(
        concurrency=256,
        input=8192,
        output=1024,
        speculative_tokens=2,
        description="vllm-project/vllm#47882: random data, 8k in, 1k out",
    )


def test_eagle3_llama(loaded: dict[str, Matrix]) -> None:
    cells = matrix.expand(loaded["eagle3-llama"], None, OFFLINE)
    assert values(cells, "block_size") == {16, 32, 64, 128}
    assert values(cells, "drafter") == {"minimax-m3-eagle3", "minimax-m3-eagle3-gqa", "eagle3-llama3.1-8b"}
    assert values(cells, "kv_cache_dtype") == {"auto", "fp8"}


@pytest.mark.parametrize("preset", [None, "each"])
def test_drafters_has_every_family(loaded: dict[str, Matrix], preset: str | None) -> None:
    file = loaded["drafters"]
    families = {key for key in file.families if not key.startswith("probe-")}
    cells = matrix.expand(file, preset, OFFLINE)
    assert values(cells, "drafter") == families
    latent = {cell.backend for cell in cells if cell.geometry.mla is not None}
    assert latent == {"TRITON_MLA", "ROCM_AITER_MLA", "ROCM_AITER_TRITON_MLA"}
    assert latent.isdisjoint(cell.backend for cell in cells if cell.geometry.mla is None)


def test_drafters_presets_share_out_the_families(loaded: dict[str, Matrix]) -> None:
    file = loaded["drafters"]
    shares = [set(part.axes["drafter"]) for name, part in file.presets.items() if name != "each"]
    assert set().union(*shares) == set(file.whole.axes["drafter"])
    assert sum(map(len, shares)) == len(file.whole.axes["drafter"])


def test_a_forced_block_is_among_the_cells(loaded: dict[str, Matrix]) -> None:
    file = loaded["drafters"]
    cells = matrix.expand(file, None, OFFLINE)
    for key, family in file.families.items():
        if family.forced_block_size is not None:
            assert family.forced_block_size in values([c for c in cells if c.drafter == key], "block_size"), key


@pytest.mark.parametrize("preset", [None, *matrix.load(FILES["rocm-attention"]).presets])
def test_rocm_attention_is_bounded(loaded: dict[str, Matrix], preset: str | None) -> None:
    assert matrix.count(loaded["rocm-attention"], preset, targets.here()) <= MOST_CELLS


@pytest.mark.parametrize("name", ["mla", "smoke"])
def test_other_presets_are_bounded_too(loaded: dict[str, Matrix], name: str) -> None:
    for preset in (None, *loaded[name].presets):
        assert matrix.count(loaded[name], preset, targets.here()) <= MOST_CELLS


def test_rocm_attention_has_the_values_that_reports_ask_for(loaded: dict[str, Matrix]) -> None:
    file = loaded["rocm-attention"]
    cells = [cell for preset in file.presets for cell in matrix.expand(file, preset, OFFLINE)]
    assert values(cells, "backend") == set(vocabulary.ROCM_BACKENDS)
    assert {1, 16, 32, 64, 128, 256, 272, 528, 544, 784, 832, 1056} <= values(cells, "block_size")
    assert values(cells, "kv_cache_dtype") == set(vocabulary.KV_CACHE_DTYPES)
    assert values(cells, "dtype") == set(vocabulary.DTYPES)
    assert values(cells, "execution") == set(vocabulary.EXECUTIONS)
    assert values(cells, "runner") == set(vocabulary.RUNNERS)
    assert values(cells, "scales") == set(vocabulary.SCALES)
    geometries = [cell.geometry for cell in cells]
    assert {32, 64, 80, 96, 128, 192, 256, 512} <= {g.head_size for g in geometries}
    assert {1, 2, 3, 8, 16} <= {g.num_heads // g.num_kv_heads for g in geometries}
    assert {g.causal for g in geometries} == {g.sinks for g in geometries} == {True, False}
    assert any(g.sliding_window for g in geometries)
    verified = {1 + c.num_speculative_tokens for c in cells if c.batch == "verify"}
    assert set(range(1, 10)) <= verified
    named = {name for cell in cells for name, _ in cell.switches}
    assert {
        "VLLM_ROCM_USE_AITER",
        "VLLM_ROCM_USE_AITER_MHA",
        "VLLM_ROCM_USE_AITER_UNIFIED_ATTENTION",
        "VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT",
    } <= named
    assert {"long_decode", "many_decode", "boundary", "padded", "mixed", "chunked_prefill", "verify_uneven"} <= values(
        cells, "batch"
    )


def test_mla_has_the_values_that_reports_ask_for(loaded: dict[str, Matrix]) -> None:
    file = loaded["mla"]
    cells = [cell for preset in file.presets for cell in matrix.expand(file, preset, OFFLINE)]
    assert {4, 8, 16, 32, 64, 128} <= {cell.geometry.num_heads for cell in cells}
    assert {512, 576} <= {cell.geometry.head_size for cell in cells}
    assert {1, 16, 64} <= values(cells, "block_size")
    assert "VLLM_ROCM_USE_AITER_MLA" in {name for cell in cells for name, _ in cell.switches}
    assert all(cell.geometry.mla is not None for cell in cells)


def test_smoke_is_small(loaded: dict[str, Matrix]) -> None:
    assert matrix.count(loaded["smoke"], None, OFFLINE) <= 10


def test_an_added_family_is_in_drafters(tmp_path: Path) -> None:
    """Adding a drafter family is adding one file."""
    (tmp_path / "drafters").mkdir()
    source = (paths.drafters_dir() / "eagle3-llama3.1-8b.toml").read_text(encoding="utf-8")
    (tmp_path / "drafters" / "new-family.toml").write_text(source, encoding="utf-8")
    copy = tmp_path / "drafters.toml"
    copy.write_text(FILES["drafters"].read_text(encoding="utf-8"), encoding="utf-8")
    assert any(cell.drafter == "new-family" for cell in matrix.expand(matrix.load(copy), None, OFFLINE))


def test_the_manuals_examples_make_a_matrix(tmp_path: Path) -> None:
    manual = Path(__file__).resolve().parents[2] / "docs" / "matrix-files.md"
    examples = re.findall(r"^```toml\n(.*?)^```$", manual.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert len(examples) >= 6
    path = tmp_path / "manual.toml"
    path.write_text("\n".join(examples), encoding="utf-8")
    loaded = matrix.load(path)
    assert matrix.expand(loaded, "seed", OFFLINE)
    assert {"probe-h32", "qwen3-next-mtp"} <= set(loaded.families)


def test_the_manual_names_every_axis_and_key() -> None:
    manual = (Path(__file__).resolve().parents[2] / "docs" / "matrix-files.md").read_text(encoding="utf-8")
    for name in (*AXES, *PROPERTIES, *matrix.PROBE_KEYS, *matrix.WORKLOAD_KEYS, *batches.NAMES):
        assert f"`{name}`" in manual or f"{name} =" in manual, name
