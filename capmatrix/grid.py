"""What a matrix file says, as data: axes, rules, presets, workload profiles.

``matrix`` reads it from TOML, ``expand`` turns it into cells. Everything is frozen; axis values stand
as written (``family`` and ``role`` are resolved per drafter when expanding).
"""

from __future__ import annotations

import msgspec

from .axes import Value
from .drafters import Family

#: KV heads of a rank that an interpreter target keeps unless the file or preset says otherwise.
DEFAULT_MAX_KV_HEADS = 4

#: Cells that one expansion may have, before rules drop any; a guard against a slip of the pen.
MAX_CELLS = 2_000_000

Axes = dict[str, tuple[Value, ...]]
Switches = tuple[tuple[str, str], ...]


class Rule(msgspec.Struct, frozen=True):
    """An include or exclude rule.

    ``match`` maps axis (or property) to values; all must hold. ``at`` is its key path in the file.
    """

    match: Axes
    reason: str
    line: int | None = None
    at: tuple[str | int, ...] = ()


class Product(msgspec.Struct, frozen=True):
    """One expandable part of a file: the whole of it or a preset.

    ``axes`` holds every axis. ``exclude`` drops cells of the product; ``include`` then adds the product
    of its own values (axes it does not name keep those of ``axes``). ``targets`` are the targets or
    target kinds it runs on (empty: all). ``max_kv_heads`` bounds the KV heads of a rank on an interpreter.
    """

    name: str
    axes: Axes
    include: tuple[Rule, ...] = ()
    exclude: tuple[Rule, ...] = ()
    targets: tuple[str, ...] = ()
    max_kv_heads: int = DEFAULT_MAX_KV_HEADS
    description: str = ""
    line: int | None = None
    at: tuple[str | int, ...] = ()


class Workload(msgspec.Struct, frozen=True):
    """A serving load that timing and policies weigh by.

    ``concurrency`` in requests; ``context`` (tokens already cached), ``input`` and ``output`` in tokens
    a request; ``speculative_tokens`` drafted a step.
    """

    concurrency: int
    input: int
    output: int
    context: int = 0
    speculative_tokens: int = 0
    description: str = ""


class Matrix(msgspec.Struct, frozen=True):
    """A validated matrix file.

    ``whole`` is the file without a preset; ``presets``, ``workloads`` and ``switches`` are by name.
    ``families`` holds every drafter family an axis may name: those of the drafter directory and the
    file's own probes.
    """

    path: str
    name: str
    description: str
    whole: Product
    presets: dict[str, Product]
    workloads: dict[str, Workload]
    switches: dict[str, Switches]
    families: dict[str, Family]
