"""Two selections of records side by side, for a terminal and for a pull request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from ..analysis import diff
from ..analysis.agreement import Agreement, Apart, lacking
from ..analysis.agreement import agreement as agreed
from ..analysis.compare import KINDS, Comparison, Entry, Side, Times
from ..analysis.sources import Sourced
from ..cell import Flag, Timing, Verdict
from ..summary import DID_NOT_RUN, versions
from . import agreement
from . import text as words
from .markdown import COMMENT_LIMIT, SIGN, code, code_in_table

#: Groups of entries that are shown of each kind, and of those that one side alone has; the rest is counted.
SHOWN = 30
SHOWN_ALONE = 10
#: Entries of a group that are named.
_NAMED = 12
#: What is said of a cell that was launched and has no record.
BEGUN = "begun, not finished"
#: Facts of the environments that are shown.
_FACTS = 30

#: Titles of the kinds: where time goes by from left to right, and where the sides are of one time.
_ORDERED = {kind: title for kind, title in diff.KINDS.items() if kind in KINDS} | {
    "same": "The same",
    "left": "Only on the left",
    "right": "Only on the right",
}
_UNORDERED = _ORDERED | {
    "regression": "Works on the left alone",
    "slower": "Slower on the right",
    "lost": "Works on the left, not told on the right",
    "verdict": "Other differences of verdict",
    "fix": "Works on the right alone",
    "faster": "Faster on the right",
    "rung": "Rungs differ",
    "mark": "Marks differ",
    "route": "Kernels or kernel blocks differ",
}
_OPEN = ("regression", "slower", "fix")


def text(found: Comparison, *, everything: bool = False, width: int = 100) -> str:
    """Plain text, ending with a newline; ``everything``: also the entries that are the same, and no cut."""
    out = []
    for name, side in (("left", found.left), ("right", found.right)):
        out += words.fill(side_title(side), width, f"{name:<7}", " " * 7)
    out += words.fill(_counts(found), width)
    for note in notes(found):
        out += words.fill(note, width)
    if found.facts:
        out += ["", "What differs in the environment:"]
        for name, left, right, count in _facts(found):
            out += words.fill(f"{name}: {left} -> {right} ({count})", width, "  ", "      ")
    label = labels(found)
    judged = agreed(found)
    apart = _apart(judged)
    out += agreement.text(judged, label, time_words, width, everything)
    for kind in KINDS:
        entries = found.of(kind)
        if not entries or (kind == "same" and not everything):
            continue
        out += ["", f"{title(found, kind)} ({len(entries):,}):"]
        groups = _groups(entries)
        most = len(groups) if everything else SHOWN_ALONE if kind in ("left", "right") else SHOWN
        for group in groups[:most]:
            out += _lines(group, label, width, len(group) if everything else _NAMED, apart)
        out += _more(groups[most:], "  ")
    rest = [(entry, t) for entry in found.of("same") for t in _compared(entry) if _key(entry, t) not in apart]
    timed = [] if everything else rest
    if timed:
        which = "The other times" if apart else "Times of cells that are otherwise the same"
        out += ["", f"{which}, right over left, in microseconds a call:"]
        for entry, t in timed[:SHOWN]:
            out += words.fill(f"{label(entry)}: {time_words(t)}", width, "  ", "      ")
        if len(timed) > SHOWN:
            out.append(f"  and {len(timed) - SHOWN:,} more")
    return "\n".join(out) + "\n"


def markdown(found: Comparison, *, everything: bool = False) -> str:
    """For GitHub, ending with a newline; without ``everything`` at most as long as a comment may be."""
    for shown in (SHOWN, 20, 5):
        out = _markdown(found, len(found.entries) if everything else shown, everything)
        if everything or len(out) <= COMMENT_LIMIT:
            break
    return out


def _markdown(found: Comparison, shown: int, everything: bool) -> str:
    out = [f"## {code(chosen(found.left))} beside {code(chosen(found.right))}", "", f"{_counts(found)}", ""]
    for name, side in (("Left", found.left), ("Right", found.right)):
        out.append(f"- {name}: {code(side_title(side), 600)}")
    out += [f"- {note}" for note in notes(found, code)]
    if found.facts:
        out += ["", "<details><summary>What differs in the environment</summary>", ""]
        out += ["| Fact | Left | Right | Cells |", "|---|---|---|---|"]
        out += [_row(name, left, right, str(count)) for name, left, right, count in _facts(found)]
        out += ["", "</details>"]
    label = labels(found)
    judged = agreed(found)
    apart = _apart(judged)
    out += agreement.markdown(judged, label, time_words, shown)
    for kind in KINDS:
        entries = found.of(kind)
        if not entries or (kind == "same" and not everything):
            continue
        open_ = " open" if kind in _OPEN else ""
        out += ["", f"<details{open_}><summary>{title(found, kind)} ({len(entries):,})</summary>", ""]
        out += ["| Cell | Left | Right |", "|---|---|---|"]
        groups = _groups(entries)
        most = len(groups) if everything else min(shown, SHOWN_ALONE if kind in ("left", "right") else SHOWN)
        out += [_group(group, label, len(group) if everything else _NAMED) for group in groups[:most]]
        out += ["", *_more(groups[most:], "")] if groups[most:] else []
        out += ["", "</details>"]
    timed = [(entry, t) for entry in found.entries for t in _compared(entry) if _key(entry, t) not in apart]
    if timed:
        which = "The other times" if apart else "Times"
        out += ["", f"<details open><summary>{which}, right over left</summary>", ""]
        out += ["| Cell | Call | Left, µs | Right, µs | Ratio |", "|---|---|---|---|---|"]
        out += [_timed(label(entry), t) for entry, t in timed[:shown]]
        out += ["", f"and {len(timed) - shown:,} more"] if len(timed) > shown else []
        out += ["", "</details>"]
    return "\n".join(out) + "\n"


def title(found: Comparison, kind: str) -> str:
    """A kind in words; a regression is one only where time goes by from left to right."""
    return (_ORDERED if found.ordered else _UNORDERED)[kind]


def labels(found: Comparison) -> Callable[[Entry], str]:
    """A function that gives an entry's tokens without those that all entries share."""
    counts = Counter(token for entry in found.entries for token in set(entry.tokens))
    common = {token for token, count in counts.items() if count == len(found.entries)}

    def label(entry: Entry) -> str:
        left = [token for token in entry.tokens if token not in common]
        return words.one_line(" ".join(token for _, token in left) or entry.name, 300)

    return label


