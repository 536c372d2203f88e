"""Runs to the page's model: plain JSON that every script of the page reads as ``capmatrix.data``.

The model of ``n`` records (all records of all runs, sorted by run and cell id)::

    n            how many records
    title        of the runs, one line
    made         version of capmatrix
    runs         [{name, title, matrix, preset, created, capmatrix, records}], as they were given
    environments {id: environment as a run file has it}
    columns      [{name, title, filter, values, packed}]: dictionary-encoded. ``packed`` is
                 [code, length, code, length, ...], runs of equal codes; a record's value is ``values[code]``.
                 Values stand in the order shown; null: unknown; of ``flags``, lists of words.
                 Names: see ``columns.COLUMNS``.
    measures     [{name, title, unit, values}]: a number or null a record (``columns.MEASURES``)
    ids          [shared, rest, shared, rest, ...]: a cell id is the first ``shared`` characters of the one before
                 it and then ``rest``; ``shared`` is 0 at every ``ID_STEP``-th
    id_step      ID_STEP
    point        packed codes: records with one code differ in the target alone, so that one of them decides
    old          packed 0 and 1: 1 where a later run or attempt of the same cell id stands for the record
    chunk        records of an evidence chunk: record ``i`` is entry ``i % chunk`` of chunk ``floor(i / chunk)``
    legend       words and meanings, see ``columns.legend``
    overview     what stands above the tables, see ``overview``
    pairs        [{title, versions, target, models, rows, notes}] of pairs, see ``report.pairs``
    pair_words   {headings, about, legend} of their tables
    extra        {name: JSON of a plug-in}, see ``render.EXTRAS``

Evidence itself is beside the model, compressed: see ``evidence``. Texts are those of records: pages show them as text,
never as markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ... import __version__, store, summary
from ...cell import Environment, Record
from ...grid import Workload
from .. import pairs, table, text
from . import columns, overview
from .columns import Home, packed
from .evidence import CHUNK

#: Every so many records, a cell id stands in full.
ID_STEP = 64

#: A run and the name that the page gives it.
NamedRun = tuple[str, store.Run]


class Model(NamedTuple):
    """``data``: the JSON model; ``records`` in its order, each with its run's header; ``report``: the static tables of
    the runs merged; ``workloads``: the profiles that their times are of."""

    data: dict[str, Any]
    records: list[tuple[Record, Mapping[str, Any]]]
    report: table.Report
    workloads: Mapping[str, Workload]


def build(runs: Sequence[NamedRun], extra: Mapping[str, Any] | None = None) -> Model:
    """The model of named runs, the oldest first; ``extra`` are plug-ins' JSON by name."""
    merged = store.merge([run for _, run in runs])
    report = table.build(merged.records, merged.environments, merged.header, merged.started, merged.pairs)
    workloads = overview.profiles(runs)
    names = _names(runs)
    everything = sorted(
        ((i, record) for i, (_, run) in enumerate(runs) for record in run.records),
        key=lambda item: (item[0], item[1].cell_id),
    )
    records = [record for _, record in everything]
    homes = _homes(records, merged.environments)
    pair_tables = pairs.tables(report.pairs, report.environments, report.expected_pairs)
    current = {id(record) for record in merged.records}
    data = {
        "n": len(records),
        "title": text.header_title(merged.header) if len(runs) == 1 else f"{len(runs)} runs: {', '.join(names)}",
        "made": __version__,
        "runs": [_run(name, run) for name, (_, run) in zip(names, runs, strict=True)],
        "environments": {e.id: msgspec.to_builtins(e) for e in merged.environments.values()},
        "columns": _columns(records, [homes[id(r)] for r in records], [names[i] for i, _ in everything]),
        "measures": _measures(records),
        "ids": front_coded([r.cell_id for r in records]),
        "id_step": ID_STEP,
        "point": packed(_points(records, homes)),
        "old": packed([int(id(r) not in current) for r in records]),
        "chunk": CHUNK,
        "legend": columns.legend(),
        "overview": overview.build(runs, merged, report, workloads),
        "pairs": [
            {"title": t.title, "versions": t.made_of, "target": t.target, "models": t.models, "notes": t.notes,
             "rows": [
                 {"id": row.id, "cells": row.cells, "verdict": row.verdict.value, "note": row.note, "torn": row.torn}
                 for row in t.rows
             ]}
            for t in pair_tables
        ],
        "pair_words": {"headings": pairs.HEADINGS, "about": pairs.ABOUT, "legend": pairs.shown(pair_tables)},
        "extra": dict(extra or {}),
    }  # fmt: skip
    return Model(data, [(record, runs[i][1].header) for i, record in everything], report, workloads)


