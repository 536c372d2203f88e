"""The page in a browser: tiles, filters, search, list, keys, links, evidence, hostile text, and 60,000 cells."""

from __future__ import annotations

import contextlib
import json
import random
import time
from pathlib import Path
from typing import Any

import many_records
import msgspec
import pytest
import samples
from devtools import Browser, Open, Page, PageError
from samples import cell, environment, record

from capmatrix import store, summary
from capmatrix.cell import Flag, Record, Role, Rung, Timing, Verdict
from capmatrix.report.page import render
from capmatrix.report.rerun import commands
from capmatrix.report.table import build

pytestmark = pytest.mark.browser


def seed(*more: Record) -> store.Run:
    records, environments, header = samples.seed_run()
    return store.Run({**header, "files": ["eagle3-llama.toml"]}, environments, [*records, *more])


def tiles(tab: Page) -> list[list[str]]:
    """Label and classes of every tile on the page."""
    found: list[list[str]] = tab.js("[...document.querySelectorAll('td.t')].map(t => [t.ariaLabel, t.className])")
    return found


def panel(tab: Page) -> str:
    """The text of the evidence that is shown, once it is there."""
    tab.until("document.querySelector('#panel .evidence[aria-busy=\"false\"]') !== null")
    found: str = tab.js("document.getElementById('panel').innerText")
    return found


def address(tab: Page) -> str:
    found: str = tab.js("decodeURIComponent(location.hash)")
    return found


# Tiles


def test_tiles_say_what_the_static_table_says(opened: Open) -> None:
    run = seed()
    tab = opened(run)
    expected = {}
    for table in build(run.records, run.environments).tables:
        for group, rows in table.groups.items():
            for row in rows:
                for column in table.columns:
                    entry = table.entry(group, row, column)
                    where = (table.place.title, row.backend, column.block_size, column.kv_cache_dtype)
                    found = entry.summary
                    assert found is not None
                    marks = sorted(f.value for f in entry.marks)
                    part = f"{entry.ran}/{entry.expected}" if entry.partial else ""
                    expected[where] = (found.verdict.value, found.rung.value, marks, part, entry.kernel_block)
    shown = tab.js(
        """[...document.querySelectorAll('section.home:not(.absent) td.t')].map(t => {
        const i = t.tile.found.deciding, v = name => capmatrix.value(name, i), f = t.tile.found;
        const part = (t.innerText.match(/\\d+\\/\\d+/) || [''])[0], k = (t.innerText.match(/k(\\d+)/) || [])[1];
        const marks = [...f.flags].filter(x => capmatrix.data.legend.marks.some(m => m.name === x)).sort();
        const home = t.closest('section').querySelector('h2');
        return [[home.innerText, v('backend'), v('block_size'), v('kv_cache_dtype')],
                [f.verdict, f.rung, marks, part, k ? Number(k) : null]]; })"""
    )
    assert {tuple(where): tuple(what) for where, what in shown} == expected
    assert len(shown) == len(expected) == 32
    absent = tab.js("document.querySelector('section.absent summary').innerText")
    assert absent.startswith("device") and "48 cells unavailable: no GPU on this machine" in absent


