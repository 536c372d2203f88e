"""A project for the plugin's tests: matrices run with ``tiny_engine`` in pytest processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capmatrix.store import Run, read

ROOT = Path(__file__).resolve().parents[2]

#: Where the tests' engines are.
FOLDERS = (ROOT / "tests" / "plugin", ROOT / "tests" / "workers")

#: What pytest is told to load.
PLUGINS = ("-p", "xdist", "-p", "capmatrix.plugin")

#: Seconds after which something that should have happened has not; far more than it takes.
PATIENCE = 60.0

MATRIX = """\
[axes]
backend = [{backends}]
block_size = [{blocks}]
drafter = ["minimax-m3-eagle3"]
tp = [4]
batch = [{batches}]
"""


#: A cell of ``Project.matrix`` on offline:gfx942, by backend, block size and batch.
CELL = "offline:gfx942-{}-b{}-auto-minimax-m3-eagle3-tp4-heads16.16-h128-bf16-{}"


def preset(name: str, backend: str, block: int = 128) -> str:
    """A preset of one backend and block size, as TOML."""
    return f'[preset.{name}]\ndescription = "part"\nbackend = ["{backend}"]\nblock_size = [{block}]\n'


def eventually(what: Callable[[], Any]) -> Any:
    """``what()`` as soon as it is true; fails when it never is."""
    end = time.monotonic() + PATIENCE
    while True:
        value = what()
        if value:
            return value
        assert time.monotonic() < end, f"never came true: {what}"
        time.sleep(0.02)


class Project:
    """A directory with matrices, and ways to run pytest in it."""

    def __init__(self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pytester = pytester
        self.path = pytester.path
        self.engine = "tiny_engine:open_session"
        self.log_path = self.path / "tiny.log"
        monkeypatch.setenv("TINY_LOG", str(self.log_path))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *map(str, FOLDERS)]))
        monkeypatch.setenv("COLUMNS", "200")
        # Other plugins of the environment have no part in this, and take seconds to import.
        monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        for name in ("PYTEST_ADDOPTS", "CAPMATRIX_AITER", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_TESTRUNUID"):
            monkeypatch.delenv(name, raising=False)

    def matrix(
        self,
        *backends: str,
        blocks: tuple[int, ...] = (16, 128),
        batches: tuple[str, ...] = ("decode",),
        more: str = "",
        name: str = "small",
    ) -> str:
        """Write ``matrices/<name>.toml``; returns its path as an argument."""
        path = self.path / "matrices" / f"{name}.toml"
        path.parent.mkdir(exist_ok=True)
        text = MATRIX.format(
            backends=", ".join(f'"{b}"' for b in backends),
            blocks=", ".join(map(str, blocks)),
            batches=", ".join(f'"{b}"' for b in batches),
        )
        path.write_text(text + more)
        return f"matrices/{name}.toml"

    def arguments(self, *words: str, target: str | None = "offline:gfx942") -> list[str]:
        where = [] if target is None else ["--target", target]
        return [*PLUGINS, *words, *where, "--capmatrix-engine", self.engine]

    def run(self, *words: str, target: str | None = "offline:gfx942") -> pytest.RunResult:
        """pytest with the plugin and the tiny engine, in a process of its own."""
        return self.pytester.runpytest_subprocess(*self.arguments(*words, target=target), timeout=PATIENCE)

    def start(self, *words: str, target: str = "offline:gfx942") -> subprocess.Popen[str]:
        """The same without waiting for it; its process group is its own, as in a shell."""
        command = [sys.executable, "-m", "pytest", *self.arguments(*words, target=target)]
        return subprocess.Popen(
            command, cwd=self.path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )

    def log(self) -> list[str]:
        """What the tiny engine did: lines ``open PID TARGET`` and ``run PID CELL``."""
        return self.log_path.read_text().splitlines() if self.log_path.exists() else []

    def ran(self) -> list[str]:
        """Ids of the cells that ran, in order, repeated ones repeated."""
        return [line.split(" ", 2)[2] for line in self.log() if line.startswith("run ")]

    def run_files(self) -> list[Path]:
        return sorted((self.path / "runs").glob("*.jsonl"))

    def read(self) -> Run:
        """The only run file."""
        (path,) = self.run_files()
        return read(path, lenient=False)

    def processes(self) -> list[int]:
        """Processes that a run of this project left, itself aside: all inherit TINY_LOG."""
        wanted = f"TINY_LOG={self.log_path}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    if wanted in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
                except OSError:
                    continue
        return found

    def session_dirs(self) -> list[Path]:
        return list(Path(os.environ["TMPDIR"]).glob("capmatrix-*"))

    def remove_session_dirs(self) -> None:
        """Where nobody was left to remove them: they hold files alone."""
        for folder in self.session_dirs():
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()
