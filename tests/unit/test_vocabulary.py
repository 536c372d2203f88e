"""Names that matrix files may use are those of the installed vLLM, read from its source without importing it."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest

from capmatrix import vocabulary


def source(*parts: str) -> ast.Module:
    """A module of the installed vLLM, parsed."""
    found = importlib.util.find_spec("vllm")
    if found is None or not found.submodule_search_locations:
        pytest.skip("vllm is not installed")
    return ast.parse(Path(found.submodule_search_locations[0], *parts).read_text(encoding="utf-8"))


def members(tree: ast.Module, name: str) -> list[str]:
    """Names assigned in the body of class ``name``."""
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    return [t.id for node in body if isinstance(node, ast.Assign) for t in node.targets if isinstance(t, ast.Name)]


def literal(tree: ast.Module, name: str) -> list[str]:
    """The strings of ``name = Literal[...]``."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
            return [n.value for n in ast.walk(node.value) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    raise AssertionError(f"vllm has no {name}")


def test_backends_are_the_registrys() -> None:
    registry = members(source("v1", "attention", "backends", "registry.py"), "AttentionBackendEnum")
    assert sorted(registry) == sorted(vocabulary.ROCM_BACKENDS + vocabulary.OTHER_BACKENDS)


def test_kv_cache_dtypes_are_the_command_lines() -> None:
    assert tuple(literal(source("config", "cache.py"), "CacheDType")) == vocabulary.KV_CACHE_DTYPES


def test_switches_are_vllms() -> None:
    known = {n.value for n in ast.walk(source("envs.py")) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    assert set(vocabulary.SWITCHES) <= known


def test_no_name_stands_twice() -> None:
    for names in (
        vocabulary.ROCM_BACKENDS + vocabulary.OTHER_BACKENDS,
        vocabulary.KV_CACHE_DTYPES,
        vocabulary.SWITCHES,
        vocabulary.METHODS,
    ):
        assert len(set(names)) == len(names)
