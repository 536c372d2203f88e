"""Reproduction scripts as text: well formed, short, of the parts that a cell needs, and safe whatever a record says."""

from __future__ import annotations

import ast
import io
import itertools
import subprocess
import sys
import tokenize
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import cell, environment, failure, record
from test_markdown import HOSTILE
from test_pair import refused

from capmatrix import batches, cli, vocabulary
from capmatrix.cell import (
    Cell,
    Check,
    Environment,
    Flag,
    Force,
    Geometry,
    Kernel,
    MlaGeometry,
    Phase,
    Record,
    Verdict,
)
from capmatrix.engine import model_config, reads, standalone
from capmatrix.errors import InputError
from capmatrix.repro.plan import MAX_MODEL_LEN, STAGES, UNQUANTISED_NEW_TOKENS, plan
from capmatrix.repro.script import script
from capmatrix.store import RunWriter

ROOT = Path(__file__).resolve().parents[2]
MLA = Geometry(16, 1, 576, mla=MlaGeometry(512, 128, 64, 128))


def wrong(c: Cell, *checks: Check, **changes: Any) -> Record:
    return record(c, Verdict.WRONG, checks=checks or (Check("forward", False),), **changes)


def failed(phase: Phase, c: Cell | None = None, verdict: Verdict = Verdict.ERROR) -> Record:
    return record(c or cell(), verdict, phase=phase, failure=failure())


def varied() -> list[Record]:
    """Records over everything that a script can be made of."""
    geometries = (
        Geometry(16, 16, 128),
        Geometry(8, 1, 64, sliding_window=128, sinks=True),
        Geometry(4, 2, 64, sliding_window=16, causal=False),
        Geometry(4, 2, 64, causal=False),
        Geometry(4, 2, 256, logits_soft_cap=30.0),
    )
    kinds = ("auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2")
    found = [
        wrong(cell(geometry=g, kv_cache_dtype=kv, batch=batch, lengths=lengths), Check(part, False, cache))
        for (g, kv, batch), lengths, (part, cache) in zip(
            itertools.product(geometries, kinds, batches.NAMES),
            itertools.cycle(("short", "full", "short")),
            itertools.cycle([("forward", "zeroed"), ("needles", "stale"), ("repeat", "nan"), ("forward", "nan")]),
        )
    ]
    in_the_call = [phase for phase in Phase if phase not in (Phase.GRAPH, Phase.TIME)]
    found += [failed(phase, cell(geometry=g)) for phase in in_the_call for g in geometries]
    found += [
        record(cell(scales=scales, dtype=dtype)) for scales in ("unit", "non_unit") for dtype in vocabulary.DTYPES
    ]
    found += [record(cell(method=m, num_speculative_tokens=k)) for m in vocabulary.METHODS for k in (0, 3)]
    found += [record(cell(force=Force.VALIDATION)), record(cell(force=Force.KERNEL_BLOCK, kernel_block=32))]
    found += [record(cell(backend=name), Verdict.REJECTED) for name in vocabulary.ROCM_BACKENDS]
    found += [record(cell(switches=(("VLLM_ROCM_USE_AITER", "1"), ("VLLM_BATCH_INVARIANT", "0"))))]
    found += [record(cell(batch="verify"), route=(Kernel("_fwd_kernel", "triton", "forward"),))]
    found += [record(cell(execution="piecewise"), flags=(Flag.NAN_UNSAFE,))]
    return found


@pytest.fixture(scope="module")
def scripts() -> list[str]:
    return [script(one) for one in varied()]


def test_every_script_is_python(scripts: list[str]) -> None:
    for text in scripts:
        compile(text, "repro.py", "exec")
        assert text.endswith("\n") and not text.endswith("\n\n")


