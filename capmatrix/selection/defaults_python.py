"""The default-selection table as a Python mapping that a patch of vLLM can take in as it stands."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from ..drafters import Family
from .defaults import Defaults, Row

_HEAD = '''\
"""Default attention backends by evidence, derived by capmatrix; derive it again rather than edit it.

Keys: (architecture, drafter family, role, block size, KV cache dtype, model dtype). Values: names of
``AttentionBackendEnum``. ``PROVISIONAL`` holds rows for which nothing was executed or served: no default
should change on them.
"""

from __future__ import annotations
'''

_TAIL = '''

def default_backend(
    arch: str, family: str, role: str, block_size: int, kv_cache_dtype: str, dtype: str
) -> str | None:
    """The measured default, or None where there is none: the platform's own order then holds."""
    return DEFAULTS.get((arch, family, role, block_size, kv_cache_dtype, dtype))
'''


def draw(table: Defaults, families: Mapping[str, Family]) -> str:
    """The module's text. Rows without a choice are left out; the geometry of families that are known is given."""
    chosen = [row for row in table.row if row.backend]
    sure = [row for row in chosen if not row.provisional]
    rest = [row for row in chosen if row.provisional]
    out = [_HEAD, f"# Policy {table.policy}, margin {table.margin_percent:g} %."]
    out += [f"# Run {_comment(run.name)}: {run.records} records, digest {run.digest}." for run in table.runs]
    out += [f"# Published: {_comment(name)}." for name in table.published]
    out += ["", *_mapping("DEFAULTS", sure), "", *_mapping("PROVISIONAL", rest), ""]
    out.append("# Geometry of the families, whole model: what tells a drafter apart.")
    out.append("FAMILIES: dict[str, dict[str, object]] = {")
    for key in sorted({row.drafter for row in chosen} & set(families)):
        family = families[key]
        facts = {
            "method": family.method,
            "num_heads": family.num_heads,
            "num_kv_heads": family.num_kv_heads,
            "head_size": family.head_size,
            "sliding_window": family.sliding_window,
            "sinks": family.sinks,
            "causal": family.causal,
        }
        out.append(f"    {_text(key)}: {{")
        out += [f"        {_text(name)}: {_literal(value)}," for name, value in facts.items()]
        out.append("    },")
    out.append("}")
    return "\n".join(out) + "\n" + _TAIL


def _mapping(name: str, rows: list[Row]) -> list[str]:
    head = f"{name}: dict[tuple[str, str, str, int, str, str], str] = {{"
    if not rows:
        return [head + "}"]
    out = [head]
    for row in rows:
        facts = [row.rung, row.decided_by, *row.marks]
        about = f"{', '.join(f for f in facts if f)}: {row.reason}"
        out += textwrap.wrap(_comment(about), 110, initial_indent="    # ", subsequent_indent="    # ")
        out.append(f"    ({', '.join(_literal(part) for part in row.key)}): {_text(row.backend)},")
    return [*out, "}"]


def _comment(text: str) -> str:
    shown = "".join(c if c.isprintable() else " " for c in " ".join(text.split()))
    return shown if len(shown) <= 320 else shown[:317] + "..."


def _text(value: str) -> str:
    shown = ascii(value)
    return f'"{shown[1:-1]}"' if shown[0] == "'" and '"' not in shown else shown


def _literal(value: object) -> str:
    return _text(value) if isinstance(value, str) else repr(value)
