"""What is declared, documented and published, held against what ran: who says what, what ran, and the edit.

Three parties: the backend's own declaration (claims in the records), vLLM's generated table of backends
(docs/design/attention_backends.md), and published results. A cell contradicts the first two only where it told
something: passed, or failed; refusals and missing hardware say nothing here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from .. import summary
from ..cell import Environment, Force, Record, Verdict
from ..errors import InputError
from ..selection.published import UNKNOWN, Published
from . import declaration_lines, regions

#: Largest document read, in bytes.
MAX_BYTES = 4 << 20

_COLUMNS = {
    "Backend": "backend",
    "Dtypes": "dtype",
    "KV Dtypes": "kv_cache_dtype",
    "Block Sizes": "block",
    "Head Sizes": "head_size",
    "Sink": "sinks",
}
_TITLES = {value: key for key, value in _COLUMNS.items()}
_DTYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}


class Dispute(msgspec.Struct, frozen=True, order=True):
    """One contradiction. ``says``: the declaration, with its place. ``ran``: what records show, and how many.
    ``edit``: the change that would settle it. ``examples``: ids."""

    backend: str
    kind: str
    says: str
    ran: str
    edit: str
    examples: tuple[str, ...] = ()


class Documented(msgspec.Struct, frozen=True):
    """One row of vLLM's table. Columns as ``_COLUMNS`` names them; ``line`` in the file."""

    backend: str
    cells: dict[str, str]
    line: int


class Document(msgspec.Struct, frozen=True):
    """The rows of a document's support tables, by backend (a backend may have several rows)."""

    path: str
    rows: dict[str, tuple[Documented, ...]]


def load_docs(path: str | Path) -> Document:
    """Reads the Markdown file. Raises InputError where it holds no support table."""
    path = Path(path)
    try:
        raw = path.read_bytes()[: MAX_BYTES + 1]
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", file=path) from None
    if len(raw) > MAX_BYTES:
        raise InputError(f"larger than {MAX_BYTES >> 20} MiB", file=path)
    return parse_docs(raw.decode("utf-8", "replace"), str(path))


def parse_docs(text: str, path: str) -> Document:
    """The tables of ``text`` that have the columns Backend, KV Dtypes and Block Sizes."""
    rows: dict[str, list[Documented]] = {}
    heads: list[str] = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line.startswith("|"):
            heads = []
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if {"Backend", "KV Dtypes", "Block Sizes"} <= set(cells):
            heads = cells
        elif heads and len(cells) == len(heads) and not set(line) <= set("|-: "):
            found = {_COLUMNS[h]: c for h, c in zip(heads, cells, strict=True) if h in _COLUMNS}
            name = found.pop("backend").strip("`* ")
            rows.setdefault(name, []).append(Documented(name, found, number))
    if not rows:
        allowed = ["a table with the columns Backend, KV Dtypes, Block Sizes"]
        raise InputError("no support table of attention backends in it", file=path, allowed=allowed)
    return Document(path, {name: tuple(found) for name, found in rows.items()})


def accepts(column: str, text: str, value: object) -> bool | None:
    """Whether a column's text takes ``value``; None where the text is not understood."""
    words = [w.strip().strip("`") for w in text.split(",")]
    if text.strip() in ("Any", "All"):
        return True
    if column == "dtype":
        return value in [_DTYPES.get(w, w) for w in words]
    if column == "kv_cache_dtype":
        return value in words
    if column == "sinks":
        return True if value is False else "✅" in text or (False if "❌" in text else None)
    if not isinstance(value, int):
        return None
    multiples = [int(w[1:]) for w in words if re.fullmatch(r"%\d+", w)]
    numbers = [int(w) for w in words if w.isdecimal()]
    if len(multiples) + len(numbers) != len(words):
        return None
    return value in numbers or any(n and value % n == 0 for n in multiples)


def _told(records: Iterable[Record]) -> dict[str, list[Record]]:
    out: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda r: (r.cell_id, r.environment)):
        if record.verdict is Verdict.PASS or record.verdict in summary.FAILED:
            out.setdefault(record.cell.backend, []).append(record)
    return out


