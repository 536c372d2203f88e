"""Commands about vLLM's own choices: default, guard, golden."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..argtypes import whole
from ..errors import EXIT_OK, EXIT_UNEXPECTED, InputError
from ..guard.tolerance import TOLERANCE, percent
from ..vocabulary import ARCHITECTURES
from . import pairs as commands_pairs

if TYPE_CHECKING:
    from ..guard.defaults_query import Selector
    from ..guard.family_question import Server
    from ..guard.golden import Snapshot
    from ..selection.defaults import Defaults

Add = Callable[[str, Callable[[argparse.Namespace, list[str]], int], str], argparse.ArgumentParser]


def add_to(add: Add) -> None:
    """Adds the commands' parsers; ``add`` is the command line's own."""
    one = add("default", default, "Say what the installed vLLM selects for a layer, and why; needs no GPU.")
    one.add_argument("--arch", required=True, metavar="ARCH", help="architecture, such as gfx950")
    one.add_argument("--drafter", required=True, metavar="FAMILY", help="drafter family, such as minimax-m3-eagle3")
    block = whole(65536, "a block size")
    one.add_argument("--block-size", type=block, metavar="N", help="the block size that is set (default: none is)")
    one.add_argument("--kv-cache-dtype", default="auto", metavar="DTYPE", help="default: auto")
    one.add_argument("--dtype", default="auto", metavar="DTYPE", help="the model's (default: bfloat16)")
    _add_server(one)
    one.add_argument("--drafter-backend", default="", metavar="NAME", help="speculative_config.attention_backend")
    one.add_argument(
        "--target-model", default="", metavar="MODEL",
        help="set the pair up: this target model and the drafter together, such as minimax-m3",
    )  # fmt: skip
    one.add_argument("--draft-kv-cache-dtype", default="", metavar="DTYPE", help="of a pair: the draft's own")
    one.add_argument("--num-speculative-tokens", type=whole(), metavar="K", help="of a pair (default: the family's)")
    one.add_argument("--sinks", action="store_true", help="with attention sinks")
    one.add_argument("--sliding-window", type=whole(), metavar="N", help="window in tokens")
    one.add_argument("--non-causal", action="store_true", help="not causal")
    one.add_argument("--format", choices=("text", "json"), default="text", help="default: text")

    one = add("guard", guard, "Check vLLM's own defaults against a derived table; exit 1 where they contradict it.")
    one.add_argument("--table", required=True, metavar="FILE", help="a table that capmatrix derive wrote")
    one.add_argument("--arch", action="append", default=[], metavar="ARCH", help="only this architecture; repeatable")
    one.add_argument(
        "--tolerance", type=percent, default=TOLERANCE, metavar="PERCENT",
        help=f"how much slower than the best a default may be (default: {TOLERANCE:g}%%)",
    )  # fmt: skip
    _add_server(one)
    one.add_argument(
        "--pairs", nargs="?", const="pairs", metavar="FILE",
        help="also the drafters of a pair file's pairs, beside their targets (default FILE: the shipped one)",
    )  # fmt: skip
    one.add_argument("--no-choices", action="store_true", help="do not check that explicit choices are honoured")
    one.add_argument("--max-age", metavar="AGE", help="rows whose evidence is older, such as 90d, are stale")
    one.add_argument("--ignore-stale", action="store_true", help="what stale rows contradict fails nothing")
    one.add_argument("-v", "--verbose", action="store_true", help="details of every row and choice")

    one = add("golden", golden, "Compare all of vLLM's choices to the committed snapshot; exit 1 where any changed.")
    one.add_argument("--update", action="store_true", help="write the snapshot of the installed vLLM instead")
    one.add_argument("--file", metavar="FILE", help="the snapshot (default: that of the installed vLLM, or the newest)")
    one.add_argument("--arch", action="append", default=[], metavar="ARCH", help="only this architecture; repeatable")
    one.add_argument("--aiter", default="", metavar="PATH", help="this AITER checkout; none: leave out AITER's lines")


def _add_server(parser: argparse.ArgumentParser) -> None:
    """What decides a selection besides the layer."""
    add = parser.add_argument
    add("--runner", choices=("v1", "v2"), default="", help="model runner (default: the one vLLM takes)")
    add("--target-backend", default="", metavar="NAME", help="--attention-backend of the server (default: unset)")
    add(
        "--tp",
        type=whole(),
        default=0,
        metavar="N",
        help="tensor parallel degree (default: the family's first; of a pair: 1)",
    )
    add("--kv-connector", default="", metavar="NAME", help="a KV connector, such as NixlConnector")
    add("--dcp", type=whole(), default=1, metavar="N", help="decode context parallel degree")
    add("--switch", action="append", default=[], metavar="NAME=VALUE", help="environment switch; repeatable")
    add("--aiter", default="", metavar="PATH", help="this AITER checkout; none: as if no AITER were installed")


def default(arguments: argparse.Namespace, extra: list[str]) -> int:
    """``capmatrix default``: what vLLM selects; exit 1 where it selects nothing."""
    if arguments.target_model:
        return commands_pairs.default(arguments)
    for name in ("draft_kv_cache_dtype", "num_speculative_tokens"):
        if getattr(arguments, name):
            raise InputError("says something of a pair; name its --target-model", key=f"--{name.replace('_', '-')}")
    from msgspec.structs import replace

    from .. import codec
    from ..guard import family_question
    from ..guard.defaults_query import Selector
    from ..report import guard as report

    server = replace(
        _server(arguments),
        drafter_backend=arguments.drafter_backend,
        sinks=arguments.sinks,
        non_causal=arguments.non_causal,
        sliding_window=arguments.sliding_window,
    )
    family = family_question.find(arguments.drafter)
    question = family_question.question(
        family, arguments.arch, arguments.block_size, arguments.kv_cache_dtype, arguments.dtype, server
    )
    with Selector(arguments.aiter) as selector:
        answer = selector.ask([question])[question]
        versions = selector.versions()
    if arguments.format == "json":
        print(codec.encode({"question": question, "answer": answer, "versions": versions}).decode())
    else:
        sys.stdout.write(report.answer(question, answer, versions))
    return EXIT_OK if answer.backend else EXIT_UNEXPECTED


def guard(arguments: argparse.Namespace, extra: list[str]) -> int:
    """``capmatrix guard``: vLLM's defaults against the table; exit 1 where they contradict it."""
    from .. import drafters
    from ..guard import ages
    from ..guard import judge as room
    from ..guard.defaults_query import Selector
    from ..report import guard as report
    from ..selection import defaults

    # What is mistyped is said before vLLM is asked anything.
    table = defaults.load(arguments.table)
    max_age = ages.parse_age(arguments.max_age) if arguments.max_age else None
    if arguments.pairs:
        commands_pairs.load(arguments.pairs)
    families = drafters.load(drafters.DEFAULT_DIR)
    asked = room.questions(table, families, _server(arguments), arguments.arch)
    choices = [] if arguments.no_choices else room.choice_questions(asked)
    with Selector(arguments.aiter) as selector:
        answers = selector.ask([*(a.question for a in asked if a.question is not None), *(c[2] for c in choices)])
        versions = selector.versions()
    aged = {row.key: row for row in _aged(table, max_age, versions.get("vllm", "")).row}
    findings = [
        room.judge(a._replace(row=aged[a.row.key]), answers[a.question] if a.question else None, arguments.tolerance)
        for a in asked
    ]
    chosen = [room.judge_choice(*choice, answers[choice[2]]) for choice in choices]
    if arguments.pairs:
        beside, picked = commands_pairs.guard(arguments, table)
        findings += beside
        chosen += [] if arguments.no_choices else picked
    sys.stdout.write(report.report(findings, chosen, versions, verbose=arguments.verbose))
    if all(f.question is None for f in findings):
        print("capmatrix guard: no row could be asked for; nothing was checked", file=sys.stderr)
        return EXIT_UNEXPECTED
    return EXIT_UNEXPECTED if room.failed(findings, chosen, ignore_stale=arguments.ignore_stale) else EXIT_OK