def test_summaries_are_those_of_python(opened: Open) -> None:
    """summary.js against capmatrix/summary.py, over random verdicts, rungs and flags of many points."""
    rng = random.Random(3)
    records = []
    for block in range(1, 60):
        for target in ("offline:gfx950", "interpreter:gfx950", "emulator:gfx950"):
            for batch in samples.BATCHES:
                if rng.random() < 0.8:
                    at = cell(target=target, block_size=block, batch=batch)
                    flags = tuple(f for f in (Flag.FALLBACK, Flag.NAN_UNSAFE) if rng.random() < 0.2)
                    drawn = record(at, rng.choice(list(Verdict)), rung=rng.choice(list(Rung)), flags=flags)
                    records.append(msgspec.structs.replace(drawn, environment="env-offline:gfx950"))
    records.sort(key=lambda r: r.cell_id)  # of records that say the same, the first decides
    tab = opened(store.Run({}, seed().environments, records))
    found = tab.js(
        """(() => { const by = new Map(), B = capmatrix.column('block_size');
        for (const i of capmatrix.every()) { const b = B.values[B.codes[i]]; by.set(b, [...(by.get(b) || []), i]); }
        return [...by].map(([b, all]) => { const s = capmatrix.summary.summarise(all);
          return [b, s.verdict, s.rung, [...s.flags].sort(), s.ran,
                  s.findings.map(f => [capmatrix.id(f.deciding), f.conflicts.length]).sort()]; }); })()"""
    )
    assert len(found) > 50
    for block, verdict, rung, flags, ran, findings in found:
        expected = summary.summarise([r for r in records if r.cell.block_size == block])
        assert (verdict, rung) == (expected.verdict.value, expected.rung.value), block
        assert flags == sorted(f.value for f in expected.flags), block
        assert ran == sum(f.ran for f in expected.findings), block
        assert findings == sorted([f.record.cell_id, len(f.conflicts)] for f in expected.findings), block


def test_a_part_of_the_batches_is_told_only_where_it_is_known(opened: Open) -> None:
    tab = opened(seed())
    assert any("2/3 batches ran" in label for label, _ in tiles(opened(_without_a_batch())))
    tab.js("capmatrix.setFilter('batch', ['verify'])")
    assert not [label for label, _ in tiles(tab) if "batches ran" in label]


def _without_a_batch() -> store.Run:
    run = seed()
    gone = next(r for r in run.records if r.verdict is Verdict.PASS)
    return store.Run(run.header, run.environments, [r for r in run.records if r is not gone])


def test_a_conflict_and_a_forced_row_are_told(opened: Open) -> None:
    a, b = cell(target="offline:gfx950"), cell(target="interpreter:gfx950")
    forced = samples.forced(32)
    run = seed()
    tab = opened(store.Run({}, run.environments, [record(a, Verdict.ERROR), record(b), record(forced)]))
    labels = [label for label, _ in tiles(tab)]
    assert any("pass, interpreted, conflict" in label for label in labels)
    assert any("forced kernel block 32" in label and "pass" in label for label in labels), labels
    assert tab.js("document.querySelector('td.t sup').innerText") == "!"


def test_not_run_looks_like_nothing_else(opened: Open) -> None:
    records = [record(cell(block_size=16)), record(cell(backend="TRITON_ATTN"), Verdict.REJECTED, reasons=("no",))]
    tab = opened(store.Run({}, seed().environments, records))
    kinds = [name.split() for _, name in tiles(tab)]
    assert sum("notrun" in k for k in kinds) == 2 and sum("rejected" in k for k in kinds) == 1
    assert not any("notrun" in k and "rejected" in k for k in kinds)
    assert tab.js("getComputedStyle(document.querySelector('td.notrun'), '::before').display") == "none"
    assert tab.js("getComputedStyle(document.querySelector('td.rejected'), '::before').display") != "none"
    # Neither the list nor a click knows a cell that was not run.
    tab.click("td.notrun")
    assert tab.js("document.getElementById('panel').hidden") is True


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("media", ["", "print"], ids=["screen", "print"])
def test_shapes_and_grounds_are_drawn(opened: Open, tmp_path: Path, dark: bool, media: str) -> None:
    """Every verdict's tile has its own mask, and its own ground or border, on the screen and on paper."""
    verdicts = list(Verdict)
    records = [record(cell(block_size=16 << i), v) for i, v in enumerate(verdicts)]
    tab = opened(store.Run({}, seed().environments, records), dark=dark, media=media)
    found = tab.js(
        """[...document.querySelectorAll('td.t')].map(t => { const s = getComputedStyle(t, '::before'),
        g = getComputedStyle(t.firstElementChild);
        return [s.maskImage, s.printColorAdjust, [g.backgroundColor, g.backgroundImage, g.borderTopStyle].join()]; })"""
    )
    assert len(found) == len(verdicts)
    assert len({mask for mask, _, _ in found}) == len(verdicts) and all("data:image/svg" in m for m, _, _ in found)
    assert {adjust for _, adjust, _ in found} == {"exact"}
    assert len({ground for _, _, ground in found}) == len(verdicts)
    tab.screenshot(tmp_path / "shot.png")
    assert (tmp_path / "shot.png").stat().st_size > 5_000
    if media:
        assert tab.js("getComputedStyle(document.getElementById('toolbar')).display") == "none"


