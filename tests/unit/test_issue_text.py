"""Bug reports: the sections that vLLM's tracker asks for, the record's facts, and text from elsewhere kept inert."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import samples
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import cell, environment, failure, record, rich_record, seed_run
from test_markdown import HOSTILE, outside_code
from test_pair import refused
from test_repro import MLA, written

from capmatrix import cli
from capmatrix.analysis.neighbour import nearest
from capmatrix.cell import Check, Claim, Failure, Flag, Force, Kernel, Phase, Record, Rung, Verdict
from capmatrix.errors import InputError
from capmatrix.report.markdown import COMMENT_LIMIT
from capmatrix.repro.issue import fenced, issue, title
from capmatrix.repro.script import script

#: The sections of vLLM's form for bugs, in its order.
FORM = ["### Your current environment", "### 🐛 Describe the bug"]
OURS = ["#### To reproduce", "#### Expected", "#### Actual", "#### Evidence", "#### Nearest passing neighbour"]


def rich() -> str:
    records, environments, header = seed_run()
    one = rich_record()
    return issue(one, environments[one.environment], header, nearest(one, records, environments))


def prose(text: str) -> list[str]:
    """The lines outside fenced blocks, without their code spans, as CommonMark finds both."""
    out, fence = [], ""
    for line in text.splitlines():
        opened = re.fullmatch(r"(`{3,})[^`]*", line)
        if fence:
            fence = "" if line == fence else fence
        elif opened:
            fence = opened[1]
        else:
            out.append(outside_code(line))
    assert not fence, "a fenced block is not closed"
    return out


def test_it_has_the_sections_of_the_form_in_their_order() -> None:
    headings = [line for line in prose(rich()) if line.startswith("#")]
    assert headings == [*FORM, *OURS]


def test_it_has_the_facts_of_the_record() -> None:
    text = rich()
    for fact in (
        "vllm: 0.32.0",
        "triton: 3.7.1",
        "platform arch: gfx950",
        "`forward: relative L2 0.55 over the bound 0.0042`",
        "`the writer stores e4m3, the readers view e5m2`",
        "Seen in Triton's interpreter, without a GPU.",
        "kernel blocks of 64 tokens",
        "| `kernel_paged_attention_2d` | `forward` | `triton` | 32 KiB | 258 | 0 |",
        "| **off** | `zeroed` | 0.55 | 0.0042 | 0.81 | 0.0017 |",
        "pytest matrices/eagle3-llama.toml::interpreter:gfx950-ROCM_ATTN-b64-fp8_e5m2",
        "Passes (interpreted): `interpreter:gfx950-ROCM_ATTN-b128-auto-",
        "It differs in 2 axes:",
        "| KV cache dtype | `fp8_e5m2` | `auto` |",
    ):
        assert fact in text, fact


def test_the_script_is_inline_and_whole() -> None:
    inside = re.search(r"<details>\n<summary>[^\n]*</summary>\n\n```python\n(.*?)```\n\n</details>", rich(), re.DOTALL)
    assert inside is not None and inside[1] == script(rich_record())


def test_an_exception_has_its_frames() -> None:
    one = record(cell(), Verdict.ERROR, failure=failure(message="query and key dtype differ\nsecond line"))
    text = issue(one, environment("offline:gfx942"))
    assert "```text\nAssertionError: query and key dtype differ\nsecond line\n```" in text
    assert "Deepest frame: `vllm/model_executor/layers/attention/attention.py:412 in forward`" in text
    assert "rocm_aiter_unified_attn.py:188 in forward" in text
    assert "the backend's own validation accepts" in text


def test_a_death_has_its_signal_and_the_end_of_its_output() -> None:
    died = Failure("WorkerDied", "the worker died", signal="SIGSEGV", exit_code=-11, stderr_tail="one\ntwo")
    text = issue(record(cell(), Verdict.CRASH, failure=died), None)
    assert "`signal SIGSEGV, exit code -11`" in text and "one\ntwo" in text


def test_a_machine_of_another_vendor_is_named() -> None:
    hardware = {"vendor": "nvidia", "name": "NVIDIA H200"}
    one = record(cell(target="device:gfx950"), Verdict.WRONG, rung=Rung.EXECUTED)
    text = issue(one, environment("device:gfx950", hardware=hardware))
    assert "Seen on `NVIDIA H200 with a ROCm gfx950 identity`." in text


@pytest.mark.parametrize(
    ("one", "says"),
    [
        (record(cell(), Verdict.WRONG), "within its bound"),
        (record(cell(), Verdict.REJECTED), "takes this configuration"),
        (record(cell(), flags=(Flag.NAN_UNSAFE,)), "does not matter, NaN included"),
        (record(cell(), Verdict.TIMEOUT), "the call ends well"),
        (
            record(cell(force=Force.VALIDATION), claims=(Claim("validation", False),)),
            "its validation passed over, the numbers are right",
        ),
    ],
)
def test_what_is_expected_follows_the_verdict(one: Record, says: str) -> None:
    text = issue(one, None)
    assert says in text[text.index("#### Expected") : text.index("#### Actual")]


@pytest.mark.parametrize(
    "one",
    [record(), record(cell(), Verdict.UNAVAILABLE), record(cell(), Verdict.UNVERIFIED), refused()],
)
def test_what_is_no_bug_has_no_report(one: Any) -> None:
    with pytest.raises(InputError):
        issue(one, None)


def test_where_no_script_is_possible_it_says_why() -> None:
    text = issue(record(cell(geometry=MLA, backend="TRITON_MLA"), Verdict.ERROR), None)
    assert "No standalone script: latent attention (MLA)" in text and "```python" not in text


def test_without_a_neighbour_it_says_so() -> None:
    assert "None: no cell of the run passes" in issue(record(cell(), Verdict.ERROR), None)


def test_the_title_names_what_matters() -> None:
    one = record(cell(batch="verify"), Verdict.WRONG)
    assert title(one) == "[Bug]: ROCM_ATTN, block 128, fp8 KV cache, verify: wrong numbers (gfx942)"
    assert issue(one, None).startswith(f"<!-- Title: {title(one)} -->\n")


def evil_issue(evil: str, verdict: Verdict) -> str:
    c = cell(target=evil, drafter=evil, switches=((evil, evil),))
    died = Failure(evil, evil, evil, (evil, evil), 1, evil, evil)
    one = record(
        c, verdict, cell_id=evil, reasons=(evil, evil), failure=died, route=(Kernel(evil, evil, evil, detail=evil),),
        claims=(Claim(evil, True, evil, {evil: evil}),), implementation=evil, layout=evil, graph_support=evil,
        checks=(Check("forward", False, evil, detail=evil), Check(evil, None)), phase=Phase.FORWARD, rung=Rung.COMPILED,
    )  # fmt: skip
    passing = record(cell(drafter=evil + "x", target=evil), cell_id=f"{evil}-other", rung=Rung.COMPILED)
    env = environment(
        evil, versions={"vllm": evil, evil: evil}, hardware={evil: evil, "name": evil}, identity={evil: evil},
        extensions=(evil,), switches={evil: evil}, commits={evil: evil},
    )  # fmt: skip
    return issue(one, env, {"matrix": evil, "preset": evil}, nearest(one, [passing]))


@pytest.mark.parametrize("verdict", [Verdict.WRONG, Verdict.ERROR])
@pytest.mark.parametrize("evil", HOSTILE)
def test_hostile_text_does_nothing(evil: str, verdict: Verdict) -> None:
    harmless, drawn = evil_issue("fine", verdict), evil_issue(evil, verdict)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u200b\u202a-\u202e\u2066-\u2069\ufeff]", drawn)
    shapes = [[line.strip("| ") and re.sub(r"\s+", " ", line) for line in prose(text)] for text in (harmless, drawn)]
    assert shapes[1] == shapes[0]


@pytest.mark.parametrize("evil", HOSTILE)
def test_hostile_names_of_checks_do_nothing(evil: str) -> None:
    shapes = [prose(issue(record(cell(), Verdict.WRONG, checks=(Check(e, False),)), None)) for e in ("fine", evil)]
    assert "No standalone script" in "\n".join(shapes[0]) and shapes[1] == shapes[0]


@settings(deadline=None, max_examples=50)
@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=60).filter(lambda text: text.strip()))
def test_any_text_does_nothing(evil: str) -> None:
    drawn = evil_issue(evil, Verdict.ERROR)
    headings = [line for line in prose(drawn) if line.startswith("#")]
    assert headings == [*FORM, *OURS]
    assert [line for line in prose(drawn) if "details>" in line].count("</details>") == drawn.count("\n<details>\n")


@pytest.mark.parametrize("inside", [["```"], ["`````", "x"], ["a ```` b"], []])
def test_a_fence_is_longer_than_what_it_holds(inside: list[str]) -> None:
    first, *rest, last = fenced(inside).splitlines()
    assert rest == inside and first.startswith(last) and all(last not in line for line in inside)


def test_a_long_record_stays_below_what_github_takes() -> None:
    long = "x" * 100_000
    died = Failure(long, "\n".join([long] * 500), long, (long,) * 500, 1, long, "\n".join([long] * 500))
    one = record(
        cell(), Verdict.ERROR, reasons=(long,) * 500, failure=died, claims=(Claim(long, True, long),) * 500,
        route=(Kernel(long, long, long, detail=long),) * 500, checks=(Check(long, False, long, detail=long),) * 500,
    )  # fmt: skip
    env = environment("offline:gfx942", versions={f"{i}{long}": long for i in range(500)}, extensions=(long,) * 500)
    assert len(issue(one, env, {"matrix": long})) < COMMENT_LIMIT


def test_the_command_prints_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = record(cell(), Verdict.ERROR, failure=failure())
    good = record(cell(kv_cache_dtype="auto"))
    run = str(written(tmp_path / "run.jsonl", [bad, good], (samples.environment("offline:gfx942"),)))
    assert cli.main(["issue", bad.cell_id, run]) == 0
    said = capsys.readouterr().out
    assert good.cell_id in said and "vllm: 0.32.0" in said and "| KV cache dtype | `fp8` | `auto` |" in said
    assert cli.main(["issue", bad.cell_id, run, "-o", str(tmp_path / "issue.md")]) == 0
    assert (tmp_path / "issue.md").read_text(encoding="utf-8") == said
    assert cli.main(["issue", good.cell_id, run]) == 2
    assert "there is no bug to report" in capsys.readouterr().err
