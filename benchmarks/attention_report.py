"""What ``attention_benchmarks.py`` prints: the times of both sides call by call, what each got done in a minute,
and which times changed since an earlier run. Pure: from the files of a folder to text."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import attention_cells as cells

from capmatrix import store
from capmatrix.analysis import diff
from capmatrix.cell import Record, Timing, Verdict
from capmatrix.errors import InputError, printable

#: Times that differ by no more agree, whatever their intervals.
MARGIN_PERCENT = 5.0

SIDES = ("capmatrix", "vllm")
PASSES = ("cold", "warm")


class Time(NamedTuple):
    """Microseconds of one call of one layer; ``low`` to ``high``: capmatrix's interval of the median, vLLM's range."""

    median: float
    low: float
    high: float


class Step(NamedTuple):
    """One process: a side in a pass. ``begun`` and ``ended`` in seconds since the epoch; ``code``: its exit status."""

    side: str
    cache: str
    begun: float
    ended: float
    code: int | None


class Rate(NamedTuple):
    """What a step got done: calls timed, seconds in all, and seconds since its first cell."""

    done: int
    all_s: float
    warm_s: float


def steps(folder: Path) -> list[Step]:
    """The steps that were run into ``folder``. InputError where it holds none."""
    path = folder / "steps.jsonl"
    if not path.is_file():
        raise InputError("no results of this benchmark are here", file=path)
    return [Step(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def lines(path: Path) -> list[dict[str, Any]]:
    """What a process of vLLM's benchmark told, up to where it ended; a line cut short is left out."""
    if not path.is_file():
        return []
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            break
    return found


def vllm_times(told: Iterable[Mapping[str, Any]], variant: str) -> dict[str, Time]:
    """Times of one variant by call."""
    return {
        line["key"]: Time(line["median_us"], line["min_us"], line["max_us"])
        for line in told
        if line["kind"] == "call" and line["variant"] == variant and "error" not in line
    }


def timings(records: Iterable[Record]) -> dict[str, tuple[Record, Timing]]:
    """capmatrix's times by call, with the record each is of."""
    found = {}
    for record in records:
        cell = record.cell
        for time in record.times:
            name = cells.key(cell.backend, cell.block_size, cell.kv_cache_dtype, time.phase, time.workload)
            found[name] = record, time
    return found


def agree(ours: Time, theirs: Time) -> bool:
    """Whether two times are the same: within the margin, or with intervals that meet."""
    near = abs(ours.median / theirs.median - 1) * 100 <= MARGIN_PERCENT
    return near or (ours.low <= theirs.high and theirs.low <= ours.high)


def vllm_rate(step: Step, told: Sequence[Mapping[str, Any]]) -> Rate | None:
    """Of the plain calls alone; those that failed are not counted, their time is. None where it did not boot."""
    boot = next((line["at"] for line in told if line["kind"] == "boot"), None)
    plain = [line for line in told if line["kind"] == "call" and line["variant"] == "plain"]
    if boot is None or not plain:
        return None
    ended = plain[-1]["at"]
    return Rate(sum("error" not in line for line in plain), ended - step.begun, ended - boot)


def capmatrix_rate(step: Step, records: Sequence[Record]) -> Rate | None:
    """Of all that the run did: cells judged and recorded as well. None where it recorded nothing."""
    began = [_seconds(record.started_at) for record in records if record.started_at]
    if not began:
        return None
    return Rate(sum(len(r.times) for r in records), step.ended - step.begun, step.ended - min(began))


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()


def report(folder: Path, against: store.Run | None = None) -> Iterator[str]:
    """The whole text, line by line, as Markdown."""
    made = steps(folder)
    calls = [cells.Call(*call) for call in json.loads((folder / "calls.json").read_text(encoding="utf-8"))]
    runs = {s.cache: _run(folder, s) for s in made if s.side == "capmatrix"}
    told = {s.cache: lines(folder / f"vllm-{s.cache}.jsonl") for s in made if s.side == "vllm"}
    # A pass that was cut short may lack one side: the last of each that has times.
    last = [p for p in runs if p == made[0].cache or any(r.times for r in runs[p].records)][-1:]
    theirs = [lines for lines in told.values() if any(line.get("variant") == "layer" for line in lines)][-1:]
    records = runs[last[0]].records if last else []
    yield from compared(calls, timings(records), theirs[0] if theirs else [])
    yield from refused(records)
    yield from rates(made, runs, told)
    if len(runs) > 1:
        yield from _changes("The warm run against the cold one", runs["cold"], runs["warm"])
    if against is not None and last:
        yield from _changes(f"The {last[0]} run against the earlier one", against, runs[last[0]])


def _run(folder: Path, step: Step) -> store.Run:
    path = folder / f"capmatrix-{step.cache}.jsonl"
    return store.read(path) if path.is_file() else store.Run()


