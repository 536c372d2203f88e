"""Records and published results to the default-selection table. Pure: the same evidence gives the same table.

What may be a candidate is ``evidence``'s, what it costs ``measures``', which one is taken ``policies``'. Here a
row is made of it, and held against the table before: a win that is smaller than the margin or the noise, one
unrepeated serving run, or weaker evidence changes no default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ..cell import Rung
from ..drafters import Family
from ..grid import Workload
from ..summary import strength
from .choices import MARGIN, POLICIES
from .defaults import Defaults, Key, Other, Row
from .evidence import Evidence
from .hysteresis import against_weaker, held, marked
from .measures import STEP_TIME, Cost, Setting, settings
from .policies import EXTRA_DEPENDENCIES, Candidate, Choice, choose, place
from .rowparts import dated, margin, rounded, times
from .standing import Standing

_RUN = strength(Rung.EXECUTED)


class Question(NamedTuple):
    """What ``derive`` is asked: the policy, its margin in percent, the workload profile to weigh by (empty: any),
    the profiles known by name, and the table before."""

    policy: str = POLICIES[0]
    margin_percent: float = MARGIN
    workload: str = ""
    workloads: Mapping[str, Workload] = {}
    families: Mapping[str, Family] = {}
    previous: Defaults | None = None
    previous_name: str = ""
    arch: str = ""
    published: Sequence[str] = ()


def derive(evidence: Evidence, question: Question) -> Defaults:
    """The table of every key that has evidence, and of the earlier table's keys that have none now."""
    seen: dict[str, set[str]] = {}
    for key, standings in evidence.standings.items():
        seen.setdefault(key.architecture, set()).update(standings)
    rows = {
        key: _row(key, standings, seen[key.architecture], question) for key, standings in evidence.standings.items()
    }
    if question.previous is not None:
        for old in question.previous.row:
            if old.key not in rows and question.arch in ("", "any", old.architecture):
                rows[old.key] = marked(old, "carried")
    return Defaults(
        policy=question.policy,
        margin_percent=question.margin_percent,
        workload=question.workload,
        arch=question.arch,
        runs=evidence.runs,
        published=tuple(sorted(question.published)),
        previous=question.previous_name,
        left_out=evidence.left_out,
        hints=evidence.hints,
        row=tuple(rows[key] for key in sorted(rows)),
    )


def _row(key: Key, standings: Mapping[str, Standing], seen: Iterable[str], question: Question) -> Row:
    family = question.families.get(key.drafter)
    method = family.method if family is not None else "none"
    found = settings(list(standings.values()), question.workloads, question.workload, method)
    setting = found[0] if found else None
    candidates = [_candidate(s, setting) for s in standings.values() if s.state == "pass"]
    old = question.previous.find(key) if question.previous is not None else None
    absent = [b for b in seen if b not in standings]
    if not candidates:
        return _no_row(key, standings, absent, question, old)
    choice = choose(question.policy, candidates, question.margin_percent, setting.kind if setting else "")
    made = _made(key, standings, absent, question, choice, candidates, setting, found[1:])
    if old is None or question.previous is None:
        return made
    by_name = {c.backend: c for c in candidates}
    same = question.previous.policy == question.policy
    return held(made, old, standings, by_name, setting, question.margin_percent, same)


def _candidate(one: Standing, setting: Setting | None) -> Candidate:
    assert one.rung is not None
    cost = setting.costs.get(one.backend) if setting is not None else None
    return Candidate(one.backend, one.rung, len(one.missing), one.shapes, len(one.blemishes), cost)


def _no_row(
    key: Key, standings: Mapping[str, Standing], absent: Sequence[str], question: Question, old: Row | None
) -> Row:
    row = Row(
        *key,
        backend="",
        reason="no backend is a candidate",
        policy=question.policy,
        conflicts=_conflicts(standings.values()),
        other=_others(standings, absent, {}, None, ""),
        **dated(standings.values()),
    )
    return against_weaker(row, old, standings) if old is not None and old.backend else row


def _made(
    key: Key, standings: Mapping[str, Standing], absent: Sequence[str], question: Question, choice: Choice,
    candidates: Sequence[Candidate], setting: Setting | None, rest: Sequence[Setting],
) -> Row:  # fmt: skip
    chosen = standings[choice.backend]
    candidate = next(c for c in candidates if c.backend == choice.backend)
    cost = candidate.cost
    costs = setting.costs if setting is not None else {}
    rival = costs.get(choice.runner_up)
    faster, low, high = margin(cost, rival)
    marks = []
    if strength(candidate.rung) < _RUN:
        marks.append("provisional")
    if candidate.missing:
        marks.append("incomplete")
    if cost is not None and cost.repeats < 2 and setting is not None and setting.kind != STEP_TIME:
        marks.append("unrepeated")
    if any(s.table.arch == "unknown" for s in chosen.served):
        marks.append("gpu not stated")
    conflicts = [*_conflicts(standings.values()), *_disagreements(choice, rest, question)]
    if setting is not None and setting.doubt:
        conflicts.append(f"{setting.kind}: {setting.doubt}")
    if conflicts:
        marks.append("conflict")
    fastest = costs.get(choice.fastest)
    others = _others(standings, absent, choice.others, fastest, choice.backend, costs)
    return Row(
        *key,
        backend=choice.backend,
        reason=_sentence(question, choice, cost, setting, candidate, chosen, faster),
        policy=question.policy,
        decided_by=choice.decided_by,
        rung=candidate.rung.value,
        workload=setting.title if setting is not None and cost is not None else "",
        value=rounded(cost.value) if cost is not None else None,
        unit=setting.unit if setting is not None and cost is not None else "",
        runner_up=choice.runner_up,
        margin_percent=faster,
        margin_low_percent=low,
        margin_high_percent=high,
        fastest=choice.fastest,
        times_fastest=times(cost, fastest),
        requires=EXTRA_DEPENDENCIES.get(choice.backend, ()),
        switches=tuple(f"{n}={v}" for n, v in chosen.switches),
        marks=tuple(marks),
        conflicts=tuple(conflicts),
        records=chosen.refs,
        published=tuple(s.ref for s in chosen.served),
        phases=_phases(setting, question.margin_percent),
        other=others,
        **dated([chosen]),
    )  # fmt: skip