def side_title(side: Side) -> str:
    """What a side is: its selectors, how many cells of which runs, targets and versions."""
    names = [words.one_line(name, 120) for name in side.sources]
    runs = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    targets = sorted({words.one_line(item.record.cell.target, 60) for item in side.items})
    stated = sorted({f"{n} {words.one_line(v, 60)}" for item in side.items for n, v in versions(item.environment)})
    parts = [words.count(len(side.items), "cell")]
    parts[0] += f" of {runs}" if set(side.wanted) != {"run"} else ""
    parts += [", ".join(targets[:6]) + (", ..." if len(targets) > 6 else "")]
    parts += [", ".join(stated)] if stated else []
    if side.older:
        parts.append(f"{words.count(side.older, 'older or weaker record')} left out")
    return f"{chosen(side)}: {'; '.join(parts)}"


def notes(found: Comparison, quoted: Callable[[str], str] = words.one_line) -> list[str]:
    """What a reader must know before reading on; ``quoted`` makes text of a record fit to be shown."""
    out = []
    both = sum(entry.left is not None and entry.right is not None for entry in found.entries)
    if not both:
        out.append("No cell is on both sides: they agree in nothing that is aligned on.")
        targets = [sorted({i.record.cell.target for i in side.items}) for side in (found.left, found.right)]
        if targets[0] != targets[1] and "target" not in found.dropped:
            choice = f"--left target={targets[0][0]} --right target={targets[1][0]}"
            out.append(f"Their targets differ: choose them, as with {quoted(choice)}.")
    if len(found.entries) > both:
        out.append("What only one side has was not run on the other; that says nothing of the backend.")
    for here, there, missing in zip(("left", "right"), ("right", "left"), lacking(found), strict=True):
        if missing:
            verb = "has" if missing == 1 else "have"
            out.append(f"{words.count(missing, 'time')} of the {here} {verb} none on the {there}.")
    return out


def verdict_words(item: Sourced | None) -> str:
    """Verdict and rung, marks, the kernel block where it is not the manager's, and why it is no pass."""
    if item is None:
        return words.NOT_RUN
    record = item.record
    out = record.verdict.value
    if record.verdict not in DID_NOT_RUN:
        out += f" ({record.rung.value})"
    if record.kernel_block is not None and record.kernel_block != record.cell.block_size:
        out += f", kernel block {record.kernel_block}"
    if record.flags:
        out += f", {', '.join(flag.value for flag in record.flags)}"
    why = words.reason(record)
    why = why.removeprefix("fallback: ") if Flag.FALLBACK in record.flags else why
    if not why:
        return out
    return f"{out}: {why}" if record.verdict is Verdict.PASS else f"{out} at {record.phase.value}: {why}"


def time_words(t: Times) -> str:
    """``decode, seed: 4,082 (4,080 to 4,090) -> 4,305 (4,300 to 4,310), ratio 1.05 (1.05 to 1.06)``."""
    one, two = (timing(side) for side in (t.left, t.right))
    said = ratio(t)
    return f"{t.phase}, {words.one_line(t.workload, 60)}: {one} -> {two}{f', ratio {said}' if said else ''}"


