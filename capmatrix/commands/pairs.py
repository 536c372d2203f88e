"""What ``default`` and ``guard`` do about pairs: run vLLM's own set-up of both models, without any call."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ..errors import EXIT_OK, EXIT_UNEXPECTED, InputError

if TYPE_CHECKING:
    from ..cell import Environment
    from ..guard.judge import Choice, Finding
    from ..pair import Pair, PairRecord
    from ..pairs.pairfile import PairMatrix
    from ..selection.defaults import Defaults


def default(arguments: argparse.Namespace) -> int:
    """``capmatrix default --target-model MODEL``: both sides of a pair; exit 1 if refused or contradictory."""
    from .. import codec
    from ..report import explain_pair, terminal

    records, environments = set_up([asked(arguments)], arguments.aiter)
    record = records[0]
    if arguments.format == "json":
        print(codec.encode(record).decode())
    else:
        width = terminal.use_width(sys.stdout)
        again = ["capmatrix", "default", *_words(arguments)]
        environment = environments.get(record.environment)
        sys.stdout.write(explain_pair.render(record, environment, width=width, again=again))
    return EXIT_OK if record.verdict.value == "pass" and not record.contradictions else EXIT_UNEXPECTED


def asked(arguments: argparse.Namespace) -> Pair:
    """The pair that the words of ``default`` describe. InputError for what is not known or does not fit."""
    from .. import archs, axes, pair
    from ..guard.family_question import switch_pairs
    from ..pairs import pairfile

    archs.get(arguments.arch)
    for name in _OF_A_LAYER:
        if getattr(arguments, name) != _OF_A_LAYER[name]:
            key = f"--{name.replace('_', '-')}"
            raise InputError("not of a pair: its models say what their layers are, and one engine has them", key=key)
    given = {
        "target_model": arguments.target_model,
        "target_backend": arguments.target_backend or pair.AUTO,
        "drafter": arguments.drafter,
        "drafter_backend": arguments.drafter_backend or pair.AUTO,
        "tp": arguments.tp or 1,
        "block_size": arguments.block_size or pair.AUTO,
        "kv_cache_dtype": arguments.kv_cache_dtype,
        "draft_kv_cache_dtype": arguments.draft_kv_cache_dtype or pair.SAME,
        "num_speculative_tokens": arguments.num_speculative_tokens or axes.FAMILY,
        "dtype": "bfloat16" if arguments.dtype == "auto" else arguments.dtype,
        "runner": arguments.runner or pair.AUTO,
    }
    try:
        made = pairfile.one(given, f"offline:{arguments.arch}")
    except InputError as error:
        option = f"--{error.key.replace('_', '-')}" if error.key else None
        raise InputError(error.message, key=option, value=error.value, allowed=error.allowed) from None
    return msgspec.structs.replace(made, switches=switch_pairs(arguments.switch))


#: Options of ``default`` that describe one layer or more than an engine, and what they are where they are not given.
_OF_A_LAYER: dict[str, object] = {
    "sinks": False,
    "sliding_window": None,
    "non_causal": False,
    "kv_connector": "",
    "dcp": 1,
}

#: Options of ``default`` that make a pair what it is.
_OF_A_PAIR = (
    "arch",
    "drafter",
    "target_model",
    "target_backend",
    "drafter_backend",
    "tp",
    "block_size",
    "kv_cache_dtype",
    "draft_kv_cache_dtype",
    "num_speculative_tokens",
    "dtype",
    "runner",
    "aiter",
)


def _words(arguments: argparse.Namespace) -> list[str]:
    """The words after ``capmatrix default`` that describe the pair, those left out whose default holds."""
    found = []
    for name in _OF_A_PAIR:
        value = getattr(arguments, name)
        if value and value != "auto":
            found += [f"--{name.replace('_', '-')}", str(value)]
    for switch in arguments.switch:
        found += ["--switch", switch]
    return found


def load(name: str) -> PairMatrix:
    """The pair file of ``--pairs``, or the shipped one of this name."""
    from ..pairs import pairfile
    from ..paths import matrix_path

    return pairfile.load(matrix_path(name))


def guard(arguments: argparse.Namespace, table: Defaults) -> tuple[list[Finding], list[Choice]]:
    """``capmatrix guard --pairs FILE``: the file's pairs that a row is about, against the table."""
    from ..pairs import pair_guard, pairfile

    matrix = load(arguments.pairs)
    archs = sorted({row.architecture for row in table.row} & _offline())
    everything = pairfile.expand(matrix, None, [f"offline:{arch}" for arch in archs]) if archs else []
    records, _ = set_up(pair_guard.wanted(table, everything, arguments.arch), arguments.aiter)
    findings: list[Finding] = []
    choices: list[Choice] = []
    for record in records:
        rows, chosen = pair_guard.judge_pair(table, record, arguments.tolerance)
        findings += rows
        choices += chosen
    # A runner that is left to vLLM is one that another pair names.
    distinct = {(one.status, one.sentence): one for one in findings}
    return list(distinct.values()), choices


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
