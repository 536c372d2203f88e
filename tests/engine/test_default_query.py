"""What the installed vLLM 0.32 selects, asked of its own platform and loaders: the facts the guard stands on."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import msgspec
import pytest

from capmatrix import drafters
from capmatrix.cell import Geometry, MlaGeometry, Role
from capmatrix.guard import golden
from capmatrix.guard import judge as guard
from capmatrix.guard.defaults_query import Selector
from capmatrix.guard.family_question import Server, question
from capmatrix.guard.questions import Answer, Question
from capmatrix.vocabulary import ARCHITECTURES, ROCM_BACKENDS

pytestmark = [pytest.mark.engine, pytest.mark.slow]

FAMILIES = drafters.load(drafters.DEFAULT_DIR)
LAYER = Geometry(16, 16, 128)
FEW = Geometry(8, 1, 128)
SWITCHED = (("VLLM_ROCM_USE_AITER", "1"),)
METHODS = ("eagle", "eagle3", "mtp", "dflash", "dspark", "draft_model")


def changed(**changes: Any) -> Geometry:
    return msgspec.structs.replace(LAYER, **changes)


def target(arch: str = "gfx942", geometry: Geometry = LAYER, **more: Any) -> Question:
    return Question(arch, geometry, **{"block_size": 128, "kv_cache_dtype": "fp8", **more})


def drafter(method: str, runner: str = "v2", backend: str = "", **more: Any) -> Question:
    fields = {"role": Role.DRAFTER, "method": method, "num_speculative_tokens": 1, "runner": runner}
    geometry = changed(causal=method not in ("dflash", "dspark"))
    return target(geometry=geometry, **fields, target_backend=backend, **more)


class Asks:
    """Asks without an AITER, or with the installed one; each question once."""

    def __init__(self) -> None:
        self.without, self.installed = Selector("none"), Selector()

    def __call__(self, one: Question, *, aiter: bool = False) -> Answer:
        return (self.installed if aiter else self.without).ask([one])[one]


@pytest.fixture(scope="module")
def ask() -> Iterator[Asks]:
    if find_spec("vllm") is None:
        pytest.skip("vLLM is not installed")
    made = Asks()
    with made.without, made.installed:
        yield made


def test_the_default_of_a_plain_decoder_layer_on_every_architecture(ask: Asks) -> None:
    plain = {arch: target(arch, kv_cache_dtype="auto") for arch in ARCHITECTURES}
    int8 = {arch: target(arch, kv_cache_dtype="int8_per_token_head") for arch in ARCHITECTURES}
    answers = ask.without.ask([*plain.values(), *int8.values()])
    assert {arch: answers[q].backend for arch, q in plain.items()} == dict.fromkeys(ARCHITECTURES, "ROCM_ATTN")
    assert {arch: answers[q].backend for arch, q in int8.items()} == dict.fromkeys(ARCHITECTURES, "TRITON_ATTN")
    one = answers[plain["gfx942"]]
    assert [tried.backend for tried in one.tried] == ["ROCM_ATTN", "TRITON_ATTN", "TURBOQUANT", "ULTRAQUANT"]
    assert list(one.reasons) == ["TURBOQUANT", "ULTRAQUANT"] and one.source == "priority" and one.runner == "v2"


@pytest.mark.parametrize(
    ("one", "reason"),
    [
        (target(geometry=changed(sinks=True)), "attention sinks not supported"),
        (target(geometry=changed(head_size=72)), "head_size not supported"),
        (target(geometry=changed(head_size=512)), "head_size not supported"),
    ],
)
def test_what_rocm_attn_refuses_falls_to_triton(one: Question, reason: str, ask: Asks) -> None:
    answer = ask(one)
    assert answer.backend == "TRITON_ATTN"
    assert reason in answer.reasons["ROCM_ATTN"]


def test_a_connector_takes_rocm_attn_off_the_list(ask: Asks) -> None:
    answer = ask(target(kv_connector="NixlConnector"))
    assert answer.backend == "TRITON_ATTN" and "ROCM_ATTN" not in [tried.backend for tried in answer.tried]


@pytest.mark.parametrize("one", [target(geometry=FEW, dcp=2, tp=8, total_kv_heads=4), target(block_size=8)])
def test_where_nothing_is_selected_the_error_is_vllms(one: Question, ask: Asks) -> None:
    answer = ask(one)
    assert (answer.backend, answer.stage) == ("", "select")
    assert answer.error.startswith("No valid attention backend found for rocm")
    assert set(answer.reasons) == {"ROCM_ATTN", "TRITON_ATTN", "TURBOQUANT", "ULTRAQUANT"}


def test_a_configuration_that_vllm_refuses_says_why(ask: Asks) -> None:
    answer = ask(target(dcp=2, tp=8, total_kv_heads=64))
    assert (answer.backend, answer.stage) == ("", "configure") and "Decode context parallelism" in answer.error
    assert "input_value" not in answer.error


@pytest.mark.parametrize("block", [None, 16, 64, 544])
def test_the_block_size_changes_no_selection(block: int | None, ask: Asks) -> None:
    assert ask(target(block_size=block)).backend == "ROCM_ATTN"


def test_latent_attention_selects_its_own_backends(ask: Asks) -> None:
    latent = Geometry(16, 1, 576, mla=MlaGeometry(512, 128, 64, 128))
    answer = ask(target(geometry=latent))
    assert answer.backend == "TRITON_MLA" and [tried.backend for tried in answer.tried] == ["TRITON_MLA"]


def test_aiter_is_the_default_on_gfx1201_only_with_its_switch(ask: Asks) -> None:
    assert ask(target("gfx1201", switches=SWITCHED), aiter=True).backend == "ROCM_AITER_UNIFIED_ATTN"
    assert ask(target("gfx1201", switches=SWITCHED)).backend == "ROCM_ATTN"
    assert ask(target("gfx1201"), aiter=True).backend == "ROCM_ATTN"
    # On CDNA it is a candidate behind ROCM_ATTN, whatever the switch says.
    answer = ask(target("gfx950"), aiter=True)
    assert answer.backend == "ROCM_ATTN"
    assert [tried.backend for tried in answer.tried][:3] == ["ROCM_ATTN", "ROCM_AITER_UNIFIED_ATTN", "TRITON_ATTN"]


@pytest.mark.parametrize("method", ["eagle", "eagle3", "mtp"])
def test_v2_lets_a_drafter_inherit_where_none_is_given_and_v1_never(method: str, ask: Asks) -> None:
    inherits = ask(drafter(method, "v2", "TRITON_ATTN"))
    assert (inherits.backend, inherits.source) == ("TRITON_ATTN", "inherited")
    assert inherits.loader in ("EagleSpeculator", "MTPSpeculator")
    unset = ask(drafter(method, "v2"))
    assert (unset.backend, unset.source, unset.configured) == ("ROCM_ATTN", "priority", "")
    never = ask(drafter(method, "v1", "TRITON_ATTN"))
    assert (never.backend, never.source, never.loader) == ("ROCM_ATTN", "priority", "EagleProposer")
    assert never.default_runner == "v2"


def test_the_default_runner_is_v2_unless_its_switch_says_otherwise(ask: Asks) -> None:
    assert ask(drafter("eagle3", "", "TRITON_ATTN")).backend == "TRITON_ATTN"
    off = drafter("eagle3", "", "TRITON_ATTN", switches=(("VLLM_USE_V2_MODEL_RUNNER", "0"),))
    answer = ask(off)
    assert (answer.runner, answer.default_runner, answer.backend) == ("v1", "v1", "ROCM_ATTN")


@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_dflash_selects_by_itself(runner: str, ask: Asks) -> None:
    answer = ask(drafter("dflash", runner, "TRITON_ATTN"))
    assert (answer.backend, answer.source) == ("ROCM_ATTN", "priority")


def test_dspark_inherits_only_for_deepseek_v4_and_has_no_v1(ask: Asks) -> None:
    assert ask(drafter("dspark", "v2", "TRITON_ATTN")).backend == "ROCM_ATTN"
    v4 = ask(drafter("dspark", "v2", "TRITON_ATTN", draft_model_type="deepseek_v4"))
    assert (v4.backend, v4.source, v4.loader) == ("TRITON_ATTN", "inherited", "DSparkSpeculator")
    refused = ask(drafter("dspark", "v1"))
    assert (refused.backend, refused.stage) == ("", "configure") and "dspark" in refused.error


def test_a_layer_that_is_not_causal_is_told_to_the_selector(ask: Asks) -> None:
    # ROCM_AITER_UNIFIED_ATTN alone refuses it.
    named = {"target_backend": "ROCM_AITER_UNIFIED_ATTN"}
    refused = ask(target(geometry=changed(causal=False), **named))
    assert refused.backend == "" and "non-causal attention not supported" in refused.error
    assert ask(target(**named)).backend == "ROCM_AITER_UNIFIED_ATTN"


@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_dflash_is_causal_as_its_own_configuration_says(runner: str, ask: Asks) -> None:
    one = drafter("dflash", runner, drafter_backend="ROCM_AITER_UNIFIED_ATTN")
    assert "non-causal attention not supported" in ask(one).error
    causal = msgspec.structs.replace(one, geometry=LAYER)
    assert ask(causal).backend == "ROCM_AITER_UNIFIED_ATTN"


@pytest.mark.parametrize("runner", ["v1", "v2"])
@pytest.mark.parametrize("method", METHODS)
def test_an_explicit_choice_for_a_drafter_wins_or_is_refused_with_reasons(method: str, runner: str, ask: Asks) -> None:
    asked = [drafter(method, runner, "TRITON_ATTN", drafter_backend=backend) for backend in ROCM_BACKENDS]
    answers = ask.without.ask(asked)
    option = "speculative_config.attention_backend"
    found = [guard.judge_choice(b, option, q, answers[q]) for b, q in zip(ROCM_BACKENDS, asked, strict=True)]
    without_effect = {one.backend for one in found if one.status is guard.Status.IGNORED}
    if (method, runner) == ("draft_model", "v2"):
        # vllm 0.32: StandaloneARSpeculator.load_draft_model passes the target's attention_config on.
        assert without_effect == {*ROCM_BACKENDS} - {"TRITON_ATTN"}
    else:
        assert without_effect == set()
        if (method, runner) != ("dspark", "v1"):
            assert answers[asked[ROCM_BACKENDS.index("ROCM_ATTN")]].source == "explicit"
            assert "ULTRAQUANT" not in {answer.backend for answer in answers.values()}


def test_an_explicit_choice_for_a_target_wins_or_is_refused_with_reasons(ask: Asks) -> None:
    for backend in ROCM_BACKENDS:
        one = target(target_backend=backend)
        answer = ask(one)
        assert guard.judge_choice(backend, "--attention-backend", one, answer).status is guard.Status.AGREES
        assert answer.backend == backend or (answer.stage == "select" and "Reason" in answer.error)


def test_the_seeds_command(ask: Asks) -> None:
    family = FAMILIES["minimax-m3-eagle3"]

    def backend(**server: str) -> str:
        return ask(question(family, "gfx950", 128, "fp8", "auto", Server(**server)), aiter=True).backend

    assert backend(target_backend="TRITON_ATTN") == "TRITON_ATTN"
    assert backend() == "ROCM_ATTN"
    assert backend(runner="v1", target_backend="TRITON_ATTN") == "ROCM_ATTN"


@pytest.mark.parametrize("key", sorted(FAMILIES))
def test_every_family_can_be_asked(key: str, ask: Asks) -> None:
    answer = ask(question(FAMILIES[key], "gfx942", FAMILIES[key].forced_block_size or 64, "auto", "auto", Server()))
    assert answer.backend, answer.error


def test_the_committed_snapshot_is_what_is_installed(ask: Asks) -> None:
    lines = list(golden.lines(golden.SETTINGS[0], ["gfx942"]))
    answers = ask.without.ask(q for line in lines for _, q in line.questions)
    old = golden.load(golden.path_of(ask.without.versions()["vllm"]))
    new = {line.key: golden.value(line, answers) for line in lines}
    kept = {key: value for key, value in old.choices.items() if key in new}
    assert new == kept
