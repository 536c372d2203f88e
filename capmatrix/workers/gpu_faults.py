"""What a GPU runtime prints or raises when a GPU fails, by kind. Text only; nothing here touches a GPU.

The ROCm texts come from public reports (``SOURCES``), since the runtime aborts the process and nothing is
raised; the CUDA ones are the runtime's own error strings, as PyTorch repeats them. What AMD hardware
prints today was not tried on any by this project.
"""

from __future__ import annotations

import re
from typing import NamedTuple

#: Kinds after which a process's GPU context is lost: every later call in it fails or lies.
POISONING = frozenset({"memory fault", "hang", "hardware exception", "assertion", "launch failure", "hardware"})


class GpuFault(NamedTuple):
    """``kind``: one of ``memory fault``, ``hang``, ``hardware exception``, ``assertion``, ``launch failure``,
    ``hardware`` (memory errors, a lost device), ``out of memory``; ``text``: the line that says so."""

    kind: str
    text: str

    @property
    def poisons(self) -> bool:
        """Whether the process that saw it cannot use its GPU any more."""
        return self.kind in POISONING

    @property
    def sentence(self) -> str:
        """``GPU memory fault: Memory access fault by GPU node-1 ...``."""
        return f"GPU {self.kind}: {self.text}"


#: Where each text was recorded.
SOURCES: dict[str, str] = {
    "kfd memory fault": "https://github.com/ROCm/legacy-rocm-build/issues/5051",
    "kfd hang": "https://github.com/ROCm/legacy-rocm-build/issues/5259",
    "hsa exception": "https://github.com/ROCm/legacy-rocm-build/issues/6023",
    "hsa aperture": "https://github.com/ROCm/aiter/issues/1143",
    "hip illegal access": "https://github.com/ROCm/legacy-rocm-build/issues/6003",
    "vllm hip illegal access": "https://github.com/vllm-project/vllm/issues/36180",
    "hip out of memory": "https://github.com/pytorch/pytorch/issues/175431",
    "cuda": "CUDA Runtime API, enum cudaError",
}

#: Most telling first: one death prints several of them.
_TEXTS: tuple[tuple[str, str], ...] = (
    ("memory fault", r"Memory access fault by GPU node-\d+.*"),
    ("hang", r"HW Exception by GPU node-\d+.*GPU Hang.*"),
    ("hardware exception", r"HW Exception by GPU node-\d+.*"),
    ("memory fault", r"HSA_STATUS_ERROR_MEMORY_(?:APERTURE_VIOLATION|FAULT).*"),
    ("out of memory", r"HSA_STATUS_ERROR_OUT_OF_RESOURCES.*"),
    ("hardware exception", r"HSA_STATUS_ERROR_\w+.*"),
    (
        "memory fault",
        r"(?:CUDA|HIP) error: (?:an illegal memory access was encountered|invalid device pointer"
        r"|misaligned address|invalid program counter).*",
    ),
    ("assertion", r"(?:CUDA|HIP) error: device-side assert triggered.*"),
    ("hang", r"(?:CUDA|HIP) error: the launch timed out and was terminated.*"),
    (
        "launch failure",
        r"(?:CUDA|HIP) error: (?:unspecified launch failure|an illegal instruction was encountered"
        r"|a PTX JIT compilation failed|unknown error).*",
    ),
    ("hardware", r"(?:CUDA|HIP) error: (?:uncorrectable ECC error|uncorrectable NVLink error|GPU is lost).*"),
    ("memory fault", r".*\b(?:cudaErrorIllegalAddress|hipErrorIllegalAddress|CUDA_ERROR_ILLEGAL_ADDRESS)\b.*"),
    ("memory fault", r"Triton Error \[(?:CUDA|HIP)\]: .*illegal (?:memory )?a(?:ccess|ddress).*"),
    ("launch failure", r"Triton Error \[(?:CUDA|HIP)\]: .*(?:unspecified launch failure|illegal instruction).*"),
    ("out of memory", r"(?:CUDA|HIP) out of memory.*"),
    ("out of memory", r"(?:CUDA|HIP) error: out of memory.*"),
    ("out of memory", r"Triton Error \[(?:CUDA|HIP)\]: .*out of memory.*"),
)
_COMPILED = tuple((kind, re.compile(text)) for kind, text in _TEXTS)
_LIMIT = 300


def classify(text: str) -> GpuFault | None:
    """The GPU fault that ``text`` (a dead worker's output, or an exception's message) tells of; None without one."""
    for kind, pattern in _COMPILED:
        found = pattern.search(text)
        if found:
            return GpuFault(kind, " ".join(found.group(0).split())[:_LIMIT])
    return None
