"""Times, workload profiles and headers from elsewhere: one clear error each, or shown without doing anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from samples import PAGED, WRITE, cell, environment, record
from test_hostile_input import EVIL, call, harmless
from test_pair import recorded

from capmatrix import codec, paths
from capmatrix.cell import Check, Rung, Timing
from capmatrix.errors import InputError
from capmatrix.pytest_plugin import plan
from capmatrix.runlines import EnvironmentLine, PairLine, RecordLine, RunLine
from capmatrix.selection import hf_config, workloads
from capmatrix.timings import sound

SHIPPED = paths.matrices_dir() / "eagle3-llama.toml"
CELL = "device-ROCM_ATTN-b128-fp8-minimax-m3-eagle3-tp4-heads16.16-h128-bf16-decode-full"

#: Commands that read times; RUN is the run in question, OTHER one of the same cells, DIR a folder.
READERS = (
    ("show", "RUN"),
    ("explain", CELL, "RUN"),
    ("explain", "pair", "RUN"),
    ("compare", "RUN", "OTHER"),
    ("compare", "OTHER", "RUN", "--all", "--format", "md"),
    ("compare", "RUN", "OTHER", "--cell", CELL),
    ("diff", "RUN", "OTHER"),
    ("history", CELL, "RUN", "OTHER"),
    ("derive", "RUN"),
    ("recommend", "--gpu", "gfx950", "--drafter", "minimax-m3-eagle3", "--run", "RUN"),
    ("plot", "RUN", "-o", "DIR"),
    ("report", "RUN"),
    ("report", "RUN", "--format", "html"),
    ("rules", "RUN"),
    ("repro", CELL, "RUN"),
)


def timing(phase: Any, median: float) -> Timing:
    return Timing(
        phase, "seed", median, median - 1, median + 1, 24, share_of_roofline=0.5, query_tokens=256, requests=256,
        rounds=(median,) * 3, bandwidth_tb_s=4.28, metadata_us=20.0, metadata_synchronisations=0,
        clocks={"sm_mhz": (1980.0, 1980.0)}, host_us=10.0, gpu="GPU-1",
    )  # fmt: skip


def lines(factor: float = 1.0) -> list[Any]:
    """A timed run on an AMD GPU, line by line: two backends, decode, verify and prefill, and a pair."""
    hardware = {"name": "AMD Instinct MI355X", "vendor": "amd", "arch": "gfx950"}
    where = msgspec.structs.replace(environment("device", hardware=hardware), identity={"arch": "gfx950"})
    made: list[Any] = [RunLine({"matrix": "eagle3-llama", "files": ["eagle3-llama.toml"], "timed": "seed"})]
    made.append(EnvironmentLine(where))
    for backend, median in (("ROCM_ATTN", 100 * factor), ("TRITON_ATTN", 120 * factor)):
        for batch in ("decode", "verify", "prefill"):
            one = cell(target="device", backend=backend, batch=batch, execution="full")
            checks = (Check("forward", True, relative_l2=0.001, bound=0.004), Check("execution", None, detail="full"))
            times = (timing(batch, median),)
            done = record(one, environment=where.id, rung=Rung.EXECUTED, times=times, route=(WRITE, PAGED))
            made.append(RecordLine(msgspec.structs.replace(done, checks=checks)))
    made.append(PairLine(recorded(contradictions=("group 0: the drafter reads other blocks than its cache has",))))
    return [json.loads(codec.encode(line)) for line in made]


def of_times(**changes: Any) -> Callable[[list[Any]], None]:
    def change(run: list[Any]) -> None:
        for line in run:
            for time in line.get("record", {}).get("times", ()):
                time.update(changes)

    return change


def of_cells(**changes: Any) -> Callable[[list[Any]], None]:
    def change(run: list[Any]) -> None:
        for line in run:
            line.get("record", {}).get("cell", {}).update(changes)

    return change


def of_pair(**changes: Any) -> Callable[[list[Any]], None]:
    return lambda run: run[-1]["record"].update(changes)


def of_header(**changes: Any) -> Callable[[list[Any]], None]:
    return lambda run: run[0]["header"].update(changes)


HOSTILE: dict[str, Callable[[list[Any]], None]] = {
    "median zero": of_times(median_us=0),
    "lowest zero": of_times(low_us=0),
    "all zero": of_times(median_us=0, low_us=0, high_us=0),
    "negative": of_times(median_us=-1, low_us=-2, high_us=-0.5, share_of_roofline=-1, host_us=-1e308),
    "huge": of_times(median_us=1e308, low_us=1e308, high_us=1e308, bandwidth_tb_s=1e308, metadata_us=1e308),
    "tiny": of_times(median_us=1e-320, low_us=1e-320, high_us=1e-320),
    "median outside its interval": of_times(low_us=300, median_us=200, high_us=100),
    "counts": of_times(repeats=-1, requests=10**30, query_tokens=-(10**30), metadata_synchronisations=10**30),
    "drifted without rounds": of_times(drifted=True, rounds=[]),
    "rounds": of_times(drifted=True, rounds=[-1e308, 1e308]),
    "many rounds": of_times(rounds=[1.0] * 20_000),
    "clocks of nothing": of_times(clocks={"sm_mhz": [0, 0]}),
    "negative clocks": of_times(clocks={"sm_mhz": [-1e308, -1]}),
    "names of clocks": of_times(clocks={EVIL: [1, 2], "__proto__": [1, 2], "": [1, 2], f"{EVIL}_mhz": [3, 4]}),
    "many clocks": of_times(clocks={f"c{i}_mhz": [1, 2] for i in range(2000)}),
    "gpu": of_times(gpu=EVIL),
    "long gpu": of_times(gpu="x" * 100_000),
    "workload": of_times(workload=EVIL),
    "workload of no name": of_times(workload=""),
    "detail": of_times(detail=EVIL),
    "no heads": of_cells(geometry={"num_heads": 0, "num_kv_heads": 0, "head_size": 0}),
    "contradictions": of_pair(contradictions=[EVIL, "", " \n"]),
    "many contradictions": of_pair(contradictions=[f"x {i}" for i in range(20_000)]),
    "timed": of_header(timed=EVIL),
    "header of other types": of_header(files=5, targets=5, timed=5, matrix=["a"], preset={}, created=5),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_times_that_are_none_are_shown_and_nothing_more(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = lines()
    HOSTILE[what](made)
    for name, run in (("run", made), ("other", lines(1.5))):
        (tmp_path / f"{name}.jsonl").write_bytes(b"".join(codec.encode(line) + b"\n" for line in run))
    names = {"RUN": f"{tmp_path}/run.jsonl", "OTHER": f"{tmp_path}/other.jsonl", "DIR": f"{tmp_path}/plots"}
    for reader in READERS:
        status, out, error = call([names.get(word, word) for word in reader], capsys)
        assert status in (0, 1, 2) and harmless(out + error), reader
        assert error.count("capmatrix: error: ") == (status == 2) and len(out) < 3_000_000, reader
        if "html" in reader:
            assert "<img" not in out and '"onmouseover' not in out
    for file in (tmp_path / "plots").glob("*.svg"):
        drawn = file.read_text(encoding="utf-8")
        assert harmless(drawn) and "<img" not in drawn and len(drawn) < 1_000_000


def test_the_run_that_is_changed_is_sound_to_begin_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(b"".join(codec.encode(line) + b"\n" for line in lines()))
    status, out, _ = call(["derive", str(path)], capsys)
    assert status == 0 and 'backend = "ROCM_ATTN"' in out and "us a layer" in out


@pytest.mark.parametrize(
    "changes",
    [
        {"median_us": 0.0}, {"low_us": 0.0}, {"low_us": -1.0}, {"median_us": 98.0}, {"median_us": 102.0},
        {"high_us": 1e16}, {"repeats": 0},
    ],
)  # fmt: skip
def test_a_time_that_is_none(changes: dict[str, Any]) -> None:
    assert sound(timing("decode", 100.0))
    assert not sound(msgspec.structs.replace(timing("decode", 100.0), **changes))


PROFILE = "\n[workload.{name}]\nconcurrency = {concurrency}\ninput = {input}\noutput = 1\n"


def profile(folder: Path, name: str = "own", concurrency: object = 1, tokens: object = 1, without: str = "") -> str:
    """The shipped matrix with one more profile, and with ``without`` renamed."""
    file = folder / "own.toml"
    text = SHIPPED.read_text(encoding="utf-8").replace(f"[workload.{without}]", "[workload.other]")
    file.write_text(text + PROFILE.format(name=name, concurrency=concurrency, input=tokens), encoding="utf-8")
    return str(file)


def refused(names: str) -> str:
    with pytest.raises(InputError) as found:
        plan.profiles(names)
    assert harmless(str(found.value)) and len(str(found.value)) < 2000
    return str(found.value)


@pytest.mark.parametrize(
    "names",
    [
        ":",
        ":seed",
        f"{SHIPPED}:",
        ",",
        " ",
        "sead",
        "\x1b[31m\u202e<b>",
        "x" * 100_000,
        "/dev/zero:x",
        f"{SHIPPED}:../x",
    ],
)
def test_profiles_that_there_are_none_of(names: str) -> None:
    assert "--time" in refused(names) or "/dev/zero" in refused(names)


def test_a_profile_is_looked_for_in_the_file_that_is_named(tmp_path: Path) -> None:
    file = profile(tmp_path, without="seed")
    assert plan.profiles(f"{file}:own,seed,seed").keys() == {"own", "seed"}
    assert "own.toml" in refused(f"{file}:seed") and "own.toml" in refused(f"{file}:owm")
    assert "not a regular file" in refused(f"{tmp_path}:own")


@pytest.mark.parametrize(
    ("concurrency", "tokens"),
    [(0, 1), (-1, 1), (10**9, 1), ("nan", 1), ("inf", 1), ("true", 1), (1, 10**12), (1, 0), (1, '"8"'), (1, "[1]")],
)
def test_figures_of_a_profile(concurrency: object, tokens: object, tmp_path: Path) -> None:
    said = refused(f"{profile(tmp_path, concurrency=concurrency, tokens=tokens)}:own")
    assert "own.toml:" in said and "workload.own." in said


@pytest.mark.parametrize("name", ['""', '"a/b"', '"../x"', '"a,b"', '"a:b"', '"<script>"', '"x\\u001b"', "seed"])
def test_names_of_profiles(name: str, tmp_path: Path) -> None:
    assert "own.toml" in refused(f"{profile(tmp_path, name)}:own")


def test_one_name_stands_for_one_profile(tmp_path: Path) -> None:
    """A record holds the name alone: two profiles of one name could not be told apart in it."""
    file = profile(tmp_path, "seed", without="seed")
    assert "other figures" in refused(f"{file}:seed") and "other figures" in refused(f"seed,{file}:seed")
    same = plan.profiles(f"{SHIPPED}:seed")
    assert same == plan.profiles("seed") and workloads.choose(f"{file}:seed")[1]["seed"] != same["seed"]
    (tmp_path / "b").mkdir()
    assert "another one" in refused(f"{profile(tmp_path)}:own,{profile(tmp_path / 'b', tokens=2)}:own")


def test_more_profiles_than_a_run_is_timed_under(tmp_path: Path) -> None:
    assert "1 to 32" in refused(",".join(f"x{i}" for i in range(100_000)))


def run(folder: Path, *words: str) -> tuple[int, str]:
    """``capmatrix run`` without any worker: what it says before anything starts."""
    command = [sys.executable, "-m", "capmatrix", "run", str(SHIPPED), "-n", "0", "-k", "nothing", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=folder, check=False)
    return done.returncode, done.stdout + done.stderr


def resumed(folder: Path, **header: Any) -> tuple[int, str]:
    known = {"matrix": "eagle3-llama", "preset": "seed", "targets": ["offline:gfx942"]}
    (folder / "it.jsonl").write_text(json.dumps({"kind": "run", "header": {**known, **header}}) + "\n")
    return run(folder, "--resume", "--run-file", "it.jsonl")


def test_a_resumed_run_whose_profiles_are_not_to_be_had(tmp_path: Path) -> None:
    status, said = resumed(tmp_path, timed=f"sead{EVIL}")
    assert status == 2 and "it.jsonl: timed: " in said and said.count("ERROR") == 1 and harmless(said)


def test_targets_of_a_resumed_run_may_be_anything(tmp_path: Path) -> None:
    status, said = resumed(tmp_path, targets=5, preset=["a"], force=5, timed=5)
    assert status == 1 and "deselected" in said and "Error" not in said


def test_a_pipe_is_no_run_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "it.jsonl")
    for more in ([], ["--resume"]):
        status, said = run(tmp_path, "--run-file", "it.jsonl", *more)
        assert status == 2 and "it.jsonl: not a regular file" in said


def test_a_file_where_a_profile_is_asked_for_is_told_as_that(tmp_path: Path) -> None:
    status, said = run(tmp_path, "--target", "offline:gfx942", "--time", str(SHIPPED))
    assert status == 2 and "--time: no such workload profile" in said and "unrecognized" not in said


def test_the_schemas_go_into_a_folder(tmp_path: Path) -> None:
    (tmp_path / "it").write_text("precious")
    command = [sys.executable, "-m", "capmatrix.schema", str(tmp_path / "it")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and "cannot write" in done.stderr
    assert (tmp_path / "it").read_text() == "precious"


def test_what_is_mistyped_is_told_before_vllm_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from capmatrix.guard import defaults_query

    def started(self: object, aiter: str = "") -> None:
        raise AssertionError("a server was started")

    monkeypatch.setattr(defaults_query.Selector, "__init__", started)
    path, table = tmp_path / "run.jsonl", tmp_path / "table.toml"
    path.write_bytes(b"".join(codec.encode(line) + b"\n" for line in lines()))
    assert call(["derive", str(path), "-o", str(table)], capsys)[0] == 0
    for more in (["--max-age", "9" * 5000 + "d"], ["--max-age=-1d"], ["--pairs", str(SHIPPED)], ["--tolerance=nan"]):
        try:
            status, _, error = call(["guard", "--table", str(table), *more], capsys)
        except SystemExit as left:
            status, error = int(left.code or 0), capsys.readouterr().err
        assert status == 2 and error.count("error: ") == 1, more


@pytest.mark.parametrize("text", ['{"architectures": 5}', "[]", "[" * 5000])
def test_a_config_from_elsewhere(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(InputError):
            hf_config.load(path)
