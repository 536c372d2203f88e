"""A recommendation as text."""

from __future__ import annotations

import shlex

from ..selection.recommend import Recommendation, Wanted
from .text import one_line

_LIMIT = 600


def draw(found: Recommendation, wanted: Wanted, default: str = "") -> str:
    """The backend, why, how sure, what fails, and the flags. ``default`` is what vLLM takes by itself, if asked."""
    row = found.row
    asked = f"{wanted.arch}, {wanted.family.key} ({wanted.family.method}), {wanted.kv_cache_dtype}"
    lines = [f"{asked}, block {wanted.block_size or row.block_size}", ""]
    lines.append(f"backend: {row.backend or 'none is known to work'}")
    lines.append(f"why: {one_line(row.reason, _LIMIT)} (policy {row.policy})")
    if row.workload:
        lines.append(f"measured: {one_line(row.workload, _LIMIT)}")
    lines.append(f"how sure: {found.certainty[0]}")
    lines += [f"  {one_line(text, _LIMIT)}" for text in found.certainty[1:]]
    for phase, backend in row.phases.items():
        lines.append(f"  fastest in {phase}: {backend}")
    if found.faster_but_failing:
        lines.append("fails, though it is or may be faster:")
        for other in found.faster_but_failing:
            speed = f", {1 / other.times_best:.2f}x the speed of the fastest" if other.times_best else ""
            lines.append(f"  {other.backend}: {other.why}{speed}: {one_line(other.detail or 'no detail', _LIMIT)}")
    if row.requires:
        lines.append(f"needs: {', '.join(row.requires)}")
    if default:
        lines.append(f"vLLM by itself: {default}")
    if found.flags:
        environment = "".join(f"{n}={shlex.quote(v)} " for n, v in found.environment)
        lines += ["", f"{environment}vllm serve MODEL {shlex.join(found.flags)}"]
    return "\n".join(lines) + "\n"
