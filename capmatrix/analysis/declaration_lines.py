"""Where the installed vLLM's source declares what a backend supports. Read as text: nothing is imported."""

from __future__ import annotations

import ast
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

#: Members of a backend's class that declare a feature of ``regions.FEATURES``.
MEMBERS: dict[str, tuple[str, ...]] = {
    "kv_cache_dtype": ("supported_kv_cache_dtypes", "supports_kv_cache_dtype"),
    "block_size": ("get_supported_kernel_block_sizes", "supports_block_size"),
    "kernel_block": ("get_supported_kernel_block_sizes",),
    "power_of_two": ("get_supported_kernel_block_sizes",),
    "head_size": ("get_supported_head_sizes", "supports_head_size"),
    "dtype": ("supported_dtypes", "supports_dtype"),
    "sinks": ("supports_sink",),
    "window": ("supports_sliding_window",),
    "causal": ("supports_non_causal",),
    "place": ("supports_compute_capability",),
}
_REGISTRY = "v1/attention/backends/registry.py"


def package() -> Path | None:
    """The folder of the installed vLLM, or None."""
    try:
        spec = find_spec("vllm")
    except (ImportError, ValueError):
        return None
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(places[0]) if places else None


def line(backend: str, feature: str, root: Path | None = None) -> str:
    """``vllm/v1/...py:148 get_supported_kernel_block_sizes`` for what declares ``feature``, the class where it has no
    member for it (it is inherited); empty where vLLM is not installed or has no such backend."""
    folder = root if root is not None else package()
    if folder is None:
        return ""
    return _line(backend, feature, folder)


@lru_cache(maxsize=1024)
def _line(backend: str, feature: str, root: Path) -> str:
    path = _classes(root).get(backend, "")
    module, _, name = path.rpartition(".")
    if not module.startswith("vllm."):
        return ""
    file = root.joinpath(*module.split(".")[1:]).with_suffix(".py")
    tree = _parse(file)
    for node in tree.body if tree is not None else ():
        if isinstance(node, ast.ClassDef) and node.name == name:
            shown = f"{Path('vllm', *module.split('.')[1:])}.py"
            for member in MEMBERS.get(feature, ()):
                for inner in node.body:
                    if member in _names(inner):
                        return f"{shown}:{inner.lineno} {member}"
            return f"{shown}:{node.lineno} {name}{' (inherited)' if feature in MEMBERS else ''}"
    return ""


def _names(node: ast.stmt) -> set[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return {node.name}
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return {node.target.id}
    if isinstance(node, ast.Assign):
        return {t.id for t in node.targets if isinstance(t, ast.Name)}
    return set()


@lru_cache(maxsize=8)
def _classes(root: Path) -> dict[str, str]:
    """Class paths of the registry's enum members by name."""
    tree = _parse(root / _REGISTRY)
    out: dict[str, str] = {}
    for node in tree.body if tree is not None else ():
        if isinstance(node, ast.ClassDef) and node.name == "AttentionBackendEnum":
            for inner in node.body:
                if isinstance(inner, ast.Assign) and isinstance(inner.value, ast.Constant):
                    for name in _names(inner):
                        out[name] = str(inner.value.value)
    return out


def _parse(path: Path) -> ast.Module | None:
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return None