def _conflicts(standings: Iterable[Standing]) -> tuple[str, ...]:
    return tuple(text for s in standings for text in s.conflicts)


def _disagreements(choice: Choice, rest: Sequence[Setting], question: Question) -> list[str]:
    """Other settings whose fastest differs from this one's by more than the margin: shown, not averaged."""
    out = []
    for setting in rest:
        if len(setting.costs) < 2 or choice.backend not in setting.costs:
            continue
        first = min(setting.costs, key=lambda b: (setting.costs[b].mid, place(b)))
        mine, best = setting.costs[choice.backend], setting.costs[first]
        if mine.mid > best.mid * (1 + question.margin_percent / 100) and not mine.overlaps(best):
            slower = mine.mid / best.mid
            out.append(f"{setting.title}: {first} is {slower:.2f}x as fast as {choice.backend} by {setting.kind}")
    return out


def _sentence(
    question: Question, choice: Choice, cost: Cost | None, setting: Setting | None, candidate: Candidate,
    chosen: Standing, faster: float | None,
) -> str:  # fmt: skip
    if choice.decided_by == "only candidate":
        text = "the only candidate"
    elif cost is not None and setting is not None and faster is not None:
        word = "faster" if faster >= 0 else "slower"
        text = f"{abs(faster):g} % {word} than {choice.runner_up} by {setting.kind}"
        if faster < 0 and question.policy == "lightest":
            heavier = EXTRA_DEPENDENCIES.get(choice.runner_up, ())
            needs = f", which also needs {' and '.join(heavier)}" if heavier else ""
            text += f"{needs}; within the margin of {question.margin_percent:g} %"
    elif cost is not None and setting is not None:
        text = f"the only one measured ({setting.kind})"
    elif choice.decided_by == "dependencies":
        text = "needs the fewest dependencies of those that pass; nothing was measured"
    else:
        text = "the strongest evidence" if question.policy == "safest" else "best evidence; nothing was measured"
    if candidate.missing:
        text += f"; no record of {', '.join(chosen.missing)}"
    return text


def _others(
    standings: Mapping[str, Standing], absent: Sequence[str], why: Mapping[str, str], fastest: Cost | None,
    chosen: str, costs: Mapping[str, Cost] | None = None,
) -> tuple[Other, ...]:  # fmt: skip
    out = []
    for backend in sorted({*standings, *absent}, key=place):
        if backend == chosen:
            continue
        one = standings.get(backend)
        if one is None:
            out.append(Other(backend, "not run"))
            continue
        cost = (costs or {}).get(backend)
        word = why.get(backend, "behind") if one.state == "pass" else one.state
        out.append(
            Other(
                backend,
                word,
                _detail(word, one, cost, (costs or {}).get(chosen), fastest),
                one.rung.value if one.rung is not None else "",
                times(cost, fastest),
                one.refs if one.state not in ("not run", "unavailable") else (),
                tuple(s.ref for s in one.served),
            )
        )
    return tuple(out)


def _detail(word: str, one: Standing, cost: Cost | None, mine: Cost | None, fastest: Cost | None) -> str:
    if one.state != "pass":
        return one.detail
    if word == "incomplete":
        return f"no record of {', '.join(one.missing)}"
    if word == "weaker":
        return f"only {one.rung.value if one.rung else 'declared'}"
    if word == "slower" and cost is not None and mine is not None:
        return f"{cost.mid / mine.mid:.2f}x the time" if cost.mid >= 1.1 * mine.mid else (
            f"{(cost.mid / mine.mid - 1) * 100:.2f} % more time"
        )  # fmt: skip
    if word == "heavier":
        needs = " and ".join(EXTRA_DEPENDENCIES.get(one.backend, ()))
        if cost is not None and mine is not None:
            return f"{(mine.mid / cost.mid - 1) * 100:.2f} % faster, needs {needs}"
        return f"needs {needs}"
    seen = " and ".join(flag.value for flag in one.blemishes)
    return f"its passes are marked {seen}" if seen else ""


def _phases(setting: Setting | None, margin_percent: float) -> dict[str, str]:
    """The winner of each phase, where winners beyond margin and noise differ; else nothing."""
    if setting is None or len(setting.phases) < 2:
        return {}
    winners: dict[str, str] = {}
    decided = set()
    for phase in ("prefill", "verify", "decode"):
        costs = {b: c for b, c in setting.phases.get(phase, {}).items() if b in setting.costs}
        if len(costs) < 2:
            continue
        ranked = sorted(costs, key=lambda b: (costs[b].mid, place(b)))
        first, second = (costs[b] for b in ranked[:2])
        winners[phase] = ranked[0]
        if second.mid > first.mid * (1 + margin_percent / 100) and not first.overlaps(second):
            decided.add(ranked[0])
    return winners if len(decided) > 1 else {}