def test_a_table_that_does_not_fit_scrolls(opened: Open) -> None:
    tab = opened(seed(), width=700)
    assert tab.js("document.querySelectorAll('.wrap.wide').length") >= 2
    assert tab.js("(w => { w.scrollLeft = 100; return w.scrollLeft; })(document.querySelector('.wrap.wide'))") == 100
    assert tab.js("document.documentElement.scrollWidth <= innerWidth")


def test_other_axes_make_other_tables(opened: Open) -> None:
    tab = opened(seed(), at="#.rows=batch&.cols=backend&.by=,")
    heads = tab.js("[...document.querySelector('.matrix thead').querySelectorAll('th')].map(t => t.innerText)")
    assert heads == ["Batch", "ROCM_ATTN", "TRITON_ATTN", "ROCM_AITER_FA", "ROCM_AITER_UNIFIED_ATTN"]
    rows = tab.js("[...document.querySelector('.matrix').querySelectorAll('tbody th')].map(t => t.innerText)")
    assert rows == ["decode", "verify", "prefill"]
    # A tile of several points is as bad as the worst of them.
    assert any(label.startswith("prefill, TRITON_ATTN: wrong, interpreted") for label, _ in tiles(tab))
    tab.js("capmatrix.setParam('cols', 'arch,backend')")
    assert tab.js("document.querySelectorAll('section.home:not(.absent)').length") == 1
    assert tab.js("document.querySelector('section:not(.absent) thead').innerText").count("gfx9") == 2


# Filters, search, list


def offered(tab: Page, axis: str) -> dict[str, str]:
    """The values of an open filter, each with the number beside it."""
    labels = f"document.querySelectorAll('details[data-axis={axis}] label')"
    tab.until(f"{labels}.length")
    return dict(tab.js(f"[...{labels}].map(l => [l.children[1].innerText, l.children[2].innerText])"))


def test_filters_choose_and_are_kept_in_the_address(opened: Open) -> None:
    run = seed()
    tab = opened(run)
    tab.click("details.filter[data-axis=backend] > summary")
    counts = offered(tab, "backend")
    assert counts == dict.fromkeys(samples.BACKENDS, "48")
    tab.click("details[data-axis=backend] input[value=TRITON_ATTN]")
    assert address(tab) == "#backend=TRITON_ATTN"
    assert tab.js("capmatrix.visible().length") == 48
    assert {label.split(",")[0] for label, _ in tiles(tab)} == {"TRITON_ATTN"}
    # Counts beside another filter's values are those of what is left.
    tab.click("details.filter[data-axis=verdict] > summary")
    left = offered(tab, "verdict")
    expected = {v: sum(r.verdict.value == v and r.cell.backend == "TRITON_ATTN" for r in run.records) for v in left}
    assert left == {v: str(n) for v, n in expected.items()}
    tab.click("details[data-axis=verdict] input[value=wrong]")
    assert tab.js("capmatrix.visible().length") == expected["wrong"] == 2
    assert tab.js("document.querySelector('.count').innerText") == "2 of 192 cells"
    tab.js("[...document.querySelectorAll('.tools .linkish')].find(b => b.innerText === 'Clear all').click()")
    assert address(tab) == "" and tab.js("capmatrix.visible().length") == len(run.records)


