"""The page's comparison and history in a browser: the same judgement as the commands', tiles, keys, links, evidence."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
import samples
from devtools import Page
from samples import PAGED, WRITE, cell, environment, record

from capmatrix import store
from capmatrix.analysis import agreement, sources
from capmatrix.analysis import compare as room
from capmatrix.cell import Flag, Record, Rung, Timing, Verdict
from capmatrix.report import agreement as report
from capmatrix.report import compare
from conftest import Open

pytestmark = pytest.mark.browser

BAD = record(verdict=Verdict.WRONG, reasons=("forward: off",), kernel_block=32)
EVIL = "</script><img src=x onerror=alert(1)> \x1b[31m\u202e"


def run_of(*records: Record, day: int = 1, vllm: str = "0.32.0") -> store.Run:
    known = {f"env-{t}": environment(t, id=f"env-{t}-{vllm}", versions={"vllm": vllm}) for t in (
        "offline:gfx942", "offline:gfx950", "interpreter:gfx950")}  # fmt: skip
    named = [msgspec.structs.replace(r, environment=f"{r.environment}-{vllm}") for r in records]
    header = {"created": f"2026-11-{day:02}T00:00:00Z"}
    return store.Run(header, {e.id: e for e in known.values()}, named)


def changed(record: Record, rng: random.Random) -> Record | None:
    """A record as another run may have it, or None: any part of what a comparison looks at may be another."""
    kind = rng.randrange(8)
    if kind == 0:
        return None
    if kind == 1:
        return msgspec.structs.replace(record, verdict=rng.choice(list(Verdict)))
    if kind == 2:
        return msgspec.structs.replace(record, rung=rng.choice(list(Rung)))
    if kind == 3:
        return msgspec.structs.replace(record, flags=tuple(rng.sample(list(Flag), 2)))
    if kind == 4:
        return msgspec.structs.replace(record, kernel_block=rng.choice([16, 32, None]))
    if kind == 5:
        return msgspec.structs.replace(record, route=rng.choice([(), (WRITE,), (PAGED, WRITE)]))
    median = rng.choice([60.0, 99.0, 104.0, 200.0]) if kind == 6 else 100.0
    return msgspec.structs.replace(record, times=(Timing("decode", "seed", median, median - 2, median + 2, 9),))


def two_runs() -> tuple[store.Run, store.Run]:
    """The seed's run and one of the next day and version, many things in it changed."""
    rng = random.Random(5)
    records = [r for r in samples.seed_run()[0] if r.environment]
    old = [msgspec.structs.replace(r, times=(Timing("decode", "seed", 100.0, 98.0, 102.0, 9),)) for r in records]
    new = [r for r in (changed(r, rng) for r in old) if r is not None]
    return run_of(*old), run_of(*new, day=2, vllm="0.33.0")


def shown(tab: Page, selector: str) -> list[str]:
    found: list[str] = tab.js(f"[...document.querySelectorAll({selector!r})].map(e => e.innerText.trim())")
    return found


def drawer(tab: Page) -> dict[str, list[str]]:
    """Of the two evidences: by row label what each says, and ``differs`` or ``faint``."""
    tab.until("!document.querySelector('.both').hidden && document.querySelector('.beside td') !== null")
    rows = tab.js("[...document.querySelectorAll('.both tbody tr:not(.group)')].map(r => [...r.cells].map(c => "
                  "c.innerText).concat(r.className))")  # fmt: skip
    return {label: rest for label, *rest in rows}


# -- the same judgement as the command's ---------------------------------------------------------


CHOICES = (
    ("run", "run0", "run1"),
    ("run", "run1", "run0"),
    ("arch", "gfx942", "gfx950"),
    ("target", "offline:gfx950", "interpreter:gfx950"),
    ("backend", "ROCM_ATTN", "TRITON_ATTN"),
    ("block_size", "16", "128"),
    ("batch", "decode", "verify"),
)


