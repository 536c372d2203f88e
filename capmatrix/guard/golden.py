"""A snapshot of vLLM's choices over everything that decides them, and what an upgrade of vLLM changes in it. Pure.

A snapshot is a mapping of layers to choices, in words, one a line of JSON, so that a diff can be read. A line
is ``<architecture> <AITER> <switches> | <layer>``; its value the backend, ``none`` where the selector finds
none, ``refused`` where vLLM refuses the configuration; over head sizes, ``64 128 ROCM_ATTN; 72 TRITON_ATTN``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from .. import paths
from ..cell import Geometry, MlaGeometry, Role
from ..errors import InputError
from ..vocabulary import ARCHITECTURES, ROCM_BACKENDS
from .questions import Answer, Question

VERSION = 1
#: Largest snapshot read, in bytes.
_MAX_BYTES = 16 << 20

#: Head sizes in elements; 72 and 80 are no multiples of what most kernels want, 512 is over their limit.
HEADS: tuple[int, ...] = (64, 72, 80, 96, 128, 192, 256, 512)
KV_CACHE_DTYPES: tuple[str, ...] = (
    "auto",
    "fp8",
    "fp8_e5m2",
    "int8_per_token_head",
    "turboquant_k8v4",
    "ultraquant_4bit",
)
BLOCKS: tuple[int | None, ...] = (None, 1, 8, 16, 32, 64, 128, 256, 544)
METHODS: tuple[str, ...] = ("eagle", "eagle3", "mtp", "dflash", "dspark", "draft_model")
TARGET_BACKENDS: tuple[str, ...] = ("", "TRITON_ATTN")
_PLAIN = Geometry(8, 1, 128)
_LATENT = Geometry(16, 1, 576, mla=MlaGeometry(512, 128, 64, 128))


class Setting(NamedTuple):
    """One server that is asked: whether it finds an AITER, and its switches."""

    aiter: bool
    switches: tuple[tuple[str, str], ...] = ()

    def named(self, arch: str) -> str:
        """``gfx950 aiter VLLM_ROCM_USE_AITER=1``."""
        words = [arch, "aiter" if self.aiter else "no-aiter", *(f"{n}={v}" for n, v in self.switches)]
        return " ".join(words)


#: With no AITER to be found its switches change nothing, so that one server says it.
SETTINGS: tuple[Setting, ...] = (
    Setting(False),
    Setting(True),
    Setting(True, (("VLLM_ROCM_USE_AITER", "1"),)),
)


class Line(NamedTuple):
    """A line of the snapshot: its key, and the questions whose answers its value tells, each with a label."""

    key: str
    questions: tuple[tuple[str, Question], ...]


class Snapshot(msgspec.Struct, frozen=True):
    """What vLLM ``vllm`` selects, by line. ``aiter`` is whether the lines with an AITER were asked."""

    vllm: str
    choices: dict[str, str]
    aiter: bool = True
    version: int = VERSION


class Change(NamedTuple):
    """A layer whose choice changed, and the settings in which it did."""

    layer: str
    old: str
    new: str
    settings: tuple[str, ...]


def lines(setting: Setting, archs: Sequence[str] = ARCHITECTURES) -> Iterator[Line]:
    """The lines of one setting, for every architecture."""
    for arch in archs:
        for layer, questions in _layers(arch, setting.switches):
            yield Line(f"{setting.named(arch)} | {layer}", tuple(questions))


def _layers(arch: str, switches: tuple[tuple[str, str], ...]) -> Iterator[tuple[str, list[tuple[str, Question]]]]:
    def ask(geometry: Geometry = _PLAIN, **given: object) -> Question:
        fields: dict[str, object] = {"block_size": 128, "kv_cache_dtype": "auto", "tp": 8, "total_kv_heads": 4}
        return Question(arch=arch, geometry=geometry, switches=switches, **(fields | given))  # type: ignore[arg-type]

    replace = msgspec.structs.replace
    for kv in KV_CACHE_DTYPES:
        for feature, geometry, given in _FEATURES:
            sized = [(str(h), ask(replace(geometry, head_size=h), kv_cache_dtype=kv, **given)) for h in HEADS]
            yield f"target {kv} {feature}, by head size", sized
    for kv in ("auto", "fp8"):
        yield f"target {kv} latent", [("", ask(_LATENT, kv_cache_dtype=kv))]
    yield (
        "target auto plain, by block size",
        [("unset" if block is None else str(block), ask(block_size=block)) for block in BLOCKS],
    )
    for method in METHODS:
        for runner in ("v1", "v2"):
            for backend in TARGET_BACKENDS:
                question = ask(
                    replace(_PLAIN, causal=method not in ("dflash", "dspark")), kv_cache_dtype="fp8", role=Role.DRAFTER,
                    method=method, num_speculative_tokens=2, runner=runner, target_backend=backend,
                )  # fmt: skip
                yield f"{method} drafter fp8, runner {runner}, target {backend or 'unset'}", [("", question)]
    yield "target auto plain, by backend named", [(b, ask(target_backend=b)) for b in ROCM_BACKENDS]


_FEATURES: tuple[tuple[str, Geometry, dict[str, object]], ...] = (
    ("plain", _PLAIN, {}),
    ("sinks", msgspec.structs.replace(_PLAIN, sinks=True), {}),
    ("window", msgspec.structs.replace(_PLAIN, sliding_window=128), {}),
    ("window sinks", msgspec.structs.replace(_PLAIN, sliding_window=128, sinks=True), {}),
    ("non-causal", msgspec.structs.replace(_PLAIN, causal=False), {}),
    ("connector", _PLAIN, {"kv_connector": "NixlConnector"}),
    ("dcp 2", _PLAIN, {"dcp": 2}),
)


def value(line: Line, answers: Mapping[Question, Answer]) -> str:
    """The line's value."""
    groups: dict[str, list[str]] = {}
    for label, question in line.questions:
        groups.setdefault(_word(question, answers[question]), []).append(label)
    if len(line.questions) == 1:
        return next(iter(groups))
    if len(groups) == 1:
        return f"all {next(iter(groups))}"
    return "; ".join(f"{' '.join(labels)} {word}" for word, labels in groups.items())


