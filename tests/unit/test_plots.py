"""Plots: scales put values where they belong, intervals are drawn, nothing of a record escapes, bytes are the same."""

from __future__ import annotations

import itertools
import random
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import msgspec
import pytest
import samples
from plot_figures import RESULTS, SVG, drawn, gpu, marks, only, parsed, said, texts, tick, timed, timing
from samples import PAGED, cell, record
from test_markdown import HOSTILE

from capmatrix import archs, cli, store
from capmatrix.cell import Geometry, Kernel, Record, Rung, Timing, Verdict
from capmatrix.paths import matrices_dir
from capmatrix.report.plots import Figure, evidence, figures, limits, standalone, svg
from capmatrix.selection import published, workloads

# Times.


def test_a_point_lies_where_its_value_is() -> None:
    found = drawn(
        timed(timing(median=2500.0, low_us=2000.0, high_us=3000.0), block_size=16),
        timed(timing(median=7500.0, low_us=7000.0, high_us=8000.0), block_size=128),
    )
    root = parsed(only("time", found))
    (zero,), (top,) = tick(root, "0"), tick(root, "8,000")
    (first,), (second,) = marks(root, "ROCM_ATTN, block 16"), marks(root, "ROCM_ATTN, block 128")
    assert first[1] == pytest.approx(zero + (top - zero) * 2500 / 8000, abs=0.02)
    assert second[1] == pytest.approx(zero + (top - zero) * 7500 / 8000, abs=0.02)
    assert first[0] < second[0]


def test_the_interval_is_drawn_from_its_lower_to_its_upper_end() -> None:
    found = drawn(timed(timing(median=2500.0, low_us=2000.0, high_us=4000.0), block_size=16))
    root = parsed(only("time", found))
    (zero,), (top,) = tick(root, "0"), tick(root, "4,000")
    (whisker,) = [e.attrib["d"] for e in root.iter(f"{SVG}path") if "cm-whisker" in e.attrib["class"]]
    strokes = [[float(n) for n in re.findall(r"[\d.]+", stroke)] for stroke in whisker.split("M")[1:]]
    (upright,) = [s for s in strokes if s[0] == s[2]]
    assert upright[1] == pytest.approx(zero + (top - zero) * 2000 / 4000, abs=0.02)
    assert upright[3] == pytest.approx(top, abs=0.02)
    assert "at most 80.0% wide" in only("time", found).caption


def test_panels_are_kv_dtypes_by_phases_and_share_the_axis_of_a_phase() -> None:
    found = drawn(
        timed(timing(median=4000.0), kv_cache_dtype="auto"),
        timed(timing(median=100_000.0), kv_cache_dtype="fp8"),
        timed(timing("prefill", median=900.0), kv_cache_dtype="fp8", batch="prefill"),
    )
    root = parsed(only("time", found))
    said = texts(root)
    panels = [t for t in said if t.startswith(("decode", "prefill"))]
    assert panels == ["decode, KV auto (log)", "prefill, KV auto", "decode, KV fp8 (log)", "prefill, KV fp8"]
    assert said.count("not timed") == 1
    assert len(tick(root, "100,000")) == 2


def test_times_of_another_gpu_or_of_other_versions_are_another_figure() -> None:
    first, second = timed(timing()), timed(timing(), backend="TRITON_ATTN")
    other = msgspec.structs.replace(gpu("AMD Instinct MI325X"), id="other")
    newer = msgspec.structs.replace(gpu(), id="newer", versions={**samples.VERSIONS, "vllm": "0.33.0"})
    for where in (other, newer):
        moved = msgspec.structs.replace(second, environment=where.id)
        found = figures([first, moved], {"env-device": gpu(), where.id: where})
        assert [f.kind for f in found].count("time") == 2
        assert len({f.name for f in found}) == len(found)
    assert [f.kind for f in drawn(first, second)].count("time") == 1


