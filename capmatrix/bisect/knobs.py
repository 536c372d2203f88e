"""What people turn by hand to make a cell pass: its switches and other values of its axes, as changes to a cell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from .. import axes, vocabulary
from ..cell import Cell, Force
from ..errors import InputError
from .delta import Change

#: What each switch is where nobody sets it, then its other values (vllm 0.32.0, ``vllm/envs.py``; a test asks the
#: installed version). A value that is a switch's default is reached by not setting it.
SWITCHES: dict[str, tuple[str, ...]] = {
    "VLLM_ROCM_USE_AITER": ("0", "1"),
    "VLLM_ROCM_USE_AITER_MHA": ("1", "0"),
    "VLLM_ROCM_USE_AITER_MLA": ("1", "0"),
    "VLLM_ROCM_USE_AITER_UNIFIED_ATTENTION": ("0", "1"),
    "VLLM_ROCM_USE_AITER_TRITON_SPARSE_MLA": ("0", "1"),
    "VLLM_ROCM_AITER_MLA_ASM_PADDING": ("auto", "asm", "gluon"),
    "VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT": ("0", "1"),
    "VLLM_ROCM_FP8_MFMA_PAGE_ATTN": ("0", "1"),
    "VLLM_BATCH_INVARIANT": ("0", "1"),
}

#: The switch that most of the others are read beside only.
MASTER = Change("VLLM_ROCM_USE_AITER", "1")

#: Axes that ``--also`` may name, with the values tried beside those of the run or the matrix file.
AXES: dict[str, tuple[str | int, ...]] = {
    "block_size": (16, 32, 64, 128),
    "batch": (),
    "execution": vocabulary.EXECUTIONS,
    "runner": vocabulary.RUNNERS,
    "kv_cache_dtype": ("auto", "fp8"),
    "dtype": ("bfloat16", "float16"),
    "scales": vocabulary.SCALES,
    "backend": (),
}

#: Most other values of one axis that are tried.
MOST_VALUES = 8


def switches(cell: Cell) -> list[Change]:
    """Every other value of every switch, and eager execution where the cell has graphs."""
    found = [change for name in SWITCHES for change in _other_values(name, dict(cell.switches))]
    if cell.execution != "eager":
        found.append(Change("execution", "eager"))
    return found


def _other_values(name: str, present: Mapping[str, str]) -> list[Change]:
    default = SWITCHES[name][0]
    now = present.get(name, default)
    return [Change(name, "" if v == default else v) for v in SWITCHES[name] if v != now]


def defaults(changes: Iterable[Change], cell: Cell) -> list[Change]:
    """For each switch among ``changes`` that the cell leaves alone: its default, set.

    A switch whose default is not what this table says would show itself by these.
    """
    present = dict(cell.switches)
    names = dict.fromkeys(c.knob for c in changes if c.knob in SWITCHES)
    return [Change(n, SWITCHES[n][0]) for n in names if n not in present]


def also(cell: Cell, asked: Sequence[str], known: Iterable[Cell]) -> list[Change]:
    """Other values of axes, in the order asked.

    ``asked``: ``block_size``, ``block_size,batch`` or ``block_size=16,64``. An axis without values takes those of
    ``known`` cells and of ``AXES``. Raises InputError for an unknown axis or value, and where there is no other value.
    """
    others = list(known)
    found: dict[Change, None] = {}
    for word in asked:
        name, equals, text = word.partition("=")
        for axis in [name] if equals else [part.strip() for part in name.split(",") if part.strip()]:
            values = _given(axis, text) if equals else _usual(axis, others)
            fresh = [Change(axis, str(v)) for v in values if v != getattr(cell, axis)]
            if not fresh:
                raise InputError(
                    "no other value of this axis is known; give some, such as block_size=16,64",
                    key="--also",
                    value=word,
                )
            found.update(dict.fromkeys(fresh))
    return [change for change in found if change not in switches(cell)]


def _usual(axis: str, known: Iterable[Cell]) -> list[str | int]:
    if axis not in AXES:
        raise InputError("unknown axis", key="--also", value=axis, allowed=AXES)
    values = dict.fromkeys([*(getattr(c, axis) for c in known), *AXES[axis]])
    return list(values)[: MOST_VALUES + 1]


def _given(axis: str, text: str) -> list[str | int]:
    if axis not in AXES:
        raise InputError("unknown axis", key="--also", value=axis, allowed=AXES)
    kind = axes.AXES[axis]
    values: list[str | int] = []
    for part in (p.strip() for p in text.split(",")):
        if kind.lowest is not None and part.isdecimal() and kind.lowest <= int(part) <= (kind.highest or 1 << 30):
            values.append(int(part))
        elif kind.names and part in kind.names and part not in (axes.ROLE, axes.FAMILY):
            values.append(part)
        else:
            allowed = kind.names or [f"{kind.lowest} to {kind.highest}"]
            raise InputError("unknown value", key=f"--also {axis}", value=part, allowed=allowed)
    return values


def apply(cell: Cell, changes: Iterable[Change]) -> Cell:
    """The cell with the changes made; a kernel block that is forced follows the manager block."""
    present = dict(cell.switches)
    fields: dict[str, object] = {}
    for knob, value in changes:
        if knob not in AXES:
            present.pop(knob, None)
            if value:
                present[knob] = value
        else:
            fields[knob] = int(value) if isinstance(getattr(cell, knob), int) else value
    if cell.force is Force.KERNEL_BLOCK and "block_size" in fields:
        fields["kernel_block"] = fields["block_size"]
    return msgspec.structs.replace(cell, **fields, switches=tuple(sorted(present.items())))


def text(changes: Iterable[Change]) -> str:
    """Changes as people would type them: ``VLLM_ROCM_USE_AITER=1 block_size=64``; ``nothing`` for none."""
    words = [f"{c.knob}={c.value}" if c.value else f"{c.knob} not set" for c in sorted(changes)]
    return " ".join(words) or "nothing"
