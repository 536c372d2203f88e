"""Stand-in for ROCm's ``amdsmi`` in a worker that presents an architecture it does not have.

A real importable file, since vLLM also inspects models in subprocesses. It answers the few
functions that vllm/platforms/rocm.py calls (0.32) for the architecture named in the environment.
"""

import enum
import os


class AmdSmiException(Exception):
    """As in amdsmi."""


class AmdSmiMemoryType(enum.IntEnum):
    """As in amdsmi; only VRAM is asked for."""

    VRAM = 0


def _arch():
    from capmatrix.archs import get

    return get(os.environ["CAPMATRIX_VIRTUAL_ARCH"])


def amdsmi_init(*args):
    """Nothing to initialise."""


def amdsmi_shut_down(*args):
    """Nothing to shut down."""


def amdsmi_get_processor_handles():
    """One virtual GPU."""
    return ["virtual-0"]


def amdsmi_get_gpu_asic_info(handle):
    """Architecture and names."""
    arch = _arch()
    return {
        "target_graphics_version": arch.name,
        "device_id": "virtual",
        "market_name": f"virtual {arch.name}",
        "num_compute_units": arch.compute_units,
    }


def amdsmi_get_gpu_device_uuid(handle):
    """A name that cannot be taken for a real GPU's."""
    return "virtual-0"


def amdsmi_get_gpu_memory_total(handle, kind):
    """Bytes of VRAM."""
    return _arch().total_memory_bytes


def amdsmi_topo_get_link_type(a, b):
    """XGMI, one hop; never asked with one GPU."""
    return {"hops": 1, "type": 2}


def amdsmi_topo_get_numa_node_number(handle):
    """NUMA node 0."""
    return 0
