"""What stands above the tables: counts, what is not shown, failing regions, disputes and defaults, as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ... import drafters, store
from ...analysis import dispute, regions
from ...grid import Workload
from ...report import cautions
from ...report.defaults import MARKS, WHY
from ...selection import derive as selection
from ...selection import evidence
from ...selection.defaults import Defaults, Row
from .. import table, text

#: Most entries of a list that the page shows.
MOST = 60


def build(
    runs: Sequence[tuple[str, store.Run]], merged: store.Run, report: table.Report, workloads: Mapping[str, Workload]
) -> dict[str, Any]:
    """The overview of ``runs``, whose merged run, tables and workload profiles are given::

    counts     [[verdict, rung, number]], of the merged run
    cautions   [sentence]
    regions    [{rule, backend, verdicts, support, failing, exceptions, passing, exact, rungs, reasons,
               examples, against}]: shortest rules of failing cells; ids in examples and against
    disputes   [{backend, kind, says, ran, edit, examples}]: over- and under-advertised backends
    defaults   {policy, margin, rows, marks, left_out, hints}; of a row what the table of ``derive`` has
    absent     [{target, cells, reason}]: targets on which nothing could be run
    """
    counts = Counter((r.verdict.value, r.rung.value) for r in merged.records)
    return {
        "counts": [[*key, number] for key, number in sorted(counts.items())],
        "cautions": cautions.cautions(report),
        "regions": [_region(rule) for rule in regions.explain(merged.records, merged.environments)[:MOST]],
        "disputes": [_dispute(d) for d in dispute.declarations(merged.records, merged.environments)[:MOST]],
        "defaults": _defaults(runs, workloads),
        "absent": [{"target": a.target, "cells": a.cells, "reason": a.reason} for a in report.absent],
    }


def profiles(runs: Sequence[tuple[str, store.Run]]) -> Mapping[str, Workload]:
    """The shipped workload profiles where any record has times; where none has, nothing asks for them."""
    if not any(record.times for _, run in runs for record in run.records):
        return {}
    from ...selection import workloads  # reads matrix files, which costs a moment

    return workloads.shipped()


def _region(rule: regions.Rule) -> dict[str, Any]:
    where = " and ".join(text.one_line(c, 200) for c in rule.conditions) or "always"
    return {
        "backend": text.one_line(rule.backend, 80),
        "verdicts": rule.verdicts,
        "where": where,
        "exact": rule.exact,
        "support": rule.support,
        "failing": rule.failing,
        "exceptions": rule.exceptions,
        "passing": rule.passing,
        "rungs": rule.rungs,
        "reasons": [text.one_line(reason, 200) for reason in rule.reasons],
        "examples": rule.examples,
        "against": rule.against,
    }


def _dispute(one: dispute.Dispute) -> dict[str, Any]:
    shown = {name: text.one_line(getattr(one, name), 400) for name in ("backend", "kind", "says", "ran", "edit")}
    return {**shown, "examples": one.examples}


def _defaults(runs: Sequence[tuple[str, store.Run]], workloads: Mapping[str, Workload]) -> dict[str, Any]:
    """The default-selection table that ``capmatrix derive`` makes of these runs with its own options."""
    families = drafters.load(drafters.DEFAULT_DIR)
    question = selection.Question(workloads=workloads, families=families)
    made: Defaults = selection.derive(evidence.gather(runs, (), families), question)
    rows = [_row(row) for row in made.row]
    marks = {mark for row in rows for mark in row["marks"]}
    return {
        "policy": made.policy,
        "margin": made.margin_percent,
        "rows": rows,
        "marks": {mark: MARKS.get(mark, "") for mark in sorted(marks)},
        "left_out": made.left_out,
        "hints": made.hints,
    }


def _row(row: Row) -> dict[str, Any]:
    others = [
        {"backend": o.backend, "why": WHY.get(o.why, o.why), "detail": o.detail, "rung": o.rung} for o in row.other
    ]
    keys = (
        "architecture", "drafter", "role", "block_size", "kv_cache_dtype", "dtype", "backend", "reason", "rung",
        "value", "unit", "requires", "switches", "marks", "conflicts", "phases",
    )  # fmt: skip
    return {**{key: msgspec.to_builtins(getattr(row, key)) for key in keys}, "others": others}
