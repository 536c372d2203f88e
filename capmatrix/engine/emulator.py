"""ROCm's emulator, rocjitsu: recognising that this process's AMD GPU is a simulated one, and saying which.

``rocjitsu --config C -- command`` starts an unmodified process with its library preloaded. That library answers
for /dev/kfd, /dev/dri and the KFD topology, so that everything a process can ask of its GPU (name, architecture,
memory) looks real; what gives it away is the library itself, mapped into the process. Nothing heavy is imported
here. Sources: github ROCm/rocm-systems, emulation/rocjitsu, September 2026:

* ``tools/rocjitsu/launch_preload.cpp``: the library is put first in LD_PRELOAD (a sanitizer's before it);
  ``tools/rocjitsu/main.cpp``: it is ``librocjitsu.so``, in a DBT guest ``librocjitsu_hooks.so`` is HSA_TOOLS_LIB.
  Older launchers preload ``librocjitsu_kmd.so`` and set RJ_CONFIG.
* ``config/dbt_guest_config.cpp``: the configuration's path is the first line of the file ``config_path`` in
  $ROCJITSU_INVOCATION_DIR, or in $ROCJITSU_RUNTIME_DIR, $XDG_RUNTIME_DIR/rocjitsu or /tmp/rocjitsu-<uid>
  (``kmd/linux/rpc.h``). A daemon keeps ``effective_config.json`` and ``daemon.sock`` there.
* ``docs/configuration.md``: what a configuration holds.
* ``base/rj_version.h``: the library's own version, revision and date, as ``rocjitsu --version`` prints them.
* ``cli/hotswap/README.md``: HotSwap preloads ``libhotswap_intercept.so`` and rewrites code for another, real GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .kfd import amd_architecture, gfx_name

NAME = "rocjitsu"
HOTSWAP = "hotswap"

_LIBRARIES = {
    NAME: re.compile(r"librocjitsu(_kmd|_hooks)?\.so[.\d]*"),
    HOTSWAP: re.compile(r"libhotswap_intercept\.so[.\d]*"),
}

Read = Callable[[str], "str | None"]


class Emulator(NamedTuple):
    """What emulates this process's GPU, as far as the process can tell.

    ``loaded``: the library is mapped, not only asked for by LD_PRELOAD. ``mode``: ``in-process``, ``daemon`` or
    ``guest`` (machine code translated to another GPU's). ``config`` is the text of the configuration, empty where
    it cannot be read; ``config_path`` where it was.
    """

    name: str
    library: str
    loaded: bool
    mode: str
    config_path: str = ""
    config: str = ""


def recognise(environ: Mapping[str, str], maps: str | None, read: Read) -> Emulator | None:
    """What emulates the GPU of a process with this environment and /proc/self/maps (None: cannot be read).

    ``read`` gives the text of a file, None where there is none. The library decides; variables alone do not,
    since a process that lost LD_PRELOAD runs on the hardware that is really there.
    """
    mapped = {line.split(None, 5)[5].strip() for line in (maps or "").splitlines() if line.count("/")}
    asked = [p for p in re.split(r"[:\s]+", environ.get("LD_PRELOAD", "")) if p]
    asked.append(environ.get("HSA_TOOLS_LIB", ""))
    for name, pattern in _LIBRARIES.items():
        there = sorted(p for p in mapped if pattern.fullmatch(os.path.basename(p)))
        wanted = [p for p in asked if pattern.fullmatch(os.path.basename(p))]
        if there or wanted:
            path, config = _config(environ, read)
            library = next((p for p in there if "_hooks" not in p), (there or wanted)[0])
            return Emulator(name, library, bool(there) or maps is None, _mode(environ, config, read), path, config)
    return None


@functools.cache
def here() -> Emulator | None:
    """What emulates this process's GPU; None where its GPU, if any, is real."""
    return recognise(os.environ, _read("/proc/self/maps"), _read)


def facts(config: str) -> dict[str, Any]:
    """What a configuration says: ``arch`` (gfx942), ``product``, ``gpus``, ``exec_mode``, ``guest_of``.

    Only what it says is there; text that is no configuration says nothing.
    """
    try:
        parsed = json.loads(config)
    except ValueError:
        return {}
    guest = _table(parsed, "dbt_guest")
    gpu = _table(parsed, "vm", "gpu")
    device = _table(gpu, "device")
    found: dict[str, Any] = {"exec_mode": _table(parsed).get("exec_mode"), "gpus": gpu.get("num_gpus")}
    if guest.get("enabled"):
        device = _table(guest, "guest_device")
        found["guest_of"] = guest.get("host_isa")
    version = device.get("gfx_target_version", 0)
    found["arch"] = gfx_name(f"gfx_target_version {version}") or (guest.get("guest_isa") if guest else None)
    found["product"] = device.get("marketing_name")
    return {k: v for k, v in found.items() if isinstance(v, (str, int)) and v != ""}


def architecture(emulator: Emulator) -> str:
    """The emulated GPU's architecture, from the configuration, else from the topology the process sees."""
    return str(facts(emulator.config).get("arch", "")) or amd_architecture()


def version(text: str) -> tuple[str, str]:
    """Version and revision in what ``rocjitsu --version`` prints; empty where it does not say."""
    number = re.search(rf"^{NAME} (\S+)", text, re.MULTILINE)
    revision = re.search(r"^git revision: (\S+)", text, re.MULTILINE)
    known = revision is not None and revision.group(1) != "unknown"
    return number.group(1) if number else "", revision.group(1) if known and revision else ""


def installed_version(emulator: Emulator) -> tuple[str, str]:
    """Version and revision of the library that is loaded, asked of the library itself."""
    with contextlib.suppress(OSError, AttributeError, UnicodeDecodeError):
        ask = ctypes.CDLL(emulator.library).rj_get_version_string
        ask.restype = ctypes.c_char_p
        return version((ask() or b"").decode())
    return "", ""


def describe(emulator: Emulator) -> dict[str, Any]:
    """The emulator in a record's environment: mode, configuration, its digest, and what it says."""
    found: dict[str, Any] = {"name": emulator.name, "mode": emulator.mode, **facts(emulator.config)}
    if emulator.config:
        found["config"] = os.path.basename(emulator.config_path)
        found["config_sha256"] = hashlib.sha256(emulator.config.encode()).hexdigest()
    return found


def undisguised(hardware: Mapping[str, Any], emulator: Emulator) -> dict[str, Any]:
    """Facts of the GPU a process sees, made to say everywhere that it is an emulated one.

    Clocks and caps are those of a configuration file, not of a GPU, and are left out.
    """
    kept = {k: v for k, v in hardware.items() if not k.startswith(("power", "clock"))}
    product = str(hardware.get("name") or facts(emulator.config).get("product") or "AMD GPU")
    return kept | {"name": f"{product}, emulated by {emulator.name}", "emulator": describe(emulator)}


def _config(environ: Mapping[str, str], read: Read) -> tuple[str, str]:
    """The configuration's path and text; both empty where no file of the launcher's leads to it."""
    folders = [environ.get("ROCJITSU_INVOCATION_DIR"), environ.get("ROCJITSU_RUNTIME_DIR")]
    if environ.get("XDG_RUNTIME_DIR"):
        folders.append(f"{environ['XDG_RUNTIME_DIR']}/rocjitsu")
    folders.append(f"/tmp/rocjitsu-{os.getuid()}")
    for folder in filter(None, folders):
        handed = (read(f"{folder}/config_path") or "").splitlines()
        for path in (handed[0].strip() if handed else "", f"{folder}/effective_config.json"):
            text = read(path) if path else None
            if text:
                return path, text
    older = environ.get("RJ_CONFIG", "")
    return (older, read(older) or "") if older else ("", "")


def _mode(environ: Mapping[str, str], config: str, read: Read) -> str:
    if "guest_of" in facts(config) or "librocjitsu_hooks" in environ.get("HSA_TOOLS_LIB", ""):
        return "guest"
    if environ.get("ROCJITSU_DAEMON_PID"):
        return "daemon"
    folder = environ.get("ROCJITSU_INVOCATION_DIR")
    return "daemon" if folder and read(f"{folder}/daemon.sock") is not None else "in-process"


def _table(value: object, *keys: str) -> dict[str, Any]:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def _read(path: str) -> str | None:
    """A file's text; of a socket, which has none, the empty string; None where there is nothing to read."""
    place = Path(path)
    try:
        return "" if place.is_socket() else place.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
