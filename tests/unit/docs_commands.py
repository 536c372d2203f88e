"""The commands that the documentation shows, and a folder in which they run.

Examples in docs/ use the same few files: a matrix ``first.toml`` and its run ``first.jsonl`` (the tutorial's), the runs
``run.jsonl``, ``old.jsonl`` and ``new.jsonl``, a table ``defaults.toml``. ``prepare`` makes them, small and known.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from samples import BACKENDS, HEADER, cell, environment, record, seed_run
from test_pair import recorded, refused

from capmatrix import cli
from capmatrix.cell import Check, Flag, Phase, Record, Verdict
from capmatrix.commands.written import BEGIN, END
from capmatrix.store import RunWriter

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

#: What a line must run, itself or behind a program of ``BEFORE``, to be a command of the product.
PRODUCT = ("capmatrix", "pytest", "tox")
BEFORE = ("rocjitsu", "python", "python3")
_SHELL = ("", "sh", "bash", "shell", "console")


class Shown(NamedTuple):
    """One command as a page shows it: in one line, without prompt and comment."""

    page: str
    line: int
    text: str

    @property
    def words(self) -> list[str]:
        """The product's own words, the program's name first."""
        return product_words(shlex.split(self.text)) or []


def shown(text: str, page: str = "page.md") -> list[Shown]:
    """The product's commands in the fenced and the indented code blocks of a page."""
    found = []
    for number, line in _joined(_code(text)):
        for part in _uncommented(line.removeprefix("$ ")).split("&&"):
            try:
                words = shlex.split(part)
            except ValueError:
                continue  # no shell line: output, or prose
            if product_words(words):
                found.append(Shown(page, number, part.strip()))
    return found


def _uncommented(line: str) -> str:
    """A shell line without the comment at its end."""
    quote = ""
    for i, sign in enumerate(line):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign == "#" and (i == 0 or line[i - 1].isspace()):
            return line[:i]
    return line


def product_words(words: list[str]) -> list[str] | None:
    """``capmatrix run ...`` of ``rocjitsu ... -- capmatrix run ...`` and the like; None for anything else."""
    if not words:
        return None
    program = Path(words[0]).name
    if program in PRODUCT or program.startswith("capmatrix."):
        return [program, *words[1:]] if len(words) > 1 else None
    if program in ("python", "python3") and words[1:2] == ["-m"]:
        return product_words(words[2:])
    if program == "rocjitsu" and "--" in words:
        return product_words(words[words.index("--") + 1 :])
    return None