def test_only_what_passed_has_a_time_and_the_caption_says_who_has_none() -> None:
    wrong = msgspec.structs.replace(timed(timing(), backend="TRITON_ATTN"), verdict=Verdict.WRONG)
    rejected = record(cell(target="device", backend="ROCM_AITER_FA"), Verdict.REJECTED)
    figure = only("time", drawn(timed(timing()), wrong, rejected))
    assert "TRITON_ATTN" not in figure.svg.replace(figure.caption, "")
    assert "Without a time: ROCM_AITER_FA at block 128 (rejected)" in figure.caption
    assert not drawn(wrong)


def test_captions_say_what_is_no_evidence() -> None:
    nvidia = gpu("NVIDIA H200", vendor="nvidia", arch="", compute_capability="9.0")
    for figure in drawn(timed(timing()), where=nvidia):
        assert "NVIDIA H200 is no AMD GPU" in figure.caption
    ours = only("time", drawn(timed(timing())))
    assert "no AMD GPU" not in ours.caption and "unrepeated run" in ours.caption and "executed" in ours.caption
    assert "Not shown" in ours.caption


# Published tables.


def seed_table() -> published.Published:
    return published.load(published.find("vllm-47882-minimax-m3-eagle3"))


def test_the_published_comparison_has_its_improvement_computed() -> None:
    figure = only("published", figures([], {}, [seed_table()]))
    root = parsed(figure)
    said = texts(root)
    assert "843.506 (+241.44 %)" in said and "858.428 (+247.48 %)" in said and "247.045 (baseline)" in said
    assert "rejected: does not support block size 128" in said
    assert "unrepeated" in figure.caption and "GPU is not stated" in figure.caption
    bars = [e for e in root.iter(f"{SVG}rect") if e.get("class") == "cm-bar"]
    lengths = [float(e.attrib["width"]) for e in bars]
    assert [w / lengths[0] for w in lengths] == pytest.approx([1, 843.506 / 247.045, 858.428 / 247.045], abs=1e-3)


def test_a_spread_that_the_source_gives_is_drawn() -> None:
    table = seed_table()
    rows = (msgspec.structs.replace(table.results[1], spread=40.0, repeats=3), table.results[0])
    figure = only("published", figures([], {}, [msgspec.structs.replace(table, results=rows)]))
    assert figure.svg.count("cm-limit cm-whisker") == 1
    assert "843.506 \N{PLUS-MINUS SIGN} 40" in figure.svg and "Whiskers: the spread" in figure.caption


def test_every_shipped_table_is_drawn_or_has_nothing_to_compare_by() -> None:
    tables = published.load_all()
    names = {f.name for f in figures([], {}, tables)}
    assert {n.removeprefix("published-") for n in names} <= {t.name for t in tables}
    assert len(names) >= len(tables) - 1


# Kernels.


def compiled(block: int = 128, backend: str = "ROCM_ATTN", **changes: Any) -> Record:
    kernel = msgspec.structs.replace(PAGED, **changes)
    return record(cell(backend=backend, block_size=block), route=(kernel,))


@pytest.mark.parametrize("names", ["abc", "bca", "cab", "acb"])
def test_kernels_show_the_largest_figure_and_reach_to_the_smallest(names: str) -> None:
    sizes = dict(zip(names, (16384, 32768, 20480), strict=True))
    found = drawn(*(msgspec.structs.replace(compiled(lds_bytes=n), cell_id=name) for name, n in sizes.items()))
    root = parsed(only("kernels", found))
    ((_, y),) = marks(root, f"ROCM_ATTN, block 128: LDS 32 KiB (from 16); most in {names[1]}")
    # Quarters of the limit are the ticks: 32 of 64 KiB is one of them.
    assert any(y == pytest.approx(t, abs=0.02) for t in tick(root, "32"))
    assert {"limit 64", "limit 512", "kernel_paged_attention_2d"} <= set(texts(root))
    assert archs.get("gfx942").sources["lds_bytes"] in only("kernels", found).caption


def test_a_kernel_over_the_limit_lies_above_it() -> None:
    root = parsed(only("kernels", drawn(compiled(lds_bytes=128 * 1024))))
    ((_, y),) = marks(root, "ROCM_ATTN, block 128: LDS 128 KiB")
    (limit,) = tick(root, "64")
    assert y < limit - 20