def golden(arguments: argparse.Namespace, extra: list[str]) -> int:
    """``capmatrix golden``: the snapshot of vLLM's choices, made or compared."""
    from pathlib import Path

    from .. import archs
    from ..guard import golden as room
    from ..report import golden as report

    for arch in arguments.arch:
        archs.get(arch)
    if arguments.update and arguments.arch:
        raise InputError("a snapshot holds every architecture", key="--arch", value=arguments.arch[0])
    wanted = tuple(arguments.arch) or ARCHITECTURES
    made = _snapshot(arguments.aiter, wanted)
    given = Path(arguments.file) if arguments.file else None
    own = room.path_of(made.vllm)
    if arguments.update:
        path = given or own
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(room.dumps(made), encoding="utf-8")
        except OSError as error:
            raise InputError(f"cannot write: {error.strerror or error}", file=path) from None
        print(f"{path}: {len(made.choices)} choices of vllm {made.vllm}")
        return EXIT_OK
    against = given or (own if own.is_file() else room.newest())
    if against is None:
        raise InputError("there is no snapshot to compare to; make one with --update", key="--file")
    old = room.load(against)
    kept = {k: v for k, v in old.choices.items() if k.split(" ")[0] in wanted}
    changes = room.compare(room.Snapshot(old.vllm, kept, old.aiter), made)
    sys.stdout.write(report.draw(old, made, changes, str(against)))
    return EXIT_UNEXPECTED if changes else EXIT_OK


def _snapshot(aiter: str, archs: Sequence[str]) -> Snapshot:
    """Ask everything: one round of servers that find no AITER, one of those that do, where there is one."""
    from ..guard import golden as room
    from ..guard.defaults_query import Selector

    choices: dict[str, str] = {}
    vllm, with_aiter = "", False
    for has_aiter in (False, True):
        if has_aiter and aiter == "none":
            break
        lines = [line for s in room.SETTINGS if s.aiter is has_aiter for line in room.lines(s, archs)]
        with Selector(aiter if has_aiter else "none") as selector:
            if has_aiter and not _finds_aiter(selector, archs[0]):
                break
            answers = selector.ask(question for line in lines for _, question in line.questions)
            vllm = selector.versions()["vllm"]
        with_aiter = has_aiter
        choices |= {line.key: room.value(line, answers) for line in lines}
    return room.Snapshot(vllm, choices, with_aiter)


def _finds_aiter(selector: Selector, arch: str) -> bool:
    from ..cell import Geometry
    from ..guard.questions import Question

    selector.ask([Question(arch, Geometry(8, 1, 128))])
    return bool(selector.versions()["aiter"])


def _aged(table: Defaults, max_age: int | None, vllm: str) -> Defaults:
    """The table with stale rows marked: against the vLLM that answered, and the age in days that is allowed."""
    from datetime import datetime, timezone

    from ..guard import ages

    return ages.mark(table, max_age_days=max_age, today=datetime.now(timezone.utc).date(), vllm=vllm)


def _server(arguments: argparse.Namespace) -> Server:
    from ..guard.family_question import Server, switch_pairs

    return Server(
        runner=arguments.runner,
        target_backend=arguments.target_backend,
        tp=arguments.tp,
        kv_connector=arguments.kv_connector,
        dcp=arguments.dcp,
        switches=switch_pairs(arguments.switch),
    )