def inline(text: str) -> list[str]:
    """What stands in code spans and names a command: ``capmatrix report RUN --format md``; not in a run's table."""
    written = re.sub(rf"^{BEGIN}$.*?^{END}$", "", text, flags=re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^( *)(```+).*?^ *\2", "", written, flags=re.MULTILINE | re.DOTALL)
    return [found for found in re.findall(r"`([^`\n]+)`", prose) if re.match(r"capmatrix [a-z]", found)]


def _code(text: str) -> Iterator[tuple[int, str, bool]]:
    """Lines of shell blocks: number (from 1), text, and whether a prompt marks commands there."""
    fence, language, is_after_blank, in_block = "", "", True, False
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if fence:
            if stripped.startswith(fence):
                fence = ""
            elif language in _SHELL:
                yield number, stripped, language == "console"
            continue
        opened = re.match(r"(```+|~~~+)\s*(\w*)", stripped)
        if opened:
            fence, language = opened[1], opened[2]
            continue
        in_block = line.startswith("    ") and (is_after_blank or in_block)
        if in_block:
            yield number, stripped, False
        is_after_blank = not stripped


def _joined(lines: Iterator[tuple[int, str, bool]]) -> Iterator[tuple[int, str]]:
    """Lines with those that end in a backslash joined to the next; of a console only those with a prompt."""
    first, so_far = 0, ""
    for number, line, is_console in lines:
        if is_console and not so_far and not line.startswith("$ "):
            continue
        first = first or number
        if line.endswith("\\"):
            so_far += line[:-1].rstrip() + " "
            continue
        yield first, so_far + line
        first, so_far = 0, ""


#: Commands that are not run (a pattern that the whole command fits), and why. Their words are still parsed.
NOT_RUN = {
    r"\S*\btox .*": "tox installs 3.5 GB; CI begins with it",
    r"rocjitsu .*": "ROCm's emulator is no part of the lock",
    r".*--target device(:\w+)?\b.*": "takes a GPU",
    r"capmatrix exec (?!--dry-run).*": "becomes a server",
    r"python -m capmatrix\.engine\.standalone .*": "tests/engine/test_repro_scripts.py does, on a script of repro",
    r"capmatrix bisect .*": "starts a worker server for every set of switches; tests/engine/test_bisect_cells.py does",
}

#: Commands that ask the installed vLLM, in worker processes.
ENGINE = r"capmatrix (run|default|guard|golden|bundle)\b.*|pytest .*"

#: Where an example ends with another status than 0, as its page says.
ENDS_WITH = {
    "capmatrix guard --table defaults.toml --arch gfx950 --runner v1 --target-backend TRITON_ATTN": 1,
    "capmatrix guard --table defaults.toml --arch gfx950": 1,
    "capmatrix guard --table defaults.toml --arch gfx950 --pairs": 1,
    "pytest defaults.toml --guard-arch gfx950": 1,
}


def all_shown() -> list[Shown]:
    """Every command of every page."""
    return [one for page in PAGES for one in shown(page.read_text(encoding="utf-8"), page.name)]


def sorted_out() -> tuple[list[str], list[str], list[str]]:
    """The different commands: those that are quick, those that ask vLLM, those that are not run."""
    texts = list(dict.fromkeys(one.text for one in all_shown()))
    left = [text for text in texts if any(re.fullmatch(pattern, text) for pattern in NOT_RUN)]
    engine = [text for text in texts if text not in left and re.fullmatch(ENGINE, text)]
    return [text for text in texts if text not in (*left, *engine)], engine, left


def tutorial_matrix() -> str:
    """The matrix file that the tutorial has its reader write."""
    (found,) = re.findall(r"^```toml\n(.*?)^```", (ROOT / "docs" / "tutorial.md").read_text(), re.MULTILINE | re.DOTALL)
    return str(found)


def prepare(folder: Path) -> None:
    """Make the files that examples name."""
    shutil.copytree(ROOT / "matrices", folder / "matrices", ignore=shutil.ignore_patterns("results"))
    (folder / "matrices" / "results").symlink_to(ROOT / "matrices" / "results")
    shutil.copytree(ROOT / "docs", folder / "docs")
    shutil.copy(ROOT / "README.md", folder / "README.md")
    (folder / "first.toml").write_text(tutorial_matrix(), encoding="utf-8")
    _run(folder / "first.jsonl", _first(), {"matrix": "first", "files": ["first.toml"]})
    records, _, header = seed_run()
    _run(folder / "run.jsonl", records, header)
    _run(folder / "old.jsonl", records, header)
    better = [r if r.verdict is not Verdict.WRONG else record(r.cell) for r in records]
    _run(folder / "new.jsonl", better, header)
    with RunWriter(folder / "pairs.jsonl", {"matrix": "pairs"}) as writer:
        for pair in (recorded(), refused()):
            writer.pair(pair)
    (folder / "runs").mkdir()
    for name in ("old", "new"):
        shutil.copy(folder / f"{name}.jsonl", folder / "runs" / f"{name}.jsonl")
    published = ["--published", "vllm-47882-minimax-m3-eagle3", "--arch", "any"]
    assert cli.main(["derive", *published, "-o", str(folder / "defaults.toml")]) == 0
    shutil.copy(folder / "defaults.toml", folder / "new-defaults.toml")
    assert cli.main(["report", str(folder / "run.jsonl"), "-o", str(folder / "SUPPORT.md")]) == 0
    assert cli.main(["expect", str(folder / "new.jsonl"), "-o", str(folder / "expectations.toml")]) == 0
    known = folder / "expectations" / "first.toml"
    known.parent.mkdir()
    assert cli.main(["expect", str(folder / "first.jsonl"), "-o", str(known)]) == 0
    config = '{"architectures": ["LlamaForCausalLMEagle3"], "num_attention_heads": 64, "num_key_value_heads": 64,'
    config += ' "hidden_size": 6144, "head_dim": 128, "num_hidden_layers": 1, "model_type": "llama"}\n'
    (folder / "config.json").write_text(config, encoding="utf-8")
    (folder / "attention_backends.md").write_text(_VLLM_PAGE, encoding="utf-8")
    shutil.copy(ROOT / "matrices" / "golden" / "selection-vllm-0.32.json", folder / "before.json")


def _first() -> list[Record]:
    """The tutorial's eight records."""
    out = []
    for target in ("offline:gfx942", "interpreter:gfx942"):
        for backend in BACKENDS[:2]:
            for dtype in ("auto", "fp8_e5m2"):
                one = cell(target=target, backend=backend, block_size=64, kv_cache_dtype=dtype)
                if target.startswith("interpreter") and dtype == "fp8_e5m2":
                    check = Check("write", False, "nan", detail="the cache holds float8_e4m3fnuz")
                    why = ("write: the cache holds float8_e4m3fnuz, not the float8_e5m2 that was asked for",)
                    out.append(record(one, Verdict.WRONG, phase=Phase.COMPARE, reasons=why, checks=(check,)))
                else:
                    flags = (Flag.FALLBACK,) if backend == "ROCM_ATTN" else ()
                    out.append(record(one, flags=flags))
    return out


def _run(path: Path, records: list[Record], header: dict[str, object]) -> None:
    targets = dict.fromkeys(r.cell.target for r in records if r.environment)
    with RunWriter(path, {**HEADER, **header}) as writer:
        for target in targets:
            writer.environment(environment(target))
        for each in records:
            writer.record(each)


_VLLM_PAGE = """\
## Standard Attention (MHA, MQA, GQA) Backends

| Backend | Version | Dtypes | KV Dtypes | Block Sizes | Head Sizes | Sink | Attention Types | Compute Cap. |
| ------- | ------- | ------ | --------- | ----------- | ---------- | ---- | --------------- | ------------ |
| `ROCM_ATTN` | | fp16, bf16, fp32 | `auto`, `fp8`, `fp8_e5m2` | %16 | 64, 128 | no | Decoder | N/A |
"""
