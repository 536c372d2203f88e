"""What a record says of a time beside the time itself, in words."""

from __future__ import annotations

from ..cell import Timing
from . import text


def timing_facts(t: Timing) -> list[tuple[str, str]]:
    """Names and one printable line each: rounds, metadata, bandwidth, clocks, conditions; only what is recorded."""
    out = []
    if t.rounds:
        said = ", ".join(map(text.us, t.rounds))
        out.append(("rounds", f"{said} us{'; drifted: the interval was widened for them' if t.drifted else ''}"))
    if t.metadata_us is not None:
        waits = t.metadata_synchronisations
        counted = "" if waits is None else f", {text.count(waits, 'synchronisation')}"
        out.append(("metadata build", f"{text.us(t.metadata_us)} us on the host{counted}"))
    if t.host_us is not None:
        out.append(("call", f"{text.us(t.host_us)} us on the host, no part of the time"))
    if t.bandwidth_tb_s is not None:
        out.append(("bandwidth", f"{t.bandwidth_tb_s:.3g} TB/s moved in the same process"))
    for name, (low, high) in sorted(t.clocks.items()):
        out.append((name.replace("_", " "), f"{low:g}" if low == high else f"{low:g} to {high:g}"))
    if t.gpu:
        out.append(("gpu", t.gpu))
    if t.requests:
        out.append(("requests", f"{t.requests:,}"))
    if t.detail:
        # As records of before say it.
        out.append(("conditions", t.detail.replace("would run this batch NONE", "would run this batch eagerly")))
    return [(text.one_line(name, 60), text.one_line(line, 400)) for name, line in out]
