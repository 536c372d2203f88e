"""Every command that the documentation shows is run, or is on a short list that says why it is not."""

from __future__ import annotations

import glob
import re
import shlex
import subprocess
from configparser import ConfigParser
from pathlib import Path

import docs_commands
import pytest
from docs_commands import PAGES, ROOT, Shown

from capmatrix import cli

SHOWN = docs_commands.all_shown()
QUICK, ENGINE, LEFT = docs_commands.sorted_out()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "prepared"
    docs_commands.prepare(folder)
    return folder


@pytest.fixture
def folder(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the prepared folder of its own, the working directory of a test."""
    copied = tmp_path / "here"
    # Links stay links: the shipped matrices are read and never written.
    subprocess.run(["cp", "-r", "--no-dereference", str(prepared), str(copied)], check=True)
    monkeypatch.chdir(copied)
    return copied


def shipped() -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in (ROOT / "matrices").rglob("*") if path.is_file()}


def expanded(words: list[str]) -> list[str]:
    """Words with the shell's file patterns filled in."""
    out: list[str] = []
    for word in words:
        out += sorted(glob.glob(word)) if "*" in word and glob.glob(word) else [word]
    return out


@pytest.mark.parametrize("text", [text.replace("python3 -m ", "") for text in QUICK])
def test_a_command_that_reads_and_writes_files(text: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = shipped()
    words = shlex.split(text)
    assert words[0] == "capmatrix"
    status = cli.main(expanded(words[1:]))
    captured = capsys.readouterr()
    assert status == docs_commands.ENDS_WITH.get(text, 0), captured.err + captured.out[-2000:]
    assert "Traceback" not in captured.err
    assert captured.out or captured.err or "-o" in words
    assert shipped() == before


@pytest.mark.parametrize("text", LEFT)
def test_words_of_a_command_that_is_not_run(text: str) -> None:
    words = Shown("", 0, text).words
    if words[0] == "tox":
        words = inside_tox(words)
    if words[:1] == ["capmatrix"]:
        cli._parser().parse_args(cli._split(words[1:])[0])
    elif words and words[0].startswith("capmatrix."):
        assert (ROOT / f"{words[0].replace('.', '/')}.py").is_file()
    else:
        assert {word for word in words if word.startswith("--")} <= pytest_options()


def inside_tox(words: list[str]) -> list[str]:
    """What the environment of ``tox -e NAME -- ...`` runs, where that is capmatrix; nothing for another."""
    assert words[1] == "-e" and words[3:4] in ([], ["--"]), words
    tox = ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini")
    named = (section.partition(":")[2].strip("{}").split(",") for section in tox.sections())
    assert words[2] in {name for names in named for name in names}
    rest = words[4:]
    if words[2] == "matrix":
        return ["capmatrix", "run", "eagle3-llama", *rest]
    if words[2] == "stack" and rest:
        assert rest[:2] == ["-m", "capmatrix"]
        return rest[1:]
    return []


def pytest_options() -> set[str]:
    import importlib.util

    spec = importlib.util.spec_from_file_location("commands_reference", ROOT / "tools" / "commands_reference.py")
    assert spec is not None and spec.loader is not None
    room = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(room)
    return {name.split()[0] for words, _ in room._pytest_rows() for name in words.split(", ")}


def test_the_list_of_what_is_not_run_is_short_and_in_use() -> None:
    assert len(docs_commands.NOT_RUN) <= 6
    unused = [p for p in docs_commands.NOT_RUN if not any(re.fullmatch(p, text) for text in LEFT)]
    assert unused == []
    assert set(docs_commands.ENDS_WITH) <= {*QUICK, *ENGINE}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_a_sentence_are_ones_that_there_are(page: Path) -> None:
    """``capmatrix report RUN --format md``: the command is known, and so is each option that stands with it."""
    (found,) = [a for a in cli._parser()._actions if hasattr(a, "choices") and isinstance(a.choices, dict)]
    for text in docs_commands.inline(page.read_text(encoding="utf-8")):
        words = text.split()
        assert words[1].rstrip(",.") in found.choices, text
        known = set(found.choices[words[1]]._option_string_actions)
        options = {word.strip("[],.|").partition("=")[0] for word in words if re.match(r"\[?--?[a-z]", word)}
        assert options <= known, text


PAGE = """\
# Page

Prose that says `capmatrix show RUN` runs nothing.

    pytest a.toml -k "x and y"      # somebody's comment
    capmatrix golden \\
        --arch gfx942

```sh
python3 -m venv .venv && .venv/bin/tox -e stack
rocjitsu --config c.json -- capmatrix run smoke
capmatrix report a#b runs/*.jsonl # the rest's a comment
```

1. In a list:

    ```console
    $ capmatrix doctor
    capmatrix says this
    ```

```text
capmatrix run nothing
```

```python
capmatrix = pytest
```
"""


def test_commands_are_found() -> None:
    assert [(one.line, one.text) for one in docs_commands.shown(PAGE)] == [
        (5, 'pytest a.toml -k "x and y"'),
        (6, "capmatrix golden --arch gfx942"),
        (10, ".venv/bin/tox -e stack"),
        (11, "rocjitsu --config c.json -- capmatrix run smoke"),
        (12, "capmatrix report a#b runs/*.jsonl"),
        (18, "capmatrix doctor"),
    ]
    words = [one.words for one in docs_commands.shown(PAGE)]
    assert words[2:4] == [["tox", "-e", "stack"], ["capmatrix", "run", "smoke"]]
    assert docs_commands.inline(PAGE) == ["capmatrix show RUN"]


def test_the_documentation_shows_every_command() -> None:
    (found,) = [a for a in cli._parser()._actions if hasattr(a, "choices") and isinstance(a.choices, dict)]
    shown = {one.words[1] for one in SHOWN if one.words[0] == "capmatrix"}
    assert set(found.choices) - shown == set()