def declarations(records: Iterable[Record], environments: Mapping[str, Environment]) -> tuple[Dispute, ...]:
    """Over- and under-advertised backends, by the rule that covers the cells, with the declaration's source line."""
    out = []
    found = list(records)
    for backend, told in _told(found).items():
        over = [r for r in told if summary.over_advertised(r)]
        under = [r for r in told if summary.under_advertised(r)]
        for kind, hits in (("over-advertised", over), ("under-advertised", under)):
            if not hits:
                continue
            contrary = [r for r in told if (r.verdict is Verdict.PASS) == (kind == "over-advertised")]
            known = [regions.facts(r, environments.get(r.environment)) for r in (*hits, *contrary)]
            for conditions in regions.find(known, [True] * len(hits) + [False] * len(contrary)):
                covered = [r for r, f in zip(hits, known, strict=False) if all(c.holds(f) for c in conditions)]
                out.append(_declared(backend, kind, conditions, covered))
    return tuple(sorted(out))


def _declared(backend: str, kind: str, conditions: Sequence[regions.Condition], hits: Sequence[Record]) -> Dispute:
    where = " and ".join(map(str, conditions)) or "everywhere"
    features = [c.feature for c in conditions if c.feature in declaration_lines.MEMBERS]
    lines = [declaration_lines.line(backend, feature) for feature in features or [""]]
    place = ", ".join(dict.fromkeys(line for line in lines if line)) or "its declaration (vLLM is not installed here)"
    if kind == "over-advertised":
        says, verb, edit = f"supported, by {place}", "fail", f"declare it unsupported where {where}, or repair it"
    else:
        reasons = sorted({reason for r in hits for reason in _refusals(r)})
        says = f"refused ({'; '.join(reasons) or 'no reason given'}), by {place}"
        verb, edit = "pass with validation forced", f"declare it supported where {where}"
    return Dispute(backend, kind, says, f"{_counted(hits)} {verb} where {where}", edit, _ids(hits))


def _refusals(record: Record) -> list[str]:
    for claim in record.claims:
        if claim.layer == "validation":
            return [str(r) for r in claim.data.get("reasons", ())] or [claim.detail]
    return []


def _counted(hits: Sequence[Record]) -> str:
    rungs = sorted({r.rung for r in hits}, key=summary.strength)
    return f"{len(hits)} cell{'s' if len(hits) != 1 else ''} ({', '.join(r.value for r in rungs)})"


def _ids(hits: Sequence[Record]) -> tuple[str, ...]:
    return tuple(r.cell_id for r in hits[:3])


def _values(record: Record) -> dict[str, object]:
    cell = record.cell
    return {
        "dtype": cell.dtype,
        "kv_cache_dtype": cell.kv_cache_dtype,
        "block": record.cell.kernel_block or record.kernel_block or cell.block_size,
        "head_size": cell.geometry.head_size,
        "sinks": cell.geometry.sinks,
    }


def documents(
    document: Document, records: Iterable[Record], environments: Mapping[str, Environment]
) -> tuple[Dispute, ...]:
    """Where vLLM's own table and the records disagree, value by value.

    A documented value is disputed where every cell with it that the row allows otherwise failed; an undocumented
    one where a cell passes that only this value keeps out. A block is held to the table as the kernels got it.
    """
    out = []
    for backend, told in _told(records).items():
        rows = document.rows.get(backend)
        if rows is None:
            passing = [r for r in told if r.verdict is Verdict.PASS]
            if passing:
                says, ran = f"{document.path} has no row for it", f"{_counted(passing)} pass"
                out.append(Dispute(backend, "undocumented", says, ran, "add a row", _ids(passing)))
            continue
        if len(rows) > 1:
            continue  # rows for variants that a record does not name
        out += _against_row(document, rows[0], told)
    return tuple(sorted(out))


