"""AITER's own package, importable where ROCm is missing.

AITER's ``__init__`` imports everything, builds C++ and asks ``rocminfo``; one failure would take its
Triton kernels away with it. Here its import statements run one by one, those that fail are noted,
and the modules that need ROCm are replaced: the builder (``jit.core``), what tells the architecture
(``jit.utils.chip_info``, AITER's own code over another ``rocminfo``), the C++ interfaces (``csrc.cpp_itfs``)
and, where FlyDSL is not installed, the kernels written in it.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from ..archs import Arch
from . import aiter_natives, shims
from .aiter_source import DISTRIBUTIONS, Source, pep440

#: PCI device id of an MI300X (pci.ids, 1002:74a1); AITER tells it from an MI308 by this.
_MI300X = 0x74A1


class AiterFinder(importlib.abc.MetaPathFinder):
    """Serves ``aiter`` (and ``csrc``, its C++ interfaces) from one source, and its metadata."""

    def __init__(self, source: Source, arch: Arch) -> None:
        self.source = source
        self.arch = arch
        #: Modules whose import by AITER's ``__init__`` failed, and why.
        self.problems: list[tuple[str, str]] = []
        self.replaced: dict[str, Callable[[ModuleType], None]] = {
            "aiter.jit.core": self._jit_core,
            "aiter.jit.utils.torch_guard": _torch_guard,
            "aiter.jit.utils.chip_info": self._chip_info,
            "csrc.cpp_itfs.torch_utils": _torch_utils,
        }
        #: Packages whose modules only lead to compiled code, and where they are.
        self.interfaces = {"csrc.cpp_itfs": source.sources / "csrc" / "cpp_itfs"}
        if importlib.util.find_spec("flydsl") is None:
            self.interfaces["aiter.ops.flydsl.kernels"] = source.package / "ops" / "flydsl" / "kernels"

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Specs of what is served from here; None leaves the rest to Python, along the packages' paths."""
        if fullname in self.replaced:
            return importlib.machinery.ModuleSpec(fullname, _Filled(self.replaced[fullname]))
        if fullname == "aiter":
            return self._package(fullname, self.source.package, _OneByOne(self.source.package, self.problems))
        if fullname == "csrc":
            return self._package(fullname, self.source.sources / "csrc", None)
        for name, place in self.interfaces.items():
            if fullname == name or fullname.startswith(name + "."):
                return self._interface(fullname, place.joinpath(*fullname[len(name) + 1 :].split(".")))
        return None

    def find_distributions(self, context: Any = None) -> Iterator[importlib.metadata.Distribution]:
        """Metadata of the chosen AITER, ahead of any other that is installed."""
        name = getattr(context, "name", None)
        if name is None or name.replace("_", "-").lower() in DISTRIBUTIONS:
            yield _Metadata(pep440(self.source.version))

    @staticmethod
    def _package(
        fullname: str, folder: Path, loader: importlib.abc.Loader | None
    ) -> importlib.machinery.ModuleSpec | None:
        if not folder.is_dir():
            return None
        origin = str(folder / "__init__.py") if loader is not None else None
        spec = importlib.machinery.ModuleSpec(fullname, loader, origin=origin, is_package=True)
        spec.submodule_search_locations = [str(folder)]
        spec.has_location = origin is not None
        return spec

    def _interface(self, fullname: str, place: Path) -> importlib.machinery.ModuleSpec | None:
        if place.is_dir():
            return self._package(fullname, place, None)
        file = place.with_suffix(".py")
        if not file.is_file():
            return None
        return importlib.machinery.ModuleSpec(
            fullname, _Filled(lambda module: vars(module).update(aiter_natives.interface(file)))
        )

    def _jit_core(self, module: ModuleType) -> None:
        package, sources = self.source.package, self.source.sources
        vars(module).update(
            compile_ops=aiter_natives.compile_ops,
            torch_compile_guard=aiter_natives.torch_compile_guard,
            get_module=aiter_natives.get_module,
            is_experimental_enabled=lambda: os.environ.get("AITER_ENABLE_EXPERIMENTAL", "0") not in ("", "0"),
            AITER_ROOT_DIR=str(package.parent),
            AITER_META_DIR=str(sources),
            AITER_CSRC_DIR=str(sources / "csrc"),
            AITER_ASM_DIR=str(sources / "hsa"),
            AITER_LOG_MORE=0,
            AITER_LOG_TUNED_CONFIG=0,
            AITER_REBUILD=0,
            CK_DIR=str(sources / "3rdparty" / "composable_kernel"),
            ENABLE_CK=os.environ.get("ENABLE_CK", "1") != "0",
            PREBUILD_KERNELS=False,
        )

    def _chip_info(self, module: ModuleType) -> None:
        """AITER's own module, over a ``rocminfo`` that lists the virtual architecture."""
        folder = self.source.package / "jit" / "utils"
        helpers: dict[str, Any] = {
            "cpp_extension": SimpleNamespace(executable_path=lambda name: name),
            "torch_guard": SimpleNamespace(torch_compile_guard=aiter_natives.torch_compile_guard),
        }
        if (folder / "build_targets.py").is_file():
            helpers["build_targets"] = importlib.import_module("aiter.jit.utils.build_targets")
        file = folder / "chip_info.py"
        with _modules(helpers):
            exec(compile(file.read_bytes(), str(file), "exec"), vars(module))
        listing = f"Agent 1\n  Name: {self.arch.name}\n  Device Type: GPU\n  Compute Unit: {self.arch.compute_units}\n"
        answer = shims.answering("rocminfo", SimpleNamespace(stdout=listing, stderr="", returncode=0))
        vars(module).update(subprocess=SimpleNamespace(run=answer, PIPE=-1))
        if hasattr(module, "_get_pci_chip_id"):
            vars(module).update(_get_pci_chip_id=shims.answering("PCI chip id", _MI300X))


