"""A published comparison as Markdown, in the form it was published in, the improvement computed."""

from __future__ import annotations

import msgspec

from ..cell import Role
from ..selection.measures import load_text
from ..selection.published import METRICS, READ, UNKNOWN, Load, Published, Result, deciding_metric, improvement_percent
from .markdown import code, code_in_table

NOT_GIVEN = "n/a"
BASELINE = "baseline"


def draw(table: Published) -> str:
    """The whole table: what was compared and where, a row a backend, the command. Ends with a newline."""
    out = [f"## {code(table.title)}", ""]
    out += [f"- {line}" for line in _about(table)]
    loads = {_load_key(r.load): r.load for r in table.results}
    for name, load in loads.items():
        rows = tuple(r for r in table.results if _load_key(r.load) == name)
        out += ["", f"{code(_load_words(load))}:", "", *_rows(table, rows)]
    if table.command:
        out += ["", "```sh", *table.command.replace("```", "'''").splitlines(), "```"]
    if table.notes:
        out += ["", code(table.notes, 2000)]
    return "\n".join(out) + "\n"


def _about(table: Published) -> list[str]:
    where = code(table.source) + (f" ({table.url})" if table.url else "")
    lines = [f"Source: {where}, {table.date}" + ("" if table.read == READ[0] else f"; read {table.read}")]
    lines.append(f"Stack: {code(table.stack, 500)}")
    gpu = "GPU not stated" if table.arch == UNKNOWN else table.arch
    lines.append(f"Hardware: {code(table.hardware, 300)} ({gpu})")
    models = [f"target {code(table.model)}"] if table.model else []
    models += [f"draft {code(table.draft_model)}"] if table.draft_model else []
    if models:
        lines.append("Models: " + ", ".join(models))
    shared = [f"TP {table.tp}"] if table.tp else []
    shared.append(f"block size {table.block_size}" if table.block_size else "block size not stated")
    shared.append(f"KV cache {table.kv_cache_dtype or 'dtype not stated'}")
    shared.append(f"model dtype {table.dtype or 'not stated'}")
    lines.append("Shared: " + code(", ".join(shared)))
    return lines


def _load_key(load: Load) -> bytes:
    return msgspec.json.encode(load)


def _load_words(load: Load) -> str:
    text = load_text(load)
    if load.prompts:
        text += f", {load.prompts} prompts"
    if load.dataset and load.dataset not in text:
        text += f", {load.dataset}"
    return text


def _rows(table: Published, rows: tuple[Result, ...]) -> list[str]:
    columns = [key for key in METRICS if any(key in r.figures for r in rows)]
    metric = deciding_metric(rows, table.compare)
    base = next((r.figures[metric] for r in rows if r.backend == table.baseline and metric in r.figures), None)
    heads = ["Drafter backend" if table.role is Role.DRAFTER else "Backend", "Status"]
    if any(r.variant for r in rows):
        heads.insert(1, "With")
    heads += [METRICS[key].title for key in columns]
    if base is not None:
        heads.append(f"Improvement vs {table.baseline}")
    out = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    based = False
    for row in rows:
        cells = [row.backend, row.status if row.status == "pass" else row.reason.replace("|", "\N{BROKEN BAR}")]
        if "With" in heads:
            cells.insert(1, code_in_table(row.variant, 120))
        cells += [_figure(key, row.figures.get(key)) for key in columns]
        if base is not None:
            first = row.backend == table.baseline and not based
            based = based or first
            value = row.figures.get(metric)
            cells.append(BASELINE if first else improvement(metric, value, base))
        out.append(f"| {' | '.join(' '.join(c.split()) for c in cells)} |")
    return out


def improvement(metric: str, value: float | None, baseline: float) -> str:
    """``+241.44%``; ``n/a`` where there is no figure."""
    return NOT_GIVEN if value is None else f"{improvement_percent(metric, value, baseline):+.2f}%"


def _figure(key: str, value: float | None) -> str:
    if value is None:
        return NOT_GIVEN
    text = f"{value:.{METRICS[key].decimals}f}"
    return f"{text}%" if key == "acceptance_percent" else text
