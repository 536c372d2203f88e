"""Published serving results: what others measured, as evidence with its source.

A file ``matrices/published/<name>.toml`` holds one published comparison: the set-up that its results
share, and one ``[[result]]`` a backend. A figure that its source does not state is left out; nothing is
estimated. A GPU that is not stated is ``arch = "unknown"``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from .. import archs, drafters, paths
from ..cell import Role, Verdict
from ..errors import InputError
from ..toml.tomlcheck import MAX_TEXT, At, integer, require, table, tables, text, word
from ..toml.tomlfile import TomlFile
from ..toml.tomlfile import load as load_toml
from ..vocabulary import DTYPES, KV_CACHE_DTYPES, OTHER_BACKENDS, ROCM_BACKENDS

#: The architecture of a result whose source does not state the GPU.
UNKNOWN = "unknown"

#: What a published result may say happened. ``pass``: requests were answered.
STATUSES: tuple[str, ...] = tuple(v.value for v in Verdict if v not in (Verdict.UNAVAILABLE, Verdict.UNVERIFIED))

#: How much of the source was read by whoever entered the file.
READ: tuple[str, ...] = ("in full", "in part")


class Metric(msgspec.Struct, frozen=True):
    """A figure that a published table may have: its column's title, decimals to print, whether more is better.

    ``better`` is 1 where more is better, -1 where less is, 0 where it ranks nothing.
    """

    title: str
    decimals: int
    better: int


#: Figures of a result by key, in the order of columns. The first of those that rank, and that every
#: passing result of a comparison has, decides it.
METRICS: dict[str, Metric] = {
    "output_tok_s_per_gpu": Metric("Output tok/s/GPU", 3, 1),
    "total_tok_s_per_gpu": Metric("Total tok/s/GPU", 3, 1),
    "output_tok_s": Metric("Output tok/s", 2, 1),
    "total_tok_s": Metric("Total tok/s", 2, 1),
    "request_s": Metric("Requests/s", 2, 1),
    "relative_time": Metric("Times slower", 2, -1),
    "prefill_tok_s": Metric("Prefill tok/s", 2, 0),
    "mean_tpot_ms": Metric("Mean TPOT ms", 3, -1),
    "median_tpot_ms": Metric("Median TPOT ms", 3, -1),
    "p99_tpot_ms": Metric("P99 TPOT ms", 3, 0),
    "mean_itl_ms": Metric("Mean ITL ms", 3, -1),
    "median_itl_ms": Metric("Median ITL ms", 3, -1),
    "mean_ttft_ms": Metric("Mean TTFT ms", 2, 0),
    "median_ttft_ms": Metric("Median TTFT ms", 2, 0),
    "p99_ttft_ms": Metric("P99 TTFT ms", 2, 0),
    "mean_e2e_ms": Metric("Mean latency ms", 2, -1),
    "duration_s": Metric("Duration s", 2, -1),
    "acceptance_percent": Metric("Acceptance", 2, 0),
    "acceptance_length": Metric("Acceptance length", 2, 0),
    "accuracy": Metric("Accuracy", 4, 0),
}

#: Figures that rank.
RANKING: tuple[str, ...] = tuple(key for key, metric in METRICS.items() if metric.better)

#: Figures of a load; every one may be left out. Requests and tokens a request.
WORKLOAD_BOUNDS: dict[str, tuple[int, int]] = {
    "concurrency": (1, 1 << 20),
    "prompts": (1, 1 << 30),
    "input": (1, 1 << 24),
    "output": (1, 1 << 24),
    "context": (0, 1 << 24),
    "speculative_tokens": (0, 64),
}


class Load(msgspec.Struct, frozen=True, omit_defaults=True):
    """The load a result was measured under, as far as its source states it. Requests, tokens a request."""

    concurrency: int | None = None
    prompts: int | None = None
    input: int | None = None
    output: int | None = None
    context: int | None = None
    speculative_tokens: int | None = None
    dataset: str = ""


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """One row. ``figures`` by a key of ``METRICS``; ``reason`` says what a status other than ``pass`` was.

    ``variant`` names what else differs between rows (a switch, a version), in the source's words.
    ``repeats`` is how many runs the figures summarise, ``spread`` the half-width that the source gives them, in
    the unit of the first figure that ranks (None: not given).
    """

    backend: str
    status: str
    reason: str = ""
    variant: str = ""
    figures: dict[str, float] = {}
    load: Load = Load()
    repeats: int = 1
    spread: float | None = None
    line: int | None = None


class Published(msgspec.Struct, frozen=True, omit_defaults=True):
    """One published comparison. ``drafter`` is a family's key, empty where no shipped family is meant.

    ``block_size`` is None and ``kv_cache_dtype`` and ``dtype`` are empty where the source does not say;
    ``dtype`` is ``auto`` where the server was left to take the checkpoint's. ``date`` is ISO 8601.
    """

    name: str
    title: str
    source: str
    date: str
    stack: str
    hardware: str
    arch: str
    role: Role
    results: tuple[Result, ...]
    url: str = ""
    read: str = READ[0]
    command: str = ""
    model: str = ""
    draft_model: str = ""
    drafter: str = ""
    tp: int | None = None
    block_size: int | None = None
    kv_cache_dtype: str = ""
    dtype: str = ""
    baseline: str = ""
    compare: str = ""
    notes: str = ""


_TEXTS = ("title", "source", "url", "stack", "hardware", "command", "model", "draft_model", "notes")
_REQUIRED = ("title", "source", "date", "stack", "hardware", "arch", "role", "result")
LOAD_KEYS = (*WORKLOAD_BOUNDS, "dataset")
KEYS: tuple[str, ...] = (
    *_TEXTS[:3], "date", "read", *_TEXTS[3:5], "arch", "model", "draft_model", "drafter", "role", "tp", "block_size",
    "kv_cache_dtype", "dtype", "baseline", "compare", "command", "notes", "workload", "result",
)  # fmt: skip
RESULT_KEYS: tuple[str, ...] = ("backend", "status", "reason", "variant", "repeats", "spread", *METRICS, *LOAD_KEYS)
BACKENDS: tuple[str, ...] = (*ROCM_BACKENDS, *OTHER_BACKENDS)


def default_dir() -> Path:
    """Where the shipped files are."""
    return paths.matrices_dir() / "published"


def is_published(data: Mapping[str, Any]) -> bool:
    """Whether a parsed TOML file means to be one of these, rather than a derived table or a matrix."""
    return "result" in data


def load(path: str | Path) -> Published:
    """One file. Raises InputError naming file, line, key, value and what is allowed."""
    return from_toml(load_toml(path))


def from_toml(doc: TomlFile) -> Published:
    """What a parsed file says; see ``load``."""
    data = table(doc, (), doc.data, KEYS)
    require(doc, (), data, _REQUIRED)
    shared = _load(doc, ("workload",), table(doc, ("workload",), data.get("workload", {}), LOAD_KEYS), Load())
    entries = tables(doc, ("result",), data["result"], RESULT_KEYS)
    results = tuple(_result(doc, ("result", i), entry, shared) for i, entry in enumerate(entries))
    found: dict[str, Any] = {key: text(doc, (key,), data[key]).strip() for key in _TEXTS if key in data}
    if "url" in found and not found["url"].startswith("https://"):
        raise doc.error(("url",), "must be an https address", value=found["url"])
    words = {
        "arch": (*archs.ARCHS, UNKNOWN),
        "read": READ,
        "kv_cache_dtype": KV_CACHE_DTYPES,
        "dtype": (*DTYPES, "auto"),
        "baseline": BACKENDS,
        "compare": RANKING,
    }
    found |= {key: word(doc, (key,), data[key], allowed) for key, allowed in words.items() if key in data}
    for key, highest in (("tp", 1024), ("block_size", 65536)):
        if key in data:
            found[key] = integer(doc, (key,), data[key], 1, highest)
    if "drafter" in data:
        found["drafter"] = _family(doc, data["drafter"])
    if found.get("baseline") and found["baseline"] not in {r.backend for r in results if r.status == "pass"}:
        raise doc.error(("baseline",), "no passing result has this backend", value=found["baseline"])
    return Published(
        name=doc.path.stem,
        date=_date(doc, data["date"]),
        role=Role(word(doc, ("role",), data["role"], [role.value for role in Role])),
        results=results,
        **found,
    )


def load_all(directory: str | Path | None = None) -> list[Published]:
    """Every file of a directory (default: the shipped ones), by name. Raises InputError for any mistake."""
    folder = default_dir() if directory is None else Path(directory)
    return [load(path) for path in sorted(folder.glob("*.toml"))]


def _result(doc: TomlFile, at: At, entry: dict[str, Any], shared: Load) -> Result:
    require(doc, at, entry, ("backend", "status"))
    status = word(doc, (*at, "status"), entry["status"], STATUSES)
    reason = text(doc, (*at, "reason"), entry["reason"]) if "reason" in entry else ""
    if (status == "pass") == bool(reason):
        message = "a passing result needs no reason" if reason else "is missing: what happened, in the source's words"
        raise doc.error((*at, "reason"), message)
    figures = {key: _figure(doc, (*at, key), entry[key]) for key in METRICS if key in entry}
    if status == "pass" and not any(key in RANKING for key in figures):
        raise doc.error(at, "a passing result needs a figure to compare by", allowed=RANKING)
    return Result(
        backend=word(doc, (*at, "backend"), entry["backend"], BACKENDS),
        status=status,
        reason=reason,
        variant=text(doc, (*at, "variant"), entry["variant"]) if "variant" in entry else "",
        figures=figures,
        load=_load(doc, at, entry, shared),
        repeats=integer(doc, (*at, "repeats"), entry["repeats"], 1, 1 << 20) if "repeats" in entry else 1,
        spread=_figure(doc, (*at, "spread"), entry["spread"]) if "spread" in entry else None,
        line=doc.nearest_line(*at),
    )


def _load(doc: TomlFile, at: At, entry: Mapping[str, Any], shared: Load) -> Load:
    changes: dict[str, Any] = {
        key: integer(doc, (*at, key), entry[key], *bounds) for key, bounds in WORKLOAD_BOUNDS.items() if key in entry
    }
    if "dataset" in entry:
        changes["dataset"] = text(doc, (*at, "dataset"), entry["dataset"])
    return msgspec.structs.replace(shared, **changes)


def _figure(doc: TomlFile, at: At, value: object) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise doc.error(at, "must be a number; leave out a figure that is not published", value=value)
    if not 0 <= value < 1e12 or (value == 0 and str(at[-1]) in RANKING):
        raise doc.error(at, "out of range", value=value, allowed=["above 0, below 1e12"])
    return float(value)


def _date(doc: TomlFile, value: object) -> str:
    found = str(value)
    if not re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?", found) or len(found) > MAX_TEXT:
        raise doc.error(("date",), "must be a date", value=value, allowed=["2026-07-07", "2026-07"])
    return found


def _family(doc: TomlFile, value: object) -> str:
    known = drafters.load(drafters.DEFAULT_DIR)
    if not isinstance(value, str) or value not in known:
        raise doc.error(("drafter",), "no such drafter family", value=value, allowed=known)
    return value


def deciding_metric(results: tuple[Result, ...], compare: str = "") -> str:
    """The figure that ranks these results: ``compare``, or the first that every passing one has; "" for none."""
    passing = [r for r in results if r.status == "pass"]
    keys = [compare] if compare else list(RANKING)
    for key in keys:
        if passing and all(key in r.figures for r in passing):
            return key
    return ""


def improvement_percent(metric: str, value: float, baseline: float) -> float:
    """By how many percent ``value`` is better than ``baseline``: as a rate, for times as well."""
    ratio = value / baseline if METRICS[metric].better > 0 else baseline / value
    return (ratio - 1) * 100


def find(name: str) -> Path:
    """A published file: a path, or a shipped one by its name. InputError where there is neither."""
    path = Path(name)
    if path.is_file():
        return path
    shipped = sorted(default_dir().glob("*.toml"))
    for file in shipped:
        if name in (file.name, file.stem):
            return file
    raise InputError("no such published file", key="--published", value=name, allowed=[f.stem for f in shipped])