def _names(runs: Sequence[NamedRun]) -> list[str]:
    """The runs' names, one line each; equal ones numbered."""
    out: list[str] = []
    for name, _ in runs:
        shown = text.one_line(name, 100) or "run"
        number = sum(1 for other in out if other == shown or other.startswith(f"{shown} ("))
        out.append(f"{shown} ({number + 1})" if number else shown)
    return out


def _run(name: str, run: store.Run) -> dict[str, Any]:
    header = run.header
    return {
        "name": name,
        "title": text.header_title(header),
        "matrix": text.one_line(header.get("matrix") or "", 120),
        "preset": text.one_line(header.get("preset") or "", 60),
        "created": text.one_line(store.created(header), 40),
        "capmatrix": text.one_line(header.get("capmatrix") or "", 40),
        "records": len(run.records),
        "unfinished": len(run.started),
    }


def _homes(records: Sequence[Record], environments: Mapping[str, Environment]) -> dict[int, Home]:
    """By ``id`` of a record: whose table it belongs to."""
    out: dict[int, Home] = {}
    for (place, versions), group in table.homes_of(records, environments).items():
        words = ", ".join(f"{name} {version}" for name, version in versions)
        home = Home(text.one_line(place.title, 120), place.architecture, text.one_line(words, 300))
        for record in group:
            out[id(record)] = home
    return out


def _columns(records: Sequence[Record], homes: Sequence[Home], runs: Sequence[str]) -> list[dict[str, Any]]:
    out = []
    given = tuple(dict.fromkeys(runs))
    architectures = tuple(
        sorted({h.title for h in homes}, key=lambda t: (all(h.title != t for h in homes if h.architecture), t))
    )
    for column in columns.COLUMNS:
        found = [column.of(r, h, run) for r, h, run in zip(records, homes, runs, strict=True)]
        known = {"run": given, "arch": architectures}.get(column.name, column.known)
        values, codes = columns.encode(found, known)
        out.append(
            {"name": column.name, "title": column.title, "filter": column.filter, "values": values,
             "packed": packed(codes)}
        )  # fmt: skip
    return out


def _measures(records: Sequence[Record]) -> list[dict[str, Any]]:
    out = []
    for measure in columns.MEASURES:
        values = [measure.of(record) for record in records]
        if any(value is not None for value in values):
            out.append({"name": measure.name, "title": measure.title, "unit": measure.unit, "values": values})
    return out


def _points(records: Sequence[Record], homes: Mapping[int, Home]) -> list[int]:
    codes: dict[tuple[object, ...], int] = {}
    return [codes.setdefault((homes[id(r)], summary.point(r.cell), r.cell.batch), len(codes)) for r in records]


def front_coded(ids: Sequence[str]) -> list[int | str]:
    """Ids as lengths shared with the one before, and rests; every ``ID_STEP``-th in full."""
    out: list[int | str] = []
    before = ""
    for i, name in enumerate(ids):
        shared = 0
        if i % ID_STEP:
            longest = min(len(before), len(name))
            while shared < longest and before[shared] == name[shared]:
                shared += 1
        out += [shared, name[shared:]]
        before = name
    return out