def compared(
    calls: Iterable[cells.Call], ours: Mapping[str, tuple[Record, Timing]], told: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """Each call's times, then how many agree."""
    plain, layer = vllm_times(told, "plain"), vllm_times(told, "layer")
    errors = {line["key"]: line["error"] for line in told if line["kind"] == "call" and "error" in line}
    yield "| Call | layers | vLLM's, attention alone | vLLM's, as the layer | capmatrix | ratio | |"
    yield "|---|---|---|---|---|---|---|"
    ratios: dict[tuple[str, str], list[float]] = {}
    same = both = 0
    for call in calls:
        theirs, found = layer.get(call.key), ours.get(call.key)
        mine = Time(found[1].median_us, found[1].low_us, found[1].high_us) if found else None
        ratio = word = ""
        if theirs and mine:
            both += 1
            same += agree(mine, theirs)
            ratio = f"{mine.median / theirs.median:.3f}"
            word = "agree" if agree(mine, theirs) else f"{mine.median - theirs.median:+.1f} us"
            ratios.setdefault((call.batch, call.profile), []).append(mine.median / theirs.median)
        word = word or printable(errors.get(call.key, ""))[:100]
        cell = f"{call.key} `{call.spec}`"
        yield f"| {cell} | {call.layers} | {_one(plain, call)} | {_text(theirs)} | {_text(mine)} | {ratio} | {word} |"
    yield ""
    yield f"{same} of {both} calls that both sides timed agree (within {MARGIN_PERCENT:g} %, or their intervals meet)."
    for (batch, profile), several in ratios.items():
        middle, low, high = statistics.median(several), min(several), max(several)
        yield f"- {batch}, {profile}: ratio {middle:.3f} ({low:.3f} to {high:.3f}, {len(several)} calls)"
    for line in told:
        if line["kind"] == "replay":
            yield f"- the replay of a graph of one tiny kernel takes {line['median_us']:g} us between its events"
        elif line["kind"] == "boot":
            yield f"- modules that vLLM's benchmark was given stand-ins for: {', '.join(line['replaced']) or 'none'}"


def refused(records: Iterable[Record]) -> Iterator[str]:
    """Cells of capmatrix that did not pass, or were not timed, and why."""
    for record in records:
        untimed = [reason for reason in record.reasons if reason.startswith("not timed under")]
        if record.verdict is not Verdict.PASS:
            untimed = [f"{record.verdict.value}: {record.reasons[0] if record.reasons else 'no reason given'}"]
        yield from (f"- {printable(record.cell_id)}: {printable(reason)[:300]}" for reason in untimed)
    yield ""


def _text(time: Time | None) -> str:
    return "" if time is None else f"{time.median:.1f} ({time.low:.1f} to {time.high:.1f})"


def _one(times: Mapping[str, Time], call: cells.Call) -> str:
    return f"{times[call.key].median:.1f}" if call.key in times else ""


def rates(
    made: Sequence[Step], runs: Mapping[str, store.Run], told: Mapping[str, Sequence[Mapping[str, Any]]]
) -> Iterator[str]:
    """Calls a minute of each side in each pass, and what capmatrix did beside timing them."""
    yield "| Triton's cache | side | calls timed | seconds | a minute | seconds since the first cell | a minute |"
    yield "|---|---|---|---|---|---|---|"
    found: dict[tuple[str, str], Rate] = {}
    for step in made:
        if step.side == "vllm":
            rate = vllm_rate(step, told[step.cache])
        else:
            rate = capmatrix_rate(step, runs[step.cache].records)
        if rate is None:
            yield f"| {step.cache} | {step.side} | nothing (exit status {step.code}) | | | | |"
            continue
        found[step.cache, step.side] = rate
        numbers = f"{rate.all_s:.1f} | {_minute(rate.done, rate.all_s):.1f} | {rate.warm_s:.1f}"
        yield f"| {step.cache} | {step.side} | {rate.done} | {numbers} | {_minute(rate.done, rate.warm_s):.1f} |"
    yield ""
    for cache in PASSES:
        ours, theirs = (found.get((cache, side)) for side in SIDES)
        if ours and theirs and theirs.done:
            whole = _minute(ours.done, ours.all_s) / _minute(theirs.done, theirs.all_s)
            warm = _minute(ours.done, ours.warm_s) / _minute(theirs.done, theirs.warm_s)
            yield f"- {cache}: capmatrix times {whole:.2f} calls for one of vLLM's, {warm:.2f} without the start"
    for cache, run in runs.items():
        if not run.records:
            continue
        checks = sum(len(record.checks) for record in run.records)
        verdicts = [f"{sum(r.verdict is v for r in run.records)} {v.value}" for v in Verdict]
        shown = ", ".join(text for text in verdicts if not text.startswith("0 "))
        yield f"- {cache}: beside its times capmatrix judged {len(run.records)} cells ({shown}) in {checks} checks"
    yield ""


def _minute(done: int, seconds: float) -> float:
    return done / seconds * 60


def _changes(title: str, old: store.Run, new: store.Run) -> Iterator[str]:
    """Times that are slower or faster beyond noise, of cells that both runs have on the same hardware."""
    before = {(r.cell_id, t.workload): (r, t) for r in old.records for t in r.times}
    count, found = 0, []
    for record in new.records:
        for now in record.times:
            earlier = before.get((record.cell_id, now.workload))
            if earlier is None:
                continue
            machines = {
                diff.hardware(side.environments.get(r.environment)) for side, r in ((old, earlier[0]), (new, record))
            }
            if len(machines) > 1:
                continue
            count += 1
            was = earlier[1]
            word = diff.faster_or_slower(was, now, MARGIN_PERCENT)
            if word:
                percent = (now.median_us / was.median_us - 1) * 100
                times = f"{was.median_us:g} -> {now.median_us:g} us ({percent:+.1f} %)"
                found.append(f"- {word}: {printable(record.cell_id)}, {printable(now.workload)}: {times}")
    slower = sum(line.startswith("- slower") for line in found)
    yield f"{title}: of {count} times {slower} slower and {len(found) - slower} faster beyond noise."
    yield from sorted(found, reverse=True)
    yield ""