def test_entries_are_those_of_the_command(opened: Open) -> None:
    runs = two_runs()
    tab = opened(*runs)
    given = sources.gather((f"run{i}", run) for i, run in enumerate(runs))
    name = "i => (i < 0 ? '' : `${capmatrix.id(i)} ${capmatrix.value('run', i)}`)"
    for choice in CHOICES:
        by, left, right = choice
        expected = {
            (*(s.record.cell_id + " " + s.source.name if s else "" for s in (e.left, e.right)), e.kind)
            for e in room.compare(given, {by: left}, {by: right}).entries
        }
        assert len({kind for _, _, kind in expected}) >= 4, choice
        compare = f"capmatrix.compare.compare({by!r}, {left!r}, {right!r})"
        found = tab.js(f"{compare}.map(e => [({name})(e.left), ({name})(e.right), e.kind])")
        assert {tuple(entry) for entry in found} == expected, choice
        assert len(found) == len(expected), choice


def test_times_have_the_commands_ratios(opened: Open) -> None:
    def timed(median: float) -> Record:
        return record(times=(Timing("decode", "seed", median, median - 1, median + 1, 9),))

    runs = run_of(timed(100)), run_of(timed(150), day=2)
    given = sources.gather((f"run{i}", run) for i, run in enumerate(runs))
    (times,) = room.compare(given, {"run": "run0"}, {"run": "run1"}).entries[0].times
    tab = opened(*runs, at="#view=compare")
    (found,) = tab.js("capmatrix.compare.compare('run', 'run0', 'run1')[0].times")
    assert (found["ratio"], found["low"], found["high"], found["kind"]) == (
        times.ratio,
        times.low,
        times.high,
        "slower",
    )
    assert shown(tab, "td.strong") == ["slower ×1.5"]
    assert "×1.5" in shown(tab, ".differences td.num")[0]


def test_how_many_times_agree_is_what_the_command_says(opened: Open) -> None:
    def timed(median: float, backend: str) -> Record:
        return record(cell(backend=backend), times=(Timing("decode", "seed", median, median - 1, median + 1, 9),))

    left = [timed(1000, name) for name in ("ROCM_ATTN", "TRITON_ATTN", "ROCM_AITER_FA", "FLEX_ATTENTION")]
    right = [timed(1001, "ROCM_ATTN"), timed(1003, "TRITON_ATTN"), timed(800, "ROCM_AITER_FA")]
    runs = run_of(*left), run_of(*right, record(cell(backend="FLEX_ATTENTION")), day=2)
    given = sources.gather((f"run{i}", run) for i, run in enumerate(runs))
    found = room.compare(given, {"run": "run0"}, {"run": "run1"})
    judged = agreement.agreement(found)
    assert judged is not None and judged.agree == 1
    tab = opened(*runs, at="#view=compare")
    (said,) = shown(tab, ".agreement")
    assert said == report.headline(judged).removesuffix(":") + "."
    assert said.startswith("1 of 3 times on the same hardware agree")
    assert shown(tab, ".lacking") == ["1 time of the left has none on the right."]
    tab.js("document.querySelector('.apart summary').click()")
    ratios = [compare.ratio(one.times).partition(")")[0] + ")" for one in judged.apart]
    assert shown(tab, ".apart td:last-child") == [f"×{ratio}" for ratio in ratios]
    assert shown(tab, ".apart td:nth-child(4)")[1] == "1,003 µs (1,002 to 1,004)"
    tab.js("document.querySelector('.apart button').click()")
    assert any(label == "decode, seed" for label in drawer(tab))
    # Axes have no order, and their times are not asked to agree.
    beside = "capmatrix.compare.compare('backend', 'ROCM_ATTN', 'TRITON_ATTN')"
    assert tab.js(f"{beside}[0].times.length") == 1
    assert tab.js(f"capmatrix.compare.agreement({beside}, 'backend')") is None


# -- tiles ---------------------------------------------------------------------------------------


