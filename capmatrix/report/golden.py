"""What changed between two snapshots of vLLM's choices, as text."""

from __future__ import annotations

from collections.abc import Sequence

from ..guard.golden import Change, Snapshot
from .text import one_line


def draw(old: Snapshot, new: Snapshot, changes: Sequence[Change], path: str) -> str:
    """One entry a change, with the settings it holds in; the count last."""
    lines = [f"vllm {old.vllm} ({path}) -> vllm {new.vllm}"]
    if old.aiter and not new.aiter:
        lines.append("no AITER was asked for: the lines with one are not compared")
    lines += [""] if changes else []
    for change in changes:
        lines.append(f"{one_line(change.layer)}: {change.old} -> {change.new}")
        lines.append(f"  {', '.join(change.settings)}")
    lines += ["", f"{len(changes)} changes" if changes else "no choice changed"]
    return "\n".join(lines) + "\n"
