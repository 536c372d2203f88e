"""``capmatrix recommend`` and ``capmatrix exec``: from the shipped evidence to flags, and to a process."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from capmatrix import cli, local_gpu

ROOT = Path(__file__).resolve().parents[2]
SPEC = '{"method":"eagle3","model":"Inferact/MiniMax-M3-EAGLE3","num_speculative_tokens":2}'
SERVE = ["vllm", "serve", "amd/MiniMax-M3-MXFP4", "--block-size", "128", "--kv-cache-dtype", "fp8"]
SEED = [*SERVE, "--speculative-config", SPEC]


def test_the_published_comparison_recommends_triton(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["recommend", "--gpu", "MI355X", "--drafter", "minimax-m3-eagle3", "--kv-cache-dtype", "fp8"]) == 0
    out = capsys.readouterr().out
    assert "backend: TRITON_ATTN" in out and "no evidence for gfx950 itself" in out
    assert "ROCM_AITER_FA: rejected" in out and "does not support block size 128" in out
    assert (
        '"attention_backend": "TRITON_ATTN"' in out and "vllm serve MODEL --block-size 128 --kv-cache-dtype fp8" in out
    )


def test_as_json_and_from_a_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"architectures": ["LlamaForCausalLMEagle3"], "num_attention_heads": 64, "head_dim": 128}
    (tmp_path / "config.json").write_text(json.dumps(config))
    words = ["recommend", "--gpu", "gfx950", "--config", str(tmp_path), "--block-size", "128"]
    assert cli.main([*words, "--kv-cache-dtype", "fp8", "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["backend"] == "TRITON_ATTN" and data["rung"] == "served"
    assert "evidence is that of minimax-m3-eagle3, which has the same attention" in data["certainty"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name it with --drafter or --config"),
        (["--drafter", "minimax"], "no such drafter family"),
        (["--drafter", "minimax-m3-eagle3", "--config", "x"], "not both"),
        (["--drafter", "minimax-m3-eagle3", "--gpu", "H100"], "unknown GPU"),
        (["--drafter", "minimax-m3-eagle3", "--block-size", "16"], "no row for this"),
        (["--drafter", "minimax-m3-eagle3", "--table", "t.toml", "--workload", "x"], "derived already"),
    ],
)
def test_mistakes(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["recommend", "--gpu", "gfx950", *words]) == 2
    assert message in capsys.readouterr().err


def test_the_gpu_is_this_machines_where_it_has_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["recommend", "--drafter", "minimax-m3-eagle3", "--kv-cache-dtype", "fp8"]
    monkeypatch.setattr(local_gpu, "architectures", lambda: ())
    assert cli.main(words) == 2 and "no AMD GPU is seen here" in capsys.readouterr().err
    monkeypatch.setattr(local_gpu, "architectures", lambda: ("gfx942",))
    assert cli.main(words) == 0 and capsys.readouterr().out.startswith("gfx942, ")


def execute(*words: str) -> int:
    return cli.main(["exec", "--gpu", "gfx950", "--dry-run", *words])


def test_exec_adds_the_drafters_backend_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(*SEED, "--no-async-scheduling") == 0
    out, err = capsys.readouterr()
    assert '"num_speculative_tokens":2, "attention_backend": "TRITON_ATTN"}' in out
    assert out.startswith("vllm serve amd/MiniMax-M3-MXFP4 --block-size 128") and out.endswith(
        "--no-async-scheduling\n"
    )
    assert "added speculative_config.attention_backend TRITON_ATTN" in err and "nobody repeated" in err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([*SERVE, "--speculative-config", SPEC[:-1] + ',"attention_backend":"ROCM_ATTN"}'], "names a backend itself"),
        (SERVE, "name it with --drafter"),
        ([*SERVE, "--speculative-config", '{"method":"eagle3","model":"me/mine"}'], "it is not known which drafter"),
        ([*SEED, "--config", "c.yaml"], "a --config file may name a backend"),
        ([w.replace("128", "16") for w in SEED], "no row for this"),
    ],
)
def test_exec_adds_nothing_where_it_should_not_or_cannot(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(*words) == 0
    out, err = capsys.readouterr()
    assert why in err and "nothing is added" in err
    assert shlex.split(out) == words


def test_a_target_that_is_named_gets_the_servers_backend(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "t.toml"
    assert cli.main(["derive", "--published", "vllm-47882-minimax-m3-eagle3", "--arch", "any", "-o", str(table)]) == 0
    text = table.read_text().replace('"minimax-m3-eagle3"', '"target-minimax-m3"').replace('"drafter"', '"target"')
    table.write_text(text)
    given = ["--table", str(table), "--drafter", "target-minimax-m3"]
    assert execute(*given, *SERVE) == 0
    assert capsys.readouterr().out.endswith("--attention-backend TRITON_ATTN\n")
    assert execute(*given, *SERVE, "--attention-backend", "ROCM_ATTN") == 0
    assert "TRITON" not in capsys.readouterr().out


def test_a_provisional_row_is_taken_only_where_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "t.toml"
    assert cli.main(["derive", "--published", "vllm-47882-minimax-m3-eagle3", "--arch", "any", "-o", str(table)]) == 0
    table.write_text(table.read_text().replace('marks = ["unrepeated"', 'marks = ["provisional", "unrepeated"'))
    assert execute("--table", str(table), *SEED) == 0
    out, err = capsys.readouterr()
    assert "attention_backend" not in out and "--provisional takes it nevertheless" in err
    assert execute("--table", str(table), "--provisional", *SEED) == 0
    assert "attention_backend" in capsys.readouterr().out


@pytest.mark.parametrize(("words", "message"), [([], "give the command"), (["rm", "-r", "x"], "not a vLLM server")])
def test_exec_runs_servers_only(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(*words) == 2
    assert message in capsys.readouterr().err


def test_exec_becomes_the_command_with_its_words_environment_and_status(tmp_path: Path) -> None:
    fake = tmp_path / "vllm"
    fake.write_text(f"#!{sys.executable}\nimport os, sys\nprint(os.getpid(), sys.argv[1:])\nsys.exit(7)\n")
    fake.chmod(0o755)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = [sys.executable, "-m", "capmatrix", "exec", "--gpu", "gfx950", *SEED, "--", "rest"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        out, err = process.communicate(timeout=60)
    pid, _, words = out.partition(" ")
    assert process.returncode == 7 and int(pid) == process.pid
    assert "'attention_backend': 'TRITON_ATTN'" not in words and '"attention_backend": "TRITON_ATTN"' in words
    assert words.rstrip().endswith("'--', 'rest']") and "added" in err


def test_a_program_that_is_not_there(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert cli.main(["exec", "--gpu", "gfx950", *SEED]) == 127
    assert "vllm: no such command" in capsys.readouterr().err
