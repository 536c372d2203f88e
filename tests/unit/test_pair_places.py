"""Pairs in reports: where they ran, their order, what their signs mean, and which failures are expected."""

from __future__ import annotations

import random
import re

import msgspec
import pytest
import samples
from test_pair import made, recorded, refused

from capmatrix.cell import Environment, Failure, Geometry, Phase, Record, Rung, Verdict
from capmatrix.pair import PairRecord, Side, SideFacts, pair_id
from capmatrix.report import explain_pair, markdown, pair_expected, pair_legend, pairs, rerun, terminal
from capmatrix.report.cautions import cautions
from capmatrix.report.explain import explain
from capmatrix.report.page import data, plain
from capmatrix.report.table import build
from capmatrix.store import Run

H200 = Environment(
    id="env",
    target="device:gfx950",
    versions={"vllm": "0.32.0", "triton": "3.6.0"},
    hardware={"vendor": "nvidia", "name": "NVIDIA H200"},
    identity={"arch": "gfx950"},
    extensions=("ROCm identity gfx950 on an NVIDIA GPU",),
)
TITLE = "NVIDIA H200 with a ROCm gfx950 identity"
STRANGER = f"{TITLE}: not an AMD GPU"
SAID = "draft step 2 reads other tokens' keys"


def on_h200(**changes: object) -> PairRecord:
    return recorded(made(target="device:gfx950"), rung=Rung.EXECUTED, **changes)


def table_lines(text: str) -> str:
    return " ".join(text.split())


def test_pairs_of_another_vendors_gpu_are_said_to_be_so_in_every_form() -> None:
    report = build([], {"env": H200}, pairs=[on_h200()])
    for text in map(table_lines, (terminal.draw(report), markdown.draw(report), plain.draw(report))):
        assert TITLE in text
        assert "vllm" in text and "0.32.0" in text and "device:gfx950" in text
    assert any(note.startswith(STRANGER) for note in cautions(report))
    assert cautions(report)[0].startswith("Pairs show")
    for drawn in (terminal.draw(report), markdown.draw(report)):
        assert STRANGER in table_lines(drawn)


def test_a_title_stands_once_above_the_pairs_of_its_place() -> None:
    other = made(target="device:gfx950", drafter=Side("another", "LlamaForCausalLM", Geometry(8, 8, 128)))
    report = build([], {"env": H200}, pairs=[on_h200(), recorded(other)])
    assert len(pairs.tables(report.pairs, report.environments)) == 2
    head = terminal.draw(report).split("What this does not show")[0]
    assert head.count(TITLE) == 1


def test_beside_cells_the_caution_comes_for_pairs_as_well_and_once() -> None:
    cells: list[Record] = [samples.record(samples.cell())]
    environments = {"env": H200}
    assert sum(STRANGER in note for note in cautions(build(cells, environments, pairs=[on_h200()]))) == 1
    device = samples.record(samples.cell(target="device:gfx950"), environment="env")
    assert sum(STRANGER in note for note in cautions(build([device], environments, pairs=[on_h200()]))) == 1


def test_an_amd_place_gets_no_such_caution() -> None:
    offline = Environment(id="env", target="offline:gfx942", versions={"vllm": "0.32.0"})
    report = build([], {"env": offline}, pairs=[recorded()])
    (table,) = pairs.tables(report.pairs, report.environments)
    assert (table.title, table.made_of) == ("gfx942", "vllm 0.32.0")
    assert not any("not an AMD GPU" in note for note in cautions(report))


def test_explain_tells_the_hardware_what_was_changed_and_what_it_speaks_for() -> None:
    text = table_lines(explain(on_h200().pair_id, [], {"env": H200}, {}, pairs=[on_h200()]))
    for said in (
        "hardware vendor nvidia, name NVIDIA H200",
        "identity arch gfx950",
        "changed - ROCm identity gfx950 on an NVIDIA GPU",
        "speaks for no AMD architecture by itself",
        "triton 3.6.0",
    ):
        assert said in text, said
    offline = Environment(id="env", target="offline:gfx942")
    assert "speaks for gfx942" in table_lines(explain(recorded().pair_id, [], {"env": offline}, pairs=[recorded()]))
    assert "not recorded" in explain_pair.render(recorded(), None)


