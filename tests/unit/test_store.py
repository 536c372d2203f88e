"""Run files: nothing but the cells in flight is ever lost, and nothing in a file stops its reading."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from capmatrix import codec, runlines, store
from capmatrix.cell import RECORD_VERSION, Cell, Environment, Geometry, Phase, Record, Role, Rung, Verdict
from capmatrix.errors import InputError


def cell(block: int = 16, **more: Any) -> Cell:
    fields: dict[str, Any] = {
        "target": "offline:gfx942",
        "backend": "ROCM_ATTN",
        "block_size": block,
        "kv_cache_dtype": "fp8",
        "drafter": "llama",
        "tp": 1,
        "role": Role.DRAFTER,
        "method": "eagle3",
        "geometry": Geometry(8, 2, 64),
        "num_speculative_tokens": 3,
        "batch": "decode",
    }
    return Cell(**{**fields, **more})


def record(block: int = 16, verdict: Verdict = Verdict.PASS, **more: Any) -> Record:
    c = cell(block)
    return Record(codec.cell_id(c), c, verdict, Rung.COMPILED, Phase.FORWARD, "e1", **more)


def written(path: Path, *records: Record) -> Path:
    with store.RunWriter(path, {"matrix": "m.toml"}) as writer:
        for r in records:
            writer.record(r)
    return path


def test_round_trip(tmp_path: Path) -> None:
    """Header, environments, records and the summary read back as they were written."""
    path = tmp_path / "new" / "run.jsonl"
    environment = Environment("e1", "offline:gfx942", {"vllm": "0.32.0"})
    with store.RunWriter(path, {"matrix": "m.toml", "preset": "seed"}, fsync=True) as writer:
        writer.environment(environment)
        for block in (16, 32):
            writer.started(record(block).cell_id)
            writer.record(record(block, reasons=("é \x1b[31m",)))
        writer.end({"pass": 2})
    run = store.read(path)
    assert run.header == {"matrix": "m.toml", "preset": "seed"}
    assert run.environments == {"e1": environment}
    assert run.records == [record(16, reasons=("é \x1b[31m",)), record(32, reasons=("é \x1b[31m",))]
    assert (run.started, run.problems, run.summary) == ([], [], {"pass": 2})
    assert path.stat().st_mode & 0o777 == 0o644 & ~_umask()
    assert [p.name for p in path.parent.iterdir()] == ["run.jsonl"]


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_kinds_on_disk(tmp_path: Path) -> None:
    """Each line is an object with the kind that the format names, and the header its version."""
    path = tmp_path / "r.jsonl"
    with store.RunWriter(path, {}) as writer:
        writer.environment(Environment("e1", "t"))
        writer.started("a", 2)
        writer.record(record())
        writer.end({})
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["run", "environment", "started", "record", "end"]
    assert lines[2]["attempt"] == 2


def test_last_attempt_wins_in_order_of_first_appearance(tmp_path: Path) -> None:
    """Of several records of a cell the highest attempt counts, then the later line."""
    path = written(
        tmp_path / "r.jsonl",
        record(16, Verdict.CRASH),
        record(32),
        record(16, Verdict.ERROR, attempt=3),
        record(16, Verdict.PASS, attempt=2),
        record(32, Verdict.WRONG),
    )
    run = store.read(path)
    assert [(r.cell.block_size, r.verdict) for r in run.records] == [(16, Verdict.ERROR), (32, Verdict.WRONG)]
    assert run.attempts == {record(16).cell_id: 3, record(32).cell_id: 1}


def test_started_without_record(tmp_path: Path) -> None:
    """Cells in flight at a kill are known, a second attempt of a recorded cell too."""
    path = tmp_path / "r.jsonl"
    with store.RunWriter(path, {}) as writer:
        writer.started("lost")
        writer.started(record(16).cell_id)
        writer.record(record(16))
        writer.started(record(16).cell_id, 2)
    run = store.read(path)
    assert run.started == ["lost", record(16).cell_id]
    assert run.attempts == {"lost": 1, record(16).cell_id: 2}
    assert run.summary is None


@pytest.mark.parametrize("cut", [1, 10, 200])
def test_truncated_last_line(cut: int, tmp_path: Path) -> None:
    """A killed writer's half line is reported with its number; the next line starts on its own."""
    path = written(tmp_path / "r.jsonl", record(16), record(32))
    path.write_bytes(path.read_bytes()[:-cut])
    if cut > 1:
        run = store.read(path)
        assert [r.cell.block_size for r in run.records] == [16]
        assert run.problems[0].startswith("line 3: not a line of JSON (truncated?)")
    with store.RunWriter(path, {}, resume=True) as writer:
        writer.record(record(64))
    run = store.read(path)
    assert [r.cell.block_size for r in run.records] == [16, 64] if cut > 1 else [16, 32, 64]
    assert len(run.problems) == (cut > 1)


