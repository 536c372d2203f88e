"""The default-selection table as Markdown: what to pick, how sure, and why not the rest."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..selection.defaults import Defaults, Other, Row
from .markdown import code, code_in_table

#: What each mark of a row means.
MARKS: dict[str, str] = {
    "provisional": "nothing was executed or served for the choice: it compiled, or was interpreted",
    "incomplete": "a batch that the role needs has no record",
    "unrepeated": "rests on one unrepeated serving run",
    "gpu not stated": "rests on a published result whose source does not state the GPU",
    "conflict": "evidence contradicts it; see below the table",
    "kept": "the earlier table's default: what speaks against it is not enough",
    "carried": "the earlier table's row: no evidence on it now",
    "stale": "its evidence is older than asked for, or of an older vLLM",
}

#: How ``Other.why`` is worded.
WHY: dict[str, str] = {
    "slower": "slower",
    "heavier": "as good within the margin, but heavier",
    "behind": "equal by what is known",
    "failed": "failed",
    "rejected": "rejected",
    "barred": "barred",
    "unverified": "unverified",
    "unavailable": "unavailable",
    "incomplete": "incomplete",
    "weaker": "weaker evidence",
    "unmeasured": "not measured, where others are",
    "kept": "would win, but the earlier default is kept",
    "not run": "not run",
}


def draw(table: Defaults) -> str:
    """The table as Markdown, a section an architecture; stale choices are struck out."""
    out = ["## Default attention backends", ""]
    weighed = f", weighed by the workload {code(table.workload)}" if table.workload else ""
    out.append(f"Policy {code(table.policy)}, margin {table.margin_percent:g} %{weighed}.")
    for architecture in dict.fromkeys(row.architecture for row in table.row):
        rows = [row for row in table.row if row.architecture == architecture]
        out += ["", f"### {code(architecture)}", "", *_rows(rows)]
    if not table.row:
        out += ["", "No evidence enters any row."]
    marks = {mark for row in table.row for mark in row.marks}
    if marks:
        out += ["", *(f"- **{mark}**: {text}" for mark, text in MARKS.items() if mark in marks)]
    if table.left_out:
        out += ["", "Left out:", "", *(f"- {code(text)}" for text in table.left_out)]
    if table.hints:
        out += ["", "Hints (no default rests on these):", "", *(f"- {code(text, 400)}" for text in table.hints)]
    out += ["", *_inputs(table)]
    return "\n".join(out) + "\n"


def _rows(rows: list[Row]) -> list[str]:
    out = ["| Drafter | Block | KV cache | Default | Why | Evidence | Why not the others |", "|---" * 7 + "|"]
    notes: list[str] = []
    for row in rows:
        chosen = code_in_table(row.backend) if row.backend else "none"
        if row.switches:
            chosen += f"<br>with {code_in_table(' '.join(row.switches))}"
        if row.phases:
            chosen += "<br>by phase: " + ", ".join(f"{_word(p)} {code_in_table(b)}" for p, b in row.phases.items())
        if row.stale:
            chosen = f"~~{chosen}~~<br>stale: {code_in_table(row.stale, 120)}"
        who = f"{code_in_table(row.drafter)}<br>{_word(row.role)}, {code_in_table(row.dtype)}"
        cells = (
            who,
            str(row.block_size),
            code_in_table(row.kv_cache_dtype),
            chosen,
            _why(row),
            _evidence(row),
            "<br>".join(_other(other) for other in row.other) or " ",
        )
        out.append(f"| {' | '.join(cells)} |")
        about = f"{row.drafter}, block {row.block_size}, {row.kv_cache_dtype}"
        notes += [f"- {code(about)}: {code(text, 500)}" for text in row.conflicts]
    if notes:
        out += ["", "Conflicting evidence:", "", *notes]
    return out


def _why(row: Row) -> str:
    text = code_in_table(row.reason, 240)
    if row.value is not None:
        text += f"<br>{row.value:g} {code_in_table(row.unit)}"
    if row.margin_low_percent is not None and row.margin_high_percent is not None:
        text += f"<br>margin {row.margin_low_percent:+g} to {row.margin_high_percent:+g} %"
    return text


def _evidence(row: Row) -> str:
    parts = [_word(row.rung)] if row.rung else []
    parts += [f"**{_word(mark)}**" for mark in row.marks]
    if row.versions.get("vllm"):
        parts.append(f"vllm {code_in_table(row.versions['vllm'])}")
    if row.dated_to:
        days = dict.fromkeys(_word(day) for day in (row.dated_from, row.dated_to) if day)
        parts.append(" to ".join(days))
    return "<br>".join(parts) or " "


def _word(text: str) -> str:
    """A word or a day as it is; anything else, which a table of this version does not have, as code."""
    return text if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9 ._:-]{0,60}", text) else code_in_table(text)


def _other(other: Other) -> str:
    text = f"{code_in_table(other.backend)}: {WHY.get(other.why) or _word(other.why)}"
    if other.detail:
        text += f", {code_in_table(other.detail, 160)}"
    return text


def _inputs(table: Defaults) -> Iterable[str]:
    out = ["<details><summary>Made from</summary>", ""]
    out += [f"- {code(run.name)}: {run.records:,} records, digest {code(run.digest)}" for run in table.runs]
    out += [f"- published: {code(name)}" for name in table.published]
    if table.previous:
        out.append(f"- held against {code(table.previous)}")
    return [*out, "", "</details>"]
