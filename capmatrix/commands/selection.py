"""Commands over records already made: derive, diff, rules, and reports of published and derived tables."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..argtypes import percent
from ..errors import EXIT_OK, EXIT_UNEXPECTED, InputError
from ..selection.choices import MARGIN, POLICIES
from . import inputs, written

if TYPE_CHECKING:
    from ..selection.defaults import Defaults

Add = Callable[[str, Callable[[argparse.Namespace, list[str]], int], str], argparse.ArgumentParser]

#: Reasons for an empty table that are said.
_REASONS = 8

_FORMATS = {".toml": "toml", ".json": "json", ".md": "md", ".py": "py"}


def add_to(add: Add) -> None:
    """Adds the commands' parsers; ``add`` is the command line's own."""
    one = add("derive", derive, "Derive the default-selection table from runs and published results.")
    one.add_argument("runs", nargs="*", metavar="RUN", help="a run file, or a published table (.toml)")
    one.add_argument("--published", action="append", default=[], metavar="FILE", help="a published table; repeatable")
    one.add_argument("--policy", choices=POLICIES, default=POLICIES[0], help="default: lightest")
    add_margin(one, "what counts as equal")
    one.add_argument("--workload", default="", metavar="NAME", help="profile to weigh by: NAME or FILE:NAME")
    one.add_argument("--previous", metavar="TABLE", help="the table before: small or weak wins do not change it")
    one.add_argument("--arch", default="", metavar="ARCH", help="one architecture; any: also results of unknown GPUs")
    _add_ages(one)
    how = ".toml, .json, .md or .py, by its suffix; repeatable (default: TOML on standard output)"
    one.add_argument("-o", dest="output", action="append", metavar="FILE", help=how)

    one = add("diff", diff, "Compare two runs, or two derived tables; exit 1 on regressions.")
    one.add_argument("old", metavar="OLD", help="a run file or a derived table")
    one.add_argument("new", metavar="NEW", help="the same kind")
    add_margin(one, "a difference in time that is none")
    one.add_argument("--format", choices=("text", "md"), default="text", help="default: text")
    one.add_argument("-o", dest="output", metavar="FILE", help="where to write (default: standard output)")

    one = add("rules", rules, "Say what separates failing from passing cells, and what declarations are wrong.")
    one.add_argument("runs", nargs="+", metavar="RUN", help="a run file; several are merged")
    one.add_argument("--docs", metavar="FILE", help="vLLM's docs/design/attention_backends.md, to check against runs")
    one.add_argument("--published", action="append", default=[], metavar="FILE", help="a published table; repeatable")
    one.add_argument("--format", choices=("text", "md"), default="text", help="default: text")
    one.add_argument("-o", dest="output", metavar="FILE", help="where to write (default: standard output)")


def add_margin(parser: argparse.ArgumentParser, text: str) -> None:
    """Adds ``--margin``; ``text`` says what it decides."""
    parser.add_argument(
        "--margin", type=percent(1000), default=MARGIN, metavar="PERCENT", help=f"{text} (default: {MARGIN:g}%%)"
    )


def _add_ages(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--max-age", metavar="AGE", help="mark rows whose evidence is older, such as 90d, as stale")
    parser.add_argument("--as-of", metavar="DATE", help="the day that ages are counted to (default: today)")
    parser.add_argument(
        "--newer-vllm", metavar="VERSION", help="mark rows of an older vLLM as stale; installed: the one here"
    )


def derive(arguments: argparse.Namespace, extra: list[str]) -> int:
    """``capmatrix derive``: runs and published results to the default-selection table."""
    from .. import archs, drafters
    from ..selection import defaults, evidence, published, workloads
    from ..selection import derive as selection

    allowed = (*archs.ARCHS, published.UNKNOWN, "any")
    if arguments.arch and arguments.arch not in allowed:
        raise InputError("unknown architecture", key="--arch", value=arguments.arch, allowed=allowed)
    tables = [name for name in arguments.runs if name.endswith(".toml")] + arguments.published
    names = [name for name in arguments.runs if not name.endswith(".toml")]
    if not names and not tables:
        raise InputError("give at least one run or one published table", key="RUN")
    outputs = [(name, _format(name)) for name in arguments.output or ["-"]]
    found = {table.name: table for table in (published.load(published.find(name)) for name in tables)}
    runs = [(inputs.stem(name), inputs.read(name)) for name in names]
    families = drafters.load(drafters.DEFAULT_DIR)
    wanted, known = workloads.choose(arguments.workload)
    previous = defaults.load(arguments.previous) if arguments.previous else None
    made = selection.derive(
        evidence.gather(runs, list(found.values()), families, arch=arguments.arch),
        selection.Question(
            policy=arguments.policy,
            margin_percent=arguments.margin,
            workload=wanted,
            workloads=known,
            families=families,
            previous=previous,
            previous_name=Path(arguments.previous).name if arguments.previous else "",
            arch=arguments.arch,
            published=list(found),
        ),
    )
    made = _aged(made, arguments)
    for name, form in outputs:
        written.put(_render(made, form), name, sections=False)
    if not made.row:
        print(f"capmatrix: the table is empty: {_why_empty(made)}", file=sys.stderr)
    return EXIT_OK


def _why_empty(table: Defaults) -> str:
    """Why no evidence entered a row, each reason with the architecture that the evidence is of, and what to try."""
    from ..report.text import one_line

    shown = [one_line(reason, 300) for reason in table.left_out[:_REASONS]]
    more = len(table.left_out) - len(shown)
    shown += [f"and {more} more"] if more else []
    out = "; ".join(shown) or "there is no record and no published result"
    if any(word in reason for reason in table.left_out for word in ("--arch any", "not the architecture asked for")):
        out += ". --arch any takes every architecture's, and published results whose GPU is not stated"
    return out


def report_table(arguments: argparse.Namespace) -> int:
    """``capmatrix report FILE.toml``: a published comparison, or a derived table, as Markdown or JSON."""
    from .. import codec
    from ..report import published as published_report
    from ..selection import defaults, published
    from ..toml import tomlfile
    from . import written

    if arguments.format not in ("md", "json"):
        raise InputError("a table is written as md or json", key="--format", value=arguments.format)
    parts = []
    for name in arguments.runs:
        if name.endswith(".json"):
            parts.append(_render(defaults.load(name), arguments.format))
            continue
        doc = tomlfile.load(name)
        if defaults.is_defaults(doc.data):
            parts.append(_render(defaults.from_toml(doc), arguments.format))
            continue
        if not published.is_published(doc.data):
            message = "neither a published table ([[result]]) nor a derived one ([[row]]); run files end in .jsonl"
            raise InputError(message, file=name)
        table = published.from_toml(doc)
        as_json = arguments.format == "json"
        parts.append(codec.printed(table) + "\n" if as_json else published_report.draw(table))
    in_section = arguments.format == "md" and written.has_section(arguments.output)
    return written.put("\n".join(parts), arguments.output, check=arguments.check, sections=in_section)


def is_table(names: Sequence[str]) -> bool:
    """Whether ``report`` was given tables rather than run files."""
    return all(name.endswith((".toml", ".json")) for name in names)


def diff(arguments: argparse.Namespace, extra: list[str]) -> int:
    """``capmatrix diff``: what changed between two runs or two derived tables."""
    from ..analysis import diff as room
    from ..report import diff as report

    if is_table([arguments.old]) != is_table([arguments.new]):
        raise InputError("one is a run and the other a derived table", key="NEW", value=arguments.new)
    if is_table([arguments.old]):
        from ..selection import defaults

        found = room.of_tables(defaults.load(arguments.old), defaults.load(arguments.new))
    else:
        old, new = inputs.read(arguments.old), inputs.read(arguments.new)
        found = room.of_runs(old, new, arguments.margin)
    names = (Path(arguments.old).name, Path(arguments.new).name)
    draw = report.markdown if arguments.format == "md" else report.text
    written.put(draw(found, *names), arguments.output, sections=False)
    return EXIT_UNEXPECTED if found.regressed else EXIT_OK


def rules(arguments: argparse.Namespace, extra: list[str]) -> int:
    """``capmatrix rules``: what separates failing from passing cells; disputes with declarations and documents."""
    from ..analysis import dispute, regions
    from ..report import rules as report
    from ..selection import published
    from ..store import merge

    run = merge([inputs.read(name) for name in arguments.runs])
    tables = [published.load(published.find(name)) for name in arguments.published]
    documents = dispute.load_docs(arguments.docs) if arguments.docs else None
    made = report.Report(
        rules=regions.explain(run.records, run.environments),
        declarations=dispute.declarations(run.records, run.environments),
        documents=dispute.documents(documents, run.records, run.environments) if documents else (),
        published=dispute.published(tables, run.records, run.environments),
        docs=str(arguments.docs or ""),
    )
    text = report.markdown(made) if arguments.format == "md" else report.text(made)
    written.put(text, arguments.output, sections=False)
    return EXIT_OK


def _aged(table: Defaults, arguments: argparse.Namespace) -> Defaults:
    from datetime import datetime, timezone

    from ..guard import ages

    if not arguments.max_age and not arguments.newer_vllm:
        return table
    days = ages.parse_age(arguments.max_age) if arguments.max_age else None
    today = ages.parse_day(arguments.as_of) if arguments.as_of else datetime.now(timezone.utc).date()
    version = arguments.newer_vllm or ""
    if version == "installed":
        version = ages.installed_vllm()
        if not version:
            raise InputError("no vLLM is installed here", key="--newer-vllm", value="installed")
    return ages.mark(table, max_age_days=days, today=today, vllm=version)


def _render(table: Defaults, form: str) -> str:
    from .. import drafters
    from ..report import defaults as report
    from ..selection import defaults, defaults_python

    if form == "md":
        return report.draw(table)
    if form == "json":
        return defaults.to_json(table)
    if form == "py":
        return defaults_python.draw(table, drafters.load(drafters.DEFAULT_DIR))
    return defaults.to_toml(table)


def _format(name: str) -> str:
    if name == "-":
        return "toml"
    found = _FORMATS.get(Path(name).suffix)
    if found is None:
        raise InputError("the suffix says the format", key="-o", value=name, allowed=_FORMATS)
    return found
