"""What ``default`` and ``guard`` do about pairs: run vLLM's own set-up of both models, without any call."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ..errors import EXIT_OK, EXIT_UNEXPECTED

if TYPE_CHECKING:
    from ..cell import Environment
    from ..guard.judge import Choice, Finding
    from ..pair import Pair, PairRecord
    from ..selection.defaults import Defaults


def default(arguments: argparse.Namespace) -> int:
    """``capmatrix default --target-model MODEL``: both sides of one pair; exit 1 where vLLM refuses it."""
    from .. import codec
    from ..report import explain_pair, terminal

    records, environments = set_up([asked(arguments)], arguments.aiter)
    record = records[0]
    if arguments.format == "json":
        print(codec.encode(record).decode())
    else:
        width = terminal.use_width(sys.stdout)
        sys.stdout.write(explain_pair.render(record, environments.get(record.environment), width=width))
    return EXIT_OK if record.verdict.value == "pass" else EXIT_UNEXPECTED


def asked(arguments: argparse.Namespace) -> Pair:
    """The pair that the words of ``default`` describe. InputError for what is not known or does not fit."""
    from .. import archs
    from ..guard.family_question import switch_pairs
    from ..pairs import pairfile

    archs.get(arguments.arch)
    given = {
        "target_model": arguments.target_model,
        "target_backend": arguments.target_backend or pairfile.AUTO,
        "drafter": arguments.drafter,
        "drafter_backend": arguments.drafter_backend or pairfile.AUTO,
        "tp": arguments.tp or 1,
        "block_size": arguments.block_size or pairfile.AUTO,
        "kv_cache_dtype": arguments.kv_cache_dtype,
        "dtype": "bfloat16" if arguments.dtype == "auto" else arguments.dtype,
        "runner": arguments.runner or pairfile.AUTO,
    }
    made = pairfile.one(given, f"offline:{arguments.arch}")
    return msgspec.structs.replace(made, switches=switch_pairs(arguments.switch))


def guard(arguments: argparse.Namespace, table: Defaults) -> tuple[list[Finding], list[Choice]]:
    """``capmatrix guard --pairs FILE``: the file's pairs that a row is about, against the table."""
    from ..pairs import pair_guard, pairfile
    from ..paths import matrix_path

    matrix = pairfile.load(matrix_path(arguments.pairs))
    archs = sorted({row.architecture for row in table.row} & _offline())
    everything = pairfile.expand(matrix, None, [f"offline:{arch}" for arch in archs]) if archs else []
    records, _ = set_up(pair_guard.wanted(table, everything, arguments.arch), arguments.aiter)
    findings: list[Finding] = []
    choices: list[Choice] = []
    for record in records:
        rows, chosen = pair_guard.judge_pair(table, record, arguments.tolerance)
        findings += rows
        choices += chosen
    return findings, choices


def _offline() -> set[str]:
    from .. import targets

    return {name.partition(":")[2] for name in targets.known() if name.startswith("offline:")}


def set_up(pairs: Iterable[Pair], aiter: str) -> tuple[list[PairRecord], dict[str, Environment]]:
    """The records of the pairs, set up and not called, and the environments they name."""
    from ..workers.pool import Pool

    path = "" if aiter in ("", "none") else str(Path(aiter).expanduser().resolve())
    with Pool(options={"aiter": path, "triton_cache": ""}, retry_alone=False) as pool:
        records = [pool.run_pair(msgspec.structs.replace(pair, batches=())) for pair in pairs]
        return records, dict(pool.environments)
