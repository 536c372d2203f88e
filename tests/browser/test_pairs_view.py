"""The pairs of a page in a browser: what opens first, what the search finds, signs, environments and hostile text."""

from __future__ import annotations

import msgspec
import pytest
from devtools import Open, Page
from samples import seed_run
from test_pair import made, recorded, refused

from capmatrix import store
from capmatrix.cell import Environment, Rung
from capmatrix.pair import PairRecord

pytestmark = pytest.mark.browser

ENVIRONMENT = Environment(
    id="env",
    target="device:gfx950",
    versions={"vllm": "0.32.0"},
    hardware={"vendor": "nvidia", "name": "NVIDIA H200"},
    identity={"arch": "gfx950"},
    extensions=("waves_per_eu dropped from kernel launches",),
)
SAID = "draft step 2 reads other tokens' keys"


def pairs() -> list[PairRecord]:
    """One that passes, one refused, and two of set-up alone, one of which contradicts itself."""
    where = {"target": "device:gfx950"}
    alone = {"rung": Rung.DECLARED, "runs": ()}
    no = refused()
    no = msgspec.structs.replace(no, pair=msgspec.structs.replace(no.pair, **where), pair_id=f"{no.pair_id}-device")
    return [
        recorded(made(**where)),
        no,
        recorded(made(**where, block_size=16), contradictions=(SAID,), **alone),
        recorded(made(**where, block_size=160), **alone),
    ]


def rows(tab: Page) -> list[str]:
    found: list[str] = tab.js("[...document.querySelectorAll('#view-pairs tbody tr')].map(r => r.innerText)")
    return found


def count(tab: Page) -> str:
    found: str = tab.js("document.querySelector('.tabs .count').innerText")
    return found


def alone() -> store.Run:
    return store.Run({"matrix": "pairs"}, {"env": ENVIRONMENT}, pairs=pairs())


def test_a_run_of_pairs_alone_opens_on_them(opened: Open) -> None:
    tab = opened(alone())
    assert tab.js("document.querySelector('[role=tab][aria-selected=true]').innerText") == "Pairs"
    assert tab.js("[...document.querySelectorAll('[role=tab]')].map(t => t.id)") == ["tab-pairs"]
    assert len(rows(tab)) == 4 and count(tab) == "4 pairs"
    whole = tab.js("document.body.innerText")
    assert "No cell matches" not in whole and "0 cells" not in whole
    assert "NVIDIA H200 with a ROCm gfx950 identity" in whole
    chips = tab.js("document.querySelector('.of-pairs').innerText.replace(/\\s+/g, ' ')")
    assert chips == "4 pairs 3 pass 1 rejected 1 of them contradict themselves"
    assert tab.js("location.hash") == ""


def test_a_view_that_it_lacks_is_not_shown(opened: Open) -> None:
    tab = opened(alone(), at="#view=table")
    assert len(rows(tab)) == 4


@pytest.mark.parametrize(
    ("query", "number", "notes"),
    [
        ("contradiction", 1, 1),
        ("b16", 1, 1),
        ("b160", 1, 0),
        ("TRITON_ATTN pass", 3, 1),
        ("rocm_aiter_fa and rejected", 1, 1),
        ("gfx950 nothing-like-it", 0, 0),
    ],
)
def test_the_search_narrows_pairs_and_says_how_many_match(opened: Open, query: str, number: int, notes: int) -> None:
    tab = opened(alone())
    tab.js(f"capmatrix.setQuery({query!r})")
    assert len(rows(tab)) == number
    assert count(tab) == f"{number} of 4 pairs"
    assert tab.js("document.querySelectorAll('#view-pairs .why li').length") == notes
    if not number:
        tab.click("#view-pairs .empty button")
        assert len(rows(tab)) == 4 and count(tab) == "4 pairs"


def test_beside_cells_the_count_is_that_of_the_tab(opened: Open) -> None:
    records, environments, header = seed_run()
    run = store.Run(header, {**environments, "env": ENVIRONMENT}, records, pairs=pairs())
    tab = opened(run)
    assert tab.js("document.querySelector('[role=tab][aria-selected=true]').innerText") == "Table"
    assert count(tab) == f"{len(records)} cells"
    tab.click("#tab-pairs")
    assert count(tab) == "4 pairs" and tab.js("location.hash") == "#view=pairs"
    tab.click("#tab-table")
    assert count(tab) == f"{len(records)} cells"


def test_a_contradiction_looks_like_no_pass(opened: Open) -> None:
    tab = opened(alone())
    shown = tab.js(
        """Object.fromEntries([...document.querySelectorAll('#view-pairs tbody tr')].map(r => {
        const cell = r.lastElementChild, sign = getComputedStyle(cell.querySelector('.s'));
        return [cell.innerText.trim(), [sign.maskImage, sign.color, getComputedStyle(cell).backgroundColor]]; }))"""
    )
    passed, torn = shown["set-up passes"], shown["set-up passes, CONTRADICTION [1]"]
    assert all(a != b for a, b in zip(passed, torn, strict=True))
    assert "none" not in torn[0]


def test_environments_and_cautions_are_there_without_cells(opened: Open) -> None:
    tab = opened(alone())
    assert "vllm 0.32.0" in tab.js("document.getElementById('card-environments').innerText")
    tab.click("#card-environments")
    body = tab.js("document.getElementById('card-body').innerText")
    assert "NVIDIA H200" in body and "waves_per_eu dropped" in body
    tab.click("#card-cautions")
    assert "not an AMD GPU" in tab.js("document.getElementById('card-body').innerText")
    tab.click("#view-pairs details summary")
    assert "UNIFORM_BATCH" in tab.js("document.querySelector('#view-pairs details').innerText")


def test_texts_of_pairs_do_nothing(opened: Open) -> None:
    evil = "</script><img src=x onerror='window.pwned=1'>\u202e"
    bad = recorded(made(target="device:gfx950", drafter=msgspec.structs.replace(made().drafter, family=evil)))
    bad = msgspec.structs.replace(bad, pair_id=evil, contradictions=(evil,), graph_support=evil, layout=evil)
    environment = msgspec.structs.replace(ENVIRONMENT, hardware={"vendor": "nvidia", "name": evil})
    tab = opened(store.Run({}, {"env": environment}, pairs=[bad]))
    assert tab.js("window.pwned") is None and tab.js("document.querySelectorAll('img').length") == 0
    whole = tab.js("document.body.innerText")
    assert "onerror" in whole and "\u202e" not in whole
