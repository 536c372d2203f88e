"""Writes the pictures of the HTML page in the README, docs/images/table-light.png and -dark.png, with Chromium.

python tools/page_pictures.py
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "browser")]

RUN = "h200-gfx950-drafters"
SHOWN = "#drafter=dflash-qwen3.6-27b,eagle-llama2-7b,gpt-oss-eagle3,qwen3-eagle3-h80&cell="
CELL = "device:gfx950-ROCM_AITER_FA-b128-auto-dflash-qwen3.6-27b-tp1-heads32.8-h128-bf16-mixed.q16"
SIZE = (1640, 830)


def main() -> int:
    """Both pictures, from a run that is in the repository."""
    from devtools import alone

    from capmatrix import store
    from capmatrix.report.page import render

    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        print("needs Chromium", file=sys.stderr)
        return 2
    run = store.read(ROOT / "matrices" / "results" / f"{RUN}.jsonl.gz")
    if CELL not in {record.cell_id for record in run.records}:
        print(f"{RUN} has no cell {CELL}", file=sys.stderr)
        return 2
    with alone(program) as (browser, folder):
        path = folder / "page.html"
        path.write_text(render.render([(RUN, run)]), encoding="utf-8")
        for name, dark in (("light", False), ("dark", True)):
            tab = browser.page(path.as_uri() + SHOWN + CELL, *SIZE, dark=dark)
            tab.until("document.querySelector('#panel .evidence[aria-busy=\"false\"]') !== null")
            tab.screenshot(ROOT / "docs" / "images" / f"table-{name}.png")
            tab.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
