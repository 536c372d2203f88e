"""vLLM's own attention benchmark beside capmatrix: the same calls, on the same GPU, one after the other.

python benchmarks/attention_benchmarks.py FOLDER --out DIR [--target device:gfx950] [--backends NAME ...] [...]
python benchmarks/attention_benchmarks.py --report DIR [--against RUN]

FOLDER is benchmarks/attention_benchmarks of vLLM's repository, at the tag of the installed version; vLLM's source
archive holds it too: pip download --no-deps --no-binary :all: vllm==VERSION.

Both sides start with an empty folder for Triton's kernels (cold), and run again with what they left there (warm):
capmatrix, vLLM's, vLLM's, capmatrix. Printed for each call: the time by vLLM's benchmark, the time by it with what
vLLM's layer does around the attention, capmatrix's time, and whether the last two agree; then calls a minute of both.
capmatrix is run as its users run it (``capmatrix run FILE --time PROFILES``): each cell judged, in a process that may
crash, and recorded. vLLM's is one process for all calls. Figures of one run; nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import attention_cells as cells
import attention_report as report

from capmatrix import errors, store
from capmatrix.argtypes import whole
from capmatrix.errors import InputError

ROOT = Path(__file__).resolve().parents[1]
NEEDED = ("runner.py", "common.py", "batch_spec.py")

#: The order of the steps: neither side is always the one that finds files in memory.
ORDER = {"cold": ("capmatrix", "vllm"), "warm": ("vllm", "capmatrix")}

#: Seconds that a process is given at least, and those to end in when it is stopped.
_LEAST_S, _GRACE_S = 1.0, 15.0

#: Backends by target that run without compiled operators.
BACKENDS = {
    "device": ("TRITON_ATTN",),
    "device:gfx950": ("TRITON_ATTN", "ROCM_ATTN", "ROCM_AITER_UNIFIED_ATTN"),
}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("folder", nargs="?", metavar="FOLDER", help="vLLM's benchmarks/attention_benchmarks")
    made.add_argument("--out", metavar="DIR", help="where results go; must not hold any yet")
    made.add_argument("--report", metavar="DIR", help="run nothing: print the report of what is there")
    made.add_argument("--against", metavar="RUN", help="an earlier run file of capmatrix: which times got slower")
    made.add_argument("--target", default="device", choices=BACKENDS)
    made.add_argument("--backends", nargs="+", metavar="NAME", help="default: what runs on the target")
    made.add_argument("--blocks", nargs="+", type=int, default=[16, 64, 128], metavar="N")
    made.add_argument("--kv-cache-dtypes", nargs="+", default=["auto", "fp8"], metavar="NAME")
    made.add_argument("--batches", nargs="+", default=cells.BATCHES, choices=cells.BATCHES)
    made.add_argument("--cold-only", action="store_true", help="leave the warm pass out")
    made.add_argument("--workers", type=whole(), metavar="N", help="capmatrix's -n: more compile side by side")
    made.add_argument("--aiter", default="", metavar="PATH", help="an AITER checkout, for both")
    made.add_argument("--budget", type=float, default=3600.0, metavar="SECONDS", help="for all of it")
    return made


def checked(arguments: argparse.Namespace) -> tuple[Path, Path]:
    """vLLM's benchmark and the folder for results. InputError where they are not as they must be."""
    if not arguments.folder:
        raise InputError("vLLM's benchmarks/attention_benchmarks is needed, or --report", key="FOLDER")
    if not arguments.out:
        raise InputError("a folder for results is needed", key="--out")
    folder, out = Path(arguments.folder).resolve(), Path(arguments.out).resolve()
    missing = [name for name in NEEDED if not (folder / name).is_file()]
    if missing:
        what = f"not vLLM's benchmarks/attention_benchmarks: {', '.join(missing)} missing"
        raise InputError(what, key="FOLDER", value=str(folder))
    if (out / "steps.jsonl").exists():
        raise InputError("this folder holds results already", key="--out", value=str(out))
    if arguments.aiter and not Path(arguments.aiter).is_dir():
        raise InputError("this AITER checkout is not a directory", key="--aiter", value=arguments.aiter)
    return folder, out