def _word(question: Question, answer: Answer) -> str:
    if question.target_backend and question.role is Role.TARGET:
        # Named outright: only whether it is taken is of interest.
        return "ignored" if answer.ignored else "taken" if answer.backend else "refused"
    if answer.backend:
        return answer.backend
    return "none" if answer.stage == "select" else "refused"


def compare(old: Snapshot, new: Snapshot) -> list[Change]:
    """What changed, settings with the same change together. Lines that only one of them has are told as ``absent``.

    Lines with an AITER are left out where one of the two was made without.
    """
    found: dict[tuple[str, str, str], list[str]] = {}
    for key in sorted({*old.choices, *new.choices}):
        setting, _, layer = key.partition(" | ")
        if " aiter" in setting and not (old.aiter and new.aiter):
            continue
        before, after = old.choices.get(key, "absent"), new.choices.get(key, "absent")
        for label, was, became in _differences(before, after):
            found.setdefault((f"{layer}{f' {label}' if label else ''}", was, became), []).append(setting)
    return [Change(layer, was, became, tuple(settings)) for (layer, was, became), settings in found.items()]


def _differences(before: str, after: str) -> list[tuple[str, str, str]]:
    """What differs between two values: labels, old word, new word."""
    if before == after:
        return []
    olds, news = _by_label(before), _by_label(after)
    if not (olds.keys() - {""}) and not (news.keys() - {""}):
        return [("", before, after)]
    groups: dict[tuple[str, str], list[str]] = {}
    for label in dict.fromkeys([*olds, *news]):
        if not label:
            continue
        was, became = olds.get(label, olds.get("", "absent")), news.get(label, news.get("", "absent"))
        if was != became:
            groups.setdefault((was, became), []).append(label)
    return [(" ".join(labels), was, became) for (was, became), labels in groups.items()]


def _by_label(text: str) -> dict[str, str]:
    """``64 128 X; 72 Y`` to words by label; the word of all under the empty label."""
    if ";" not in text and (text.startswith("all ") or " " not in text):
        return {"": text.removeprefix("all ")}
    found = {}
    for part in text.split("; "):
        *labels, word = part.split(" ")
        found.update(dict.fromkeys(labels, word))
    return found


def default_dir() -> Path:
    """Where the committed snapshots are."""
    return paths.matrices_dir() / "golden"


def path_of(vllm: str, directory: Path | None = None) -> Path:
    """The snapshot file of a version: one a minor version."""
    return (directory or default_dir()) / f"selection-vllm-{'.'.join(vllm.split('.')[:2])}.json"


def newest(directory: Path | None = None) -> Path | None:
    """The committed snapshot of the newest vLLM."""
    files = list((directory or default_dir()).glob("selection-vllm-*.json"))
    return max(files, key=lambda f: [int(n) for n in f.stem.rpartition("-")[2].split(".")], default=None)


def load(path: Path) -> Snapshot:
    """Raises InputError for a file that is no snapshot."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", file=path) from None
    try:
        if len(raw) > _MAX_BYTES:
            raise InputError("too large to be a snapshot", file=path)
        return msgspec.json.decode(raw, type=Snapshot)
    except msgspec.DecodeError as error:
        raise InputError(f"not a snapshot (made by capmatrix golden --update): {error}", file=path) from None


def dumps(snapshot: Snapshot) -> str:
    """One line a choice, sorted."""
    data = {
        "version": snapshot.version, "vllm": snapshot.vllm, "aiter": snapshot.aiter,
        "choices": dict(sorted(snapshot.choices.items())),
    }  # fmt: skip
    return json.dumps(data, indent=0, ensure_ascii=False) + "\n"