GARBAGE = [
    b"\x00" * 100,
    b"\xff\xfe garbage",
    b'{"kind": "recor',
    b'{"kind": "nonsense"}',
    b'{"kind": 3}',
    b'{"kind": "record"}',
    b'{"kind": "record", "record": null}',
    b'{"kind": "record", "record": {"cell_id": 3}}',
    b'{"kind": "started", "cell_id": "\xff"}',
    b"[]",
    b"null",
    b"1e999",
    b"[" * 200_000,
    b'{"a":' * 200_000,
    b'{"kind": "end", "summary": []}',
    b'{"kind": "environment", "environment": {"id": "x"}}',
    b"\x1b[31mred",
    b"<<<<<<< HEAD",
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_in_the_middle(garbage: bytes, tmp_path: Path) -> None:
    """Garbage is a problem with its line number, and harmless to print; what is around it is read."""
    path = written(tmp_path / "r.jsonl", record(16))
    with open(path, "ab") as file:
        file.write(garbage + b"\n")
    with store.RunWriter(path, {}, resume=True) as writer:
        writer.record(record(32))
    run = store.read(path)
    assert [r.cell.block_size for r in run.records] == [16, 32]
    (problem,) = run.problems
    assert problem.startswith("line 3: ")
    assert problem.isprintable()
    assert len(problem) < 500
    with pytest.raises(InputError, match=r"r\.jsonl:3: "):
        store.read(path, lenient=False)


def test_unknown_kind_is_named(tmp_path: Path) -> None:
    """A kind that this version does not know is said, with those it knows."""
    path = written(tmp_path / "r.jsonl")
    with open(path, "ab") as file:
        file.write(b'{"kind": "telemetry"}\n')
    assert store.read(path).problems == [
        "line 2: unknown kind 'telemetry'; known: run, environment, started, record, pair, end"
    ]


@pytest.mark.parametrize(
    "line",
    [
        {"kind": "run", "header": {}, "version": RECORD_VERSION + 1},
        {"kind": "run", "version": RECORD_VERSION + 1, "headers": []},
        {"kind": "record", "record": {"version": RECORD_VERSION + 1}},
        {"kind": "record", "record": {"version": 0}},
        {"kind": "record", "record": {**msgspec.to_builtins(record()), "version": RECORD_VERSION + 1}},
    ],
    ids=range(5),
)
def test_other_version_is_one_clear_error(line: dict[str, Any], tmp_path: Path) -> None:
    """A record of a version that this one would misread is not skipped but refused."""
    path = written(tmp_path / "r.jsonl", record())
    with open(path, "a") as file:
        file.write(json.dumps(line) + "\n")
    with pytest.raises(InputError, match="record version") as error:
        store.read(path)
    assert (error.value.line, error.value.key) == (3, "version")


def test_over_long_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line over the limit is skipped without being held in memory, and is refused to a writer."""
    path = written(tmp_path / "r.jsonl", record(16))
    monkeypatch.setattr(store, "MAX_LINE", 5000)
    with open(path, "ab") as file:
        file.write(b"x" * 20_001 + b"\n" + runlines.RecordLine.__name__.encode() + b"\n")
    run = store.read(path)
    assert [p.split(":")[0] for p in run.problems] == ["line 3", "line 4"]
    assert "longer than 5000 bytes" in run.problems[0]
    monkeypatch.setattr("capmatrix.runwriter.MAX_LINE", 5000)
    with store.RunWriter(path, {}, resume=True) as writer, pytest.raises(store.StoreError, match="over the limit"):
        writer.record(record(32, reasons=("x" * 6000,)))
    assert len(store.read(path).records) == 1


def test_file_over_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file, or what a compressed one unfolds to, is bounded."""
    monkeypatch.setattr(store, "MAX_FILE", 1 << 20)
    bomb = tmp_path / "bomb.jsonl.gz"
    bomb.write_bytes(gzip.compress(b"\0" * (4 << 20)))
    with pytest.raises(InputError, match="larger than 1 MiB"):
        store.read(bomb)


def test_many_problems_are_counted(tmp_path: Path) -> None:
    """A file of garbage lists some of it."""
    path = tmp_path / "r.jsonl"
    path.write_bytes(b"garbage\n" * 5000 + b'{"kind":"end"}\n')
    problems = store.read(path).problems
    assert len(problems) == store.MAX_PROBLEMS + 1
    assert problems[-1] == f"and {5001 - store.MAX_PROBLEMS} more problems"  # no header is one too


def test_compressed(tmp_path: Path) -> None:
    """A compressed run reads like the plain one; a damaged one up to the damage; none is written to."""
    plain = written(tmp_path / "r.jsonl", *(record(16 * i) for i in range(1, 200)))
    packed = tmp_path / "r.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert store.read(packed) == store.read(plain)
    packed.write_bytes(packed.read_bytes()[: packed.stat().st_size // 2])
    run = store.read(packed)
    assert "compressed data damaged" in "".join(run.problems)
    packed.write_bytes(b"not gzip")
    with pytest.raises(InputError, match=r"not a run file: .*compressed data damaged"):
        store.read(packed)
    with pytest.raises(store.StoreError, match="decompress"):
        store.RunWriter(packed, {}, resume=True)


@pytest.mark.parametrize("what", ["missing", "folder", "fifo"])
def test_unreadable(what: str, tmp_path: Path) -> None:
    """What is no file is one clear error."""
    path = tmp_path / "r.jsonl"
    if what == "folder":
        path.mkdir()
    elif what == "fifo":
        os.mkfifo(path)
    with pytest.raises(InputError, match=r"r\.jsonl"):
        store.read(path)


def test_two_runs_on_one_file(tmp_path: Path) -> None:
    """A second run is told who has the file; when the first is closed or killed, it may go on."""
    path = tmp_path / "r.jsonl"
    first = store.RunWriter(path, {})
    for resume in (False, True):
        with pytest.raises(store.StoreError, match=rf"another run is writing this file .*{os.getpid()}"):
            store.RunWriter(path, {}, resume=resume)
    first.record(record(16))
    first.close()
    first.close()
    with pytest.raises(store.StoreError, match="exists already; continue it with --resume"):
        store.RunWriter(path, {})
    with store.RunWriter(path, {}, resume=True) as writer:
        writer.record(record(32))
    assert len(store.read(path).records) == 2
    code = "import sys, time; from capmatrix.store import RunWriter; w = RunWriter(sys.argv[1], {}, resume=True); "
    code += "print('ready', flush=True); time.sleep(1000)"
    owner = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    owner.stdout.readline()
    with pytest.raises(store.StoreError, match="another run"):
        store.RunWriter(path, {}, resume=True)
    owner.kill()
    owner.communicate()
    store.RunWriter(path, {}, resume=True).close()


def append(path: Path, first: int, count: int) -> None:
    writer = store.RunWriter.attach(path)
    for i in range(first, first + count):
        writer.record(record(16 * (i + 1), reasons=("x" * 10_000,)))
    writer.close()


def test_processes_append_to_one_file(tmp_path: Path) -> None:
    """Lines of several processes do not mix, also when one is killed in the middle."""
    path = tmp_path / "r.jsonl"
    context = multiprocessing.get_context("spawn")
    with store.RunWriter(path, {}) as writer:
        good = [context.Process(target=append, args=(path, 1000 * n, 50)) for n in range(3)]
        victim = context.Process(target=append, args=(path, 5000, 100_000))
        for process in [*good, victim]:
            process.start()
        while store.read(path).attempts.keys().isdisjoint({record(16 * 5001).cell_id}):
            time.sleep(0.001)
        assert victim.pid is not None
        os.kill(victim.pid, signal.SIGKILL)
        for process in [*good, victim]:
            process.join()
        writer.record(record(8))
    run = store.read(path)
    blocks = {r.cell.block_size for r in run.records}
    assert {16 * (1000 * n + i + 1) for n in range(3) for i in range(50)} | {8} <= blocks
    assert len(run.problems) <= 1


def test_attach_needs_the_file(tmp_path: Path) -> None:
    """A node does not make a file of its own."""
    with pytest.raises(store.StoreError, match="No such file"):
        store.RunWriter.attach(tmp_path / "r.jsonl")


def test_no_space_leaves_whole_lines(tmp_path: Path) -> None:
    """When the medium is full the writer says so and takes back its half line."""
    path = written(tmp_path / "r.jsonl", record(16))
    size = path.stat().st_size
    code = (
        "import resource, signal, sys; from pathlib import Path; sys.path.insert(0, sys.argv[2]); "
        "from test_store import record; from capmatrix.store import RunWriter, StoreError\n"
        "writer = RunWriter.attach(sys.argv[1])\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), -1))\n"
        "try:\n    writer.record(record(32))\nexcept StoreError as e:\n    print(e)"
    )
    command = [sys.executable, "-c", code, str(path), str(Path(__file__).parent), str(size + 40)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "no space left" in said or "File too large" in said
    assert path.stat().st_size == size


def test_unreadable_record_is_not_written(tmp_path: Path) -> None:
    """A value that JSON cannot hold is refused, and the file stays whole."""
    path = tmp_path / "r.jsonl"
    with store.RunWriter(path, {}) as writer:
        with pytest.raises(store.StoreError, match="durations"):
            writer.record(record(durations={"compile": float("nan")}))
        writer.record(record(32))
    assert [r.cell.block_size for r in store.read(path, lenient=False).records] == [32]


def test_not_writable(tmp_path: Path) -> None:
    """A folder that cannot be made is one clear error."""
    (tmp_path / "file").touch()
    with pytest.raises(store.StoreError, match="cannot write the run file"):
        store.RunWriter(tmp_path / "file" / "r.jsonl", {})


def test_resume_plan(tmp_path: Path) -> None:
    """Exactly the cells without a record, or with one of an older version, are done again, in order."""
    cells = [cell(16 * i) for i in range(1, 6)]
    run = store.read(written(tmp_path / "r.jsonl", record(32, Verdict.CRASH), record(64)))
    assert store.resume_plan(run, cells) == [cells[0], cells[2], cells[4]]
    old = msgspec.structs.replace(run.records[0], version=RECORD_VERSION - 1)
    assert store.resume_plan(store.Run(records=[old, run.records[1]]), cells) == [*cells[:3], cells[4]]


def test_resumed_run_has_its_first_header(tmp_path: Path) -> None:
    """A resumption adds its own header line and reopens a finished run."""
    path = tmp_path / "r.jsonl"
    with store.RunWriter(path, {"n": 1}) as writer:
        writer.end({"pass": 0})
    with store.RunWriter(path, {"n": 2}, resume=True):
        pass
    run = store.read(path)
    assert (run.header, run.summary, run.problems) == ({"n": 1}, None, [])


def test_merge(tmp_path: Path) -> None:
    """Several runs make one: highest attempts, later runs on ties, what is started and recorded elsewhere is done."""
    one, two = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    with store.RunWriter(one, {"n": 1}) as writer:
        writer.environment(Environment("e1", "a"))
        writer.record(record(16, Verdict.CRASH))
        writer.record(record(32, attempt=2))
        writer.started(record(64).cell_id)
        writer.started(record(128).cell_id)
    with store.RunWriter(two, {"n": 2}) as writer:
        writer.environment(Environment("e2", "b"))
        writer.record(record(16))
        writer.record(record(32, Verdict.ERROR))
        writer.record(record(64))
    merged = store.merge([store.read(one), store.read(two)])
    assert {r.cell.block_size: r.verdict for r in merged.records} == {
        16: Verdict.PASS,
        32: Verdict.PASS,
        64: Verdict.PASS,
    }
    assert merged.started == [record(128).cell_id]
    assert set(merged.environments) == {"e1", "e2"}
    assert merged.header == {"n": 1, "merged": 2}
    assert store.merge([]) == store.Run()


def test_what_has_no_line_of_a_run_is_none(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    for content, why in ((b"", "empty"), (b"precious\n", "not a line of JSON"), (b"[]\n", "not a run file's line")):
        path.write_bytes(content)
        with pytest.raises(InputError, match=why):
            store.read(path)


def test_no_header_is_a_problem(tmp_path: Path) -> None:
    """A file without a header is read, and said to have none."""
    path = tmp_path / "r.jsonl"
    path.write_bytes(b'{"kind":"end"}\n')
    assert store.read(path).problems[0].startswith("line 1: no header")
    with pytest.raises(InputError):
        store.read(path, lenient=False)
