"""A standalone script that reproduces a record with vLLM and PyTorch alone."""

from __future__ import annotations

from ..cell import Environment, Flag, Force, Record, Rung, Verdict
from ..pair import PairRecord
from ..report import text
from . import call_lines, compare_lines, function_lines, setup_lines
from .plan import Plan, plan
from .setup_lines import WIDTH

#: What happens, in a few words, by verdict.
OUTCOME: dict[Verdict, str] = {
    Verdict.WRONG: "wrong numbers",
    Verdict.ERROR: "an exception",
    Verdict.CRASH: "the process dies",
    Verdict.TIMEOUT: "it does not end",
    Verdict.REJECTED: "refused",
    Verdict.PASS: "passes",
    Verdict.UNVERIFIED: "not known whether it is right",
}


def script(record: Record | PairRecord, environment: Environment | None = None) -> str:
    """The script's text, ending with a newline. ``environment`` is the one that the record was made in.

    Raises InputError for what no short script can show (``plan``).
    """
    return write(plan(record, environment))


def write(what: Plan) -> str:
    """As ``script``, of a plan: imports and figures, functions, then what is done, in order."""
    top = [header(what), setup_lines.imports(what), setup_lines.constants(what)]
    body = [setup_lines.forcing(what), [*setup_lines.model(what), *setup_lines.configuration(what)]]
    if what.reaches("layer"):
        body.append([*setup_lines.layer(what), *setup_lines.scales(what)])
    if what.reaches("cache"):
        body.append(setup_lines.cache(what))
    if what.reaches("forward"):
        body += [call_lines.values(what), call_lines.placement(what), call_lines.fill(what), call_lines.forward(what)]
    body.append(compare_lines.comparison(what) if what.reaches("compare") else ['print("OK: no exception")'])
    functions = ["\n".join(lines) for lines in function_lines.functions(what)]
    if not functions:
        return _sections([*top, *body]) + "\n"
    return "\n\n\n".join([_sections(top), *functions, _sections(body)]) + "\n"


def _sections(sections: list[list[str]]) -> str:
    return "\n\n".join("\n".join(lines) for lines in sections if lines)


def header(what: Plan) -> list[str]:
    """Comments that say what the script shows and where it was seen.

    A record's own words come after the second line, up to which Python takes a comment for the file's encoding.
    """
    record, cell = what.record, what.cell
    forced = {
        Force.NONE: "",
        Force.VALIDATION: ", its validation passed over",
        Force.KERNEL_BLOCK: f", kernel block {cell.kernel_block or cell.block_size} forced",
    }[cell.force]
    what_fails = f"block {cell.block_size}, {cell.kv_cache_dtype} KV cache, {cell.dtype}, {cell.batch}{forced}"
    out = [
        f"# {cell.backend}, {what_fails}: {outcome(record)}.",
        f"# Needs vLLM, PyTorch and {hardware(what.arch)}; exits with 1 where it is wrong.",
    ]
    if not what.reaches("compare"):
        out[1] = f"# Needs vLLM, PyTorch and {hardware(what.arch)}; ends at the exception."
    if record.verdict in (Verdict.CRASH, Verdict.TIMEOUT):
        out[1] = f"# Needs vLLM, PyTorch and {hardware(what.arch)}; says OK where the call ends well."
    why = text.reason(record, 400)
    return out + text.fill(f"Seen {seen(record)}{': ' + why if why else '.'}", WIDTH, "# ", "# ")


_HOW: dict[Rung, str] = {
    Rung.DECLARED: "when vLLM was asked, without running it",
    Rung.COMPILED: "when its kernels were compiled without a GPU",
    Rung.INTERPRETED: "in Triton's interpreter, without a GPU",
    Rung.EMULATED: "on an emulated GPU",
    Rung.EXECUTED: "on a GPU",
    Rung.SERVED: "in a server",
}


def seen(record: Record) -> str:
    """Where it was seen, in words that hold nothing of the record's own."""
    if record.rung is Rung.EXECUTED and record.cell.target.startswith("device:"):
        return "on a GPU of another vendor under that architecture's identity"
    return _HOW[record.rung]


def outcome(record: Record) -> str:
    """What happens, in a few words that hold nothing of the record's own."""
    if record.verdict is Verdict.PASS and Flag.NAN_UNSAFE in record.flags:
        return "NaN in unused slots reaches the output"
    return OUTCOME[record.verdict]


def hardware(arch: str) -> str:
    """The GPU that the script is for, as far as that is known."""
    return f"a {arch} GPU" if arch else "a GPU"