def test_what_did_not_fit_lies_above_the_limit_in_a_row_of_its_own() -> None:
    message = "out of resource: shared memory, Required: 98304, Hardware limit: 65536. Reducing block sizes may help."
    failed = record(cell(), Verdict.ERROR, failure=samples.failure("OutOfResources", message))
    figure = only("kernels", drawn(failed, compiled(block=16)))
    root = parsed(figure)
    assert [t for t in texts(root) if "kernel" in t][1:3] == ["a kernel that did not fit", "kernel_paged_attention_2d"]
    ((_, y),) = marks(root, "ROCM_ATTN, block 128: LDS 96 KiB")
    assert y < tick(root, "64")[0]
    assert "not which kernel it was" in figure.caption
    other = record(cell(), Verdict.ERROR, failure=samples.failure("OutOfResources", "threads, Required: 2048"))
    assert drawn(other) == []


def test_compile_times_are_missing_where_every_kernel_came_from_a_cache() -> None:
    cached = only("kernels", drawn(compiled(compile_s=None)))
    assert "No compile time" in cached.caption and "compile time, s" not in texts(parsed(cached))
    cold = only("kernels", drawn(compiled(block=16, compile_s=0.2), compiled(compile_s=94.0)))
    assert "compile time, s, log" in texts(parsed(cold)) and "compile time 94 s" in cold.svg


def test_nvidia_figures_are_read_and_held_against_its_own_limits() -> None:
    kernel = Kernel("k", "triton", "forward", lds_bytes=70656, detail="NVIDIA: 196 registers, 1126 spills")
    nvidia = gpu("NVIDIA H200", vendor="nvidia", arch="", compute_capability="9.0")
    figure = only("kernels", drawn(record(cell(target="device"), route=(kernel,)), where=nvidia))
    assert {"limit 255", "limit 227"} <= set(texts(parsed(figure)))
    assert "registers 196 a lane" in figure.svg and "spills 1,126" in figure.svg
    unknown = gpu("NVIDIA X", vendor="nvidia", arch="", compute_capability="99.0")
    figure = only("kernels", drawn(record(cell(target="device"), route=(kernel,)), where=unknown))
    assert (
        "The limit of registers and LDS is not known" in figure.caption
        and "cm-limit" not in figure.svg.split("</style>")[1]
    )


def test_every_architecture_has_its_register_limit() -> None:
    assert set(limits.VGPRS) == set(archs.ARCHS)


def test_many_kernels_are_cut_and_the_caption_says_so() -> None:
    route = tuple(msgspec.structs.replace(PAGED, name=f"kernel_n{i:02}", vgpr_spills=i) for i in range(20))
    figure = only("kernels", drawn(record(cell(), route=route)))
    assert "4 more kernels not drawn" in figure.caption
    assert "kernel_n19" in texts(parsed(figure)) and "kernel_n03" not in texts(parsed(figure))


# All of them.


def real() -> list[Figure]:
    run = store.merge([store.read(RESULTS / f"h200-gfx950-{n}.jsonl.gz") for n in ("timed", "graphs")])
    return figures(run.records, run.environments, published.load_all(), workloads=workloads.shipped())


def test_real_runs_make_every_kind_and_every_file_is_whole() -> None:
    found = real()
    assert {f.kind for f in found} == {"published", "time", "roofline", "kernels"}
    assert len({f.name for f in found}) == len(found)
    ids: list[str] = []
    for figure in found:
        assert re.fullmatch(r"[a-z0-9][a-z0-9.-]*", figure.name)
        for root in (parsed(figure), ElementTree.fromstring(standalone(figure).encode())):
            inside = {e.tag.removeprefix(SVG) for e in root.iter()}
            assert inside <= {"svg", "title", "desc", "style", "g", "path", "rect", "circle", "text"}, inside
            assert not [a for e in root.iter() for a in e.attrib if a.startswith("on") or "href" in a]
        root = parsed(figure)
        ids += [e.attrib["id"] for e in root.iter() if "id" in e.attrib]
        assert root.attrib["role"] == "img"
        named = root.attrib["aria-labelledby"].split()
        assert named == [root[0].attrib["id"], root[1].attrib["id"]] == [f"{figure.name}-title", f"{figure.name}-desc"]
        assert root[0].text and root[1].text == figure.caption
        assert (root.attrib["width"], root.attrib["height"]) == (str(figure.width), str(figure.height))
    assert len(ids) == len(set(ids)), "the figures of one page share no id"


