"""What the page's comparison needs of every record beside its columns: environment, route and measured times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ... import store
from .columns import packed


def extra(runs: Sequence[tuple[str, store.Run]]) -> dict[str, Any]:
    """Of the model's records, in its order (by run, then by cell id)::

    environments  [id]: what ``environment`` counts in
    environment   packed codes
    route         packed codes: equal where the same kernels ran in the same order; 0 where none is recorded
    times         {record: [[phase, workload, median, low, high in microseconds], ...]}
    """
    records = [r for _, run in runs for r in sorted(run.records, key=lambda r: r.cell_id)]
    environments: dict[str, int] = {}
    routes: dict[tuple[tuple[str, str], ...], int] = {(): 0}
    ran = [tuple((kernel.phase, kernel.name) for kernel in record.route) for record in records]
    environment = [environments.setdefault(record.environment, len(environments)) for record in records]
    return {
        "environments": list(environments),
        "environment": packed(environment),
        "route": packed([routes.setdefault(route, len(routes)) for route in ran]),
        "times": {
            str(i): [[t.phase, t.workload, t.median_us, t.low_us, t.high_us] for t in record.times]
            for i, record in enumerate(records)
            if record.times
        },
    }
