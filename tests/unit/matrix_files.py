"""A small matrix file and its own drafter families, for the tests of the matrix rooms."""

from __future__ import annotations

from pathlib import Path

SOURCES = (
    "[sources]\n"
    + "\n".join(
        f'{key} = "made up"'
        for key in ("num_heads", "num_kv_heads", "head_size", "num_speculative_tokens", "tensor_parallel")
    )
    + "\n"
)

#: An MHA drafter at two degrees, a GQA drafter at one, a target, and a latent-attention drafter.
FAMILIES = {
    "mha": """title = "MHA"
method = "eagle3"
role = "drafter"
num_heads = 64
num_kv_heads = 64
head_size = 128
num_speculative_tokens = 2
tensor_parallel = [4, 8]
""",
    "gqa": """title = "GQA"
method = "dflash"
role = "drafter"
num_heads = 32
num_kv_heads = 8
head_size = 64
num_speculative_tokens = 7
tensor_parallel = [1]
""",
    "layer": """title = "Target"
method = "none"
role = "target"
num_heads = 32
num_kv_heads = 8
head_size = 256
num_speculative_tokens = 3
tensor_parallel = [2]
""",
    "latent": """title = "Latent"
method = "mtp"
role = "drafter"
num_heads = 16
num_kv_heads = 1
head_size = 576
num_speculative_tokens = 1
tensor_parallel = [1]
mla = { kv_lora_rank = 512, qk_nope_head_dim = 128, qk_rope_head_dim = 64, v_head_dim = 128 }
""",
}

#: Every table of the grammar. The tests of mistakes change one line of it.
GOOD = """#:schema ./schema/matrix.schema.json
name = "example"
description = "An example."
max_kv_heads = 2

[axes]
backend = ["ROCM_ATTN", "TRITON_ATTN"]
block_size = [16, 128]
kv_cache_dtype = ["auto", "fp8"]
drafter = ["mha", "gqa", "probe-small"]
batch = ["decode", "verify"]
switches = ["default", "aiter-off"]

[[exclude]]
backend = "ROCM_ATTN"
block_size = 128
reason = "an example of a rule"

[[exclude]]
method = "dflash"
kv_cache_dtype = "fp8"
target = "interpreter"
reason = "a rule on properties"

[[include]]
block_size = 544
backend = "ROCM_ATTN"
reason = "a hybrid target's block"

[preset.seed]
description = "A few cells."
block_size = 16
drafter = "mha"
tp = 4
switches = "default"
targets = ["offline", "interpreter:gfx950"]
max_kv_heads = 4

[[preset.seed.exclude]]
backend = "TRITON_ATTN"
kv_cache_dtype = "fp8"
reason = "a rule of the preset"

[[preset.seed.include]]
batch = "boundary"
kv_cache_dtype = "auto"
reason = "one more batch"

[probe.small]
like = "gqa"
head_size = 32
num_heads = 8
num_kv_heads = 4
reason = "a small head"

[switches.aiter-off]
VLLM_ROCM_USE_AITER = "0"

[workload.seed]
concurrency = 256
input = 8192
output = 1024
speculative_tokens = 2
"""


def write_families(directory: Path) -> None:
    """Write ``FAMILIES`` into ``directory/drafters``."""
    drafters = directory / "drafters"
    drafters.mkdir(exist_ok=True)
    for key, text in FAMILIES.items():
        lines = SOURCES + ('mla = "made up"\n' if "mla =" in text else "")
        (drafters / f"{key}.toml").write_text(text + lines, encoding="utf-8")


def write(directory: Path, text: str = GOOD, name: str = "example.toml") -> Path:
    """Write a matrix file beside ``FAMILIES``; returns its path."""
    write_families(directory)
    path = directory / name
    path.write_text(text, encoding="utf-8")
    return path


def line_of(text: str, needle: str) -> int:
    """The line, from 1, on which ``needle`` first stands."""
    return text[: text.index(needle)].count("\n") + 1
