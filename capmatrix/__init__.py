"""capmatrix: a compatibility and capability matrix for attention kernels.

Nothing outside ``capmatrix.engine`` and ``capmatrix.targets`` imports torch, vllm, triton or aiter.
"""

from __future__ import annotations

__version__ = "0.1.0"
