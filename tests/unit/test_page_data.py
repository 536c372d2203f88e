"""The page's model: columns, ids, points, evidence and what stands above the tables."""

from __future__ import annotations

import base64
import gzip
from importlib import resources
from typing import Any

import msgspec
import samples
from hypothesis import given
from hypothesis import strategies as st
from samples import cell, forced, record

from capmatrix import codec, store, summary
from capmatrix.cell import Flag, Record, Timing, Verdict
from capmatrix.report import page as package
from capmatrix.report.page import columns, data, evidence, render
from capmatrix.report.rerun import commands


def seed() -> store.Run:
    records, environments, header = samples.seed_run()
    return store.Run({**header, "files": ["eagle3-llama.toml"]}, environments, records)


def unpacked(packed: list[int]) -> list[int]:
    return [code for i in range(0, len(packed), 2) for code in [packed[i]] * packed[i + 1]]


def column(model: dict[str, Any], name: str) -> list[Any]:
    (found,) = [c for c in model["columns"] if c["name"] == name]
    return [found["values"][code] for code in unpacked(found["packed"])]


def ids(model: dict[str, Any]) -> list[str]:
    out: list[str] = []
    coded = model["ids"]
    for i in range(0, len(coded), 2):
        out.append((out[-1] if out else "")[: coded[i]] + coded[i + 1])
    return out


def test_every_record_is_there_with_its_axes() -> None:
    run = seed()
    made = data.build([("seed", run)])
    by_id = {r.cell_id: r for r in run.records}
    assert made.data["n"] == len(run.records) == len(made.records)
    assert sorted(by_id) == ids(made.data) == [r.cell_id for r, _ in made.records]
    for name, field in (("backend", "backend"), ("block_size", "block_size"), ("batch", "batch"), ("target", "target")):
        assert column(made.data, name) == [getattr(r.cell, field) for r, _ in made.records]
    assert column(made.data, "verdict") == [r.verdict.value for r, _ in made.records]
    assert column(made.data, "rung") == [r.rung.value for r, _ in made.records]
    assert column(made.data, "flags") == [tuple(f.value for f in Flag if f in r.flags) for r, _ in made.records]
    assert set(column(made.data, "run")) == {"seed"}


def test_values_stand_in_the_order_of_a_table() -> None:
    made = data.build([("seed", seed())]).data
    values = {c["name"]: c["values"] for c in made["columns"]}
    assert values["block_size"] == [16, 128]
    assert values["kv_cache_dtype"] == ["auto", "fp8"]
    assert values["backend"] == ["ROCM_ATTN", "TRITON_ATTN", "ROCM_AITER_FA", "ROCM_AITER_UNIFIED_ATTN"]
    assert values["verdict"] == ["wrong", "error", "unverified", "pass", "unavailable"]
    assert values["arch"][:2] == ["gfx942", "gfx950"]


def test_points_are_those_of_the_summary() -> None:
    run = seed()
    made = data.build([("seed", run)])
    codes = unpacked(made.data["point"])
    seen: dict[int, set[object]] = {}
    for code, (r, _) in zip(codes, made.records, strict=True):
        place = summary.place(r, run.environments.get(r.environment))
        seen.setdefault(code, set()).add((place, summary.point(r.cell), r.cell.batch))
    assert all(len(found) == 1 for found in seen.values())
    assert len(seen) == len({next(iter(found)) for found in seen.values()})


def test_a_target_that_could_not_start_joins_its_architectures_table() -> None:
    run = seed()
    lost = record(cell(target="interpreter:gfx942"), Verdict.UNAVAILABLE, environment="", reasons=("no torch",))
    made = data.build([("seed", store.Run(run.header, run.environments, [*run.records, lost]))])
    at = ids(made.data).index(lost.cell_id)
    assert column(made.data, "arch")[at] == "gfx942"
    assert "vllm 0.32.0" in column(made.data, "versions")[at]


def test_of_several_runs_the_later_record_stands() -> None:
    first, second = record(), record(cell(), Verdict.ERROR)
    other = record(cell(batch="verify"))
    made = data.build([("a", store.Run({}, {}, [first, other])), ("a", store.Run({}, {}, [second]))]).data
    assert [r["name"] for r in made["runs"]] == ["a", "a (2)"]
    found = dict(zip(zip(column(made, "run"), ids(made)), zip(unpacked(made["old"]), column(made, "verdict"))))
    assert found["a", first.cell_id] == (1, "pass")
    assert found["a (2)", first.cell_id] == (0, "error")
    assert found["a", other.cell_id] == (0, "pass")
    assert made["overview"]["counts"] == [["error", "compiled", 1], ["pass", "compiled", 1]]