@pytest.mark.parametrize(
    ("header", "path"),
    [
        ({"files": ["pairs.toml"]}, "matrices/pairs.toml"),
        ({"files": ["mine/pairs.toml"]}, "mine/pairs.toml"),
        ({}, "matrices/pairs.toml"),
    ],
)
def test_the_command_of_a_pair_names_a_file_that_is_found(header: dict[str, object], path: str) -> None:
    text = explain_pair.render(recorded(), None, header, width=400)
    assert f"pytest {path}::{recorded().pair_id} --target offline:gfx942" in text
    if header:
        assert rerun.matrix_path(header) == path


# Contradictions


def test_no_form_gives_a_contradiction_the_sign_of_a_pass() -> None:
    bad = recorded(contradictions=(SAID,), rung=Rung.DECLARED, runs=())
    good = recorded(made(block_size=64))
    report = build([], {}, pairs=[bad, good])
    (line,) = [line for line in markdown.draw(report).splitlines() if "CONTRADICTION [1]" in line]
    assert pairs.WARNING in line and markdown.SIGN[Verdict.PASS] not in line
    assert markdown.draw(report).count(markdown.SIGN[Verdict.PASS]) == 1
    assert re.findall(r'<tr class="(\w+)"', plain.draw(report)) == ["pass", "torn"]
    model = data.build([("run", Run(pairs=[bad, good]))]).data
    assert [row["torn"] for row in model["pairs"][0]["rows"]] == [False, True]


def test_a_failure_keeps_its_own_sign_beside_a_contradiction() -> None:
    bad = recorded(contradictions=(SAID,), verdict=Verdict.WRONG, reasons=("off",))
    (table,) = pairs.tables([bad])
    assert not table.rows[0].torn
    assert markdown.SIGN[Verdict.WRONG] in "\n".join(pairs.markdown([bad]))


def test_explain_says_what_a_contradiction_means_and_the_way_round_it() -> None:
    text = table_lines(explain_pair.render(recorded(contradictions=(SAID,)), None))
    for said in (
        "docs/findings.md#8-v2s-drafter-reads-other-blocks-than-its-kv-cache-has",
        "VLLM_USE_V2_MODEL_RUNNER=0",
        "docs/pairs.md#contradictions",
        "Verification keeps the output right",
    ):
        assert said in text, said
        assert said not in explain_pair.render(recorded(), None, width=400)


# Order and legend


def asked(target: str, drafter: str, block: int | None, kv: str = "auto", runner: str = "v2") -> PairRecord:
    """A pair whose sides got what they asked for; a block that was not given became 16."""
    sides = {
        "target_model": Side("llama", "LlamaForCausalLM", Geometry(8, 8, 128), target),
        "drafter": Side("eagle", "LlamaForCausalLMEagle3", Geometry(8, 8, 128), drafter),
    }
    pair = made(**sides, block_size=block, kv_cache_dtype=kv, runner=runner)
    facts = {role: SideFacts(backends={name: 1}) for role, name in (("target_model", target), ("drafter", drafter))}
    record = recorded(pair, manager_block=block or 16, **facts)
    return msgspec.structs.replace(record, runner=runner)


def test_rows_stand_in_order_whatever_order_they_ran_in() -> None:
    wanted = [
        asked("ROCM_ATTN", "ROCM_ATTN", 16, "auto", "v1"),
        asked("ROCM_ATTN", "ROCM_ATTN", 16),
        asked("ROCM_ATTN", "ROCM_ATTN", 16, "fp8"),
        asked("ROCM_ATTN", "ROCM_ATTN", None),
        asked("ROCM_ATTN", "ROCM_ATTN", 64),
        asked("ROCM_ATTN", "ROCM_ATTN", 128),
        asked("ROCM_ATTN", "TRITON_ATTN", 16),
        asked("TRITON_ATTN", "ROCM_ATTN", 16),
    ]
    shuffled = list(wanted)
    random.Random(3).shuffle(shuffled)
    (table,) = pairs.tables(shuffled)
    assert [row.id for row in table.rows] == [record.pair_id for record in wanted]


