"""What a bisection found, as text for people and as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..bisect import knobs
from ..bisect.cells import Result
from ..bisect.delta import Change, Changes
from ..cell import Record, Verdict
from . import text

_PARTS = {
    "verdict": "verdict",
    "reason": "reason",
    "selection": "vLLM's default",
    "claims": "claims",
    "set-up": "set-up",
    "route": "route",
    "checks": "checks",
}


def render(result: Result, versions: dict[str, str], *, width: int = 100, run_file: str = "") -> str:
    """The result as text, ending with a newline. ``versions``: of the environment, by distribution."""
    out = [text.one_line(result.baseline.cell_id, 1000), ""]
    out += text.fill(f"as it is: {_outcome(result.baseline)}", width, "  ", "    ")
    if result.unsteady:
        parts = ", ".join(_PARTS[p] for p in result.unsteady)
        out += text.fill(f"two runs of it differ in: {parts}; that is not compared", width, "  ", "    ")
    out += ["", *_answer(result, width)]
    out += _alone(result, width)
    out += _idle(result, versions, width)
    out += ["", *text.fill(_cost(result, run_file), width)]
    return "\n".join(line.rstrip() for line in out) + "\n"


def data(result: Result, versions: dict[str, str], run_file: str = "") -> dict[str, Any]:
    """The result as plain data, for JSON and for the end of the run file."""
    found = result.found
    return {
        "cell": result.baseline.cell_id,
        "baseline": _record(result.baseline),
        "smallest": None if found.smallest is None else _changes(found.smallest),
        "result": None if result.passed is None else _record(result.passed),
        "others": [_changes(some) for some in found.others],
        "proven": found.proven,
        "complete": found.complete,
        "verified": result.verified,
        "unsteady": list(result.unsteady),
        "alone": [{**_change(t.change), **_record(t.record), "differs": list(t.differs)} for t in result.tried],
        "without_effect": [
            {**_change(change), "beside": [_changes(some) for some in seen]} for change, seen in result.idle.items()
        ],
        "versions": dict(versions),
        "runs": result.runs,
        "servers": result.servers,
        "seconds": round(result.seconds, 1),
        "run_file": run_file,
    }


def _answer(result: Result, width: int) -> list[str]:
    found = result.found
    if result.baseline.verdict is Verdict.PASS:
        return text.fill("It passes as it is: there is nothing to bisect.", width)
    if found.smallest is None:
        if result.servers <= 1 and not result.tried:
            return text.fill("The cell could not run here, so nothing was tried.", width)
        if found.proven:
            said = "No set of the changes that do something makes it pass: each was run."
        elif found.complete:
            said = "No set of up to three changes makes it pass, nor all at once; larger ones were not all run."
        else:
            said = "No set was found to make it pass before the bound on servers and runs; raise --servers or --runs."
        return text.fill(said, width)
    out = text.fill(f"Smallest set that makes it pass: {knobs.text(found.smallest)}", width, "", "  ")
    if found.proven and len(found.smallest) == 1:
        pass  # what is smaller is the cell as it is
    elif found.proven:
        out += text.fill("every smaller set of the changes that do something was run, and none passes", width, "  ")
    elif found.complete:
        out += text.fill("no part of it passes; smaller sets of other changes were not all run", width, "  ")
    else:
        out += text.fill("the bound came before smaller sets were all run; raise --servers or --runs", width, "  ")
    if result.passed is not None:
        out += text.fill(f"with it: {_outcome(result.passed)}", width, "  ", "    ")
    out += text.fill(_VERIFIED[result.verified], width, "  ", "    ")
    for some in found.others:
        out += text.fill(f"so does: {knobs.text(some)}", width, "  ", "    ")
    return out


_VERIFIED = {
    True: "run again in fresh workers: the cell fails as it is and passes with the set, as before",
    False: "run again in fresh workers, one of the two came out differently: the failure comes and goes",
    None: "",
}


def _alone(result: Result, width: int) -> list[str]:
    working = [t for t in result.tried if t.differs and t.change not in result.idle]
    if not working:
        return []
    out = ["", "What each change does alone"]
    names = max(text.width(knobs.text([t.change])) for t in working)
    for t in working:
        parts = ", ".join(_PARTS[p] for p in t.differs)
        head = f"  {text.pad(knobs.text([t.change]), names)}  "
        changed = {"verdict", "reason"} & set(t.differs)
        outcome = _outcome(t.record, 120) if changed else f"still {t.record.verdict.value}"
        out += text.fill(f"{outcome}; differs in: {parts}", width, head, " " * len(head))
    return out


def _idle(result: Result, versions: dict[str, str], width: int) -> list[str]:
    if not result.idle:
        return []
    vllm = versions.get("vllm", "")
    of = f" in vllm {vllm}" if vllm else ""
    lead = f"Without effect on this cell{of}: same verdict, claims, default, set-up, route and checks with and without"
    out = ["", *text.fill(lead, width)]
    groups: dict[tuple[Changes, ...], list[Change]] = {}
    for change, seen in result.idle.items():
        groups.setdefault(tuple(seen), []).append(change)
    for contexts, changes in groups.items():
        out += [f"  {knobs.text([change])}" for change in changes]
        out += text.fill(f"asked {_contexts(contexts)}", width, "    ", "    ")
    return out


def _contexts(contexts: Sequence[Changes]) -> str:
    beside = ", ".join(knobs.text(some) for some in contexts if some)
    return "alone and all together" + (f"; beside {beside}" if beside else "")


def _cost(result: Result, run_file: str) -> str:
    minutes, seconds = divmod(round(result.seconds), 60)
    took = f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
    kept = f"; records in {run_file}" if run_file else ""
    return f"{text.count(result.runs, 'run')} in {text.count(result.servers, 'worker server')}, {took}{kept}"


def _outcome(record: Record, limit: int = 300) -> str:
    why = text.reason(record, limit)
    return f"{record.verdict.value} ({record.rung.value})" + (f": {why}" if why else "")


def _record(record: Record) -> dict[str, Any]:
    return {
        "cell_id": record.cell_id,
        "verdict": record.verdict.value,
        "rung": record.rung.value,
        "reason": text.reason(record),
    }


def _change(change: Change) -> dict[str, str]:
    return {"knob": change.knob, "value": change.value}


def _changes(some: Changes) -> list[dict[str, str]]:
    return [_change(change) for change in sorted(some)]