def test_what_a_filter_hides_is_not_called_not_run(opened: Open) -> None:
    records = [record(cell(block_size=16)), record(cell(block_size=32), Verdict.ERROR)]
    records += [record(cell(block_size=32, backend="TRITON_ATTN")), record(cell(block_size=16, role=Role.TARGET))]
    tab = opened(store.Run({}, seed().environments, records))
    words = "[...document.querySelectorAll('td.t')].map(t => t.querySelector('.w').innerText).sort()"
    assert tab.js(words) == ["error", "not run", "not run", "pass", "pass", "pass"]
    tab.js("capmatrix.setFilter('verdict', ['error'])")
    assert tab.js(words) == ["error"]
    tab.js("capmatrix.setFilter('verdict', ['pass'])")
    assert tab.js(words) == ["filtered", "not run", "not run", "pass", "pass", "pass"]


def test_every_axis_has_a_filter(opened: Open) -> None:
    other = cell(
        drafter="other", tp=8, dtype="float16", execution="full", runner="v1", scales="unit", batch="mixed",
        switches=(("VLLM_ROCM_USE_AITER", "0"),), num_speculative_tokens=5, method="mtp",
    )  # fmt: skip
    other = msgspec.structs.replace(other, role=Role.TARGET)
    run = seed(record(other, flags=(Flag.NAN_UNSAFE,)), record(samples.forced(32), Verdict.ERROR))
    tab = opened(run)
    axes = set(tab.js("[...document.querySelectorAll('details.filter')].map(d => d.dataset.axis)"))
    assert axes >= {
        "arch", "target", "backend", "block_size", "kv_cache_dtype", "drafter", "tp", "role", "method", "k", "dtype",
        "batch", "execution", "runner", "scales", "switches", "force", "verdict", "rung", "flags", "advertised",
    }  # fmt: skip
    unsafe = sum(Flag.NAN_UNSAFE in r.flags for r in run.records)
    unmarked = sum(not r.flags for r in run.records)
    interpreted = sum(r.rung is Rung.INTERPRETED for r in run.records)
    assert min(unsafe, unmarked, interpreted) > 1
    for axis, value, number in (
        ("role", "target", 1), ("dtype", "float16", 1), ("execution", "full", 1), ("runner", "v1", 1),
        ("scales", "unit", 1), ("switches", "VLLM_ROCM_USE_AITER=0", 1), ("force", "kernel_block 32", 1),
        ("flags", "nan_unsafe", unsafe), ("flags", "none", unmarked), ("tp", "8", 1),
        ("rung", "interpreted", interpreted), ("advertised", "over-advertised", len(_over(run))),
    ):  # fmt: skip
        tab.js(f"capmatrix.setFilter({json.dumps(axis)}, [{json.dumps(value)}])")
        assert tab.js("capmatrix.visible().length") == number, (axis, value)
        tab.js(f"capmatrix.setFilter({json.dumps(axis)}, [])")


def _over(run: store.Run) -> list[Record]:
    return [r for r in run.records if summary.over_advertised(r)]


@pytest.mark.parametrize(
    ("query", "number"),
    [("b128", 96), ("b12", 0), ("rocm_attn b16 fp8", 12), ("tp4", 192), ("tp9", 0), ("gfx942 verify", 16),
     ("TRITON_ATTN and wrong", 2), ("shared memory", 3), ("nothing-like-it", 0)],
)  # fmt: skip
def test_search(opened: Open, query: str, number: int) -> None:
    tab = opened(seed())
    tab.key("/")
    assert tab.js("document.activeElement.id") == "search"
    tab.type(query)
    tab.key("Enter")
    assert tab.js("capmatrix.visible().length") == number
    assert address(tab) == f"#q={query}"
    if not number:
        assert "No cell matches" in tab.js("document.getElementById('view').innerText")


