"""GPU runtimes' texts, as recorded in public reports, and what they are taken for."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from capmatrix.workers import failure, gpu_faults

#: (kind, poisons, text). Each text as its source shows it.
RECORDED = {
    "https://github.com/ROCm/legacy-rocm-build/issues/5051": (
        "memory fault",
        "Memory access fault by GPU node-1 (Agent handle: 0x55f8b54eec30) on address 0x7f2a53193000. "
        "Reason: Page not present or supervisor privilege.",
    ),
    "https://github.com/ROCm/legacy-rocm-build/issues/5259": (
        "hang",
        "HW Exception by GPU node-4 (Agent handle: 0x1ebc04e0) reason :GPU Hang",
    ),
    "https://github.com/ROCm/legacy-rocm-build/issues/6023": (
        "hardware exception",
        ":0:rocdevice.cpp:3586: Callback: Queue 0x7f78cb400000 aborting with error : HSA_STATUS_ERROR_EXCEPTION: "
        "An HSAIL operation resulted in a hardware exception. code: 0x1016",
    ),
    "https://github.com/ROCm/aiter/issues/1143": (
        "memory fault",
        ":0:rocdevice.cpp            :3675: 2139490044663 us:  Callback: Queue 0x7ee7b4200000 aborting with error : "
        "HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION: The agent attempted to access memory beyond the largest legal "
        "address. code: 0x29\nKernel Name: _ZN5aiter50fmoe_bf16_blockscaleFp8_g1u1_vs_silu_1tg_ps_32x256E",
    ),
    "https://github.com/ROCm/legacy-rocm-build/issues/6003": (
        "memory fault",
        "terminate called after throwing an instance of 'c10::AcceleratorError'\n  what():  CUDA error: an illegal "
        "memory access was encountered\nSearch for `hipErrorIllegalAddress' in https://rocm.docs.amd.com/",
    ),
    "https://github.com/vllm-project/vllm/issues/36180": (
        "memory fault",
        "torch.AcceleratorError: HIP error: an illegal memory access was encountered\nSearch for "
        "`hipErrorIllegalAddress' in https://docs.nvidia.com/cuda/",
    ),
    "https://github.com/pytorch/pytorch/issues/175431": (
        "out of memory",
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 MiB. GPU 7 has a total capacity of "
        "287.98 GiB of which 203.49 GiB is free.",
    ),
}


@pytest.mark.parametrize("source", RECORDED)
def test_recorded_texts(source: str) -> None:
    kind, text = RECORDED[source]
    fault = gpu_faults.classify(f"INFO something else\n{text}\nAborted (core dumped)\n")
    assert fault is not None
    assert fault.kind == kind
    assert fault.text in " ".join(text.split())
    assert fault.poisons is (kind != "out of memory")


def test_every_source_that_is_named_is_tested() -> None:
    links = {s for s in gpu_faults.SOURCES.values() if s.startswith("https")}
    assert links <= set(RECORDED)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("RuntimeError: Triton Error [CUDA]: an illegal memory access was encountered", "memory fault"),
        ("AcceleratorError: CUDA error: device-side assert triggered", "assertion"),
        ("AcceleratorError: CUDA error: unspecified launch failure", "launch failure"),
        ("AcceleratorError: CUDA error: the launch timed out and was terminated", "hang"),
        ("AcceleratorError: CUDA error: uncorrectable ECC error encountered", "hardware"),
        ("RuntimeError: Triton Error [CUDA]: out of memory", "out of memory"),
    ],
)
def test_cuda_texts(text: str, kind: str) -> None:
    fault = gpu_faults.classify(text)
    assert fault is not None
    assert fault.kind == kind


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ValueError: block_size 48 is not a multiple of 16",
        "RuntimeError: shape '[2, 16]' is invalid",
        "GPU Hang Seng",
    ],
)
def test_other_texts_are_no_gpu_fault(text: str) -> None:
    assert gpu_faults.classify(text) is None


def test_an_abort_with_the_drivers_text_is_told_as_the_fault_it_is() -> None:
    output = (
        "Memory access fault by GPU node-2 (Agent handle: 0x1) on address 0x1000. Reason: Unknown.\n"
        "Fatal Python error: Aborted\n\nCurrent thread 0x1 (most recent call first):\n"
        '  File "/x/site-packages/vllm/v1/attention/backends/rocm_attn.py", line 12 in forward\n'
    )
    reason, frame, _ = failure.of_output(output)
    assert reason.startswith("GPU memory fault: Memory access fault by GPU node-2")
    assert frame == "vllm/v1/attention/backends/rocm_attn.py:12 in forward"


def test_faults_provoked_on_a_gpu_are_told_apart() -> None:
    """The run of ``tests/device/faulty_engine.py`` on an NVIDIA H200."""
    file = Path(__file__).resolve().parents[1] / "device" / "provoked-h200.jsonl.gz"
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        records = [r.get("record", r) for r in map(json.loads, lines) if r["kind"] == "record"]
    found = {r["cell"]["batch"]: (r["verdict"], (r.get("reasons") or [""])[0]) for r in records}
    assert {batch: verdict for batch, (verdict, _) in found.items()} == {
        "decode": "crash", "verify": "wrong", "prefill": "error", "mixed": "timeout", "chunked_prefill": "pass",
    }  # fmt: skip
    assert found["decode"][1].startswith("GPU memory fault: Triton Error [CUDA]: an illegal memory access")
    assert found["prefill"][1].startswith("GPU out of memory")
