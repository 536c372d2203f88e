"""How kernels read the new tokens' K and V: from the cache as stored, or as the model computed them.

Only matters where the cache is quantised. Known by kernel name, from the kernels' sources.
"""

from __future__ import annotations

#: Kernels that read a request's new tokens unquantised where it has several, with the source.
_UNQUANTISED: dict[str, str] = {
    "_fwd_kernel": "vllm/v1/attention/ops/prefix_prefill.py: the second loop loads K and V, not the caches",
    "_fwd_kernel_alibi": "vllm/v1/attention/ops/prefix_prefill.py",
}


def new_tokens_unquantised(kernels: tuple[str, ...], query_len: int) -> bool:
    """Whether a request with ``query_len`` new tokens had them read as computed."""
    return query_len > 1 and any(name in _UNQUANTISED for name in kernels)
