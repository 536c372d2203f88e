"""Commands that put a derived table to use: recommend, exec."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import EXIT_OK, EXIT_UNEXPECTED, CapmatrixError, InputError

if TYPE_CHECKING:
    from ..drafters import Family
    from ..selection.defaults import Defaults
    from ..selection.recommend import Recommendation, Wanted
    from ..selection.serve_command import Given

Add = Callable[[str, Callable[[argparse.Namespace, list[str]], int], str], argparse.ArgumentParser]

EXIT_NOT_FOUND = 127


def add_to(add: Add) -> None:
    """Adds the commands' parsers; ``add`` is the command line's own."""
    one = add("recommend", recommend, "Say which backend to take, why, how sure that is, and the vllm serve flags.")
    _add_evidence(one)
    one.add_argument("--block-size", type=int, metavar="N", help="the manager block (default: the drafter's own)")
    one.add_argument("--kv-cache-dtype", default="auto", metavar="DTYPE", help="default: auto")
    one.add_argument("--ask-vllm", action="store_true", help="also ask the installed vLLM what it takes by itself")
    one.add_argument("--format", choices=("text", "json"), default="text", help="default: text")

    text = "Run vllm serve with the recommended backend where its user chose none; say what was added."
    one = add("exec", execute, text)
    _add_evidence(one)
    one.add_argument("--dry-run", action="store_true", help="only print the command")
    one.add_argument("--provisional", action="store_true", help="also take rows for which nothing was executed")
    one.add_argument("words", nargs=argparse.REMAINDER, metavar="vllm serve ...", help="the command")


def _add_evidence(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--gpu", "--arch", dest="gpu", metavar="GPU", help="such as MI355X or gfx950 (default: this machine's)")
    add("--drafter", default="", metavar="FAMILY", help="a drafter family, such as minimax-m3-eagle3")
    add("--config", default="", metavar="FILE", help="instead: a Hugging Face config.json, or its directory")
    add("--method", default="", metavar="NAME", help="speculative method, where the config does not say")
    add("--table", metavar="FILE", help="a derived table (default: derived from --run and the published results)")
    add("--run", action="append", default=[], metavar="RUN", help="a run file; repeatable")
    add("--workload", default="", metavar="NAME", help="profile to weigh by: NAME or FILE:NAME")


def recommend(arguments: argparse.Namespace, extra: list[str]) -> int:
    """``capmatrix recommend``: one question, one answer; exit 1 where no backend is known to work."""
    from .. import codec
    from ..report import recommend as report
    from ..selection import recommend as room

    arch = _arch(arguments)
    family, notes = _family(arguments, "")
    block = arguments.block_size or family.forced_block_size
    wanted = room.Wanted(arch, family, block, arguments.kv_cache_dtype)
    found = room.recommend(_table(arguments, arch), wanted, notes)
    default = _default(wanted, found) if arguments.ask_vllm else ""
    if arguments.format == "json":
        data = room.as_data(found) | ({"default": default} if default else {})
        print(codec.encode(data).decode())
    else:
        sys.stdout.write(report.draw(found, wanted, default))
    return EXIT_OK if found.row.backend else EXIT_UNEXPECTED


def execute(arguments: argparse.Namespace, extra: list[str]) -> int:
    """``capmatrix exec vllm serve ...``: replaces this process by the command; changes nothing its user set."""
    from ..selection import serve_command

    # The command line's own -- belongs to the command here.
    words = [*arguments.words, *(["--", *extra] if extra else [])]
    words = words[1:] if words[:1] == ["--"] else words
    if not words:
        raise InputError("give the command to run", key="exec", allowed=["vllm serve MODEL ..."])
    if not serve_command.is_serve(words):
        raise InputError("not a vLLM server", key="exec", value=shlex.join(words[:2]), allowed=["vllm serve ..."])
    try:
        words, environment = _completed(arguments, words)
    except CapmatrixError as error:
        # The server starts as its user asked, whatever is not known here.
        print(f"capmatrix exec: nothing is added: {error}", file=sys.stderr)
        environment = dict(os.environ)
    if arguments.dry_run:
        changed = [f"{n}={shlex.quote(v)}" for n, v in environment.items() if os.environ.get(n) != v]
        print(" ".join([*changed, shlex.join(words)]))
        return EXIT_OK
    program = shutil.which(words[0], path=environment.get("PATH"))
    if program is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(program, words, environment)
    print(f"capmatrix exec: {words[0]}: no such command", file=sys.stderr)
    return EXIT_NOT_FOUND


def _completed(arguments: argparse.Namespace, words: list[str]) -> tuple[list[str], dict[str, str]]:
    """The command with what is recommended, and its environment; says on stderr what is added, and why not."""
    from ..selection import recommend as room
    from ..selection import serve_command

    given = serve_command.parse(words)
    model = str(given.nested.get(serve_command.SPECULATIVE, {}).get("model", ""))
    family, notes = _family(arguments, model)
    drafts = room.drafts(family)
    add = serve_command.add_drafter_backend if drafts else serve_command.add_target_backend
    environment = dict(os.environ)
    if drafts and serve_command.SPECULATIVE not in given.nested:
        return _left(words, environment, "the command drafts nothing")
    if add(words, "X") is None:
        return _left(words, environment, "the command names a backend itself")
    if given.config_file:
        return _left(words, environment, "a --config file may name a backend")
    arch = _arch(arguments)
    wanted = room.Wanted(arch, family, _block(given, family), given.values.get("--kv-cache-dtype", "auto"))
    found = room.recommend(_table(arguments, arch), wanted, notes)
    row = found.row
    if not row.backend:
        return _left(words, environment, "no backend is known to work")
    if row.provisional and not arguments.provisional:
        return _left(words, environment, f"{row.backend} is only {row.rung}; --provisional takes it nevertheless")
    addition = add(words, row.backend)
    assert addition is not None
    print(f"capmatrix exec: added {addition.option} {addition.value}: {row.reason}", file=sys.stderr)
    for text in found.certainty:
        print(f"capmatrix exec:   {text}", file=sys.stderr)
    environment, added = serve_command.set_environment(environment, found.environment)
    for name, value in added:
        print(f"capmatrix exec: set {name}={value}", file=sys.stderr)
    return addition.words, environment


def _left(words: list[str], environment: dict[str, str], why: str) -> tuple[list[str], dict[str, str]]:
    print(f"capmatrix exec: nothing is added: {why}", file=sys.stderr)
    return words, environment


def _block(given: Given, family: Family) -> int | None:
    text = given.values.get("--block-size", "")
    if not text:
        return family.forced_block_size
    if not text.isdecimal():
        raise InputError("not a block size", key="--block-size", value=text)
    return int(text)


def _arch(arguments: argparse.Namespace) -> str:
    from .. import local_gpu
    from ..selection import recommend as room

    if arguments.gpu:
        return room.arch_of(arguments.gpu)
    found = local_gpu.architectures()
    if len(found) != 1:
        here = f"this machine has {', '.join(found)}" if found else "no AMD GPU is seen here"
        raise InputError(f"name the GPU: {here}", key="--gpu", allowed=["MI300X", "MI355X", "gfx942", "gfx950"])
    return room.arch_of(found[0])


def _family(arguments: argparse.Namespace, model: str) -> tuple[Family, tuple[str, ...]]:
    """The family asked about, and what differs from the one whose evidence is used. ``model``: a drafter's name."""
    from .. import drafters
    from ..guard import family_question
    from ..selection import hf_config, published
    from ..selection import recommend as room

    families = drafters.load(drafters.DEFAULT_DIR)
    if arguments.drafter and arguments.config:
        raise InputError("give --drafter or --config, not both", key="--config", value=arguments.config)
    if arguments.drafter:
        return family_question.find(arguments.drafter), ()
    if arguments.config or (model and Path(model, "config.json").is_file()):
        own = hf_config.load(arguments.config or model, arguments.method)
        return room.known_family(own, families)
    if model:
        named = room.families_by_model(published.load_all(), families).get(model.lower())
        if named is not None:
            return families[named], ()
        message = "it is not known which drafter family this model is: name it with --drafter or --config"
        raise InputError(message, value=model, allowed=families)
    raise InputError("which layer? name it with --drafter or --config", allowed=families)


