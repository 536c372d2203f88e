"""What the targets need to be importable, asked without importing it."""

from __future__ import annotations

from importlib.util import find_spec


def missing(*modules: str) -> str:
    """A sentence naming the first of ``modules`` that is not installed, or the empty string."""
    for module in modules:
        if find_spec(module) is None:
            return f"{module} is not installed; install vLLM, torch and triton, or run `tox -e matrix`"
    return ""