def test_scripts_are_short(scripts: list[str]) -> None:
    lengths = sorted(text.count("\n") for text in scripts)
    assert lengths[len(lengths) // 2] <= 135 and lengths[-1] <= 170
    assert max(len(line) for text in scripts for line in text.splitlines()) <= 120
    usual = script(record(cell(kv_cache_dtype="auto", method="none", num_speculative_tokens=0)))
    assert usual.count("\n") < 120


def test_scripts_are_as_ruff_has_them(scripts: list[str], tmp_path: Path) -> None:
    pytest.importorskip("ruff", reason="ruff is not installed")
    for number, text in enumerate(scripts):
        (tmp_path / f"{number}.py").write_text(text, encoding="utf-8")
    settings = ["--no-cache", "--config", str(ROOT / "pyproject.toml")]
    for command in (["check", *settings], ["format", "--diff", *settings]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, str(tmp_path)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[:4000]


@pytest.mark.parametrize(
    ("phase", "stage"),
    [
        (Phase.CONFIGURE, "config"), (Phase.SELECT, "layer"), (Phase.BUILD, "cache"), (Phase.COMPILE, "forward"),
        (Phase.CACHE_WRITE, "forward"), (Phase.FORWARD, "forward"),
    ],
)  # fmt: skip
def test_a_script_ends_where_the_cell_failed(phase: Phase, stage: str) -> None:
    text = script(failed(phase))
    calls = {
        "config": "create_engine_config()",
        "layer": "layer = Attention(",
        "cache": "init_kv_cache(",
        "forward": "set_forward_context(metadata",
        "compare": "attention(q",
    }
    reached = STAGES.index(stage)
    for number, name in enumerate(STAGES):
        assert (calls[name] in text) is (number <= reached), name
    assert text.endswith('print("OK: no exception")\n')


def test_a_refusal_ends_at_the_layer() -> None:
    text = script(record(cell(block_size=1), Verdict.REJECTED, reasons=("block size 1 not supported",)))
    assert "layer = Attention(" in text and "init_kv_cache" not in text
    assert text.count("\n") < 60


def test_numbers_are_compared() -> None:
    text = script(wrong(cell()))
    assert 'sys.exit(f"WRONG: {off} rows are off")' in text
    assert 'print("OK: every row is within its bound")' in text


def test_what_a_cell_does_not_have_is_left_out() -> None:
    plain = script(record(cell(kv_cache_dtype="auto", method="none", num_speculative_tokens=0)))
    for word in ("import os", "WINDOW", "SOFT_CAP", "sinks", "FP8", "scale", "speculative", "NaN in every", "padded"):
        assert word not in plain.replace("NaN is bad", ""), word


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"kv_cache_dtype": "fp8_e5m2"}, "FP8 = torch.float8_e5m2"),
        ({"kv_cache_dtype": "fp8"}, "FP8 = current_platform.fp8_dtype()"),
        ({"block_size": 544}, "block_size=544"),
        ({"dtype": "float16"}, "DTYPE = torch.float16"),
        ({"backend": "TRITON_ATTN"}, 'attention_backend="TRITON_ATTN"'),
        ({"execution": "piecewise"}, "enforce_eager=False"),
        ({"geometry": Geometry(4, 2, 64, sliding_window=38)}, "WINDOW = 38"),
        ({"geometry": Geometry(4, 2, 64, logits_soft_cap=30.0)}, "SOFT_CAP = 30.0"),
        ({"geometry": Geometry(4, 2, 64, sinks=True)}, "sinks=sinks"),
        ({"geometry": Geometry(4, 2, 64, causal=False)}, "config.attention_config.use_non_causal = True"),
        ({"switches": (("VLLM_ROCM_USE_AITER", "1"),)}, 'os.environ["VLLM_ROCM_USE_AITER"] = "1"'),
        ({"force": Force.KERNEL_BLOCK, "kernel_block": 32}, "staticmethod(lambda *args: [32])"),
        ({"force": Force.VALIDATION}, "classmethod(lambda cls, *args, **kwargs: [])"),
        ({"batch": "padded"}, "# 3 padded rows that belong to no request."),
        ({"method": "eagle3", "num_speculative_tokens": 3}, '"num_speculative_tokens": 3'),
        ({"method": "ngram", "num_speculative_tokens": 3}, '{"method": "ngram", "num_speculative_tokens": 3'),
        ({"batch": "decode", "lengths": "short"}, "BATCH = [(1, 5), (1, 33), (1, 150)]"),
    ],
)  # fmt: skip
def test_a_cells_axes_are_in_its_script(change: dict[str, Any], line: str) -> None:
    assert line in script(record(cell(**change)))
    other = script(record(cell(backend="ROCM_AITER_FA", block_size=96, kv_cache_dtype="auto", batch="verify")))
    assert line not in other


