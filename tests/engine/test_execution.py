"""Modes of execution: what vLLM runs a batch in, rows padded as it pads them, and calls made as a graph holds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from engine_helpers import checks

torch = pytest.importorskip("torch")

from faults.latent import SMALL as LATENT  # noqa: E402

from capmatrix.cell import Cell, Check, Geometry, Phase, Record, Role, Rung, Verdict  # noqa: E402
from capmatrix.workers.pool import Pool  # noqa: E402

pytestmark = pytest.mark.engine

Run = Callable[..., Record]

DENSE = Geometry(4, 2, 64)
#: A target without speculation: its decodes are of vLLM's uniform length.
TARGET: dict[str, Any] = {"role": Role.TARGET, "method": "none", "num_speculative_tokens": 0, "geometry": DENSE}
MTP: dict[str, Any] = {"drafter": "deepseek-mtp", "method": "mtp", "geometry": LATENT}


def mode(record: Record) -> str:
    """What the record says of the mode."""
    (said,) = checks(record, "execution")
    assert said.ok is None
    return said.detail


def judged(record: Record) -> list[Check]:
    """Replays whose numbers were judged, all right, and of an error that something was compared for."""
    found = [c for c in checks(record, "graph") if c.ok is not None]
    assert found and all(c.ok for c in found)
    assert all(c.relative_l2 is not None and c.bound is not None and 0 < c.relative_l2 < c.bound for c in found)
    return found


@pytest.mark.parametrize("backend", ["TRITON_ATTN", "ROCM_ATTN", "TRITON_MLA"])
@pytest.mark.parametrize("dtype", ["auto", "fp8"])
def test_piecewise_pads_to_a_capture_size(run: Run, backend: str, dtype: str) -> None:
    more = MTP if backend == "TRITON_MLA" else {"geometry": DENSE}
    record = run("interpreter:gfx950", backend, 64, dtype, "verify", execution="piecewise", **more)
    assert (record.verdict, record.rung) == (Verdict.PASS, Rung.INTERPRETED), record.reasons
    assert mode(record).startswith("server PIECEWISE; this batch PIECEWISE: 9 tokens padded to 12;")
    assert all(c.ok for c in record.checks if c.part in ("forward", "needles", "write", "guard", "repeat"))
    assert not checks(record, "graph")


@pytest.mark.parametrize(
    ("batch", "rows"),
    [
        ("decode", "3 tokens padded to 4;"),
        ("padded", "2 tokens padded to 8;"),
        ("prefill", "47 tokens padded to 48;"),
        ("chunked_prefill", "53 tokens padded to 56;"),
        ("mixed", "46 tokens padded to 48;"),
    ],
)
def test_every_shape_runs_piecewise(run: Run, batch: str, rows: str) -> None:
    record = run("interpreter:gfx950", "TRITON_ATTN", 16, "auto", batch, execution="piecewise", **TARGET)
    assert record.verdict is Verdict.PASS, record.reasons
    assert f"this batch PIECEWISE: {rows}" in mode(record)


def test_more_tokens_than_are_captured_run_eagerly_and_say_so(run: Run) -> None:
    record = run("offline:gfx950", "TRITON_ATTN", 16, "auto", "prefill", execution="piecewise")
    assert (record.verdict, record.rung) == (Verdict.PASS, Rung.COMPILED), record.reasons
    assert mode(record).endswith("this batch NONE: eager: 747 tokens are more than the largest captured size, 512")


@pytest.mark.parametrize(
    ("runner", "execution", "said"),
    [
        ("v2", "piecewise", "server PIECEWISE; this batch NONE: eager: vLLM's V2 runner has no graph for"),
        ("v1", "piecewise", "server PIECEWISE; this batch PIECEWISE: 3 tokens;"),
        ("v1", "full", "server FULL_AND_PIECEWISE; this batch PIECEWISE: 3 tokens;"),
    ],
)
def test_a_drafters_own_decodes_have_the_runners_graphs(run: Run, runner: str, execution: str, said: str) -> None:
    record = run("offline:gfx950", "TRITON_ATTN", 16, "auto", "boundary", execution=execution, runner=runner)
    assert record.verdict is Verdict.PASS, record.reasons
    assert mode(record).startswith(said)
    assert not checks(record, "graph")


def test_an_eager_cell_says_nothing_of_a_mode(run: Run) -> None:
    record = run("offline:gfx950", "TRITON_ATTN", 16, "auto", "decode")
    assert record.verdict is Verdict.PASS and not checks(record, "execution")


@pytest.mark.parametrize(("backend", "block"), [("TRITON_ATTN", 16), ("ROCM_ATTN", 64)])
@pytest.mark.parametrize("batch", ["decode", "verify"])
def test_full_is_called_as_captured_and_claims_no_graph(run: Run, backend: str, block: int, batch: str) -> None:
    record = run("interpreter:gfx950", backend, block, "fp8", batch, execution="full", geometry=DENSE)
    assert (record.verdict, record.rung, record.phase) == (Verdict.PASS, Rung.INTERPRETED, Phase.GRAPH), record.reasons
    assert mode(record).startswith("server FULL_AND_PIECEWISE; this batch FULL: ")
    found = judged(record)
    assert all("replayed without a graph" in c.detail for c in found)
    # The first size of vLLM's list with room for padding, full and padded, and the cell's own batch.
    assert [c.detail.split(" without")[0] for c in found] == [
        "1 requests, 1 replayed", "6 requests, 6 replayed", "6 requests, 5 replayed", "3 requests, 3 replayed",
    ]  # fmt: skip


@pytest.mark.parametrize(("batch", "dtype"), [("decode", "fp8"), ("verify", "auto"), ("verify", "fp8")])
def test_latent_attention_is_called_as_captured(run: Run, batch: str, dtype: str) -> None:
    record = run("interpreter:gfx950", "TRITON_MLA", 16, dtype, batch, execution="full", **MTP)
    assert (record.verdict, record.phase) == (Verdict.PASS, Phase.GRAPH), record.reasons
    assert record.graph_support == "UNIFORM_BATCH"
    assert any("6 requests, 5 replayed" in c.detail for c in judged(record))


def test_batches_of_other_shapes_have_no_full_graph(run: Run) -> None:
    record = run("interpreter:gfx950", "TRITON_ATTN", 16, "auto", "prefill", execution="full", **TARGET)
    assert record.verdict is Verdict.PASS, record.reasons
    assert "this batch PIECEWISE: 47 tokens padded to 48;" in mode(record)
    assert not checks(record, "graph")


def test_uniform_batches_besides_decode_and_verify_are_replayed_too(run: Run) -> None:
    record = run("interpreter:gfx950", "TRITON_ATTN", 16, "auto", "padded", execution="full", **TARGET)
    assert record.verdict is Verdict.PASS, record.reasons
    (only,) = judged(record)
    assert only.detail.startswith("8 requests, 2 replayed")


@pytest.mark.parametrize("backend", ["TRITON_ATTN", "TRITON_MLA"])
def test_offline_compiles_what_a_capture_would_launch(run: Run, backend: str) -> None:
    more = MTP if backend == "TRITON_MLA" else {}
    record = run("offline:gfx950", backend, 16, "auto", "verify", execution="full", **more)
    assert (record.verdict, record.rung, record.phase) == (Verdict.PASS, Rung.COMPILED, Phase.GRAPH), record.reasons
    (said,) = checks(record, "graph")
    assert said.ok is None and said.detail.endswith("is compiled; nothing is captured on this target")
    assert {k.kind for k in record.route if k.phase == "graph"} >= {"triton"}


@pytest.fixture(scope="module")
def run_faulty(engines: Callable[..., Pool]) -> Callable[..., Record]:
    """Runs a cell with the fault that it names, ``run_faulty("output-from-the-end", "TRITON_ATTN", "full")``."""
    pool = engines("padding_faults")

    def one(fault: str, backend: str, execution: str, batch: str = "verify") -> Record:
        latent = backend == "TRITON_MLA"
        return pool.run(
            Cell(
                target="interpreter:gfx950", backend=backend, block_size=16, kv_cache_dtype="auto", drafter=fault, tp=1,
                role=Role.DRAFTER, method="mtp" if latent else "eagle3", geometry=LATENT if latent else DENSE,
                num_speculative_tokens=2, batch=batch, lengths="short", execution=execution,
            )
        )  # fmt: skip

    return one


@pytest.mark.parametrize(
    ("fault", "backend", "where"),
    [
        ("padded-rows-into-slot-0", "TRITON_ATTN", "guard: "),
        ("output-from-the-end", "TRITON_ATTN", "forward with "),
        ("latent-output-from-the-end", "TRITON_MLA", "forward with "),
    ],
)
def test_what_only_padding_shows_is_caught_piecewise(
    run_faulty: Callable[..., Record], fault: str, backend: str, where: str
) -> None:
    whole = run_faulty(fault, backend, "eager")
    assert whole.verdict is Verdict.PASS, whole.reasons
    record = run_faulty(fault, backend, "piecewise")
    assert record.verdict is Verdict.WRONG
    assert any(reason.startswith(where) for reason in record.reasons), record.reasons


@pytest.mark.parametrize(
    ("fault", "backend"),
    [("lengths-of-the-capture", "TRITON_ATTN"), ("latent-lengths-of-the-capture", "TRITON_MLA")],
)
def test_what_only_a_replay_shows_is_caught_full(run_faulty: Callable[..., Record], fault: str, backend: str) -> None:
    assert run_faulty(fault, backend, "piecewise").verdict is Verdict.PASS
    record = run_faulty(fault, backend, "full")
    assert (record.verdict, record.phase) == (Verdict.WRONG, Phase.GRAPH)
    assert record.reasons and record.reasons[0].startswith("call as captured, without a graph, of 1 requests")
    assert all(c.ok for c in checks(record, "forward"))


def test_a_backend_that_declares_no_graphs_is_run_piecewise_and_tried(run_faulty: Callable[..., Record]) -> None:
    record = run_faulty("never-declared", "TRITON_ATTN", "full")
    assert (record.verdict, record.graph_support) == (Verdict.PASS, "NEVER"), record.reasons
    assert "server FULL_AND_PIECEWISE, resolved to PIECEWISE; this batch PIECEWISE: 9 tokens padded" in mode(record)
    (said,) = checks(record, "graph")
    assert said.ok is None
    assert said.detail == "NEVER declared, so vLLM captures none, yet calls as captured give right numbers"