def test_the_list_sorts_by_a_column(opened: Open) -> None:
    records = [
        record(cell(block_size=16 << i), times=(Timing("decode", "w", us, us, us, 3),) if us else ())
        for i, us in enumerate((30.0, 0.0, 10.0, 20.0))
    ]
    tab = opened(store.Run({}, seed().environments, records), at="#view=list")

    def column(name: str) -> list[str]:
        heads = tab.js(
            "[...document.querySelectorAll('.list .head button')].map(b => b.innerText.replace(/ [▴▾]$/, ''))"
        )
        rows: list[list[str]] = tab.js(
            "[...document.querySelectorAll('.list .row')].sort((a, b) => a.offsetTop - b.offsetTop)"
            ".map(r => [...r.children].map(s => s.innerText))"
        )
        return [row[heads.index(name)] for row in rows]

    assert column("Block") == ["128", "16", "32", "64"]  # by cell id
    tab.js("[...document.querySelectorAll('.list .head button')].find(b => b.innerText === 'Block').click()")
    assert column("Block") == ["16", "32", "64", "128"]
    assert address(tab) == "#view=list&.sort=block_size"
    tab.js("capmatrix.setParam('sort', '-time_us')")
    assert column("Block") == ["16", "128", "64", "32"]
    assert column("Time of a call") == ["30 µs", "20 µs", "10 µs", ""]
    tab.js("capmatrix.setParam('sort', 'time_us')")
    assert column("Block") == ["64", "128", "16", "32"], "what has no figure comes last"


# Keys and links


def test_keys_move_open_and_close(opened: Open) -> None:
    tab = opened(seed())
    tab.js("document.querySelector('td.t[tabindex=\"0\"]').focus()")

    def here() -> str:
        found: str = tab.js("document.activeElement.ariaLabel || document.activeElement.tagName")
        return found

    assert here().startswith("ROCM_ATTN") and "block 16, auto" in here()
    tab.key("ArrowRight")
    tab.key("ArrowDown")
    assert here().startswith("TRITON_ATTN") and "block 16, fp8" in here()
    tab.key("ArrowLeft")
    tab.key("ArrowUp")
    tab.key("ArrowUp")
    assert here().startswith("ROCM_ATTN"), "the first row of all is the end"
    for _ in range(4):
        tab.key("ArrowDown")
    assert here().startswith("ROCM_ATTN")
    assert tab.js("document.activeElement.closest('section').querySelector('h2').innerText") == "gfx950"
    assert tab.js("document.querySelectorAll('td.t[tabindex=\"0\"]').length") == 1
    before = here()
    tab.key("Enter")
    assert "ROCM_ATTN" in panel(tab) and "gfx950" in panel(tab)
    assert tab.js("document.getElementById('panel').contains(document.activeElement)")
    assert tab.js("document.querySelector('td.t[aria-selected=\"true\"]').ariaLabel") == before
    tab.key("Escape")
    assert tab.js("document.getElementById('panel').hidden") is True
    assert here() == before, "the focus is back on the tile"
    assert address(tab) == ""


def test_a_focused_tile_shows_it(opened: Open) -> None:
    tab = opened(seed())
    tab.js("document.querySelector('td.t[tabindex=\"0\"]').focus()")
    tab.key("ArrowDown")
    style = tab.js("(s => [s.outlineStyle, s.outlineWidth])(getComputedStyle(document.activeElement))")
    assert style == ["solid", "3px"]


def test_a_link_opens_its_cell(opened: Open) -> None:
    run = seed()
    wanted = next(r for r in run.records if r.verdict is Verdict.ERROR)
    tab = opened(run, at=f"#cell={wanted.cell_id}")
    shown = panel(tab)
    assert wanted.cell_id in shown and "OutOfResources" in shown
    assert tab.js("document.querySelector('td[aria-selected]').ariaLabel").startswith(wanted.cell.backend)
    other = next(r for r in run.records if r.verdict is Verdict.WRONG)
    tab.js(f"location.hash = {json.dumps(f'#view=list&verdict=wrong&cell={other.cell_id}')}")
    tab.until(f"document.querySelector('#panel .evidence').dataset.cell === {json.dumps(other.cell_id)}")
    assert tab.js("document.getElementById('tab-list').ariaSelected") == "true"
    assert tab.js("capmatrix.visible().length") == 2


def test_a_link_to_a_cell_that_is_not_there_says_so(opened: Open) -> None:
    tab = opened(seed(), at="#cell=offline:gfx000-NOTHING")
    assert "offline:gfx000-NOTHING" in tab.js("document.getElementById('panel').innerText")
    tab.key("Escape")
    assert tab.js("document.getElementById('panel').hidden") is True