def _against_row(document: Document, row: Documented, told: Sequence[Record]) -> list[Dispute]:
    out = []
    refused: dict[tuple[str, object], list[Record]] = {}
    allowed: dict[tuple[str, object], list[Record]] = {}
    for record in told:
        values = _values(record)
        answers = {c: accepts(c, row.cells[c], v) for c, v in values.items() if c in row.cells}
        no = [c for c, answer in answers.items() if answer is False]
        if len(no) == 1:
            refused.setdefault((no[0], values[no[0]]), []).append(record)
        elif not no:
            for column, answer in answers.items():
                if answer:
                    allowed.setdefault((column, values[column]), []).append(record)
    place = f"{document.path}:{row.line}"
    for (column, value), hits in refused.items():
        passing = [r for r in hits if r.verdict is Verdict.PASS]
        if passing:
            says = f"{place}, {_TITLES.get(column, column)}: {row.cells[column]}"
            forced = " when forced" if all(r.cell.force is not Force.NONE for r in passing) else ""
            ran = f"{_counted(passing)} with {_shown(column, value)} pass{forced}"
            edit = _edit("add", column, value)
            out.append(Dispute(row.backend, "documented too little", says, ran, edit, _ids(passing)))
    for (column, value), hits in allowed.items():
        failing = [r for r in hits if r.verdict in summary.FAILED]
        # Where the backend fails whatever the value, the value is not to blame.
        rest = [r for (c, v), rs in allowed.items() if c == column and v != value for r in rs]
        if failing and len(failing) == len(hits) and any(r.verdict is Verdict.PASS for r in rest):
            says = f"{place}, {_TITLES.get(column, column)}: {row.cells[column]}"
            ran = f"every one of {_counted(failing)} with {_shown(column, value)} fails"
            edit = _edit("remove", column, value)
            out.append(Dispute(row.backend, "documented too much", says, ran, edit, _ids(failing)))
    return out


def _shown(column: str, value: object) -> str:
    if column == "sinks":
        return "sinks"
    return f"{'kernel block' if column == 'block' else column.replace('_', ' ')} {value}"


def _edit(verb: str, column: str, value: object) -> str:
    if column == "sinks":
        return f"mark {_TITLES[column]} {'✅' if verb == 'add' else '❌'}"
    short = next((k for k, v in _DTYPES.items() if v == value), value) if column == "dtype" else value
    return f"{verb} {short} {'to' if verb == 'add' else 'from'} {_TITLES.get(column, column)}"


def published(
    tables: Sequence[Published], records: Iterable[Record], environments: Mapping[str, Environment]
) -> tuple[Dispute, ...]:
    """Published results that the records of the same drafter, block, KV dtype and backend contradict."""
    out = []
    found = list(records)
    told = _told(found)
    silent = [r for r in found if r.verdict is Verdict.UNVERIFIED]
    for table in tables:
        for result in table.results:
            same = [r for r in told.get(result.backend, []) if _matches(table, r, environments)]
            bad = [r for r in same if r.verdict in summary.FAILED]
            says = f"{table.source}: {result.status}{': ' + result.reason if result.reason else ''}"
            if result.status == "pass" and bad:
                edit = "measure the failing batches under that stack, or correct the recipe"
                ran = f"{_counted(bad)} fail"
                out.append(Dispute(result.backend, "published as working", says, ran, edit, _ids(bad)))
            elif result.status != "pass" and same and not bad:
                blocks = sorted({r.kernel_block for r in same if r.kernel_block})
                as_blocks = f" as kernel blocks of {', '.join(map(str, blocks))}" if blocks else ""
                edit = "serve it again with these versions"
                ran = f"{_counted(same)} pass{as_blocks}"
                untold = [r for r in silent if r.cell.backend == result.backend and _matches(table, r, environments)]
                ran += f"; {len(untold)} more cannot be told here" if untold else ""
                out.append(Dispute(result.backend, "published as failing", says, ran, edit, _ids(same)))
    return tuple(sorted(set(out)))


def _matches(table: Published, record: Record, environments: Mapping[str, Environment]) -> bool:
    cell = record.cell
    place = summary.place(record, environments.get(record.environment))
    return (
        bool(table.drafter)
        and cell.force is Force.NONE
        and (cell.drafter, cell.role, cell.block_size) == (table.drafter, table.role, table.block_size)
        and cell.kv_cache_dtype == table.kv_cache_dtype
        and (table.tp is None or cell.tp == table.tp)
        and table.arch in (UNKNOWN, place.architecture)
    )
