"""How long the HTML page of a large run takes to write, to open in headless Chromium, and to answer.

python benchmarks/page.py [--cells 60000] [--runs 5] [--keep FILE] [--page FILE]

Open is from navigation to the table drawn and the page idle; the other lines are the median of several changes, each
from the call to the next painted frame. Nothing depends on the figures; the aim is to open 60,000 cells in 1.5 s.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from devtools import Browser

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "browser")]

FRAME = "new Promise(done => requestAnimationFrame(() => setTimeout(() => done(performance.now() - start), 0)))"
ACTIONS = {
    "filter by verdict": "capmatrix.setFilter('verdict', [['wrong'], ['error'], ['pass'], []][n % 4])",
    "filter by backend": "capmatrix.setFilter('backend', n % 2 ? [] : ['TRITON_ATTN'])",
    "search": "capmatrix.setQuery(['b128', 'b128 fp8', 'rocm_attn verify', ''][n % 4])",
    "other axes": "capmatrix.setParam('cols', n % 2 ? '' : 'arch,block_size')",
    "list": "capmatrix.setView(n % 2 ? 'table' : 'list')",
    "sort the list": "capmatrix.setView('list'); "
    "capmatrix.setParam('sort', ['-compile_s', 'verdict', 'reason', ''][n % 4])",
    "scroll the list": "document.querySelector('.list').scrollTop = n * 90000",
    "open a cell": "capmatrix.open(n * 1000)",
}


def main() -> int:
    """Print sizes and times."""
    from devtools import alone

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--cells", type=int, default=60000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="also write the page there")
    parser.add_argument("--page", type=Path, help="open this page instead of writing one")
    chosen = parser.parse_args()
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        print("needs Chromium", file=sys.stderr)
        return 2
    with alone(program) as (browser, folder):
        path = chosen.page.resolve() if chosen.page else written(folder / "large.html", chosen.cells)
        if chosen.keep:
            shutil.copyfile(path, chosen.keep)
        measure(browser, path, chosen.runs)
    return 0


def written(path: Path, cells: int) -> Path:
    """Write a page of so many cells; prints its size and what it took."""
    import many_records

    from capmatrix.report.page import render

    run = many_records.run(cells)
    start = time.process_time()
    page = render.render([("large", run)])
    print(f"{len(run.records):,} cells, {len(page) / 1e6:.1f} MB, {time.process_time() - start:.1f} s of a core")
    path.write_text(page, encoding="utf-8")
    return path


def measure(browser: Browser, path: Path, runs: int) -> None:
    """Open the page ``runs`` times and use the last one; prints times."""
    opened = []
    for left in reversed(range(runs)):
        tab = browser.page("about:blank#blank")
        start = time.perf_counter()
        tab.send("Page.navigate", url=path.as_uri())
        tab.until("document.documentElement?.dataset.ready === 'true'")
        tab.js(f"(() => {{ const start = performance.now(); return {FRAME}; }})()")
        opened.append(time.perf_counter() - start)
        inner = tab.js("performance.getEntriesByType('navigation')[0].loadEventEnd")
        if left:
            tab.close()
    shown = ", ".join(f"{t:.2f}" for t in opened)
    print(f"open: {statistics.median(opened):.2f} s ({shown}); load event {inner:.0f} ms")
    print(f"nodes: {tab.js('document.querySelectorAll(`*`).length'):,}")
    for name, action in ACTIONS.items():
        times = []
        for n in range(8):
            code = f"(() => {{ const n = {n}, start = performance.now(); {action}; return {FRAME}; }})()"
            times.append(tab.js(code))
        print(f"{name}: {statistics.median(times):.0f} ms (slowest {max(times):.0f})")
        tab.js("capmatrix.close(); capmatrix.clearFilters(); capmatrix.setView('table')")
    heap = tab.js("performance.memory.usedJSHeapSize") / 1e6
    print(f"heap: {heap:.0f} MB; problems: {tab.problems() or 'none'}")


if __name__ == "__main__":
    os.nice(10)
    raise SystemExit(main())
