"""Wording that every report shares, and how text from elsewhere is made harmless before it is shown."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence

from ..cell import RUNGS, Cell, Flag, Phase, Record, Rung, Verdict
from ..errors import printable
from ..pair import PairRecord

#: What each verdict means, for legends and ``docs/verdicts.md``.
VERDICT_MEANING: dict[Verdict, str] = {
    Verdict.PASS: "worked, as far as its rung can tell",
    Verdict.WRONG: "ran, but numbers are off, NaN or unwritten",
    Verdict.ERROR: "a Python exception",
    Verdict.CRASH: "the process died",
    Verdict.TIMEOUT: "killed at its time limit",
    Verdict.REJECTED: "refused by the backend or the selector; nothing ran",
    Verdict.UNAVAILABLE: "a dependency or the hardware is missing; says nothing of the backend",
    Verdict.UNVERIFIED: "ran, but this target cannot tell",
}

#: What ``pass`` means on each rung.
RUNG_MEANING: dict[Rung, str] = {
    Rung.DECLARED: "the backend and the selector accept the cell; nothing ran",
    Rung.COMPILED: "the backend's dispatch ran to its end and every kernel it launched compiled for the architecture "
    "within its limits; no numbers were checked",
    Rung.INTERPRETED: "the kernels ran in Triton's interpreter on a CPU, and the numbers are right",
    Rung.EMULATED: "the architecture's machine code ran on an emulator, and the numbers are right",
    Rung.EXECUTED: "the kernels ran on the GPU, and the numbers are right",
    Rung.SERVED: "a server answered requests with it",
}

#: Short forms of the rungs where a table is narrow.
RUNG_TAG: dict[Rung, str] = {
    Rung.DECLARED: "decl",
    Rung.COMPILED: "comp",
    Rung.INTERPRETED: "intp",
    Rung.EMULATED: "emul",
    Rung.EXECUTED: "exec",
    Rung.SERVED: "serv",
}

#: Flags that a table marks beside a verdict: letter, words, meaning. The others stand in notes or row names.
MARKS: dict[Flag, tuple[str, str, str]] = {
    Flag.CONFLICT: ("!", "conflict", "another target, on a lower rung or refusing, says otherwise"),
    Flag.FALLBACK: ("F", "fallback", "ran, but not with the backend's intended kernel"),
    Flag.NAN_UNSAFE: ("N", "nan_unsafe", "right with zeroed and stale slots, not when unused slots hold NaN"),
    Flag.STALE: ("~", "stale", "made with other versions than the rest"),
}

PHASE_WORDS: dict[Phase, str] = {
    Phase.SELECT: "selection",
    Phase.CONFIGURE: "engine configuration",
    Phase.BUILD: "building layer, cache and metadata",
    Phase.COMPILE: "compiling a kernel",
    Phase.CACHE_WRITE: "writing the KV cache",
    Phase.FORWARD: "the forward",
    Phase.GRAPH: "graph capture or replay",
    Phase.COMPARE: "comparing with the reference",
    Phase.TIME: "timing",
}

NOT_RUN = "not run"
NOT_RUN_MEANING = "no cell of it in this run; says nothing of the backend"

_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_LIMIT = 100_000


def one_line(value: object, limit: int = 300) -> str:
    """Text from a record as one printable line of at most ``limit`` characters.

    Terminal escapes, bidirectional overrides and other invisible characters become U+FFFD.
    """
    text = printable(" ".join(str(value)[:_LIMIT].split()))
    return text if len(text) <= limit else text[: limit - 3].rstrip() + "..."


def reason(record: Record | PairRecord, limit: int = 300) -> str:
    """The one line that says why: the first reason, else the exception, else what a fallback ran; "" for nothing.

    The verdict's own word before a reason is left out, since it stands beside it.
    """
    if record.reasons:
        return one_line(one_line(record.reasons[0], _LIMIT).removeprefix(f"{record.verdict.value}: "), limit)
    if record.failure is not None:
        return one_line(f"{record.failure.type}: {record.failure.message}", limit)
    route = record.route if isinstance(record, Record) else ()
    ran = list(dict.fromkeys(k.name for k in route if k.phase == "forward"))
    if Flag.FALLBACK in record.flags and ran:
        return one_line(f"fallback: ran {', '.join(ran)}", limit)
    return ""


def lines(value: object, limit: int = 20_000) -> list[str]:
    """Text from a record as printable lines, blank ends removed; the end is what is kept when it is too long."""
    text = str(value)
    if len(text) > limit:
        text = "... " + text[-limit:]
    return [printable(line.replace("\t", "    ")).rstrip() for line in text.strip().splitlines()]


def width(text: str) -> int:
    """Columns that ``text`` takes in a terminal."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def pad(text: str, columns: int) -> str:
    """``text`` with spaces up to ``columns``."""
    return text + " " * (columns - width(text))