def test_only_differences_are_strong(opened: Open) -> None:
    same = [record(cell(backend=b, batch="verify")) for b in ("ROCM_ATTN", "TRITON_ATTN")]
    lone = record(cell(backend="TRITON_ATTN", block_size=16))
    tab = opened(run_of(record(), *same), run_of(BAD, *same, lone, day=2), at="#view=compare")
    assert shown(tab, ".chips .kind") == ["1 Regressions", "2 The same", "1 Only on the right"]
    labels = tab.js("[...document.querySelectorAll('.diff td.d')].map(t => [t.className, t.ariaLabel || t.innerText])")
    assert [(name, label.rpartition(": ")[2]) for name, label in labels] == [
        ("d notrun", "not run"),
        ("d strong k-regression", "left pass, right wrong; Regressions, 1 of 2"),
        ("d faint", "left not run, right pass; Only on the right"),
        ("d faint", "pass; The same"),
    ]
    opacity = "Number(getComputedStyle(document.querySelector('.diff .{}')).opacity)"
    assert tab.js(opacity.format("faint")) < 0.6 < tab.js(opacity.format("strong"))
    assert shown(tab, ".differences td:first-child") == [record().cell_id]
    assert "says nothing of the backend" in tab.js("document.getElementById('view-compare').innerText")


def test_paper_says_what_is_compared(opened: Open) -> None:
    tab = opened(run_of(record()), run_of(BAD, day=2), at="#view=compare", media="print")
    assert shown(tab, "#view-compare .on-paper") == ["run0 on the left, run1 on the right: 1 regression"]
    assert tab.js("getComputedStyle(document.querySelector('#view-compare .on-paper')).display") == "block"


def test_a_count_chooses_its_kind(opened: Open) -> None:
    fixed = cell(block_size=16)
    tab = opened(run_of(record(), record(fixed, Verdict.CRASH)), run_of(BAD, record(fixed), day=2), at="#view=compare")
    assert len(shown(tab, "td.strong")) == 2
    tab.click(".chips [data-kind=fix]")
    assert [s.split() for s in shown(tab, "td.strong")] == [["crash", "→", "pass"]]
    assert len(shown(tab, ".differences tbody tr")) == 1
    assert ".kind=fix" in tab.js("location.hash")
    tab.click(".chips [data-kind=fix]")
    assert len(shown(tab, "td.strong")) == 2


def test_architecture_and_axis_are_not_told_as_regressions(opened: Open) -> None:
    tab = opened(run_of(record(), record(cell(target="offline:gfx950"), Verdict.ERROR)), at="#view=compare")
    assert shown(tab, ".chips .kind") == ["1 Works on the left alone"]
    tab.js("capmatrix.compare.axes().map(x => x.name)")
    assert shown(tab, "#view-compare .axes label")[0].startswith("Compare by")
    assert tab.js("[...document.querySelectorAll('#view-compare select')].map(s => s.value)") == [
        "arch", "gfx942", "gfx950",
    ]  # fmt: skip
    tab.click("#view-compare .axes button")
    assert shown(tab, ".chips .kind") == ["1 Works on the right alone"]


def test_another_choice_draws_another_comparison(opened: Open) -> None:
    other = record(cell(backend="TRITON_ATTN"), Verdict.CRASH)
    tab = opened(run_of(record(), other), run_of(record(), other, day=2), at="#view=compare")
    assert shown(tab, ".chips .kind") == ["2 The same"]
    choice = "document.querySelector('#view-compare select')"
    tab.js(f"(s => {{ s.value = 'backend'; s.dispatchEvent(new Event('change')); }})({choice})")
    assert shown(tab, ".chips .kind") == ["1 Works on the left alone"]
    assert ".compare=backend" in tab.js("location.hash")


def test_filters_choose_cells(opened: Open) -> None:
    fixed = cell(block_size=16)
    runs = run_of(record(), record(fixed, Verdict.CRASH)), run_of(BAD, record(fixed), day=2)
    tab = opened(*runs, at="#view=compare&block_size=16")
    assert shown(tab, ".chips .kind") == ["1 Fixes"]
    tab.js("capmatrix.clearFilters(); capmatrix.setQuery('b128')")
    assert shown(tab, ".chips .kind") == ["1 Regressions"]


def test_of_many_rows_those_that_differ_are_drawn_a_part_at_a_time(opened: Open) -> None:
    cells = [cell(drafter=f"d{i:03}") for i in range(300)]
    new = [record(c, Verdict.WRONG if i < 200 else Verdict.PASS) for i, c in enumerate(cells)]
    tab = opened(run_of(*map(record, cells)), run_of(*new, day=2), at="#view=compare")
    assert (len(shown(tab, ".diff td.d")), len(shown(tab, ".differences tbody tr"))) == (120, 100)
    assert "180 rows are not drawn" in shown(tab, ".left-out")[0]
    tab.click(".left-out button")
    assert len(shown(tab, ".diff td.d")) == 200
    assert shown(tab, ".left-out") == ["100 rows are not drawn: nothing differs in them."]


