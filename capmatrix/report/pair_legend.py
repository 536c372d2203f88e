"""What the signs in a table of pairs mean: a line for each that is shown, of fixed words alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

#: vLLM's AttentionCGSupport, the least of both sides' backends (v1/attention/backend.py of vLLM 0.32).
GRAPHS: dict[str, str] = {
    "ALWAYS": "full graphs for every batch, mixed prefill and decode among them",
    "UNIFORM_BATCH": "full graphs where all requests have as many query tokens: decodes, verifies of 1 + k",
    "UNIFORM_SINGLE_TOKEN_DECODE": "full graphs for decodes of one token alone",
    "NEVER": "no full graphs",
}

#: Sign, where it is looked for (headings), the pattern that shows it, and its meaning.
_SIGNS: tuple[tuple[str, tuple[str, ...], str, str], ...] = (
    ("+n", ("target", "drafter"), r" \+\d", "layers of n more backends, which name their own (recurrent, sparse); "
     "capmatrix explain lists them"),
    ("(automatic)", ("target", "drafter"), r"\(automatic\)", "no backend was asked for: vLLM's own choice"),
    ("(inherited)", ("target", "drafter"), r"\(inherited\)", "no backend was asked for: the target's is taken"),
    ("(not X)", ("target", "drafter"), r"\(not ", "X was asked for, and vLLM dropped it"),
    ("auto=x", ("block", "runner"), r"auto=", "no block size or runner was given: vLLM took x"),
    ("native, not native", ("layout",), "native", "whether ROCM_ATTN keeps its native kernels in that layout"),
    *((word, ("graphs",), rf"^{word}$", meaning) for word, meaning in GRAPHS.items()),
    ("set-up passes", ("result",), "^set-up passes", "set up to the KV cache tensors; no call was asked for"),
    ("n/m", ("result",), r"\d/\d", "n of the m calls passed: each batch on the first layer of each kind of attention"),
    ("CONTRADICTION", ("result",), "CONTRADICTION", "what set-up built is known to be wrong, whatever ran; "
     "capmatrix explain has a way round it"),
    ("expected", ("result",), ", expected", "the expectations shipped with capmatrix name this failure"),
)  # fmt: skip


def legend(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[tuple[str, str]]:
    """Sign and meaning of what ``rows`` of cells under ``headings`` show."""
    shown = [dict(zip(headings, row, strict=True)) for row in rows]
    return [
        (sign, meaning)
        for sign, where, pattern, meaning in _SIGNS
        if any(re.search(pattern, cells[heading]) for cells in shown for heading in where)
    ]
