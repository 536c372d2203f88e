"""Which AITER is used: the installed wheel or a checkout, its version and commit. Imports nothing heavy."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

from . import Unavailable

#: Distribution names under which AITER is published.
DISTRIBUTIONS = ("amd-aiter", "aiter")

_VERSION_LINE = re.compile(r"^__version__\s*=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)
_COMMIT = re.compile(r"^[0-9a-f]{40}$")


class Source(NamedTuple):
    """One AITER.

    ``kind``: ``wheel`` or ``checkout``. ``package``: the folder of the package ``aiter``. ``sources``: the
    folder that holds ``csrc``. ``version`` and ``commit`` are empty where nothing states them; a checkout's
    version is ``git describe``'s (``0.1.20-46-ge4048607a5``: 46 commits after 0.1.20).
    """

    kind: str
    package: Path
    sources: Path
    version: str
    commit: str

    @property
    def label(self) -> str:
        """Kind, version and commit in words."""
        commit = f", commit {self.commit[:10]}" if self.commit else ", commit unknown"
        return f"AITER {self.version or 'of unknown version'} ({self.kind}{commit})"


def find(path: str) -> Source | None:
    """The AITER at ``path``, or the installed one when ``path`` is empty; None when none is installed.

    Raises Unavailable when ``path`` holds no AITER package.
    """
    if path:
        return _checkout(Path(path).expanduser().resolve())
    return _installed()


def _checkout(root: Path) -> Source:
    for folder in (root, root / "aiter"):
        # The repository's root also holds a folder named aiter, which is the package.
        if (folder / "__init__.py").is_file() and (folder / "ops" / "triton").is_dir():
            package = folder
            break
    else:
        raise Unavailable(f"no AITER at {root}: neither it nor its folder aiter/ has ops/triton")
    sources = package.parent
    version, commit = _git(sources)
    return Source("checkout", package, sources, version or _stated_version(package), commit or _stated_commit(sources))


def _installed() -> Source | None:
    try:
        spec = importlib.util.find_spec("aiter")
    except ValueError:
        return None
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    package = Path(folders[0]) if folders else None
    if package is None or not (package / "ops" / "triton").is_dir():
        # Another project publishes an unrelated package of the same name.
        return None
    if (package.parent / ".git").exists():
        return _checkout(package.parent)
    meta = package.parent / "aiter_meta"
    sources = meta if meta.is_dir() else package.parent
    return Source("wheel", package, sources, _distributed_version() or _stated_version(package), "")


def _distributed_version() -> str:
    for name in DISTRIBUTIONS:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def _git(folder: Path) -> tuple[str, str]:
    """``git describe`` without its ``v``, and the commit; empty strings without git or outside a clone."""
    if not (folder / ".git").exists():
        # Git would look in the parents and could answer for another project.
        return "", ""
    commit = _ask_git(folder, "rev-parse", "HEAD")
    described = _ask_git(folder, "describe", "--tags", "--match", "v*")
    return described.removeprefix("v"), commit if _COMMIT.match(commit) else ""


def _ask_git(folder: Path, *arguments: str) -> str:
    try:
        answer = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""


def _stated_version(package: Path) -> str:
    """The version that the build wrote (``aiter/_version.py``) or an archive states (``PKG-INFO``)."""
    written = package / "_version.py"
    if written.is_file():
        found = _VERSION_LINE.search(written.read_text(encoding="utf-8"))
        if found:
            return found.group(1)
    info = package.parent / "PKG-INFO"
    if info.is_file():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("Version:"):
                return line.partition(":")[2].strip()
    return ""


def _stated_commit(root: Path) -> str:
    """The commit in a file ``COMMIT`` or ``.git_archival.txt`` beside the package."""
    for name in ("COMMIT", ".git_archival.txt", ".git_archival"):
        file = root / name
        if not file.is_file():
            continue
        for line in file.read_text(encoding="utf-8").splitlines():
            value = line.rpartition(":")[2].strip()
            if _COMMIT.match(value):
                return value
    return ""


def pep440(version: str) -> str:
    """A version as package metadata states it; ``0+unknown`` where it is empty.

    ``git describe``'s 0.1.20-46-g<commit> is ``0.1.20.post46+g<commit>``: later than 0.1.20, and no release.
    """
    described = re.match(r"^(?P<tag>.+)-(?P<distance>\d+)-(?P<commit>g[0-9a-f]+)$", version)
    if described is None:
        return version or "0+unknown"
    tag, distance, commit = described.group("tag", "distance", "commit")
    post = re.match(r"^(.*\.post)(\d+)$", tag)
    if post:
        return f"{post.group(1)}{int(post.group(2)) + int(distance)}+{commit}"
    return f"{tag}.post{distance}+{commit}"
