"""Resource figures of an AMD code object, read from the metadata note of its ELF file.

The note is a MessagePack map under the name ``AMDGPU`` (LLVM, "User Guide for AMDGPU Backend",
section "Code Object V3 and above Metadata").
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec

_NT_AMDGPU_METADATA = 32
_SHT_NOTE = 7


def kernel_metadata(code: bytes) -> dict[str, Any]:
    """The metadata map of the first kernel in ``code`` (an ELF64 little-endian file), or ``{}``."""
    for note_type, owner, payload in _notes(code):
        if note_type == _NT_AMDGPU_METADATA and owner == b"AMDGPU":
            kernels = msgspec.msgpack.decode(payload).get("amdhsa.kernels") or [{}]
            return dict(kernels[0])
    return {}


def resources(code: bytes) -> dict[str, int]:
    """Registers a lane, spills (registers) and bytes of LDS and scratch, by ``Kernel`` field name."""
    meta = kernel_metadata(code)
    fields = {
        "vgprs": ".vgpr_count",
        "agprs": ".agpr_count",
        "sgprs": ".sgpr_count",
        "vgpr_spills": ".vgpr_spill_count",
        "sgpr_spills": ".sgpr_spill_count",
        "scratch_bytes": ".private_segment_fixed_size",
        "lds_bytes": ".group_segment_fixed_size",
    }
    return {ours: int(meta[theirs]) for ours, theirs in fields.items() if theirs in meta}


def _notes(code: bytes) -> list[tuple[int, bytes, bytes]]:
    if code[:4] != b"\x7fELF" or code[4] != 2:
        return []
    (section_offset,) = struct.unpack_from("<Q", code, 40)
    entry_size, count = struct.unpack_from("<HH", code, 58)
    found = []
    for i in range(count):
        base = section_offset + i * entry_size
        (kind,) = struct.unpack_from("<I", code, base + 4)
        offset, size = struct.unpack_from("<QQ", code, base + 24)
        if kind == _SHT_NOTE:
            found += _notes_of_section(code[offset : offset + size])
    return found


def _notes_of_section(data: bytes) -> list[tuple[int, bytes, bytes]]:
    found, at = [], 0
    while at + 12 <= len(data):
        name_size, size, kind = struct.unpack_from("<III", data, at)
        at += 12
        owner = data[at : at + name_size].rstrip(b"\0")
        at += (name_size + 3) & ~3
        found.append((kind, owner, data[at : at + size]))
        at += (size + 3) & ~3
    return found