def _table(arguments: argparse.Namespace, arch: str) -> Defaults:
    """The table given, or the one that the runs given and the published results make; stale rows marked."""
    from .. import drafters, store
    from ..guard import ages
    from ..selection import defaults, evidence, published, workloads
    from ..selection import derive as selection

    if arguments.table:
        if arguments.run or arguments.workload:
            raise InputError("a table is derived already: give runs and workload to derive", key="--table")
        table = defaults.load(arguments.table)
    else:
        families = drafters.load(drafters.DEFAULT_DIR)
        tables = published.load_all()
        runs = [(Path(name).stem, store.read(name)) for name in arguments.run]
        wanted, known = workloads.choose(arguments.workload)
        question = selection.Question(
            workload=wanted, workloads=known, families=families, arch="any", published=[t.name for t in tables]
        )
        table = selection.derive(evidence.gather(runs, tables, families, arch="any"), question)
    return ages.mark(table, vllm=ages.installed_vllm())


def _default(wanted: Wanted, found: Recommendation) -> str:
    from ..guard import family_question
    from ..guard.defaults_query import Selector

    question = family_question.question(
        wanted.family, wanted.arch, wanted.block_size or found.row.block_size, wanted.kv_cache_dtype, "auto",
        family_question.Server(),
    )  # fmt: skip
    with Selector() as selector:
        answer = selector.ask([question])[question]
    return answer.backend or f"none ({answer.error})"
