"""The commands of the documentation that ask vLLM: each is run, on one of its cells where it has many."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import docs_commands
import pytest

from capmatrix import cli, matrix, targets
from capmatrix.codec import cell_id
from capmatrix.pair import pair_id
from capmatrix.pairs import pairfile
from capmatrix.paths import matrix_path

pytestmark = [pytest.mark.slow, pytest.mark.engine]

_, ENGINE, _ = docs_commands.sorted_out()

#: What is added so that an example takes seconds and writes nothing outside its folder.
NARROWED = {r"capmatrix golden --update .*": "--aiter none", r"capmatrix golden.*": "--arch gfx942 --aiter none"}


@pytest.mark.parametrize("text", ENGINE)
def test_a_command_that_asks_vllm(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "here"
    docs_commands.prepare(folder)
    monkeypatch.chdir(folder)
    words = shlex.split(text)
    if "--run-file" in words:  # where a reader has none yet
        Path(words[words.index("--run-file") + 1]).unlink()
    extra = next((more.split() for pattern, more in NARROWED.items() if re.fullmatch(pattern, text)), [])
    has_cells = words[1] == "run" if words[0] == "capmatrix" else words[1] != "defaults.toml"
    if has_cells:
        extra = ["-n", "0", "-k", one_cell(words)]
    done = program([*words, *extra], folder)
    said = done.stdout + done.stderr
    assert done.returncode == docs_commands.ENDS_WITH.get(text, 0), said[-4000:]
    assert "Traceback" not in said
    if has_cells:
        assert re.search(r"= 1 (passed|skipped|xfailed)", said), said[-4000:]


def program(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the product or pytest in ``folder``, as its user would."""
    path = os.pathsep.join([str(docs_commands.ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path, "COLUMNS": "120", "PYTEST_ADDOPTS": "-p no:cacheprovider"}
    line = [sys.executable, "-m", *words]
    return subprocess.run(line, cwd=folder, env=env, check=False, capture_output=True, text=True, timeout=1200)


def one_cell(words: list[str]) -> str:
    """An expression for pytest's -k: the first cell or pair that the command would run."""
    parser = argparse.ArgumentParser()
    cli._add_choice_of_cells(parser)
    parser.add_argument("-k")
    asked, _ = parser.parse_known_args(words[2:] if words[0] == "capmatrix" else words[1:])
    path, where = matrix_path(asked.file), asked.target or targets.here()
    if pairfile.is_pair_file(path):
        ids = [pair_id(pair) for pair in pairfile.expand(pairfile.load(path), asked.preset, where)]
    else:
        ids = [cell_id(c) for c in matrix.expand(matrix.load(path), preset=asked.preset, targets=where, force=None)]
    parts = asked.k.split(" and ") if asked.k else []
    # A word of -k matches a part of an id: take one that is no part of another.
    fitting = [one for one in ids if "=" not in one and all(part in one for part in parts)]
    return next(one for one in fitting if sum(one in other for other in ids) == 1)
