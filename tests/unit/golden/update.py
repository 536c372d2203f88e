"""Writes the golden files of report tests anew: ``python tests/unit/golden/update.py``, then read the diff."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[2])]

import samples  # noqa: E402

from capmatrix.report import explain, markdown, terminal  # noqa: E402


def outputs() -> dict[str, str]:
    """File name to text."""
    records, environments, header = samples.seed_run()
    rich = samples.rich_record()
    return {
        "seed.txt": terminal.render(records, environments, header, width=100),
        "seed.md": markdown.render(records, environments, header),
        "explain.txt": explain.explain(rich.cell_id, [rich], environments, header),
    }


if __name__ == "__main__":
    for name, content in outputs().items():
        (HERE / name).write_text(content, encoding="utf-8")
        print(HERE / name)