def prepare(arguments: argparse.Namespace, out: Path) -> Path:
    """Write the matrix file and the calls into ``out``; returns the matrix file. InputError for what it refuses."""
    out.mkdir(parents=True, exist_ok=True)
    backends = arguments.backends or BACKENDS[arguments.target]
    path = out / cells.FILE
    chosen = backends, arguments.blocks, arguments.kv_cache_dtypes, arguments.batches
    path.write_text(cells.matrix_text(*chosen), encoding="utf-8")
    calls = cells.calls(path, arguments.target)
    (out / "calls.json").write_text(json.dumps(calls), encoding="utf-8")
    return path


def capmatrix_command(arguments: argparse.Namespace, matrix: Path, run_file: Path, cache: Path) -> list[str]:
    """As a user types it."""
    profiles = ",".join(f"{matrix}:{name}" for name in cells.PROFILES)
    words = ["run", str(matrix), "--target", arguments.target, "--time", profiles, "--run-file", str(run_file)]
    words += ["--triton-cache", str(cache), "--expectations", "none"]
    words += ["-n", str(arguments.workers)] if arguments.workers else []
    words += ["--aiter", str(Path(arguments.aiter).resolve())] if arguments.aiter else []
    return [sys.executable, "-m", "capmatrix", *words]


def vllm_command(
    arguments: argparse.Namespace, folder: Path, out: Path, name: str, cache: Path, variants: Sequence[str]
) -> list[str]:
    """vLLM's benchmark over ``calls.json``, in one process."""
    work = out / f"vllm-{name}.work.json"
    calls = [cells.Call(*call) for call in json.loads((out / "calls.json").read_text(encoding="utf-8"))]
    given = {
        "target": arguments.target,
        "aiter": str(Path(arguments.aiter).resolve()) if arguments.aiter else "",
        "triton_cache": str(cache),
        "variants": list(variants),
        "calls": [call._asdict() | {"key": call.key} for call in calls],
    }
    work.write_text(json.dumps(given), encoding="utf-8")
    script = ROOT / "benchmarks" / "attention_vllm.py"
    return [sys.executable, str(script), str(folder), str(work), str(out / f"vllm-{name}.jsonl")]


def run(arguments: argparse.Namespace, folder: Path, out: Path) -> None:
    """All steps, one at a time; each leaves its results and its output in ``out``."""
    matrix = prepare(arguments, out)
    passes = report.PASSES[:1] if arguments.cold_only else report.PASSES
    until = time.monotonic() + arguments.budget
    caches = Path(tempfile.mkdtemp(prefix="capmatrix-attention-"))
    try:
        for name in passes:
            for side in ORDER[name]:
                cache = caches / side
                if side == "vllm":
                    variants = ("plain", "layer") if name == passes[-1] else ("plain",)
                    command = vllm_command(arguments, folder, out, name, cache, variants)
                else:
                    command = capmatrix_command(arguments, matrix, out / f"capmatrix-{name}.jsonl", cache)
                _step(side, name, command, out, until - time.monotonic())
    finally:
        shutil.rmtree(caches, ignore_errors=True)


def _environment() -> dict[str, str]:
    """Both sides take this checkout's capmatrix, whatever else is installed."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}


def _step(side: str, name: str, command: list[str], out: Path, limit: float) -> None:
    """Run one process for at most ``limit`` seconds and note it; nothing where hardly any are left."""
    if limit < _LEAST_S:
        print(f"{side}, {name}: left out, the budget is spent", file=sys.stderr, flush=True)
        return
    print(f"{side}, {name} ...", file=sys.stderr, flush=True)
    begun = time.time()
    code: int | None = None
    with (out / f"{side}-{name}.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            command, cwd=out, env=_environment(), stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            print(f"{side}, {name}: stopped, the budget is spent", file=sys.stderr, flush=True)
        finally:
            if process.poll() is None:
                _stop(process)
    step = report.Step(side, name, begun, time.time(), code)
    with (out / "steps.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(step._asdict()) + "\n")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """pytest ends its workers when it is interrupted, and closes the run file."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def main(words: Sequence[str] | None = None) -> int:
    """Run and print; exit status 2 for wrong use, 3 where a side timed nothing."""
    arguments = parser().parse_args(words)
    try:
        against = store.read(arguments.against) if arguments.against else None
        if arguments.report:
            out = Path(arguments.report)
        else:
            folder, out = checked(arguments)
            run(arguments, folder, out)
        text = list(report.report(out, against))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return errors.EXIT_USAGE
    print("\n".join(text))
    empty = [line for line in text if "| nothing (exit status" in line]
    return errors.EXIT_INFRASTRUCTURE if empty else errors.EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