def test_no_text_leaves_its_plot_or_stands_on_another() -> None:
    for figure in real():
        boxes: list[tuple[float, float, float, float, str]] = []
        for e in parsed(figure).iter(f"{SVG}text"):
            classes, shown = e.get("class", "").split(), said(e)
            size = 11 if "cm-s" in classes else 15 if "cm-h" in classes else 12
            long = svg.width(shown, size) * 0.8
            x, y = float(e.attrib["x"]), float(e.attrib["y"])
            left = x - long if "cm-e" in classes else x - long / 2 if "cm-m" in classes else x
            assert left >= 0 and left + long <= figure.width and size <= y <= figure.height, (figure.name, shown)
            boxes.append((left, y - size * 0.7, left + long, y, shown))
        for a, b in itertools.combinations(boxes, 2):
            apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
            assert apart, (figure.name, a, b)


def test_the_same_data_make_the_same_bytes_in_whatever_order() -> None:
    run = store.read(RESULTS / "h200-gfx950-timed.jsonl.gz")
    tables = published.load_all()
    first = figures(run.records, run.environments, tables)
    records = list(run.records)
    random.Random(3).shuffle(records)
    again = figures(records, dict(reversed(run.environments.items())), tables[::-1])
    assert [standalone(f) for f in first] == [standalone(f) for f in again]


def test_nothing_to_draw_is_no_figure() -> None:
    assert figures([], {}) == []
    assert drawn(record(cell(), Verdict.REJECTED)) == []
    assert drawn(record(cell(target="interpreter:gfx950"))) == []


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_stay_texts(text: str) -> None:
    where = gpu(text, arch=text, vendor=text)
    where = msgspec.structs.replace(where, versions={"vllm": text, "aiter": text})
    kernel = msgspec.structs.replace(PAGED, name=text, detail=f"NVIDIA: {text}", vgprs=None)
    made = timed(timing(workload=text), backend=text, drafter=text, kv_cache_dtype=text, dtype=text, execution=text)
    made = msgspec.structs.replace(made, cell_id=text, route=(kernel,), rung=Rung.EXECUTED)
    table = msgspec.structs.replace(seed_table(), name=text, title=text, source=text, model=text, hardware=text)
    rows = tuple(msgspec.structs.replace(r, variant=text, reason=text) for r in table.results)
    found = drawn(made, where=where, published=[msgspec.structs.replace(table, results=rows)])
    assert {f.kind for f in found} >= {"published", "time", "kernels"}
    for figure in found:
        root = ElementTree.fromstring(standalone(figure).encode())
        tags = {e.tag.removeprefix(SVG) for e in root.iter()}
        assert tags <= {"svg", "title", "desc", "style", "g", "path", "rect", "circle", "text"}, tags
        assert not [a for e in root.iter() for a in e.attrib if a.lower().startswith("on") or "href" in a.lower()]
        assert re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,110}", figure.name)
        assert figure.title.isprintable()


@pytest.mark.parametrize(
    "changes",
    [
        {"median_us": 0.0, "low_us": 0.0, "high_us": 0.0},
        {"median_us": -1.0, "low_us": -2.0},
        {"high_us": float("inf")},
        {"median_us": float("nan")},
        {"low_us": 5000.0},
        {"median_us": 1e300, "high_us": 1e301},
    ],
)  # fmt: skip
def test_times_that_cannot_be_are_left_out(changes: dict[str, Any]) -> None:
    assert drawn(timed(timing(**changes))) == []


