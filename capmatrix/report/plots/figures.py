"""Every figure that runs and published results have data for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...cell import Environment, Record
from ...grid import Workload
from ...selection.published import Published
from . import kernels, roofline, times
from . import published as published_plot
from .evidence import Sources
from .figure import Figure


def figures(
    records: Iterable[Record],
    environments: Mapping[str, Environment],
    published: Sequence[Published] = (),
    *,
    workloads: Mapping[str, Workload] | None = None,
) -> list[Figure]:
    """All figures that have data, in the order of a page; empty where there is nothing to draw.

    ``workloads`` are the profiles that times were measured under, by name (``selection.workloads.shipped``): a
    roofline shows a prefill only where its profile is among them. The order of records and tables changes nothing.
    """
    found = sorted(records, key=lambda r: r.cell_id)
    taken: set[str] = set()
    sources = Sources(environments)
    return [
        *published_plot.draw(published, taken),
        *times.draw(found, sources, taken),
        *roofline.draw(found, sources, workloads or {}, taken),
        *kernels.draw(found, sources, taken),
    ]
