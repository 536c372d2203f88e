"""One pair from its set-up to its record: what vLLM decided, or where and why it refused, and what ran afterwards."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, NamedTuple

import torch

from ..cell import Phase, Rung, Verdict
from ..pair import Pair, PairRecord, SideRun, pair_id
from ..rungs import reachable
from . import failures, models_forgotten, pair_builders, pair_cells, pair_facts, pair_refusals, pair_setup, route, shims
from .pair_setup import Trail

Enter = Callable[[Phase, str], None]
Said = tuple[Verdict, tuple[str, ...]]

#: Verdicts of calls, that of the pair first: nothing that could not be told makes a pass.
_WEIGHT = (
    Verdict.WRONG,
    Verdict.CRASH,
    Verdict.TIMEOUT,
    Verdict.ERROR,
    Verdict.UNVERIFIED,
    Verdict.UNAVAILABLE,
    Verdict.REJECTED,
    Verdict.PASS,
)


class Where(NamedTuple):
    """Where a pair runs: the environment's id, kind of target, device of its tensors, and whether a GPU of another
    vendor poses as the target's."""

    environment: str
    kind: str
    device: torch.device
    posing: bool = False


def run(pair: Pair, where: Where, enter: Enter, phases: list[tuple[Phase, float]]) -> PairRecord:
    """The record of ``pair``; whatever vLLM raises becomes its verdict.

    ``enter`` is told each phase with what is being done; ``phases`` is the list that it fills.
    """
    started = datetime.now(timezone.utc)
    shims.drain()
    route.start()
    trail, steps = Trail(), [(Phase.CONFIGURE, "")]

    def entered(phase: Phase, step: str) -> None:
        steps.append((phase, step))
        enter(phase, step)

    def of_gpu(error: Exception, phase: Phase) -> Said | None:
        return _of_gpu(error, phase, where)

    runs: list[SideRun] = []
    failure = None
    with models_forgotten.models_forgotten(), pair_setup.runner_of(pair), pair_facts.questions() as asked:
        try:
            pair_setup.build(pair, trail, where.device, entered)
        except Exception as error:
            verdict, reasons = _of_gpu(error, steps[-1][0], where) or pair_refusals.refusal(error)
            failure = failures.describe(error)
        else:
            verdict, reasons = Verdict.PASS, ()
        phase, step = steps[-1]
        facts = _facts(pair, trail, asked)
        if verdict is Verdict.PASS:
            step = ""
            objection = pair_facts.allow_list(pair, trail)
            try:
                runs += pair_cells.run(pair, trail, where.kind, enter, of_gpu) if pair.batches else ()
            except Exception as error:
                # Outside a call nothing of vLLM is run: this is capmatrix's own, and blames no backend.
                verdict, reasons = Verdict.UNVERIFIED, (f"unverified: capmatrix failed: {failures.first_line(error)}",)
                failure = failures.describe(error)
            else:
                verdict, phase, reasons = of_runs(runs) if runs else (verdict, phase, reasons)
            if objection:
                said = f"V1's proposer raises: {objection}"
                verdict, phase, step, reasons = Verdict.ERROR, Phase.FORWARD, "second draft step", (said, *reasons)
    ended = datetime.now(timezone.utc)
    phases.append((Phase.TIME, time.monotonic()))
    ran = bool(runs) and verdict not in (Verdict.REJECTED, Verdict.UNAVAILABLE)
    return PairRecord(
        pair_id=pair_id(pair),
        pair=pair,
        verdict=verdict,
        rung=reachable(pair.target) if ran else Rung.DECLARED,
        phase=phase,
        environment=where.environment,
        step=step,
        reasons=reasons,
        flags=tuple(sorted({flag for one in runs for flag in one.flags}, key=lambda flag: flag.value)),
        failure=failure,
        runs=tuple(runs),
        uncalled=pair_cells.uncalled(trail) if ran else (),
        shims=shims.drain(),
        durations=_durations(phases),
        started_at=started.isoformat(timespec="milliseconds"),
        ended_at=ended.isoformat(timespec="milliseconds"),
        **facts,
    )


def _of_gpu(error: Exception, phase: Phase, where: Where) -> Said | None:
    """What a fault of a GPU is; None where there is none, or for any other exception."""
    if where.kind != "device":
        return None
    from . import device_verdicts

    return device_verdicts.of_exception(error, phase, posing=where.posing)


def of_runs(runs: list[SideRun]) -> tuple[Verdict, Phase, tuple[str, ...]]:
    """What the calls say together: the worst verdict, its phase, and its reasons with whose they are."""
    verdict = min((one.verdict for one in runs), key=_WEIGHT.index)
    mine = [one for one in runs if one.verdict is verdict]
    reasons = tuple(f"{one.role} {one.backend}, {one.batch}: {reason}" for one in mine for reason in one.reasons[:1])
    return verdict, mine[0].phase, tuple(dict.fromkeys(reasons))


def _facts(pair: Pair, trail: Trail, asked: dict[str, Any]) -> dict[str, Any]:
    """Fields of the record that say what set-up resolved, as far as it got."""
    known = trail.config is not None
    contradictions = pair_builders.contradictions(trail)
    return {
        "runner": "" if not known else "v2" if trail.uses_v2 else "v1",
        "rules": (*pair_facts.rules(pair, trail, asked["drafter"]), *contradictions),
        "target_model": pair_facts.side(pair, trail, "target", asked["target"]),
        "drafter": pair_facts.side(pair, trail, "drafter", asked["drafter"]),
        "effective": pair_facts.effective(pair, trail),
        "layout": trail.layout,
        "layouts": trail.layouts,
        "manager_block": int(trail.config.cache_config.block_size) if known else None,
        "groups": pair_facts.groups(trail),
        "graph_support": trail.graph_support,
        "pool": pair_facts.pool(trail),
        "contradictions": contradictions,
    }


def _durations(phases: list[tuple[Phase, float]]) -> dict[str, float]:
    spent: dict[str, float] = {}
    for (phase, since), (_, until) in itertools.pairwise(phases):
        spent[phase.value] = round(spent.get(phase.value, 0.0) + until - since, 4)
    return spent
