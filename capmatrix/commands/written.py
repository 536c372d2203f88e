"""Where a report goes: standard output, a file, a section of a page; and whether what stands there is still right.

A page that is written by hand keeps a section for a table between two markers, each alone on its line. Only what is
between them is written, and compared. Text of a record cannot end a section: it never stands alone on a line.
"""

from __future__ import annotations

import difflib
import sys
from pathlib import Path

from ..errors import EXIT_OK, EXIT_UNEXPECTED, InputError, printable

BEGIN = "<!-- table: begin -->"
END = "<!-- table: end -->"

#: Lines of a difference that are shown, and characters of each.
SHOWN, WIDTH = 40, 240
#: How much of a long line is shown at its beginning, and beside what changed in it.
_LABEL, _AROUND = 28, 24


def has_section(output: str | None) -> bool:
    """Whether ``output`` is a file with markers. InputError where it cannot be read or markers do not pair."""
    page = None if output in (None, "-") else _read(str(output))
    return page is not None and _section(page, str(output)) is not None


def put(text: str, output: str | None, *, check: bool = False, sections: bool = True) -> int:
    """Write ``text`` to ``output`` (None, ``-``: standard output), or with ``check`` say whether it stands there.

    ``sections``: a file that has markers is changed between them alone. Returns the exit status: 1 for a stale file.
    """
    if output in (None, "-"):
        if check:
            raise InputError("--check compares to a file: name it with -o", key="-o", value=output)
        sys.stdout.write(text)
        return EXIT_OK
    name = str(output)
    page = _read(name) if check or sections else None
    wanted = text
    if page is not None and sections:
        lines = _section(page, name)
        if lines is not None:
            all_lines = page.splitlines(keepends=True)
            begin, end = lines
            wanted = "".join(all_lines[: begin + 1]) + f"\n{text.strip()}\n\n" + "".join(all_lines[end:])
    if not check:
        _write(name, wanted)
        return EXIT_OK
    if page is None:
        raise InputError("there is no such file to check; without --check it is written", key="-o", value=name)
    if page == wanted:
        print(f"{printable(name)}: up to date")
        return EXIT_OK
    print(difference(page, wanted, name))
    return EXIT_UNEXPECTED


def difference(old: str, new: str, name: str) -> str:
    """What a reader needs of a stale file: how much differs, and the first changed lines with their numbers.

    Of a long line that changed, how it begins and what changed in it.
    """
    before, after = old.splitlines(), new.splitlines()
    out: list[str] = []
    gone = come = 0
    for kind, i, i_end, j, j_end in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        gone, come = gone + i_end - i, come + j_end - j
        was, now = before[i:i_end], after[j:j_end]
        if len(was) == len(now):
            pairs = [_focus(a, b) for a, b in zip(was, now, strict=True)]
            was, now = [a for a, _ in pairs], [b for _, b in pairs]
        out += [f"line {i + 1}:", *(f"- {_short(line)}" for line in was), *(f"+ {_short(line)}" for line in now)]
    more = [f"... and {len(out) - SHOWN} more lines"] if len(out) > SHOWN else []
    head = f"{printable(name)}: stale: {gone} lines would go, {come} would come; without --check it is written anew"
    return "\n".join([head, *out[:SHOWN], *more])


def _focus(old: str, new: str) -> tuple[str, str]:
    """Two forms of a line without the long parts in which they are the same."""
    shortest = min(len(old), len(new))
    first = next((i for i in range(shortest) if old[i] != new[i]), shortest)
    last = next((i for i in range(shortest - first) if old[-1 - i] != new[-1 - i]), shortest - first)
    first, last = max(first - _AROUND, 0), max(last - _AROUND, 0)
    begin = old[:first] if first <= _LABEL else f"{old[:_LABEL].rstrip()} ... "
    end = "" if last == 0 else " ..." if last > _AROUND else old[-last:]
    old, new = (begin + line[first : len(line) - last] + end for line in (old, new))
    return old, new


def _short(line: str) -> str:
    line = printable(line)
    return line if len(line) <= WIDTH else line[: WIDTH - 3] + "..."


def _section(page: str, name: str) -> tuple[int, int] | None:
    """The lines (from 0) of the markers of ``page``; None where it has none."""
    lines = [line.strip() for line in page.splitlines()]
    begins, ends = ([i for i, line in enumerate(lines) if line == marker] for marker in (BEGIN, END))
    if not begins and not ends:
        return None
    if len(begins) != 1 or len(ends) != 1 or begins[0] > ends[0]:
        place = (begins + ends)[-1] + 1
        raise InputError(f"a section has one {BEGIN} and, below it, one {END}", file=name, line=place)
    return begins[0], ends[0]


def _read(name: str) -> str | None:
    """The text of a file, None where there is none."""
    try:
        return Path(name).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UnicodeDecodeError:
        raise InputError("not a text file", key="-o", value=name) from None
    except OSError as error:
        raise InputError(f"cannot read: {error.strerror or error}", key="-o", value=name) from None


def _write(name: str, text: str) -> None:
    try:
        Path(name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write: {error.strerror or error}", key="-o", value=name) from None
