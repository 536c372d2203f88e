"""Stands in for vLLM's compiled ``vllm._C_stable_libtorch`` where there is only its Python code.

The CUDA platform imports the module while vLLM is imported, and asks what CUTLASS supports: nothing, here.
Operators that attention needs are registered apart (``engine/native_ops.py``), with exact results.
"""

import torch

CAPMATRIX_STAND_IN = True

_ASKED = (
    "cutlass_scaled_mm_supports_fp8",
    "cutlass_scaled_mm_supports_block_fp8",
    "cutlass_scaled_mm_supports_fp4",
    "cutlass_group_gemm_supported",
)

_library = torch.library.Library("_C", "FRAGMENT")


def _no(capability):
    return False


for _name in _ASKED:
    _library.define(f"{_name}(int cuda_device_capability) -> bool")
    _library.impl(_name, _no, "CompositeExplicitAutograd")
