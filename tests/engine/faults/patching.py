"""Break a function or an Inductor template of an installed package by editing its source text, and mend it again."""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import linecache
import sys
import textwrap
from collections.abc import Iterator
from typing import Any, NamedTuple


class Edit(NamedTuple):
    """Replace ``old`` by ``new`` in the source of ``function`` of ``module``, wherever it is.

    It is a function, a ``Class.method``, a Triton kernel, or a template that Inductor renders kernels from.
    """

    module: str
    function: str
    old: str
    new: str


class PatternGone(Exception):
    """What an edit replaces is not in the source any more: the fault would break nothing."""


@contextlib.contextmanager
def edited(edits: tuple[Edit, ...]) -> Iterator[None]:
    """Within, the edited functions are in place wherever the originals were imported to.

    A Triton kernel is made anew from the edited text, decorators included. Raises PatternGone.
    """
    with contextlib.ExitStack() as mended:
        texts: dict[tuple[str, str], str] = {}
        for edit in edits:
            where = edit.module, edit.function
            text = texts.get(where) or source(*where)
            if edit.old not in text:
                raise PatternGone(f"{edit.module}.{edit.function} has no {edit.old!r}")
            texts[where] = text.replace(edit.old, edit.new)
        for (module, function), text in texts.items():
            mended.callback(_replace(module, function, text))
        yield


def source(module: str, function: str) -> str:
    """The source text of a function or Triton kernel, from its decorators on, or of an Inductor template."""
    found = _find(module, function)
    if _is_template(found):
        return _template_source(module, function)
    return textwrap.dedent(inspect.getsource(getattr(found, "fn", found)))


def _is_template(found: Any) -> bool:
    return hasattr(found, "_template_from_string")


def _template_source(module: str, name: str) -> str:
    """The text that ``name = TritonTemplate(..., source=...)`` was given: Inductor keeps what it parsed alone."""
    home = importlib.import_module(module)
    for node in ast.parse(inspect.getsource(home)).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name and isinstance(node.value, ast.Call):
            given = next(keyword.value for keyword in node.value.keywords if keyword.arg == "source")
            return str(eval(ast.unparse(given), vars(home)))
    raise PatternGone(f"{module} makes no template {name}")


def _find(module: str, function: str) -> Any:
    found: Any = importlib.import_module(module)
    for part in function.split("."):
        found = getattr(found, part)
    return found


def _replace(module: str, function: str, text: str) -> Any:
    """Put the function made from ``text`` in place; returns what undoes it."""
    home = importlib.import_module(module)
    owner, _, name = function.rpartition(".")
    old = _find(module, function)
    if _is_template(old):
        parsed, old.template = old.template, old._template_from_string(text)
        return lambda: setattr(old, "template", parsed)
    file = f"<edited {module}.{function}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    bound = name in home.__dict__
    before = home.__dict__.get(name)
    exec(compile(text, file, "exec", dont_inherit=True), home.__dict__)
    new = home.__dict__[name]
    if bound:
        home.__dict__[name] = before
    else:
        del home.__dict__[name]
    if owner:
        cls = _find(module, owner)
        setattr(cls, name, new)
        return lambda: setattr(cls, name, old)
    _swap(old, new)
    return lambda: _swap(new, old)


def _swap(was: Any, now: Any) -> None:
    """Wherever a module has ``was``, also one that was first imported within an edit, it has ``now``."""
    for other in list(sys.modules.values()):
        for key, value in list(getattr(other, "__dict__", {}).items()):
            if value is was:
                setattr(other, key, now)