@pytest.mark.parametrize(
    ("one", "more"),
    [
        (timing(share_of_roofline=float("inf")), {}),
        (timing(query_tokens=10**30), {}),
        (timing("verify", query_tokens=10**12), {"num_speculative_tokens": 10**12 - 1, "batch": "verify"}),
        (timing(), {"geometry": Geometry(0, 0, 0)}),
        (timing(), {"geometry": Geometry(16, 10**40, 128)}),
        (timing(detail="9" * 400 + " TB/s read here"), {}),
    ],
)  # fmt: skip
def test_work_that_cannot_be_told_is_left_out(one: Timing, more: dict[str, Any]) -> None:
    assert [f.kind for f in drawn(timed(one, **more))] == ["time"]


def test_kernels_whose_figures_cannot_be_are_left_out() -> None:
    assert drawn(compiled(vgprs=10**40, lds_bytes=-1, compile_s=float("nan"), vgpr_spills=-5, sgpr_spills=-5)) == []
    assert drawn(compiled(block=10**40)) == []


def test_kernels_that_differ_in_the_numbers_of_their_names_share_a_row() -> None:
    names = ("reduce_heads_16_TILE_32", "reduce_heads_8_TILE_64", "attention_2d")
    route = tuple(msgspec.structs.replace(PAGED, name=n, vgprs=100 + i) for i, n in enumerate(names))
    figure = only("kernels", drawn(record(cell(), route=route)))
    assert {"reduce_heads_*_TILE_*", "attention_2d"} <= set(texts(parsed(figure)))
    assert not [t for t in texts(parsed(figure)) if "TILE_32" in t]
    assert "registers 101 a lane (from 100)" in figure.svg


def test_names_are_not_given_twice() -> None:
    taken: set[str] = set()
    assert [evidence.name(taken, "time", "A b!") for _ in range(3)] == ["time-a-b", "time-a-b-2", "time-a-b-3"]
    assert evidence.name(taken, "", "../..") == "plot"


# The command.


def test_the_command_writes_a_file_for_each_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = str(RESULTS / "h200-gfx950-timed.jsonl.gz"), tmp_path / "deep" / "plots"
    assert cli.main(["plot", run, "--published", "vllm-47882-minimax-m3-eagle3", "-o", str(out)]) == 0
    said = capsys.readouterr().out.split()
    assert said == [str(p) for p in sorted(out.iterdir(), key=lambda p: said.index(str(p)))]
    kinds = [Path(p).name.partition("-")[0] for p in said]
    assert kinds == ["published", *["time"] * 4, *["roofline"] * 4, "kernels", "kernels"]  # four profiles
    for path in said:
        ElementTree.parse(path)
    assert cli.main(["plot", run, "--kind", "roofline", "-o", str(tmp_path / "one")]) == 0
    assert len(list((tmp_path / "one").iterdir())) == 4


def test_the_pictures_of_the_documentation_are_what_the_command_writes(tmp_path: Path) -> None:
    shown = sorted((Path(__file__).resolve().parents[2] / "docs" / "images").glob("time-*.svg"))
    assert shown
    assert cli.main(["plot", str(RESULTS / "h200-gfx950-timed.jsonl.gz"), "-o", str(tmp_path)]) == 0
    for path in shown:
        made = tmp_path / path.name
        assert path.read_bytes() == made.read_bytes(), "capmatrix plot RUN --kind time -o docs/images"


def test_the_command_takes_a_published_table_as_a_run(tmp_path: Path) -> None:
    table = str(published.find("vllm-47882-minimax-m3-eagle3"))
    assert cli.main(["plot", table, "-o", str(tmp_path)]) == 0
    assert [p.name for p in tmp_path.iterdir()] == ["published-vllm-47882-minimax-m3-eagle3.svg"]


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(RESULTS / "h200-gfx950-timed.jsonl.gz")
    assert cli.main(["plot", "-o", str(tmp_path)]) == 2
    assert "give at least one run" in capsys.readouterr().err
    assert cli.main(["plot", str(matrices_dir() / "smoke.toml"), "-o", str(tmp_path)]) == 2
    assert "no published table" in capsys.readouterr().err
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert cli.main(["plot", run, "-o", str(blocked)]) == 2
    assert "cannot write" in capsys.readouterr().err
    assert cli.main(["plot", run, "--kind", "published", "-o", str(tmp_path / "none")]) == 1
    assert "nothing to draw" in capsys.readouterr().err and not (tmp_path / "none").exists()