def test_switches_are_set_before_vllm_is_imported() -> None:
    text = script(record(cell(switches=(("VLLM_BATCH_INVARIANT", "1"),))))
    assert text.index("os.environ[") < text.index("import torch") < text.index("from vllm")


def test_requests_are_in_the_order_of_vllms_worker() -> None:
    found = plan(record(cell(batch="mixed", num_speculative_tokens=2, lengths="short")))
    assert [r.query_len for r in found.batch.requests] == [3, 1, 20, 24]


def test_the_resolved_manager_block_decides_the_batch() -> None:
    found = plan(record(cell(batch="boundary", block_size=128), kv_cache={"manager_block": 16}))
    assert [r.seq_len for r in found.batch.requests] == [15, 16, 17]


def test_needles_only_where_they_alone_fail() -> None:
    assert plan(wrong(cell(), Check("needles", False, "stale"))).needles
    assert not plan(wrong(cell(), Check("needles", False, "stale"), Check("forward", False))).needles


def test_unused_slots_hold_what_they_held() -> None:
    assert plan(wrong(cell(), Check("forward", False, "nan"), Check("forward", False, "zeroed"))).fill == "zeroed"
    assert plan(wrong(cell(), Check("forward", False, "nan"), Check("forward", False, "stale"))).fill == "stale"
    assert plan(record(cell(), flags=(Flag.NAN_UNSAFE,))).fill == "nan"


def test_figures_of_the_engine_are_the_same_here() -> None:
    assert MAX_MODEL_LEN == model_config.MAX_MODEL_LEN
    assert set(UNQUANTISED_NEW_TOKENS) == set(reads._UNQUANTISED)


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (record(cell(geometry=MLA, backend="TRITON_MLA")), "latent attention"),
        (record(cell(), Verdict.UNAVAILABLE), "unavailable"),
        (record(cell(kv_cache_dtype="int4_per_token_head")), "packs codes"),
        (record(cell(), Verdict.WRONG, phase=Phase.GRAPH), "graph"),
        (failed(Phase.GRAPH), "graph"),
        (failed(Phase.TIME, verdict=Verdict.CRASH), "time"),
        (wrong(cell(), Check("guard", False)), "guard"),
        (refused(), "a pair"),
    ],
)
def test_what_no_script_shows_is_said(one: Any, why: str) -> None:
    with pytest.raises(InputError, match=why):
        script(one)


def test_a_cell_whose_graphs_pass_has_a_script() -> None:
    assert "attention(q" in script(record(cell(execution="full"), phase=Phase.GRAPH))


@pytest.mark.parametrize(
    ("said", "rows"),
    [
        ("this batch PIECEWISE: 9 tokens padded to 12; attention", 9),
        ("this batch PIECEWISE: 9 tokens padded to 999999; attention", 0),
        ("this batch PIECEWISE: 9 tokens; attention", 0),
    ],
)
def test_rows_padded_for_piecewise_graphs_are_padded_in_the_script(said: str, rows: int) -> None:
    # A decode of three requests.
    checks = (Check("execution", None, "", detail=f"server PIECEWISE; {said}"),)
    text = script(record(cell(execution="piecewise", batch="decode", lengths="short"), checks=checks))
    assert 'compilation_config={"cudagraph_mode": "PIECEWISE"}' in text
    assert (f"# {rows} padded rows that belong to no request." in text) == bool(rows)
    assert "PIECEWISE" not in script(record(cell()))


def test_a_packed_cache_that_raises_has_a_script() -> None:
    assert "set_forward_context" in script(failed(Phase.FORWARD, cell(kv_cache_dtype="int8_per_token_head")))