def test_a_link_tells_runs_apart(opened: Open) -> None:
    old, new = record(cell(), Verdict.ERROR, reasons=("as it was",)), record(cell())
    runs = store.Run({}, seed().environments, [old]), store.Run({}, seed().environments, [new])
    tab = opened(*runs, at=f"#cell={new.cell_id}&of=run0")
    assert "as it was" in panel(tab) and "run0 (a later record stands for this cell)" in panel(tab)
    assert tab.js("capmatrix.visible().length") == 1, "the table shows what stands"
    tab.js(f"location.hash = {json.dumps(f'#cell={new.cell_id}')}")
    tab.until("document.querySelector('#panel .v.pass') !== null")
    tab.js("capmatrix.setFilter('run', ['run0'])")
    assert ["error" in name.split() for _, name in tiles(tab)] == [True]


# Evidence


def test_the_panel_tells_all_that_is_known(opened: Open) -> None:
    rich = samples.rich_record()
    rich = msgspec.structs.replace(
        rich,
        failure=samples.failure("AssertionError", "query and key dtype differ"),
        times=(
            Timing(
                "verify", "seed", 12.5, 12.0, 13.25, 8, 0.42, 768, "graph replay", (12.4, 12.5, 13.2), True, 256, 4.28,
                61.5, 3, {"sm_mhz": (1755.0, 1980.0), "power_w": (512.0, 512.0)},
            ),
        ),
    )  # fmt: skip
    run = seed(rich)
    tab = opened(run, at=f"#cell={rich.cell_id}")
    shown = panel(tab)
    for words in (
        "wrong", "interpreted", "forward: relative L2 0.55 over the bound 0.0042", "the writer stores e4m3",
        "fallback", "over-advertised", "query and key dtype differ", "attention.py:412 in forward",
        "backend's own validation", "vLLM's default", "kernel_paged_attention_2d", "32 KiB", "258", "96", "0 V, 0 S",
        "3.41 s", "PyTorch stand-in", "cache write alone", "0.0042", "0.0017", "0.81× (row 3)", "512", "accuracy",
        "12.5 µs (12 µs to 13.3 µs, 8 repeats), workload seed", "42 %", "graph replay", "LHBNC",
        "12.4 µs, 12.5 µs, 13.2 µs; drifted", "61.5 µs on the host, 3 synchronisations", "4.28 TB/s moved",
        "1,755 to 1,980", "power w", "512",
        "UNIFORM_SINGLE_TOKEN_DECODE", "virtual ROCm platform", "vllm 0.32.0", "2026-11-20T09:13:01.220Z", "attempt 2",
        "forward 1.31 s", rich.cell_id, "speaks for", "gfx950",
    ):  # fmt: skip
        assert words in shown, words
    for _, command in commands(rich, run.header):
        assert command in shown.replace("\n", " ") or command in shown
    texts = tab.js("[...document.querySelectorAll('#panel .command pre')].map(p => p.textContent)")
    assert texts == [command for _, command in commands(rich, run.header)]


def test_copying_a_command(opened: Open) -> None:
    run = seed()
    tab = opened(run, at=f"#cell={run.records[0].cell_id}")
    panel(tab)
    tab.js(
        "window.copied = null; Object.defineProperty(navigator, 'clipboard', {value: {writeText: async t => "
        "{ window.copied = t; }}}); Object.defineProperty(window, 'isSecureContext', {value: true}); 0"
    )
    tab.click("#panel .command button")
    tab.until("document.querySelector('#panel .command button').innerText === 'Copied'")
    assert tab.js("window.copied") == commands(run.records[0], run.header)[0][1]