def timing(t: Timing | None) -> str:
    """A median and its interval, in microseconds."""
    return f"{words.us(t.median_us)} ({words.us(t.low_us)} to {words.us(t.high_us)})" if t else "not timed"


def ratio(t: Times) -> str:
    """Right over left and what it lies between, and whether that is slower or faster; "" where a side has no time."""
    if t.ratio is None or t.low is None or t.high is None:
        return ""
    shown = (t.ratio, t.low, t.high)
    # More figures where fewer would call 1 what is not.
    digits = next((n for n in (3, 4) if all(v == 1 or f"{v:.{n}g}" != "1" for v in shown)), 5)
    value, low, high = (f"{v:.{digits}g}" for v in shown)
    return f"{value} ({low} to {high}){f', {t.kind}' if t.kind else ''}"


def _counts(found: Comparison) -> str:
    return "; ".join(f"{title(found, kind)}: {len(found.of(kind)):,}" for kind in KINDS if found.of(kind))


def chosen(side: Side) -> str:
    """A side's selectors, or only the run's name where that is all that was chosen."""
    if set(side.wanted) == {"run"}:
        return words.one_line(side.wanted["run"], 200)
    return words.one_line(" ".join(f"{key}={value}" for key, value in side.wanted.items()), 300)


def _facts(found: Comparison) -> list[tuple[str, str, str, str]]:
    out = []
    for fact in found.facts[:_FACTS]:
        name, left, right = (words.one_line(value, 160) for value in fact[:3])
        out.append((name, left, right, words.count(fact.entries, "cell")))
    return out


def _compared(entry: Entry) -> list[Times]:
    return [t for t in entry.times if t.ratio is not None]


def _key(entry: Entry, t: Times) -> tuple[str, str, str]:
    return entry.name, t.phase, t.workload


def _apart(judged: Agreement | None) -> dict[tuple[str, str, str], Apart]:
    """The times that do not agree, which are said once, with what may be why."""
    return {_key(one.entry, one.times): one for one in judged.apart} if judged else {}


def _groups(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Entries of which the same is to be said together; those with times by themselves."""
    out: dict[object, list[Entry]] = {}
    for entry in entries:
        said: object = (verdict_words(entry.left), verdict_words(entry.right), entry.begun, *_routes(entry))
        out.setdefault(entry.name if _compared(entry) else said, []).append(entry)
    return list(out.values())


def _routes(entry: Entry) -> list[str]:
    return [words.one_line(change.text, 400) for change in entry.changes if change.kind == "route"]


def _more(groups: Sequence[Sequence[Entry]], indent: str) -> list[str]:
    count = sum(map(len, groups))
    return [f"{indent}and {words.count(count, 'more cell')}"] if count else []


def _lines(
    group: Sequence[Entry],
    label: Callable[[Entry], str],
    width: int,
    most: int,
    apart: Mapping[tuple[str, str, str], Apart],
) -> list[str]:
    out = []
    for entry in group[:most]:
        out += words.fill(label(entry), width, "  ", "    ")
    out += _more([group[most:]], "  ")
    first = group[0]
    one, two = verdict_words(first.left), verdict_words(first.right)
    if first.left is None or first.right is None or one == two:
        word = two if first.left is None else one
        out += words.fill(f"{word}; {BEGUN} on the other" if first.begun else word, width, "      ", " " * 13)
    else:
        out += words.fill(one, width, "      left   ", " " * 13)
        out += words.fill(two, width, "      right  ", " " * 13)
    for line in _routes(first):
        out += words.fill(line, width, "      ", " " * 13)
    for t in _compared(first):
        found = apart.get(_key(first, t))
        if found and first.kind == "same":
            continue  # it stands above, with the others that are apart
        out += words.fill(time_words(t), width, "      ", " " * 13)
        out += words.fill(agreement.reason(found), width, " " * 13, " " * 13) if found else []
    return out


def _group(group: Sequence[Entry], label: Callable[[Entry], str], most: int) -> str:
    named = [code_in_table(label(entry), 300) for entry in group[:most]] + _more([group[most:]], "")
    missing = BEGUN if group[0].begun else words.NOT_RUN
    return f"| {'<br>'.join(named)} | {_cell(group[0].left, missing)} | {_cell(group[0].right, missing)} |"


def _row(*columns: str) -> str:
    return f"| {' | '.join(code_in_table(column, 200) or ' ' for column in columns)} |"


def _cell(item: Sourced | None, missing: str) -> str:
    if item is None:
        return missing
    return f"{SIGN[item.record.verdict]} {code_in_table(verdict_words(item), 200)}"


def _timed(label: str, t: Times) -> str:
    columns = (label, f"{t.phase}, {t.workload}", timing(t.left), timing(t.right), ratio(t))
    return f"| {' | '.join(code_in_table(column, 300) or ' ' for column in columns)} |"