@pytest.mark.parametrize(
    "change",
    [
        {"backend": "X\nimport os"}, {"kv_cache_dtype": 'auto"'}, {"dtype": "bfloat16; boom"}, {"batch": "x"},
        {"lengths": "x"}, {"method": "x"}, {"execution": "x"}, {"scales": "x"}, {"block_size": 0},
        {"block_size": 1 << 40}, {"geometry": Geometry(4, 3, 64)}, {"geometry": Geometry(4, 0, 64)},
        {"geometry": Geometry(4, 4, -1)}, {"num_speculative_tokens": -1}, {"geometry": Geometry(4, 4, 64, -5)},
        {"geometry": Geometry(4, 4, 64, logits_soft_cap=float("inf"))}, {"kernel_block": -3},
        {"switches": (("VLLM_X", "1"), ("A" * 9, "b\nc"))},
    ],
)  # fmt: skip
def test_a_word_that_is_not_known_is_refused(change: dict[str, Any]) -> None:
    if "switches" in change:
        tokens = tokenize.generate_tokens(io.StringIO(script(record(cell(**change)))).readline)
        assert '"b\\nc"' in [t.string for t in tokens if t.type == tokenize.STRING]
        return
    with pytest.raises(InputError):
        script(record(cell(**change)))


def test_the_gpu_is_named_where_it_is_known() -> None:
    assert "# Needs vLLM, PyTorch and a gfx942 GPU" in script(record())
    one = record(cell(target="device"))
    amd = environment("device", hardware={"vendor": "amd", "name": "MI300X", "arch": "gfx942:sramecc+"})
    assert "a gfx942 GPU" in script(one, amd)
    for other in (None, environment("device", hardware={"vendor": "amd", "arch": "gfx\nimport os"})):
        assert "# Needs vLLM, PyTorch and a GPU;" in script(one, other)


def code_of(text: str) -> str:
    """A script without its comments, as Python sees it."""
    return ast.dump(ast.parse(text))


@pytest.mark.parametrize(
    "evil", [*HOSTILE, "coding: utf-7", "\u2028import os", "\x0cimport os", '"""', "-*- coding: latin-1 -*-"]
)
def test_what_a_record_says_stays_in_comments(evil: str) -> None:
    changes: dict[str, Any] = {"reasons": (evil,), "cell_id": evil, "layout": evil, "implementation": evil}
    text = script(wrong(cell(target=evil, drafter=evil), route=(Kernel(evil, evil, evil),), **changes))
    assert code_of(text) == code_of(script(wrong(cell())))
    assert tokenize.detect_encoding(io.BytesIO(text.encode()).readline)[0] == "utf-8"


@settings(deadline=None, max_examples=50)
@given(st.text(min_size=1, max_size=80))
def test_any_text_stays_in_comments(evil: str) -> None:
    text = script(wrong(cell(), reasons=(evil,)))
    assert code_of(text) == code_of(script(wrong(cell())))


def test_the_command_prints_or_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = wrong(cell(batch="verify"))
    run = str(written(tmp_path / "run.jsonl", [one, record(cell())]))
    assert cli.main(["repro", "ROCM_ATTN verify", run]) == 0
    assert capsys.readouterr().out == script(one)
    assert cli.main(["repro", one.cell_id, run, "-o", str(tmp_path / "repro.py")]) == 0
    assert (tmp_path / "repro.py").read_text(encoding="utf-8") == script(one)


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(written(tmp_path / "run.jsonl", [record(cell(), Verdict.UNAVAILABLE)]))
    for words in (["repro", "TRITON_ATTN", run], ["repro", "ROCM_ATTN", run], ["repro", "x", str(tmp_path / "none")]):
        assert cli.main(words) == 2
        said = capsys.readouterr()
        assert not said.out and said.err.startswith("capmatrix: error: ")


def test_a_target_that_is_none_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert standalone.main(["interpreter:gfx1", "repro.py"]) == 2
    assert "unknown target (got 'interpreter:gfx1')" in capsys.readouterr().err


def written(path: Path, records: list[Record], environments: tuple[Environment, ...] = ()) -> Path:
    """A run file that holds ``records``."""
    with RunWriter(path, {"matrix": "matrices/eagle3-llama.toml"}) as writer:
        for one in environments or (environment("offline:gfx942"),):
            writer.environment(one)
        for each in records:
            writer.record(each)
    return path