def test_the_records_of_a_tile_are_one_click_away(opened: Open) -> None:
    tab = opened(seed())
    tab.js(
        "[...document.querySelectorAll('td.t')].find(t => t.ariaLabel.startsWith('TRITON_ATTN') && "
        "t.ariaLabel.includes('wrong')).click()"
    )
    assert "prefill" in panel(tab)
    # gfx950 was compiled and interpreted, in three batches.
    names = tab.js("[...document.querySelectorAll('#panel .batches button')].map(b => b.innerText)")
    assert len(names) == 6 and sum("wrong" in n for n in names) == 1
    tab.js("[...document.querySelectorAll('#panel .batches button')].find(b => b.innerText.includes('verify')).click()")
    tab.until("document.querySelector('#panel h2').innerText.endsWith('verify')")
    assert "verify" in address(tab)
    # The same from a link, where no table has been drawn.
    tab.go("about:blank#gone")
    other = opened(seed(), at=f"#view=list&cell={samples.seed_run()[0][70].cell_id}")
    panel(other)
    assert other.js("document.querySelectorAll('#panel .batches button').length") in (3, 6)


# Above the tables


def test_cards_open_and_their_examples_lead_to_cells(opened: Open) -> None:
    tab = opened(seed())
    texts = {}
    for name in ("cautions", "regions", "disputes", "defaults", "environments", "legend"):
        tab.click(f"#card-{name}")
        assert tab.js(f"document.getElementById('card-{name}').ariaExpanded") == "true"
        texts[name] = tab.js("document.getElementById('card-body').innerText")
    assert "Nothing ran on a GPU" in texts["cautions"]
    assert "KV cache = fp8" in texts["regions"] and "over-advertised" in texts["disputes"]
    assert "provisional" in texts["defaults"] and "gfx950" in texts["defaults"]
    assert "0.32.0" in texts["environments"] and "not run" in texts["legend"]
    tab.click("#card-regions")
    tab.click("#card-body a.cell")
    assert tab.js("document.querySelector('#card-body a.cell').innerText") in panel(tab)


def test_a_verdicts_count_filters_by_it(opened: Open) -> None:
    run = seed()
    tab = opened(run)
    number = sum(r.verdict is Verdict.UNAVAILABLE for r in run.records)
    assert f"{number} unavailable" in tab.js("document.querySelector('.c-unavailable').innerText").replace("\xa0", " ")
    tab.click(".c-unavailable")
    assert tab.js("capmatrix.visible().length") == number
    assert tab.js("document.querySelector('.c-unavailable').ariaPressed") == "true"
    tab.click(".c-unavailable")
    assert tab.js("capmatrix.visible().length") == len(run.records)


# Hostile text


EVIL = '</script><img src=x onerror="window.pwned=1"><!-- \u202e\x1b[31m <b>bold</b> javascript:pwned=1 \'"&lt;'


@pytest.mark.parametrize("view", ["table", "list", "compare", "history"])
def test_texts_of_records_do_nothing(opened: Open, view: str) -> None:
    from test_markdown import hostile_record

    env = environment("offline:gfx942", versions={"vllm": EVIL, EVIL: EVIL}, extensions=(EVIL,), switches={EVIL: EVIL})
    header: dict[str, Any] = {"matrix": EVIL, "preset": EVIL, "created": EVIL, "files": [EVIL], "capmatrix": EVIL}
    runs = [store.Run(header, {env.id: env}, [hostile_record(EVIL)]) for _ in range(2)]
    tab = opened(*runs, at=f"#view={view}&q={'%3C/script%3E%3Cimg src=x onerror=pwned=1%3E'}")
    tab.js("capmatrix.clearFilters()")
    tab.js("capmatrix.open(0)")
    shown = panel(tab)
    for name in ("cautions", "regions", "disputes", "defaults", "environments", "legend"):
        tab.js(f"(b => b && b.click())(document.getElementById('card-{name}'))")
    for box in ("backend", "drafter", "kv_cache_dtype"):
        tab.js(f"(d => {{ if (d) d.open = true; }})(document.querySelector('details[data-axis={box}]'))")
    assert tab.js("window.pwned") is None
    assert tab.js("document.querySelectorAll('img, b > b, a[href^=javascript]').length") == 0
    assert "<b>bold</b>" in shown and "onerror" in shown
    whole = tab.js("document.body.innerText")
    assert "\u202e" not in whole and "\x1b" not in whole and "\ufffd" in whole
    attributes = tab.js("[...document.querySelectorAll('*')].flatMap(e => [...e.attributes].map(a => a.name))")
    assert not [name for name in attributes if name.startswith("on")]