def fill(text: str, columns: int, indent: str = "", hanging: str | None = None) -> list[str]:
    """``text`` wrapped at spaces to ``columns``, longer words cut; the first line indented by ``indent``."""
    hanging = indent if hanging is None else hanging
    columns = max(columns, 20 + width(hanging))
    out: list[str] = []
    line, prefix = "", indent
    for long in text.split():
        word = long
        room = columns - width(prefix)
        while width(word) > room:  # a path or an id longer than a line: fill the line, go on
            if line and width(line) + 2 < room:
                cut = room - width(line) - 1
                line, word = f"{line} {word[:cut]}", word[cut:]
            elif not line:
                line, word = word[:room], word[room:]
            out.append(prefix + line)
            line, prefix = "", hanging
            room = columns - width(prefix)
        if line and width(line) + 1 + width(word) > room:
            out.append(prefix + line)
            line, prefix = word, hanging
        else:
            line = f"{line} {word}" if line else word
    if line or not out:
        out.append(prefix + line)
    return out


def dtype(name: str) -> str:
    """``bfloat16`` as ``bf16``, and so on."""
    return _DTYPES.get(name, name)


def heads(cell: Cell) -> str:
    """Geometry of one rank in a few words: ``16/16 heads of 128``, and what is special."""
    g = cell.geometry
    parts = [f"{g.num_heads}/{g.num_kv_heads} heads of {g.head_size}"]
    if g.mla is not None:
        parts = [f"{g.num_heads} MLA heads, latent {g.mla.kv_lora_rank} + {g.mla.qk_rope_head_dim}"]
    if g.sliding_window:
        parts.append(f"window {g.sliding_window}")
    if g.sinks:
        parts.append("sinks")
    if not g.causal:
        parts.append("non-causal")
    if g.logits_soft_cap:
        parts.append(f"soft cap {g.logits_soft_cap:g}")
    return ", ".join(parts)


def count(number: int, noun: str, plural: str = "") -> str:
    """``1 cell``, ``2 cells``."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def jobs(cells: int, pairs: int) -> str:
    """``2 cells``, ``3 pairs``, ``2 cells, 3 pairs``."""
    if pairs and not cells:
        return count(pairs, "pair")
    return count(cells, "cell") + (f", {count(pairs, 'pair')}" if pairs else "")


def counted(records: Sequence[Record]) -> str:
    """``28 pass (20 compiled, 8 interpreted), 3 wrong``: a pass is never counted without its rung."""
    counts = Counter(r.verdict for r in records)
    rungs = Counter(r.rung for r in records if r.verdict is Verdict.PASS)
    parts = []
    for verdict in Verdict:
        if counts[verdict]:
            part = f"{counts[verdict]:,} {verdict.value}"
            if verdict is Verdict.PASS:
                part += f" ({', '.join(f'{rungs[r]:,} {r.value}' for r in RUNGS if rungs[r])})"
            parts.append(part)
    return ", ".join(parts)


def seconds(value: float) -> str:
    """A duration for people: three figures, ms below one second."""
    if value < 0.9995:
        return f"{value * 1e3:.3g} ms"
    return f"{value:.3g} s" if value < 999.5 else f"{value:.0f} s"


def us(value: float) -> str:
    """Microseconds without their unit, in four figures or whole ones."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def percent(part: float) -> str:
    """A part in percent: whole ones from 10 on, two figures below, so that a small part is not none."""
    value = part * 100
    return f"{value:.0f}%" if abs(value) >= 9.95 or value == 0 else f"{value:.2g}%"


def size(value: float) -> str:
    """Bytes for people, binary units."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.0f} {unit}" if value == int(value) else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")


def header_title(header: Mapping[str, object], *, dated: bool = True) -> str:
    """The run's matrix and preset in one line, and with ``dated`` when it began, as far as its header says."""
    parts = [one_line(header["matrix"], 120)] if header.get("matrix") else []
    if header.get("preset"):
        parts.append(f"preset {one_line(header['preset'], 60)}")
    for key in ("started_at", "created_at", "created", "time"):
        if dated and header.get(key):
            parts.append(one_line(header[key], 40))
            break
    return ", ".join(parts)
