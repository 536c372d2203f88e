"""Stands in for vLLM's compiled ``vllm._moe_C_stable_libtorch``; attention asks nothing of it."""

CAPMATRIX_STAND_IN = True