# -- both evidences ------------------------------------------------------------------------------


def test_a_click_shows_both_evidences(opened: Open) -> None:
    runs = (
        run_of(record(route=(WRITE, PAGED))),
        run_of(msgspec.structs.replace(BAD, route=(WRITE,)), day=2, vllm="0.33.0"),
    )
    tab = opened(*runs, at="#view=compare")
    tab.click("td.strong")
    found = drawer(tab)
    assert found["verdict"] == ["pass (compiled)", "wrong (compiled)", "differs"]
    assert found["reasons"] == ["–", "forward: off", "differs"]
    assert found["kernel block"] == ["128", "32", "differs"]
    assert found["layout"] == ["LHBNC", "LHBNC", "faint"]
    assert found["forward"][1:] == ["–", "differs"] and "LDS 32 KiB" in found["forward"][0]
    assert found["vllm"] == ["0.32.0", "0.33.0", "differs"]
    assert shown(tab, ".facts summary") == ["What differs in the environment (1)"]
    address = tab.js("location.href")
    tab.key("Escape")
    assert tab.js("document.querySelector('.both').hidden") is True
    assert ".entry" not in tab.js("location.hash")
    tab.js(f"location.hash = new URL({address!r}).hash")
    assert drawer(tab)["verdict"][2] == "differs"
    assert tab.js("[...document.querySelector('.both').childNodes].every(n => n.nodeType === Node.ELEMENT_NODE)")


def test_the_whole_evidence_is_a_click_further(opened: Open) -> None:
    tab = opened(run_of(record()), run_of(BAD, day=2), at="#view=compare")
    tab.click("td.strong")
    drawer(tab)
    tab.click(".both thead th:last-child button")
    tab.until("document.querySelector('#panel .evidence[aria-busy=\"false\"]') !== null")
    assert "forward: off" in tab.js("document.getElementById('panel').innerText")
    tab.key("Escape")
    assert tab.js("[document.getElementById('panel').hidden, document.querySelector('.both').hidden]") == [True, False]
    tab.key("Escape")
    assert tab.js("document.querySelector('.both').hidden") is True


def test_batches_of_a_tile_are_a_choice(opened: Open) -> None:
    verify = record(cell(batch="verify"))
    tab = opened(run_of(record(), verify), run_of(BAD, verify, day=2), at="#view=compare")
    tab.click("td.strong")
    drawer(tab)
    assert [" ".join(b.split()) for b in shown(tab, ".both .batches button")] == [
        "decode, offline regression", "verify, offline same",
    ]  # fmt: skip
    tab.click(".both .batches li:last-child button")
    tab.until(f"document.querySelector('.both').dataset.entry === {verify.cell_id!r}")
    assert drawer(tab)["verdict"] == ["pass (compiled)", "pass (compiled)", "faint"]


def test_what_was_not_run_stays_so(opened: Open) -> None:
    tab = opened(run_of(record()), run_of(BAD, record(cell(backend="TRITON_ATTN")), day=2), at="#view=compare")
    tab.click("td.faint")
    assert drawer(tab)["verdict"] == ["–", "pass (compiled)", "differs"]
    assert "not run: says nothing of the backend" in tab.js("document.querySelector('.both thead').innerText")


def test_keys_move_and_open(opened: Open) -> None:
    records = [record(cell(backend=b, block_size=s)) for b in ("ROCM_ATTN", "TRITON_ATTN") for s in (16, 128)]
    tab = opened(run_of(*records), run_of(*records, day=2), at="#view=compare")
    assert tab.js("[...document.querySelectorAll('td.d')].filter(t => t.tabIndex === 0).length") == 1
    tab.js("document.querySelector('td.d[tabindex=\"0\"]').focus()")
    path = {"ArrowRight": ("ROCM_ATTN", 128), "ArrowDown": ("TRITON_ATTN", 128), "ArrowLeft": ("TRITON_ATTN", 16)}
    for key, (name, block) in path.items():
        tab.key(key)
        label = tab.js("document.activeElement.ariaLabel")
        assert label.startswith(name) and f"block {block}," in label
    tab.key("Enter")
    assert drawer(tab)["verdict"][2] == "faint"
    tab.key("Escape")
    assert "TRITON_ATTN" in tab.js("document.activeElement.ariaLabel")


