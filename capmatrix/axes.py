"""The axes of a matrix file: their names, values, defaults. Loader, schema and rules read this one table.

Adding an axis value is a line in ``vocabulary`` (or in ``batches``); adding an axis is an entry here, a
field of ``cell.Cell`` and a line in ``expand``.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from . import batches, vocabulary
from .cell import Role

Value = str | int | bool

#: Written instead of a list, stands for every value of a closed axis.
EVERY = "*"

#: Takes a drafter family's own tensor-parallel degrees, or its own number of speculative tokens.
FAMILY = "family"

#: Takes the batches that the drafter's method and role need (``batches.needed``).
ROLE = "role"

#: The switch set without any switch; always there.
DEFAULT_SWITCHES = "default"

#: Prefix of the drafter names that a file's own ``[probe.<name>]`` tables define.
PROBE = "probe-"

#: Names of presets, probes, switch sets and workload profiles.
NAME_PATTERN = r"^[a-z0-9][a-z0-9_.-]{0,63}$"

#: Environment values of a switch set: they end up in cell ids.
SWITCH_VALUE_PATTERN = r"^[A-Za-z0-9_.]{1,32}$"

#: Environment switches a set may hold. Which runner a cell takes is an axis of its own.
SWITCH_NAMES = tuple(s for s in vocabulary.SWITCHES if s != "VLLM_USE_V2_MODEL_RUNNER")


class Axis(NamedTuple):
    """One axis.

    ``names``: the values a string may have (None: open, checked by the loader); ``lowest`` and
    ``highest``: bounds where integers are allowed (None: they are not); ``every``: what ``"*"`` means;
    ``default``: the values where a file does not name the axis (None: it must).
    """

    name: str
    title: str
    names: tuple[str, ...] | None = ()
    lowest: int | None = None
    highest: int | None = None
    every: tuple[str, ...] = ()
    default: tuple[Value, ...] | None = None
    boolean: bool = False


def _closed(
    name: str,
    title: str,
    names: tuple[str, ...],
    default: tuple[Value, ...] | None,
    every: tuple[str, ...] | None = None,
    extra: tuple[str, ...] = (),
) -> Axis:
    return Axis(name, title, names + extra, every=names if every is None else every, default=default)


_AXES = (
    _closed(
        "backend",
        'Attention backend, a member of vLLM\'s registry. "*" is every ROCm-capable one.',
        vocabulary.ROCM_BACKENDS + vocabulary.OTHER_BACKENDS,
        None,
        every=vocabulary.ROCM_BACKENDS,
    ),
    Axis("block_size", "Manager block size, in tokens.", lowest=1, highest=65536),
    _closed("kv_cache_dtype", "KV cache dtype, as vLLM spells it.", vocabulary.KV_CACHE_DTYPES, ("auto",)),
    Axis("drafter", 'Drafter family or probe. "*" is every family.', names=None),
    Axis(
        "tp",
        'Tensor-parallel degree; "family" takes the degrees of each drafter family.',
        (FAMILY,),
        lowest=1,
        highest=1024,
        default=(FAMILY,),
    ),
    Axis(
        "num_speculative_tokens",
        'Speculative tokens k, so that a verify has 1 + k query tokens; "family" takes each family\'s own.',
        (FAMILY,),
        lowest=0,
        highest=64,
        default=(FAMILY,),
    ),
    _closed("dtype", "Model dtype.", vocabulary.DTYPES, ("bfloat16",)),
    _closed(
        "batch",
        'Shape of the attention call; "role" takes what each drafter\'s method and role need.',
        batches.NAMES,
        (ROLE,),
        extra=(ROLE,),
    ),
    _closed("execution", "Eager, piecewise graphs or full graphs.", vocabulary.EXECUTIONS, ("eager",)),
    _closed("runner", "vLLM's model runner.", vocabulary.RUNNERS, ("v2",)),
    _closed("scales", "KV (and query) scales: all 1, or all different.", vocabulary.SCALES, ("non_unit",)),
    Axis(
        "switches",
        'Name of a [switches.<name>] table; "default" is the set without switches.',
        names=None,
        default=(DEFAULT_SWITCHES,),
    ),
)

#: Every axis, by name, in the order of a file.
AXES: dict[str, Axis] = {axis.name: axis for axis in _AXES}

_PROPERTIES = (
    _closed("method", "Speculative method of the drafter family.", vocabulary.METHODS, None),
    _closed("role", "Whose attention it is.", tuple(r.value for r in Role), None),
    Axis("mla", "Whether the family has multi-head latent attention.", boolean=True),
    Axis("causal", "Whether the family's attention is causal.", boolean=True),
    Axis("sinks", "Whether the family has attention sinks.", boolean=True),
    Axis("head_size", "Head size, in elements.", lowest=1, highest=65536),
    Axis("target", "Target (offline:gfx942) or kind of target (interpreter).", names=None),
)

#: What an exclude rule may match on besides axes: properties of the drafter family, and the target.
PROPERTIES: dict[str, Axis] = {axis.name: axis for axis in _PROPERTIES}


def valid_switch(value: str) -> bool:
    """Whether an environment value may stand in a cell id."""
    return re.fullmatch(SWITCH_VALUE_PATTERN, value) is not None
