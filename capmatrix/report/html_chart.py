"""A small bar chart as inline SVG: how many cells got which verdict, by backend."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape

from ..cell import Record, Rung, Verdict
from . import text

_LABEL = 210
_BAR = 430
_ROW = 26
_HEIGHT = 18
#: Digits and spaces of 12 px text; a segment narrower than its count shows none (its title does).
_DIGIT = 8

Key = tuple[Verdict, bool]


def verdict_chart(records: Sequence[Record]) -> str:
    """An ``<svg>`` of one bar a backend, its segments in the order of the verdict list; "" without records.

    A pass that ran nothing (declared) or only compiled is hatched, so that it does not look like one whose
    numbers were checked. Every segment has a title with backend, count and verdict in words.
    """
    backends = list(dict.fromkeys(text.one_line(r.cell.backend, 60) for r in records))
    if not backends:
        return ""
    counts: dict[str, Counter[Key]] = {b: Counter() for b in backends}
    for r in records:
        weak = r.verdict is Verdict.PASS and r.rung in (Rung.DECLARED, Rung.COMPILED)
        counts[text.one_line(r.cell.backend, 60)][r.verdict, weak] += 1
    longest = max(sum(c.values()) for c in counts.values())
    width, height = _LABEL + _BAR + 50, _ROW * len(backends) + 8
    out = [
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        'aria-label="Cells by verdict and backend">',
        '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect width="6" height="6" style="fill:var(--pass-bg)"/>'
        '<rect width="2" height="6" style="fill:var(--pass);opacity:.45"/></pattern></defs>',
    ]
    for i, backend in enumerate(backends):
        top = 4 + i * _ROW
        middle = top + _HEIGHT - 5
        out.append(f'<text class="end" x="{_LABEL - 8}" y="{middle}">{escape(backend)}</text>')
        left = float(_LABEL)
        for key in _keys():
            number = counts[backend][key]
            if not number:
                continue
            verdict, weak = key
            length = _BAR * number / longest
            words = f"{backend}: {text.count(number, 'cell')} {verdict.value}{_weak_words(weak)}"
            fill = "url(#hatch)" if weak else f"var(--{verdict.value}-bg)"
            out.append(
                f'<g><title>{escape(words)}</title><rect x="{left:.1f}" y="{top}" width="{length:.1f}" '
                f'height="{_HEIGHT}" style="fill:{fill};stroke:var(--{verdict.value})"/>'
            )
            if length > _DIGIT * len(str(number)) + 4:
                out.append(f'<text class="n" x="{left + length / 2:.1f}" y="{middle}">{number}</text>')
            out.append("</g>")
            left += length
        total = sum(counts[backend].values())
        out.append(f'<text x="{left + 8:.1f}" y="{middle}">{total}</text>')
    out.append("</svg>")
    return "".join(out)


def chart_keys(records: Sequence[Record]) -> list[tuple[Verdict, bool, str]]:
    """What the chart's fills mean: verdict, hatched or not, words; those that occur."""
    seen = {(r.verdict, r.verdict is Verdict.PASS and r.rung in (Rung.DECLARED, Rung.COMPILED)) for r in records}
    return [(v, weak, f"{v.value}{_weak_words(weak)}") for v, weak in _keys() if (v, weak) in seen]


def _keys() -> list[Key]:
    return [(Verdict.PASS, False), (Verdict.PASS, True), *((v, False) for v in Verdict if v is not Verdict.PASS)]


def _weak_words(weak: bool) -> str:
    return ", numbers not checked" if weak else ""