class _Filled(importlib.abc.Loader):
    """A module whose contents a function puts in."""

    def __init__(self, fill: Callable[[ModuleType], None]) -> None:
        self.fill = fill

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Python's default."""

    def exec_module(self, module: ModuleType) -> None:
        """Fill it."""
        self.fill(module)


class _OneByOne(importlib.machinery.SourceFileLoader):
    """Runs a package's ``__init__`` with every import statement on its own, noting those that fail."""

    def __init__(self, package: Path, problems: list[tuple[str, str]]) -> None:
        super().__init__("aiter", str(package / "__init__.py"))
        self.problems = problems

    def get_code(self, fullname: str) -> Any:
        """Always from source: the changed code must not be cached beside AITER's."""
        path = self.get_filename(fullname)
        tree = ast.fix_missing_locations(_Apart().visit(ast.parse(self.get_data(path), path)))
        return compile(tree, path, "exec")

    def exec_module(self, module: ModuleType) -> None:
        """Run it."""
        vars(module)[_Apart.NOTE] = lambda part, error: self.problems.append(
            (part, f"{type(error).__name__}: {error}".splitlines()[0])
        )
        super().exec_module(module)


class _Apart(ast.NodeTransformer):
    """Puts each relative import of a module's body into ``try``; functions are left alone."""

    NOTE = "_capmatrix_note"

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Left alone."""
        return node

    def visit_Try(self, node: ast.Try) -> ast.AST:
        """AITER handles these itself."""
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        """``from .x import *`` becomes ``try: from .x import * / except Exception as e: note(...)``."""
        if not node.level:
            return node
        parts = node.module or ", ".join(alias.name for alias in node.names)
        call = ast.parse(f"{self.NOTE}({parts!r}, error)").body
        handler = ast.ExceptHandler(ast.Name("Exception", ast.Load()), "error", call)
        return ast.copy_location(ast.Try([node], [handler], [], []), node)


class _Metadata(importlib.metadata.Distribution):
    """What ``importlib.metadata`` answers for AITER."""

    def __init__(self, version: str) -> None:
        self._text = f"Metadata-Version: 2.1\nName: amd-aiter\nVersion: {version}\n"

    def read_text(self, filename: str) -> str | None:
        """``METADATA`` alone."""
        return self._text if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        """Nothing is listed."""
        return Path(path)


def _torch_guard(module: ModuleType) -> None:
    vars(module).update(torch_compile_guard=aiter_natives.torch_compile_guard)


def _torch_utils(module: ModuleType) -> None:
    vars(module).update(direct_register_custom_op=aiter_natives.direct_register_custom_op)


@contextlib.contextmanager
def _modules(helpers: dict[str, Any]) -> Iterator[None]:
    """Top-level names that AITER's build helpers import each other by, while one of them runs."""
    before = {name: sys.modules.get(name) for name in helpers}
    sys.modules.update(helpers)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
