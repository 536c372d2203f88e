"""What ``capmatrix default`` understands of a pair, and how it says what it does not; nothing is set up here."""

from __future__ import annotations

import argparse

import pytest
from test_pair import recorded

from capmatrix import cli
from capmatrix.cell import Environment
from capmatrix.commands import pairs
from capmatrix.errors import InputError
from capmatrix.pair import Pair, PairRecord

WORDS = ["default", "--arch", "gfx942", "--drafter", "minimax-m3-eagle3", "--target-model", "minimax-m3", "--tp", "4"]


def parsed(*words: str) -> argparse.Namespace:
    return cli._parser().parse_args([*WORDS, *words])


def test_options_make_the_pair() -> None:
    made = pairs.asked(
        parsed(
            *("--target-backend", "TRITON_ATTN", "--drafter-backend", "ROCM_ATTN", "--block-size", "128"),
            *("--kv-cache-dtype", "fp8", "--draft-kv-cache-dtype", "auto", "--num-speculative-tokens", "5"),
            *("--runner", "v1", "--switch", "VLLM_ROCM_USE_AITER=1"),
        )
    )
    assert (made.target, made.tp, made.block_size, made.runner) == ("offline:gfx942", 4, 128, "v1")
    assert (made.target_model.family, made.target_model.backend) == ("minimax-m3", "TRITON_ATTN")
    assert (made.drafter.family, made.drafter.backend) == ("minimax-m3-eagle3", "ROCM_ATTN")
    assert (made.kv_cache_dtype, made.draft_kv_cache_dtype, made.num_speculative_tokens) == ("fp8", "auto", 5)
    assert made.switches == (("VLLM_ROCM_USE_AITER", "1"),)


def test_what_is_not_given_is_left_to_vllm() -> None:
    made = pairs.asked(parsed())
    assert (made.target_model.backend, made.drafter.backend, made.block_size) == (None, None, None)
    assert (made.draft_kv_cache_dtype, made.runner, made.num_speculative_tokens) == (None, "auto", 2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sinks"], "--sinks: not of a pair"),
        (["--sliding-window", "128"], "--sliding-window: not of a pair"),
        (["--non-causal"], "--non-causal: not of a pair"),
        (["--kv-connector", "NixlConnector"], "--kv-connector: not of a pair"),
        (["--dcp", "2"], "--dcp: not of a pair"),
        (
            ["--target-model", "minimax-m4"],
            "--target-model: unknown value (got 'minimax-m4'); did you mean 'minimax-m3'?",
        ),
        (["--drafter", "minimax-m3-eagel3"], "--drafter: unknown value"),
        (["--drafter", "deepseek-mtp"], "--drafter: an MTP drafter is a layer of its target, and minimax-m3's differ"),
        (["--tp", "3"], "--tp: the target's heads do not split over this many ranks"),
        (["--kv-cache-dtype", "fp9"], "--kv-cache-dtype: unknown value"),
        (["--draft-kv-cache-dtype", "fp9"], "--draft-kv-cache-dtype: unknown value"),
        (["--target-backend", "TRITON_ATN"], "--target-backend: unknown value"),
    ],
)
def test_a_mistake_names_the_option(words: list[str], said: str) -> None:
    with pytest.raises(InputError) as caught:
        pairs.asked(parsed(*words))
    assert str(caught.value).startswith(said)


def test_options_of_a_pair_need_a_target_model(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["default", "--arch", "gfx942", "--drafter", "minimax-m3-eagle3", "--num-speculative-tokens", "2"]
    assert cli.main(words) == 2
    assert "--num-speculative-tokens: says something of a pair; name its --target-model" in capsys.readouterr().err


def test_how_to_run_it_again_is_the_command_itself(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def set_up(wanted: list[Pair], aiter: str) -> tuple[list[PairRecord], dict[str, Environment]]:
        return [recorded(wanted[0])], {}

    monkeypatch.setattr(pairs, "set_up", set_up)
    assert cli.main([*WORDS, "--block-size", "128", "--switch", "VLLM_ROCM_USE_AITER=1"]) == 0
    said = capsys.readouterr().out
    assert said.rstrip().endswith(
        "capmatrix default --arch gfx942 --drafter minimax-m3-eagle3 --target-model minimax-m3 --tp 4 "
        "--block-size 128 --switch VLLM_ROCM_USE_AITER=1"
    )
    assert "Target" in said and "Drafter" in said