def test_tables_stand_in_order_of_place_and_models() -> None:
    others = [
        made(target="offline:gfx950"),
        made(target_model=Side("a-model", "LlamaForCausalLM", Geometry(8, 8, 128))),
    ]
    records = [on_h200(environment="h200"), *map(recorded, others)]
    found = [(t.title, t.models.split()[0]) for t in pairs.tables(records, {"h200": H200})]
    assert found == [("gfx942", "a-model"), ("gfx950", "minimax-m3"), (TITLE, "minimax-m3")]


def test_the_runner_tells_what_was_asked_from_what_vllm_took() -> None:
    (table,) = pairs.tables([recorded(), recorded(made(runner="v2"))])
    at = pairs.HEADINGS.index("runner")
    assert [row.cells[at] for row in table.rows] == ["auto=v2", "v2"]


def test_the_legend_has_what_is_shown_and_nothing_else() -> None:
    report = build([], {}, pairs=[recorded()])
    assert [sign for sign, _ in pairs.shown(pairs.tables(report.pairs))] == [
        "+n",
        "(inherited)",
        "auto=x",
        "UNIFORM_BATCH",
        "n/m",
    ]
    for text in (terminal.draw(report), markdown.draw(report), plain.draw(report)):
        assert pair_legend.GRAPHS["UNIFORM_BATCH"] in table_lines(text)
        assert pair_legend.GRAPHS["ALWAYS"] not in table_lines(text)
    assert [sign for sign, _ in pairs.shown(pairs.tables([refused()]))] == ["+n", "auto=x"]
    bad = recorded(contradictions=(SAID,), rung=Rung.DECLARED, runs=())
    assert {"set-up passes", "CONTRADICTION"} < {sign for sign, _ in pairs.shown(pairs.tables([bad]))}


# Expected failures


def expected_error(**changes: object) -> PairRecord:
    """The pair of ``matrices/expectations/pairs.toml`` that V1's proposer refuses at its second step."""
    pair = made(
        target_model=Side("llama3.1-8b", "LlamaForCausalLM", Geometry(32, 8, 128)),
        drafter=Side("eagle3-llama3.1-8b", "LlamaForCausalLMEagle3", Geometry(32, 8, 128)),
        tp=1,
        num_speculative_tokens=3,
        block_size=None,
        kv_cache_dtype="turboquant_k8v4",
        runner="v1",
    )
    said = "ValueError: Unsupported attention metadata type"
    base = recorded(pair, verdict=Verdict.ERROR, phase=Phase.FORWARD, reasons=(said,), failure=Failure("E", said, "f"))
    return msgspec.structs.replace(base, **changes)


OFFLINE = {"env": Environment(id="env", target="offline:gfx942", versions={"vllm": "0.32.0"})}


def test_an_expected_failure_is_said_to_be_in_every_form() -> None:
    record = expected_error()
    report = build([], OFFLINE, pairs=[record])
    (table,) = pairs.tables(report.pairs, report.environments, report.expected_pairs)
    assert table.rows[0].cells[-1].endswith(", expected [1]")
    assert "; expected: V1's proposer checks metadata classes" in table.notes[0][1]
    assert "vllm-project/vllm#53983" in table.notes[0][1]
    for text in map(table_lines, (terminal.draw(report), markdown.draw(report), plain.draw(report))):
        assert ", expected [1]" in text and "1 failure expected" in text
        assert "TurboQuantMetadata is not on its list" in text
    assert "vllm-project/vllm#53983" in table_lines(explain(record.pair_id, [], OFFLINE, pairs=[record]))
    rows = data.build([("run", Run(environments=OFFLINE, pairs=[record]))]).data["pairs"][0]["rows"]
    assert rows[0]["cells"][-1].endswith(", expected [1]")


def test_a_failure_that_no_expectation_names_is_not() -> None:
    record = expected_error()
    newer = {"env": Environment(id="env", target="offline:gfx942", versions={"vllm": "0.40.0"})}
    other = msgspec.structs.replace(record.pair, runner="v2")
    for environments, one in (
        (newer, record),
        (OFFLINE, expected_error(verdict=Verdict.CRASH)),
        (OFFLINE, expected_error(verdict=Verdict.PASS)),
        (OFFLINE, expected_error(pair=other, pair_id=pair_id(other))),
    ):
        assert pair_expected.of([one], environments) == {}
        assert ", expected" not in terminal.draw(build([], environments, pairs=[one]))
    assert set(pair_expected.of([record], OFFLINE)) == {record.pair_id}
