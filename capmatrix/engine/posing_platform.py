"""vLLM's own ROCm platform on an NVIDIA GPU: everything real but the architecture that is named.

Its Triton kernels then run as they would be chosen for that architecture, on tensors of the GPU at hand.
Compute units are the GPU's own, since kernels size their grids with them.
"""

from __future__ import annotations

from vllm.platforms.rocm import RocmPlatform


class PosingRocmPlatform(RocmPlatform):
    """``RocmPlatform``; counts devices without asking amdsmi, which is a stand-in here."""

    @classmethod
    def device_count(cls) -> int:
        """A worker sees one GPU."""
        return 1
