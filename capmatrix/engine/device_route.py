"""Note in the route what a real GPU runs: Triton's launches, and native operators that were called by name.

AITER's own C++ and assembly kernels are called past torch's dispatcher; what is seen of them is the
operators registered with torch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from . import compile_watch, native_ops, route

_quiet = False


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Within, launches are not noted: they are repeats, or timed."""
    global _quiet
    before, _quiet = _quiet, True
    try:
        yield
    finally:
        _quiet = before


def install() -> None:
    """Wrap the active driver's loader and launcher; once a process, after the GPU is taken."""
    from triton.runtime import driver

    active = driver.active
    loaded = _watch_loading(active.utils)
    active.launcher_cls = _noting(active.launcher_cls, loaded)
    for namespace, operators in native_ops.OPERATORS.items():
        for schema, _ in operators:
            _watch_operator(namespace, schema.partition("(")[0])


def _watch_loading(utils: Any) -> dict[Any, dict[str, Any]]:
    """Figures of each loaded kernel by its function handle."""
    loaded: dict[Any, dict[str, Any]] = {}
    load = utils.load_binary

    def load_binary(name: str, code: bytes, shared: int, device: int) -> Any:
        result = load(name, code, shared, device)
        _, function, registers, spills, *_ = result
        figures: dict[str, Any] = {"name": name, "compile_s": compile_watch.taken(name), "lds_bytes": shared}
        if torch.version.hip is not None:
            from .code_object import resources

            figures |= resources(code)
            figures["lds_bytes"] = max(shared, figures["lds_bytes"])
        else:
            figures["detail"] = f"NVIDIA: {registers} registers, {spills} spills"
        loaded[function] = figures
        return result

    utils.load_binary = load_binary
    return loaded


def _noting(launcher: type, loaded: dict[Any, dict[str, Any]]) -> type:
    class NotingLauncher:
        """Notes the launch and makes it."""

        def __init__(self, src: Any, metadata: Any) -> None:
            self.launcher = launcher(src, metadata)
            self.warps = getattr(metadata, "num_warps", None)
            self.stages = getattr(metadata, "num_stages", None)

        def __call__(self, x: int, y: int, z: int, stream: int, function: Any, *rest: Any) -> Any:
            if not _quiet:
                figures = dict(loaded.get(function, {"name": "unknown"}))
                name = figures.pop("name")
                route.launched(
                    name, "triton", key=function, grid=(x, y, z), num_warps=self.warps, num_stages=self.stages,
                    **figures,
                )  # fmt: skip
            return self.launcher(x, y, z, stream, function, *rest)

    return NotingLauncher


def _watch_operator(namespace: str, name: str) -> None:
    """Callers name ``torch.ops.<namespace>.<name>``: what they get there notes the call first."""
    if not native_ops.compiled(namespace, name):
        return
    package = getattr(torch.ops, namespace)
    operator = getattr(package, name)

    def noting(*args: Any, **kwargs: Any) -> Any:
        if not _quiet:
            route.launched(f"{namespace}.{name}", "operator")
        return operator(*args, **kwargs)

    setattr(package, name, noting)
