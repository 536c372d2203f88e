"""Two workers that need one kernel: one compiles it, the other waits; a dead one is no obstacle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("triton")

WORKER = """\
import os, sys, time
from pathlib import Path
from capmatrix.engine import compile_once
from triton.runtime.cache import get_cache_manager

folder, name = Path(sys.argv[1]), sys.argv[2]
compile_once.install()

def compile(key):
    manager = get_cache_manager(key)
    (folder / f"{name}.asks").touch()
    group = manager.get_group("kernel.json")
    if group and "kernel.json" in group:
        (folder / f"{name}.hit").touch()
        return
    (folder / f"{name}.compiles").touch()
    while not (folder / f"{name}.go").exists():
        time.sleep(0.01)
    if name.startswith("fails"):
        raise ValueError("does not compile")
    manager.put_group("kernel.json", {"kernel.json": manager.put("{}", "kernel.json", binary=False)})

try:
    compile("ab" * 32)
except ValueError:
    pass
(folder / f"{name}.done").touch()
while name.startswith("fails") and not (folder / "end").exists():
    time.sleep(0.01)
"""


class Workers:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.script = folder / "worker.py"
        self.script.write_text(WORKER)
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, name: str) -> subprocess.Popen[bytes]:
        env = {**os.environ, "TRITON_CACHE_DIR": str(self.folder / "cache"), "PYTHONPATH": os.pathsep.join(sys.path)}
        process = subprocess.Popen([sys.executable, str(self.script), str(self.folder), name], env=env)
        self.started.append(process)
        return process

    def saw(self, *events: str, patience: float = 60.0) -> bool:
        end = time.monotonic() + patience
        while not all((self.folder / event).exists() for event in events):
            if time.monotonic() > end:
                return False
            time.sleep(0.01)
        return True

    def tell(self, event: str) -> None:
        (self.folder / event).touch()


@pytest.fixture
def workers(tmp_path: Path) -> Workers:
    made = Workers(tmp_path)
    yield made
    for process in made.started:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_the_second_waits_and_takes_the_firsts(workers: Workers) -> None:
    workers.start("a")
    assert workers.saw("a.compiles")
    workers.start("b")
    assert workers.saw("b.asks")
    assert not workers.saw("b.compiles", patience=0.5) and not workers.saw("b.hit", patience=0)
    workers.tell("a.go")
    assert workers.saw("a.done", "b.hit") and not (workers.folder / "b.compiles").exists()


@pytest.mark.slow
@pytest.mark.parametrize("end", ["killed", "fails"])
def test_one_that_does_not_finish_leaves_it_to_the_next(workers: Workers, end: str) -> None:
    first = workers.start("fails" if end == "fails" else "a")
    name = "fails" if end == "fails" else "a"
    assert workers.saw(f"{name}.compiles")
    workers.start("b")
    assert workers.saw("b.asks") and not workers.saw("b.compiles", patience=0.5)
    if end == "killed":
        first.send_signal(signal.SIGKILL)
    else:
        workers.tell("fails.go")  # it raises, and its process goes on
    assert workers.saw("b.compiles")
    workers.tell("b.go")
    assert workers.saw("b.done")
    workers.tell("end")
