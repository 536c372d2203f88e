"""Names that matrix files may use, as vLLM spells them. A test compares them to the installed vLLM.

Source: vllm 0.32.0, ``vllm/v1/attention/backends/registry.py`` and ``vllm/config/cache.py``.
"""

from __future__ import annotations

#: Attention backends a ROCm build can be asked for, in the order of a table.
ROCM_BACKENDS: tuple[str, ...] = (
    "ROCM_ATTN",
    "TRITON_ATTN",
    "ROCM_AITER_FA",
    "ROCM_AITER_UNIFIED_ATTN",
    "ROCM_SEGMENTED_ATTN",
    "FLEX_ATTENTION",
    "TRITON_ATTN_DIFFKV",
    "TURBOQUANT",
    "ULTRAQUANT",
    "TRITON_MLA",
    "ROCM_AITER_MLA",
    "ROCM_AITER_TRITON_MLA",
    "ROCM_AITER_MLA_SPARSE",
)

#: The registry's other members: known names, so that a file may ask what a ROCm build says to them.
OTHER_BACKENDS: tuple[str, ...] = (
    "FLASH_ATTN",
    "FLASH_ATTN_DIFFKV",
    "TRITON_FLASH_ATTN",
    "XPU_MLA_SPARSE",
    "TORCH_SDPA",
    "FLASHINFER",
    "TRITON_FLASHINFER",
    "FLASHINFER_MLA",
    "TOKENSPEED_MLA",
    "FLASHINFER_MLA_SPARSE",
    "FLASHINFER_MLA_SPARSE_SM120",
    "FLASHINFER_MLA_SPARSE_SM90",
    "CUTLASS_MLA",
    "FLASHMLA",
    "FLASHMLA_SPARSE",
    "FLASHMLA_SPARSE_DSV4",
    "FLASHINFER_MLA_SPARSE_DSV4",
    "ROCM_FLASHMLA_SPARSE_DSV4",
    "FLASHMLA_SPARSE_DSV41",
    "FLASHINFER_MLA_SPARSE_DSV41",
    "FLASHMLA_MEGA_ATTN_DSV41",
    "B12X",
    "FLASH_ATTN_MLA",
    "FLASH_ATTN_MLA_SPARSE",
    "MINIMAX_M3_SPARSE",
    "CUTLASS_MSA",
    "TRITON_MSA",
    "NO_ATTENTION",
    "HPC_ATTN",
    "CPU_ATTN",
    "CPU_MLA",
    "AMX_MLA",
    "CUSTOM",
)

KV_CACHE_DTYPES: tuple[str, ...] = (
    "auto",
    "float16",
    "bfloat16",
    "fp8",
    "fp8_e4m3",
    "fp8_e5m2",
    "fp8_inc",
    "fp8_ds_mla",
    "nvfp4_ds_mla",
    "turboquant_k8v4",
    "turboquant_4bit_nc",
    "turboquant_k3v4_nc",
    "turboquant_3bit_nc",
    "ultraquant_4bit",
    "int4_per_token_head",
    "int8_per_token_head",
    "fp8_per_token_head",
    "nvfp4",
    "nvfp4_4over6",
)

DTYPES: tuple[str, ...] = ("bfloat16", "float16", "float32")

EXECUTIONS: tuple[str, ...] = ("eager", "piecewise", "full")

RUNNERS: tuple[str, ...] = ("v1", "v2")

SCALES: tuple[str, ...] = ("unit", "non_unit")

#: Speculative methods of drafter families; ``none`` is a target's own layer.
METHODS: tuple[str, ...] = (
    "eagle",
    "eagle3",
    "mtp",
    "dflash",
    "dspark",
    "draft_model",
    "ngram",
    "none",
)

#: Architectures with an offline target; the interpreter is offered for the first two.
ARCHITECTURES: tuple[str, ...] = ("gfx942", "gfx950", "gfx90a", "gfx1100", "gfx1201")

#: Environment switches that decide which attention kernels run (vllm 0.32.0, ``vllm/envs.py``).
SWITCHES: tuple[str, ...] = (
    "VLLM_ROCM_USE_AITER",
    "VLLM_ROCM_USE_AITER_MHA",
    "VLLM_ROCM_USE_AITER_MLA",
    "VLLM_ROCM_USE_AITER_UNIFIED_ATTENTION",
    "VLLM_ROCM_USE_AITER_TRITON_SPARSE_MLA",
    "VLLM_ROCM_AITER_MLA_ASM_PADDING",
    "VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT",
    "VLLM_ROCM_FP8_MFMA_PAGE_ATTN",
    "VLLM_BATCH_INVARIANT",
    "VLLM_USE_V2_MODEL_RUNNER",
)
