"""Recommendations, families read from a config.json, and which family stands for which."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import samples

from capmatrix import drafters, local_gpu
from capmatrix.cell import MlaGeometry, Role
from capmatrix.drafters import Family
from capmatrix.errors import InputError
from capmatrix.report import recommend as report
from capmatrix.selection import hf_config, published
from capmatrix.selection import recommend as room
from capmatrix.selection.defaults import Defaults, Other, Row
from capmatrix.selection.recommend import Wanted

FAMILIES = drafters.load(drafters.DEFAULT_DIR)
MINIMAX = FAMILIES["minimax-m3-eagle3"]
WANTED = Wanted("gfx950", MINIMAX, 128, "fp8")


def row(*other: Other, **changes: Any) -> Row:
    return samples.derived_row(*other, **({"times_fastest": 1.02} | changes))


def table(*rows: Row) -> Defaults:
    return Defaults("lightest", 5.0, row=rows)


def speculative(flags: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(flags[flags.index("--speculative-config") + 1])
    return found


def test_the_exact_row_answers_before_one_of_an_unknown_gpu() -> None:
    unknown = row(architecture="unknown", backend="ROCM_ATTN")
    assert room.recommend(table(unknown, row()), WANTED).row.backend == "TRITON_ATTN"
    found = room.recommend(table(unknown), WANTED)
    assert found.row.backend == "ROCM_ATTN" and "no evidence for gfx950 itself" in found.certainty


def test_a_drafters_flags_name_its_backend_in_the_speculative_configuration() -> None:
    flags = room.recommend(table(row()), WANTED).flags
    assert flags[:4] == ("--block-size", "128", "--kv-cache-dtype", "fp8")
    assert "--attention-backend" not in flags
    assert speculative(flags) == {
        "method": "eagle3",
        "model": "DRAFTER",
        "num_speculative_tokens": 2,
        "attention_backend": "TRITON_ATTN",
    }


def test_a_targets_flags_name_its_backend() -> None:
    target = FAMILIES["target-minimax-m3"]
    one = row(drafter=target.key, role="target")
    flags = room.recommend(table(one), Wanted("gfx950", target, 128, "fp8")).flags
    assert flags[-2:] == ("--attention-backend", "TRITON_ATTN") and "--speculative-config" not in flags


def test_mtp_has_no_model_of_its_own() -> None:
    mtp = FAMILIES["qwen3-next-mtp"]
    one = row(drafter=mtp.key, block_size=544)
    assert "model" not in speculative(room.recommend(table(one), Wanted("gfx950", mtp, 544, "fp8")).flags)


def test_how_sure_it_is_says_the_rung_the_marks_and_staleness() -> None:
    marked = row(rung="compiled", marks=("provisional", "unrepeated"), stale="too old")
    found = room.recommend(table(marked), WANTED, ["evidence is that of another"])
    assert found.certainty[0] == "only compiled for the architecture: nothing ran"
    assert "evidence is that of another" in found.certainty
    assert "it rests on one run that nobody repeated" in found.certainty and found.certainty[-1] == "stale: too old"


def test_what_is_faster_but_fails_is_told_and_what_is_slower_is_not() -> None:
    others = (
        Other("ROCM_AITER_UNIFIED_ATTN", "barred", "NaN in unused slots", times_best=1.0),
        Other("ROCM_AITER_FA", "rejected", "block 128"),
        Other("FLEX_ATTENTION", "failed", "wrong", times_best=3.0),
        Other("ROCM_ATTN", "slower", times_best=3.47),
    )
    found = room.recommend(table(row(*others)), WANTED)
    assert [o.backend for o in found.faster_but_failing] == ["ROCM_AITER_UNIFIED_ATTN", "ROCM_AITER_FA"]
    text = report.draw(found, WANTED)
    assert "  ROCM_AITER_UNIFIED_ATTN: barred, 1.00x the speed of the fastest: NaN in unused slots" in text
    assert "  ROCM_AITER_FA: rejected: block 128" in text and "FLEX" not in text


def test_the_switches_that_a_choice_needs_lead_the_command() -> None:
    found = room.recommend(table(row(switches=("VLLM_ROCM_USE_AITER=1",))), WANTED)
    assert found.environment == (("VLLM_ROCM_USE_AITER", "1"),)
    assert "\nVLLM_ROCM_USE_AITER=1 vllm serve MODEL --block-size 128" in report.draw(found, WANTED)


def test_no_backend_gives_no_flags() -> None:
    found = room.recommend(table(row(backend="")), WANTED)
    assert found.flags == () and "backend: none is known to work" in report.draw(found, WANTED)


def test_a_table_without_the_row_names_those_it_has() -> None:
    with pytest.raises(InputError, match="gfx950 minimax-m3-eagle3 b128 fp8") as error:
        room.recommend(table(row()), WANTED._replace(kv_cache_dtype="auto"))
    assert "no row" in error.value.message


def test_without_a_block_size_the_answer_must_not_depend_on_it() -> None:
    open_ = WANTED._replace(block_size=None)
    assert room.recommend(table(row(), row(block_size=64)), open_).row.backend == "TRITON_ATTN"
    with pytest.raises(InputError, match="depends on the block size"):
        room.recommend(table(row(), row(block_size=64, backend="ROCM_ATTN")), open_)


@pytest.mark.parametrize(("text", "arch"), [("MI355X", "gfx950"), ("mi300x", "gfx942"), ("GFX1201", "gfx1201")])
def test_a_gpu_is_named_by_architecture_or_product(text: str, arch: str) -> None:
    assert room.arch_of(text) == arch


def test_an_unknown_gpu() -> None:
    with pytest.raises(InputError, match="MI355X"):
        room.arch_of("H100")


def test_models_of_published_results_are_known() -> None:
    known = room.families_by_model(published.load_all(), FAMILIES)
    assert known["inferact/minimax-m3-eagle3"] == "minimax-m3-eagle3"


# A config.json


def config(tmp_path: Path, **changes: Any) -> Path:
    data: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "head_dim": 128,
        "hidden_size": 6144,
    }
    data |= changes
    path = tmp_path / "mine" / "config.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({k: v for k, v in data.items() if v is not None}))
    return path


def test_a_config_gives_the_attention_and_the_method(tmp_path: Path) -> None:
    found = hf_config.load(config(tmp_path))
    assert (found.key, found.method, found.role) == ("mine", "eagle3", Role.DRAFTER)
    assert (found.num_heads, found.num_kv_heads, found.head_size) == (64, 64, 128)
    assert (found.sliding_window, found.sinks, found.causal, found.mla) == (None, False, True, None)
    assert hf_config.load(config(tmp_path).parent) == found


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, {"method": "none", "role": Role.TARGET}),
        ({"architectures": ["EagleLlamaForCausalLM"]}, {"method": "eagle"}),
        ({"architectures": ["DFlashDraftModel"]}, {"method": "dflash", "causal": False}),
        ({"architectures": ["DFlashDraftModel"], "is_causal": True}, {"causal": True}),
        ({"architectures": ["DFlashDraftModel"], "dflash_config": {"causal": True}}, {"causal": True}),
        ({"architectures": ["Qwen3DSparkModel"], "block_size": 7}, {"method": "dspark", "num_speculative_tokens": 7}),
        ({"head_dim": None}, {"head_size": 96}),
        ({"num_key_value_heads": None}, {"num_kv_heads": 64}),
        ({"num_key_value_heads": 4}, {"num_kv_heads": 4}),
        ({"sliding_window": 2048}, {"sliding_window": 2048}),
        ({"sliding_window": 2048, "use_sliding_window": False}, {"sliding_window": None}),
        ({"sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"]}, {"sliding_window": None}),
        ({"model_type": "gpt_oss"}, {"sinks": True}),
        (
            {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128},
            {"mla": MlaGeometry(512, 128, 64, 128), "head_size": 576, "num_kv_heads": 1},
        ),
    ],
)
def test_fields_of_a_config(changes: dict[str, Any], expected: dict[str, Any], tmp_path: Path) -> None:
    found = hf_config.load(config(tmp_path, **changes))
    assert {name: getattr(found, name) for name in expected} == expected


def test_a_text_config_within_is_read(tmp_path: Path) -> None:
    text = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64}
    found = hf_config.load(config(tmp_path, text_config=text))
    assert (found.num_heads, found.num_kv_heads, found.head_size) == (8, 2, 64)


def test_a_method_that_the_config_cannot_say(tmp_path: Path) -> None:
    path = config(tmp_path, architectures=["Qwen3ForCausalLM"])
    assert hf_config.load(path, "draft_model").method == "draft_model"
    with pytest.raises(InputError, match="unknown method"):
        hf_config.load(path, "magic")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_attention_heads": None}, "num_attention_heads: is missing"),
        ({"num_attention_heads": -8}, "whole number above 0"),
        ({"num_attention_heads": True}, "whole number above 0"),
        ({"num_key_value_heads": 5}, "no multiple"),
        ({"head_dim": None, "hidden_size": None}, "neither head_dim nor hidden_size"),
    ],
)
def test_mistakes_in_a_config(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message) as error:
        hf_config.load(config(tmp_path, **changes))
    assert "config.json" in str(error.value)


@pytest.mark.parametrize("text", ["", "[]", "{", '"x"'])
def test_a_file_that_is_no_config(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InputError):
        hf_config.load(path)
    with pytest.raises(InputError, match="cannot be read"):
        hf_config.load(tmp_path / "none")


# Which family stands for another


def like(family: Family, **changes: Any) -> Family:
    return msgspec.structs.replace(family, key="mine", **changes)


def test_a_shipped_family_stands_for_itself() -> None:
    assert room.known_family(MINIMAX, FAMILIES) == (MINIMAX, ())


def test_the_same_attention_stands_in_and_what_differs_is_told() -> None:
    found, notes = room.known_family(like(MINIMAX), FAMILIES)
    assert found is MINIMAX and notes == ("evidence is that of minimax-m3-eagle3, which has the same attention",)
    found, notes = room.known_family(like(MINIMAX, num_heads=48, num_kv_heads=48), FAMILIES)
    assert found.key in ("minimax-m3-eagle3", "eagle-llama2-7b") and any("not 48/48" in note for note in notes)


@pytest.mark.parametrize(
    "changes", [{"head_size": 112}, {"num_kv_heads": 1}, {"sliding_window": 77}, {"sinks": True}, {"causal": False}]
)
def test_other_attention_has_no_stand_in(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="no drafter family has this attention"):
        room.known_family(like(MINIMAX, **changes), FAMILIES)


# This machine's GPU


def test_architectures_as_the_driver_numbers_them(tmp_path: Path) -> None:
    for node, version in (("0", 0), ("1", 90402), ("2", 90402), ("10", 120001)):
        (tmp_path / node).mkdir()
        (tmp_path / node / "properties").write_text(f"cpu_cores_count 0\ngfx_target_version {version}\nx 1\n")
    assert local_gpu.architectures(tmp_path) == ("gfx942", "gfx1201")
    assert local_gpu.architectures(tmp_path / "none") == ()
    names = {90010: "gfx90a", 90500: "gfx950", 110000: "gfx1100"}
    assert {version: local_gpu.name(version) for version in names} == names