def test_nothing_of_a_record_is_alive(opened: Open) -> None:
    hostile = cell(backend=EVIL, drafter=EVIL, kv_cache_dtype=EVIL)
    evil = msgspec.structs.replace(
        BAD, cell=hostile, cell_id=EVIL, reasons=(EVIL,), layout=EVIL, kv_cache={EVIL: EVIL},
        route=(msgspec.structs.replace(PAGED, name=EVIL, phase=EVIL),),
    )  # fmt: skip
    good = msgspec.structs.replace(evil, verdict=Verdict.PASS)
    runs = run_of(good, vllm=EVIL), run_of(evil, day=2, vllm=f"{EVIL}2")
    tab = opened(*runs, at="#view=compare")
    tab.click("td.strong")
    assert drawer(tab)["reasons"][2] == "faint"
    tab.js("capmatrix.setView('history')")
    assert tab.js("document.querySelectorAll('main img, .both img').length") == 0
    text: str = tab.js("document.body.innerText")
    assert "<img src=x" in text and "\x1b" not in text and "\u202e" not in text


# -- history -------------------------------------------------------------------------------------


def strips(tab: Page) -> list[tuple[str, list[str]]]:
    """Cell and squares of every strip, from the top."""
    found: Any = tab.js(
        "[...document.querySelectorAll('.history .row')].sort((a, b) => a.offsetTop - b.offsetTop).map(r => "
        "[r.querySelector('code').innerText, [...r.querySelectorAll('.h')].map(h => h.className.slice(2))])"
    )
    return [(name, squares) for name, squares in found]


def test_a_strip_a_cell_and_a_square_a_run(opened: Open) -> None:
    other, gone = record(cell(batch="verify")), record(cell(block_size=16))
    runs = [
        run_of(BAD, other, day=3, vllm="0.34.0"),
        run_of(record(), other, gone, day=1),
        run_of(BAD, day=2, vllm="0.33.0"),
        run_of(record(rung=Rung.EXECUTED), other, day=4),
    ]
    tab = opened(*runs, at="#view=history")
    assert shown(tab, ".history .head .h") == ["11-01", "11-02", "11-03", "11-04"]
    found = dict(strips(tab))
    assert strips(tab)[0][0] == record().cell_id
    assert found[record().cell_id] == ["pass", "wrong turn", "wrong", "pass turn"]
    assert found[other.cell_id] == ["pass", "none", "pass", "pass"]
    assert found[gone.cell_id] == ["pass", "none", "none", "none"]
    assert "1 of 3 cells changed their verdict over 4 runs" in tab.js(
        "document.getElementById('view-history').innerText"
    )
    tab.click("#view-history .axes input")
    assert [name for name, _ in strips(tab)] == [record().cell_id]
    tab.click(".history .row .turn")
    tab.until("document.querySelector('#panel .evidence[aria-busy=\"false\"]') !== null")
    assert "forward: off" in tab.js("document.getElementById('panel').innerText")
    assert "of=run2" in tab.js("location.hash")


def test_filters_choose_strips_and_one_run_has_no_history(opened: Open) -> None:
    records = [record(cell(block_size=b)) for b in (16, 32, 64)]
    tab = opened(run_of(*records), run_of(*records, day=2), at="#view=history&block_size=32")
    assert [name for name, _ in strips(tab)] == [records[1].cell_id]
    alone = opened(run_of(*records))
    assert "History" not in shown(alone, "[role=tab]")


def test_only_the_strips_on_the_screen_exist(opened: Open) -> None:
    records = [record(cell(drafter=f"d{i:03}")) for i in range(400)]
    tab = opened(run_of(*records), run_of(*records, day=2), at="#view=history")
    assert 5 < len(strips(tab)) < 100
    tab.js("document.querySelector('.history').scrollTop = 400 * 30")
    tab.until("[...document.querySelectorAll('.history code')].some(x => x.innerText.includes('d399'))")
    assert len(strips(tab)) < 100
