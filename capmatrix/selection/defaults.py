"""The default-selection table as data, and its files: TOML, JSON, and a Python mapping.

``selection`` makes it; ``guard`` and the reports read it. Everything in it is sorted, so that the same
evidence gives the same bytes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ..errors import InputError
from ..toml import tomlfile, tomlwrite
from ..toml.tomlfile import TomlFile

#: Version of the table's format.
DEFAULTS_VERSION = 1
#: Largest table read, in bytes.
MAX_BYTES = 64 << 20


class Key(NamedTuple):
    """What a row is for. ``block_size`` is the manager block in tokens; ``dtype`` the model's."""

    architecture: str
    drafter: str
    role: str
    block_size: int
    kv_cache_dtype: str
    dtype: str


class Other(msgspec.Struct, frozen=True, omit_defaults=True):
    """A backend that a row did not choose, and why not.

    ``why``: ``slower``, ``heavier`` (as fast, but needs more), ``behind`` (equal, later in the policy's order),
    ``failed``, ``rejected``, ``barred`` (NaN-unsafe in a shared pool), ``unverified``, ``unavailable``,
    ``incomplete`` (needed batches without a record), ``weaker`` (evidence on a lower rung), ``unmeasured``
    (others have a measurement), ``kept`` (wins, but not by enough to change the earlier default), ``not run``.
    ``times_best`` is its cost over the fastest candidate's (1: equal); None where not measured.
    """

    backend: str
    why: str
    detail: str = ""
    rung: str = ""
    times_best: float | None = None
    records: tuple[str, ...] = ()
    published: tuple[str, ...] = ()


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """The default for one key.

    ``backend`` is empty where no backend is a candidate. ``reason`` is one sentence. ``decided_by`` is what
    the policy weighed: ``serving throughput``, ``serving time``, ``estimated step time``, ``dependencies``,
    ``evidence``, ``only candidate`` or ``earlier table``. ``value`` and ``unit``: the chosen backend's.
    ``margin_percent``: by how much the choice is faster than ``runner_up`` (negative: slower), with the interval
    that the repeats span (None: one run, no interval). ``fastest`` is the fastest measured candidate,
    ``times_fastest`` the choice's cost over its. ``requires``: dependencies beyond vLLM's own. ``switches``:
    environment the choice was seen to need. ``marks``: ``provisional``, ``unrepeated``, ``incomplete``,
    ``conflict``, ``gpu not stated``, ``kept``, ``carried``, ``stale``. ``phases``: the backend that wins each
    phase, where they differ. ``dated_from`` and ``dated_to``: days of the oldest and newest evidence. ``stale``:
    why it is out of date, where that was asked.
    """

    architecture: str
    drafter: str
    role: str
    block_size: int
    kv_cache_dtype: str
    dtype: str
    backend: str
    reason: str
    policy: str
    decided_by: str = ""
    rung: str = ""
    workload: str = ""
    value: float | None = None
    unit: str = ""
    runner_up: str = ""
    margin_percent: float | None = None
    margin_low_percent: float | None = None
    margin_high_percent: float | None = None
    fastest: str = ""
    times_fastest: float | None = None
    requires: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    dated_from: str = ""
    dated_to: str = ""
    stale: str = ""
    records: tuple[str, ...] = ()
    published: tuple[str, ...] = ()
    versions: dict[str, str] = {}
    phases: dict[str, str] = {}
    other: tuple[Other, ...] = ()

    @property
    def key(self) -> Key:
        """What the row is for."""
        return Key(
            self.architecture, self.drafter, self.role, self.block_size, self.kv_cache_dtype, self.dtype
        )  # fmt: skip

    @property
    def provisional(self) -> bool:
        """Whether nothing was executed or served for the choice."""
        return "provisional" in self.marks


class RunName(msgspec.Struct, frozen=True):
    """A run file the table was made from: its name, a digest of its records, how many they are."""

    name: str
    digest: str
    records: int


class Defaults(msgspec.Struct, frozen=True, omit_defaults=True):
    """A default-selection table. ``left_out`` says what evidence entered no row, and why; ``hints`` what is very
    slow on a GPU whose times choose no default."""

    policy: str
    margin_percent: float
    workload: str = ""
    arch: str = ""
    version: int = DEFAULTS_VERSION
    runs: tuple[RunName, ...] = ()
    published: tuple[str, ...] = ()
    previous: str = ""
    left_out: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    row: tuple[Row, ...] = ()

    def find(self, key: Key) -> Row | None:
        """The row of ``key``, or None."""
        return next((row for row in self.row if row.key == key), None)


def is_defaults(data: Any) -> bool:
    """Whether parsed TOML or JSON means to be a default-selection table."""
    return isinstance(data, dict) and "policy" in data and "margin_percent" in data


def load(path: str | Path) -> Defaults:
    """Reads ``.toml`` or ``.json``. Raises InputError for a file that is no such table, or a newer one."""
    path = Path(path)
    if path.suffix == ".json":
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror or error}", file=path) from None
        if len(raw) > MAX_BYTES:
            raise InputError(f"larger than {MAX_BYTES >> 20} MiB", file=path)
        try:
            data = msgspec.json.decode(raw)
        except msgspec.DecodeError as error:
            raise InputError(f"not valid JSON: {error}", file=path) from None
        return convert(data, path)
    return from_toml(tomlfile.load(path))


def from_toml(doc: TomlFile) -> Defaults:
    """The table in a parsed TOML file; see ``load``."""
    return convert(doc.data, doc.path)


def convert(data: Any, path: Path) -> Defaults:
    """Plain data to a table; InputError names the path of what is wrong."""
    if not is_defaults(data):
        raise InputError("not a default-selection table (made by capmatrix derive)", file=path)
    if isinstance(data.get("version"), int) and data["version"] > DEFAULTS_VERSION:
        raise InputError("made by a newer capmatrix", file=path, key="version", value=data["version"])
    try:
        return msgspec.convert(data, Defaults)
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at ")
        raise InputError(message, file=path, key=where.strip("`$.") or None) from None


def to_toml(table: Defaults) -> str:
    """The table as TOML, with a line that says what made it."""
    data = msgspec.to_builtins(table)
    data = {"version": table.version, **data}
    return "# Made by capmatrix derive; edits are lost when it is derived again.\n" + tomlwrite.dumps(data)


def to_json(table: Defaults) -> str:
    """The table as JSON."""
    data = {"version": table.version, **msgspec.to_builtins(table)}
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"
