"""The CI files and the guard's documentation: every command in them is one that this version takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from capmatrix import cli
from capmatrix.guard.judge import Status
from capmatrix.pytest_plugin import arguments

ROOT = Path(__file__).resolve().parents[2]
FILES = [*sorted((ROOT / "examples" / "ci").glob("*.yml")), ROOT / "docs" / "guard.md"]


def commands(text: str) -> list[list[str]]:
    """Words of every ``capmatrix`` command, line continuations joined, without what a shell does with its output."""
    joined = re.sub(r"\\\n\s*", "", text)
    found = re.findall(r"^\s*(?:- \"|\$ |run: |)(capmatrix [a-z][^\n]*)", joined, re.MULTILINE)
    cleaned = [re.sub(r"\$\{\{[^}]*\}\}|\{\{[^}]*\}\}", "v1", line) for line in found]
    return [shlex.split(re.split(r" [|#] ?|\"$", line)[0])[1:] for line in cleaned]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_command_is_taken(file: Path) -> None:
    found = commands(file.read_text(encoding="utf-8"))
    assert found
    for words in found:
        if "[" not in " ".join(words):  # a synopsis
            cli._parser().parse_args([word for word in words if word != "..."])


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_pytest_option_is_there(file: Path) -> None:
    options = set(re.findall(r"--guard-[a-z-]+", file.read_text(encoding="utf-8")))
    assert options <= set(arguments._VALUED)


@pytest.mark.parametrize("file", FILES[:-1], ids=lambda file: file.name)
def test_files_that_ci_names_are_there(file: Path) -> None:
    named = re.findall(r"requirements/[\w.]+", file.read_text(encoding="utf-8"))
    assert named and all((ROOT / name).is_file() for name in named)


def test_every_status_is_documented() -> None:
    text = (ROOT / "docs" / "guard.md").read_text(encoding="utf-8")
    assert {status.value for status in Status} == set(re.findall(r"^\| `([a-z]+)` \|", text, re.MULTILINE)) & {
        status.value for status in Status
    }


def test_commands_are_seen() -> None:
    lines = ["run: capmatrix guard --table t | tee x", '- "capmatrix golden"', "    $ capmatrix exec \\", "   vllm"]
    text = "\n".join([*lines, "capmatrix x # y", ""])
    assert commands(text) == [["guard", "--table", "t"], ["golden"], ["exec", "vllm"], ["x"]]
