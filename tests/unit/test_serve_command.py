"""``vllm serve`` command lines: what they set, and additions that change nothing a user set."""

from __future__ import annotations

import json
import shlex

import pytest

from capmatrix.errors import InputError
from capmatrix.selection import serve_command
from capmatrix.selection.serve_command import SPECULATIVE, add_drafter_backend, add_target_backend, parse

SPEC = '{"method":"eagle3","model":"Inferact/MiniMax-M3-EAGLE3","num_speculative_tokens":2}'


def words(text: str) -> list[str]:
    return shlex.split(text)


@pytest.mark.parametrize(
    "text",
    [
        "--block-size 128",
        "--block-size=128",
        "--block_size 128",
        "--block_size=128",
        "--block-size 16 --block-size 128",
    ],
)
def test_a_flag_in_each_of_its_forms(text: str) -> None:
    assert parse(words(f"vllm serve m {text}")).values["--block-size"] == "128"


def test_short_flags() -> None:
    given = parse(["vllm", "serve", "m", "-tp", "4", "-sc", SPEC])
    assert given.values["--tensor-parallel-size"] == "4" and given.nested[SPECULATIVE]["method"] == "eagle3"


def test_words_after_a_double_dash_are_not_flags() -> None:
    assert parse(words("vllm serve m -- --block-size 128")).values == {}


def test_the_seeds_command_gets_one_key_and_keeps_the_rest() -> None:
    command = ["vllm", "serve", "m", "--block-size", "128", SPECULATIVE, SPEC, "--no-async-scheduling"]
    found = add_drafter_backend(command, "TRITON_ATTN")
    assert found is not None and found.option == "speculative_config.attention_backend"
    assert found.words[:6] == command[:6] and found.words[7:] == command[7:]
    assert found.words[6] == SPEC[:-1] + ', "attention_backend": "TRITON_ATTN"}'
    assert json.loads(found.words[6]) == json.loads(SPEC) | {"attention_backend": "TRITON_ATTN"}
    assert command[6] == SPEC


@pytest.mark.parametrize("spec", ["{}", " { } ", '{"model": "a}b", "x": {"y": 1}}\n'])
def test_any_json_object_stays_one(spec: str) -> None:
    for command, at in ((["vllm", "serve", SPECULATIVE, spec], 3), (["vllm", "serve", f"{SPECULATIVE}={spec}"], 2)):
        found = add_drafter_backend(command, "X")
        assert found is not None
        value = found.words[at].removeprefix(f"{SPECULATIVE}=")
        assert json.loads(value) == json.loads(spec) | {"attention_backend": "X"}


def test_dotted_keys_get_a_dotted_key() -> None:
    command = words(f"vllm serve m {SPECULATIVE}.method eagle3 {SPECULATIVE}.model=d")
    found = add_drafter_backend(command, "X")
    assert found is not None and found.words == [*command, f"{SPECULATIVE}.attention_backend", "X"]
    # Short and shorthand forms.
    for text in ("-sc.method eagle3", "--spec-method eagle3 --spec-model d"):
        found = add_drafter_backend(words(f"vllm serve m {text}"), "X")
        assert found is not None and found.words[-2:] == [f"{SPECULATIVE}.attention_backend", "X"]


def test_additions_stand_before_a_double_dash() -> None:
    found = add_target_backend(words("vllm serve m -- x"), "X")
    assert found is not None and found.words == words("vllm serve m --attention-backend X -- x")


@pytest.mark.parametrize(
    "text",
    [
        f"""{SPECULATIVE} '{{"method": "eagle3", "attention_backend": "ROCM_ATTN"}}'""",
        f"""{SPECULATIVE} '{{"method": "eagle3", "attention-backend": "ROCM_ATTN"}}'""",
        f"{SPECULATIVE}.method eagle3 {SPECULATIVE}.attention_backend ROCM_ATTN",
        "-sc.attention-backend ROCM_ATTN",
    ],
)
def test_a_drafter_backend_that_is_set_stays(text: str) -> None:
    assert add_drafter_backend(words(f"vllm serve m {text}"), "X") is None


def test_nothing_is_added_to_a_server_that_drafts_nothing() -> None:
    assert add_drafter_backend(words("vllm serve m --block-size 128"), "X") is None


@pytest.mark.parametrize(
    "text",
    [
        "--attention-backend TRITON_ATTN",
        "--attention_backend=TRITON_ATTN",
        "--attention-backend auto",
        """--attention-config '{"backend": "TRITON_ATTN"}'""",
        """-ac '{"backend_per_kind": {}}'""",
        "-ac.backend TRITON_ATTN",
    ],
)
def test_a_target_backend_that_is_set_stays(text: str) -> None:
    assert add_target_backend(words(f"vllm serve m {text}"), "X") is None


def test_a_target_backend_that_is_not_set_is_added() -> None:
    command = words("vllm serve m --block-size 128")
    found = add_target_backend(command, "TRITON_ATTN")
    assert found is not None and found.words == [*command, "--attention-backend", "TRITON_ATTN"]


@pytest.mark.parametrize("value", ["{", "[]", "eagle3", ""])
def test_a_configuration_that_is_no_object(value: str) -> None:
    with pytest.raises(InputError, match="speculative-config"):
        parse(["vllm", "serve", "m", SPECULATIVE, value])


def test_a_config_file_is_seen() -> None:
    assert parse(words("vllm serve --config c.yaml")).config_file and not parse(words("vllm serve m")).config_file


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("vllm serve m", True),
        ("/opt/bin/vllm serve m", True),
        ("python -m vllm.entrypoints.openai.api_server --model m", True),
        ("vllm bench serve", False),
        ("vllm bench latency", False),
        ("serve m", False),
        ("rm -r x", False),
    ],
)
def test_what_a_server_is(text: str, expected: bool) -> None:
    assert serve_command.is_serve(words(text)) is expected


def test_the_environment_keeps_what_is_set() -> None:
    wanted = [("A", "1"), ("B", "1")]
    environment, added = serve_command.set_environment({"A": "0", "C": "2"}, wanted)
    assert environment == {"A": "0", "B": "1", "C": "2"} and added == [("B", "1")]