def test_a_script_in_the_page_is_refused(browser: Browser, tmp_path: Path) -> None:
    """What the policy is for: markup that got through would not run."""
    page = render.render([("a", seed())]).replace(
        "<main>", "<main><script>window.pwned = 1</script><img src=http://127.0.0.1:9/x>"
    )
    path = tmp_path / "page.html"
    path.write_text(page, encoding="utf-8")
    tab = browser.page(path.as_uri())
    tab.until("document.documentElement?.dataset.ready === 'true'")
    assert tab.js("window.pwned") is None
    assert sum("Content Security Policy" in text for text in tab.problems()) == 2
    tab.close()


def test_without_a_script_the_tables_can_be_read(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(render.render([("a", seed())]), encoding="utf-8")
    tab = browser.page("about:blank#blank")
    tab.send("Emulation.setScriptExecutionDisabled", value=True)
    tab.send("Page.navigate", url=path.as_uri())
    # No script runs, so that the text is asked of the tree, which is another one once the page has come.
    html = ""
    deadline = time.monotonic() + 60
    while "</footer>" not in html and time.monotonic() < deadline:
        with contextlib.suppress(PageError):
            root = tab.send("DOM.getDocument", depth=0)["root"]["nodeId"]
            html = tab.send("DOM.getOuterHTML", nodeId=root)["outerHTML"]
            found = tab.send("DOM.querySelectorAll", nodeId=root, selector="table.plain td")["nodeIds"]
    assert len(found) == 32 and "wrong (interpreted)" in html and "<h2>gfx950</h2>" in html
    tab.close()


# Many cells


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A page of 60,000 cells."""
    run = many_records.run(60_000)
    path = tmp_path_factory.mktemp("large") / "large.html"
    path.write_text(render.render([("large", run)]), encoding="utf-8")
    return path, len(run.records)


@pytest.mark.slow
def test_sixty_thousand_cells(browser: Browser, large: tuple[Path, int]) -> None:
    path, number = large
    tab = browser.page(path.as_uri())
    tab.until("document.documentElement?.dataset.ready === 'true'")
    count = "document.getElementsByTagName('*').length"
    assert tab.js("capmatrix.visible().length") == number == 60_000
    assert tab.js(count) < 8_000
    assert 0 < tab.js("document.querySelectorAll('td.t').length") < 1_200
    # Down to the end and back: what has left the screen is gone.
    for _ in range(2):
        tab.js("window.scrollTo(0, document.body.scrollHeight)")
        tab.js("new Promise(done => setTimeout(done, 300))")
        assert 0 < tab.js("document.querySelectorAll('td.t').length") < 1_500
        tab.js("window.scrollTo(0, 0)")
        tab.js("new Promise(done => setTimeout(done, 300))")
    assert tab.js(count) < 10_000

    tab.js("capmatrix.setView('list')")
    for top in (0, 900_000, 1_799_000):
        tab.js(f"document.querySelector('.list').scrollTop = {top}")
        tab.js("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        rows = tab.js("[...document.querySelectorAll('.list .row')].map(r => Number(r.getAttribute('aria-rowindex')))")
        assert 10 < len(rows) < 120
        assert min(rows) <= top / 30 + 2 <= max(rows)
    assert max(rows) == number + 1

    tab.js("capmatrix.setView('table'); capmatrix.setQuery('ULTRAQUANT b128 fp8_e5m2')")
    assert 0 < tab.js("capmatrix.visible().length") < 3_000
    last = tab.js("capmatrix.id(59999)")
    tab.js(f"location.hash = '#cell=' + encodeURIComponent({json.dumps(last)})")
    assert last in panel(tab)
    assert tab.problems() == []
    tab.close()