def test_measures_are_the_records_figures() -> None:
    timed = samples.rich_record()
    timed = msgspec.structs.replace(timed, times=(Timing("verify", "seed", 12.5, 12.0, 13.0, 8),))
    made = data.build([("a", store.Run({}, {}, [timed, record(cell(batch="prefill"))]))]).data
    values = {m["name"]: m["values"] for m in made["measures"]}
    rich = ids(made).index(timed.cell_id)
    assert values["lds_bytes"][rich] == 32768 and values["vgprs"][rich] == 258 and values["compile_s"][rich] == 3.41
    assert values["time_us"][rich] == 12.5 and values["error"][rich] == 0.81 and values["seconds"][rich] == 1.571
    assert values["lds_bytes"][1 - rich] is None


def test_what_is_declared_wrongly_is_a_column() -> None:
    over = record(cell(), Verdict.ERROR, reasons=("no",))
    under = record(forced(None), claims=samples.claims(forced(None), Verdict.REJECTED))
    made = data.build([("a", store.Run({}, {}, [over, under]))]).data
    assert sorted(column(made, "advertised")) == ["over-advertised", "under-advertised"]
    assert {d["kind"] for d in made["overview"]["disputes"]} == {"over-advertised", "under-advertised"}


def test_failing_regions_and_defaults_stand_above() -> None:
    overview = data.build([("seed", seed())]).data["overview"]
    regions = {r["backend"]: r for r in overview["regions"]}
    assert regions["TRITON_ATTN"]["verdicts"] == ("wrong",) and "KV cache = fp8" in regions["TRITON_ATTN"]["where"]
    assert set(regions["TRITON_ATTN"]["examples"]) <= {r.cell_id for r in seed().records}
    assert overview["cautions"]
    rows = overview["defaults"]["rows"]
    assert {r["architecture"] for r in rows} == {"gfx942", "gfx950"}
    assert all("provisional" in r["marks"] for r in rows if r["backend"])
    assert set(overview["defaults"]["marks"]) >= {"provisional"} and overview["defaults"]["marks"]["provisional"]


def test_evidence_is_the_record_itself() -> None:
    run = seed()
    records = [*run.records, samples.rich_record()]
    made = data.build([("seed", store.Run(run.header, run.environments, records))])
    found: list[dict[str, Any]] = []
    for chunk in evidence.chunks(made.records):
        part = msgspec.json.decode(gzip.decompress(base64.b64decode(chunk)))
        assert len(part) <= made.data["chunk"]
        found += part
    assert len(found) == len(records)
    for entry, (r, header) in zip(found, made.records, strict=True):
        assert msgspec.convert(entry["record"], Record) == r
        assert [tuple(pair) for pair in entry["commands"]] == commands(r, header)


def test_commands_name_the_cell() -> None:
    header = {"files": ["eagle3-llama.toml"], "preset": "seed"}
    r = record(forced(32))
    found = dict(commands(r, header))
    assert found["pytest"].startswith(
        f"pytest matrices/eagle3-llama.toml::{codec.cell_id(r.cell)} --target offline:gfx942"
    )
    assert found["pytest"].endswith("--preset seed --force=kernel_block")
    assert found["capmatrix"].startswith("capmatrix run eagle3-llama.toml --target offline:gfx942 --preset seed")
    assert found["capmatrix"].endswith(f"-k {r.cell_id}")
    switched = record(cell(switches=(("VLLM_ROCM_USE_AITER", "0"),)))
    assert "capmatrix" not in dict(commands(switched, header))
    assert "'rm -rf ~; echo'" in dict(commands(record(cell(target="rm -rf ~; echo")), header))["pytest"]


@given(st.lists(st.text(max_size=12), max_size=200))
def test_front_coding_loses_nothing(names: list[str]) -> None:
    coded = data.front_coded(sorted(names))
    assert ids({"ids": coded}) == sorted(names)
    assert all(coded[2 * i] == 0 for i in range(0, len(names), data.ID_STEP))


@given(st.lists(st.one_of(st.none(), st.integers(), st.text(max_size=3), st.tuples(st.text(max_size=2)))))
def test_encoding_loses_nothing(values: list[Any]) -> None:
    distinct, codes = columns.encode(values)
    assert [distinct[code] for code in codes] == values
    assert len(set(distinct)) == len(distinct)
    assert unpacked(columns.packed(codes)) == codes


def test_a_run_without_records_has_a_page() -> None:
    page = render.render([("empty", store.Run({}, {}, []))])
    assert "this run shows nothing" in page


def test_assets_are_in_the_package() -> None:
    held = {f.name for f in (resources.files(package) / "assets").iterdir()}
    assert held == {*render.SCRIPTS, *render.STYLES}
    assert render.SCRIPTS[0] == "core.js" and render.SCRIPTS[-1] == "shell.js"
