"""The configuration that the model runner's own loader gives a drafter, seen where it asks for its weights.

The runner's own code builds the drafter's proposer (V1) or speculator (V2) and has it load its model; that
ends in ``get_model``, whose loader is stopped before it loads anything. What it was handed is the answer:
no rule of inheritance is repeated here (vllm 0.32, ``vllm/v1/spec_decode``, ``vllm/v1/worker/gpu/spec_decode``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

from . import bare_package


class _Handed(BaseException):
    """Thrown where weights would be loaded; not an Exception, so that no loader takes it for a failure."""

    def __init__(self, config: Any) -> None:
        self.config = config


class _Built(BaseException):
    """Thrown where the V1 runner has built its drafter."""


class _Loader:
    """Stands where a model loader would."""

    def load_model(self, vllm_config: Any, model_config: Any = None, prefix: str = "") -> Any:
        """Loads nothing."""
        raise _Handed(vllm_config)


class _OnlyRank:
    """A group of one, as far as the constructors ask; a worker that only answers joins no group."""

    is_last_rank = is_first_rank = True
    world_size = 1
    rank_in_group = 0


def draft_config(config: Any, v2: bool) -> tuple[Any, str]:
    """The drafter's ``VllmConfig`` and the name of the class that loads it. Raises what vLLM raises.

    ``config`` is the server's. Raises LookupError where the runner loads no model for the drafter.
    """
    bare_package.ensure("vllm.models.minimax_m3")
    from vllm.config import set_current_vllm_config

    with set_current_vllm_config(config), _stopped():
        drafter = _speculator(config) if v2 else _proposer(config)
        name = type(drafter).__name__
        if not hasattr(drafter, "load_model"):
            raise LookupError(f"{name} loads no model")
        try:
            drafter.load_model(None)
        except _Handed as handed:
            return handed.config, name
    raise LookupError(f"{name} loads no model")


@contextmanager
def _stopped() -> Iterator[None]:
    with (
        mock.patch("vllm.model_executor.model_loader.get_model_loader", lambda load_config: _Loader()),
        mock.patch("vllm.v1.worker.gpu.spec_decode.utils.get_pp_group", _OnlyRank),
    ):
        yield


def _speculator(config: Any) -> Any:
    from vllm.v1.worker.gpu.spec_decode import init_speculator

    return init_speculator(config, torch.device("cpu"), None)


def _proposer(config: Any) -> Any:
    """The V1 runner's drafter: its constructor runs until it has built it."""
    from vllm.v1.worker import gpu_model_runner

    runner = gpu_model_runner.GPUModelRunner.__new__(gpu_model_runner.GPUModelRunner)
    with (
        mock.patch.object(gpu_model_runner, "get_pp_group", _OnlyRank),
        mock.patch.object(gpu_model_runner, "RejectionSampler", side_effect=_Built),
    ):
        try:
            runner.__init__(config, torch.device("cpu"))
        except _Built:
            return runner.drafter
    raise LookupError("the V1 runner built no drafter")
