"""Figures that cite an installed package, against that package: transformers, vLLM, and Triton for AMD."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest

from capmatrix import archs, drafters

pytestmark = [pytest.mark.engine, pytest.mark.slow]

FAMILIES = drafters.load(drafters.DEFAULT_DIR)

#: Run in a process of its own; prints what the packages say as one line of JSON.
QUESTIONS = """
import json
from transformers import DeepseekV3Config, GptOssConfig, LlamaConfig, Qwen3NextConfig
from triton.backends.amd.compiler import HIPOptions
from vllm.transformers_utils.configs.minimax_m3 import MiniMaxM3TextConfig

def heads(config):
    return [config.num_attention_heads, config.num_key_value_heads, config.head_dim]

latent = DeepseekV3Config()
answers = {
    "qwen3-next-mtp": heads(Qwen3NextConfig()),
    "target-gpt-oss": heads(GptOssConfig()) + [GptOssConfig().sliding_window],
    "target-minimax-m3": heads(MiniMaxM3TextConfig()),
    "minimax_sparse_block": MiniMaxM3TextConfig().sparse_attention_config["sparse_block_size"],
    "deepseek-mtp": [latent.num_attention_heads, latent.kv_lora_rank, latent.qk_nope_head_dim,
                     latent.qk_rope_head_dim, latent.v_head_dim, latent.q_lora_rank],
    "llama_head_dim": LlamaConfig(hidden_size=4096, num_attention_heads=32).head_dim,
    "waves": {arch: HIPOptions(arch=arch).warp_size for arch in ARCHS},
}
print("ANSWERS " + json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers() -> dict[str, object]:
    """What the installed packages say, or a skip that names the one that is missing."""
    for package in ("vllm", "transformers", "triton"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    code = QUESTIONS.replace("ARCHS", repr(list(archs.ARCHS)))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    found = [line for line in done.stdout.splitlines() if line.startswith("ANSWERS ")]
    assert found, done.stderr[-2000:]
    return dict(json.loads(found[-1].removeprefix("ANSWERS ")))


@pytest.mark.parametrize("key", ["qwen3-next-mtp", "target-gpt-oss", "target-minimax-m3"])
def test_heads(answers: dict[str, object], key: str) -> None:
    family = FAMILIES[key]
    stated = [family.num_heads, family.num_kv_heads, family.head_size]
    assert stated + ([family.sliding_window] if family.sliding_window else []) == answers[key]


def test_latent_widths(answers: dict[str, object]) -> None:
    family = FAMILIES["deepseek-mtp"]
    mla = family.mla
    assert mla is not None
    assert answers["deepseek-mtp"] == [
        family.num_heads,
        mla.kv_lora_rank,
        mla.qk_nope_head_dim,
        mla.qk_rope_head_dim,
        mla.v_head_dim,
        mla.q_lora_rank,
    ]


def test_block_that_minimax_m3_forces(answers: dict[str, object]) -> None:
    forced = {family.forced_block_size for key, family in FAMILIES.items() if "minimax-m3" in key}
    assert forced == {answers["minimax_sparse_block"]}


def test_head_size_of_a_llama_config_that_gives_none(answers: dict[str, object]) -> None:
    for key in ("eagle-llama2-7b", "eagle3-llama3.1-8b", "target-llama3.1-8b"):
        assert FAMILIES[key].num_heads == 32
        assert FAMILIES[key].head_size == answers["llama_head_dim"]


def test_wave_sizes(answers: dict[str, object]) -> None:
    assert answers["waves"] == {name: arch.wave_size for name, arch in archs.ARCHS.items()}
