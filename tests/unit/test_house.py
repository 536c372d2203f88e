"""House rules that a linter does not know: sizes, docstrings, and what no file may name."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "capmatrix"
MAX_LINES = 450

#: Spelt in parts, so that this file keeps its own rules.
_REGISTRY = re.compile(r"pypi\." + r"org|python" + r"hosted|download\.py" + r"torch|npm" + r"js\.", re.IGNORECASE)
_FOREIGN_PATH = re.compile(r"(?<![\w.])/" + r"(work|root)/")
_UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b|raise NotImplemented" + r"Error")
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_SKIPPED_FOLDERS = {"build", "dist", "runs", "node_modules", "__pycache__"}


def files() -> list[Path]:
    """The repository's own files: what git knows and has not been told to ignore; without git, all but the caches."""
    if (ROOT / ".git").exists():
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        try:
            listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
            found = [ROOT / os.fsdecode(name) for name in listed.split(b"\0") if name]
            return [path for path in found if path.is_file()]
        except (OSError, subprocess.CalledProcessError):
            pass
    found = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [f for f in folders if f not in _SKIPPED_FOLDERS and (not f.startswith(".") or f == ".ci")]
        found += [Path(folder, name) for name in names]
    return found


def lines_matching(pattern: re.Pattern[str], paths: list[Path]) -> list[str]:
    """``file:line: text`` of every line of the text files ``paths`` in which ``pattern`` is found."""
    hits = []
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if pattern.search(text):
            lines = enumerate(text.splitlines(), 1)
            hits += [f"{path}:{number}: {line.strip()}" for number, line in lines if pattern.search(line)]
    return hits


def undocumented(source: str) -> list[str]:
    """The public functions, classes and methods of a module without a docstring, and the module itself."""
    tree = ast.parse(source)
    found = [] if ast.get_docstring(tree) or not tree.body else ["the module"]

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if not isinstance(node, _DEFINITIONS) or node.name.startswith("_"):
                continue
            if not ast.get_docstring(node):
                found.append(f"{prefix}{node.name}")
            if isinstance(node, ast.ClassDef):
                visit(node.body, f"{prefix}{node.name}.")

    visit(tree.body, "")
    return found


def test_test_files_have_names_of_their_own() -> None:
    """pytest imports them by their name alone: of two in one process the second cannot be collected."""
    names = [path.name for path in files() if path.suffix == ".py" and (ROOT / "tests") in path.parents]
    assert sorted({n for n in names if names.count(n) > 1 and n not in ("conftest.py", "__init__.py")}) == []


def test_no_file_names_a_registrys_host() -> None:
    assert lines_matching(_REGISTRY, files()) == []


def test_no_file_names_a_folder_of_one_machine() -> None:
    assert lines_matching(_FOREIGN_PATH, files()) == []


def test_nothing_is_left_unfinished() -> None:
    assert lines_matching(_UNFINISHED, [p for p in files() if p.suffix == ".py"]) == []


def test_modules_stay_small() -> None:
    sizes = {p: len(p.read_text(encoding="utf-8").splitlines()) for p in PACKAGE.rglob("*.py")}
    assert sizes
    assert {str(p): n for p, n in sizes.items() if n > MAX_LINES} == {}


def test_public_names_are_documented() -> None:
    bare = {str(p): undocumented(p.read_text(encoding="utf-8")) for p in PACKAGE.rglob("*.py")}
    assert {path: names for path, names in bare.items() if names} == {}


def test_undocumented_sees_what_lacks_a_docstring() -> None:
    source = 'class A:\n    def b(self):\n        """Said."""\n    def c(self): ...\n    def _d(self): ...\n'
    assert undocumented(source) == ["the module", "A", "A.c"]


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (_REGISTRY, "https://files.python" + "hosted.org/x"),
        (_FOREIGN_PATH, "see /" + "work/notes.txt"),
        (_UNFINISHED, "# TO" + "DO: finish"),
    ],
)
def test_the_rules_see_a_breach(pattern: re.Pattern[str], text: str, tmp_path: Path) -> None:
    file = tmp_path / "file.py"
    file.write_text(f"fine\n{text}\n", encoding="utf-8")
    assert lines_matching(pattern, [file]) == [f"{file}:2: {text}"]
    file.write_text("docs/work/plan.md, network/root/x\n", encoding="utf-8")
    assert lines_matching(pattern, [file]) == []
