"""vLLM's choice of backend for one layer: configuration, the drafter's loader, the layer, the selector.

Everything is asked of vLLM: its configuration (``query_models``), the runner's loader (``draft_loader``), the
layer's own constructor, which asks the selector, and the real ``RocmPlatform``. The constructor is stopped
where it asks, so that a question costs a fraction of a millisecond once its configuration is there.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any
from unittest import mock

import msgspec
import pydantic

from .. import targets
from ..cell import Cell, Environment
from ..guard.questions import Answer, Question, Source, Tried
from . import bootstrap

#: Configurations kept; each holds a few hundred kilobytes.
_KEPT = 64
#: Characters of an error that are kept.
_MESSAGE = 2000


def open_session(target: str, switches: Mapping[str, str], options: Mapping[str, Any]) -> QuerySession:
    """Import vLLM for the target's architecture; called once, in the server.

    ``options``: ``aiter`` as for cells: a checkout's path, empty for the installed one, ``none`` for none.
    Raises Unavailable with the reason.
    """
    parsed = targets.parse(target)
    extensions = bootstrap.boot(parsed, switches, str(options.get("aiter") or ""))
    from . import environment

    return QuerySession(environment.collect(parsed, switches, extensions))


#: Native operators that vLLM's compiler (0.32) names while it is imported, and a CPU build lacks.
_COMPILER_OPERATORS = (
    "rms_norm_static_fp8_quant",
    "fused_add_rms_norm_static_fp8_quant",
    "rms_norm_dynamic_per_token_quant",
    "fused_qk_norm_rope",
    "silu_and_mul_quant",
    "silu_and_mul_per_block_quant",
)
_libraries: list[Any] = []


class QuerySession:
    """Answers questions of one architecture and switch set."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self._configured: OrderedDict[tuple[object, ...], _Configured] = OrderedDict()
        _preload()

    def ask(self, questions: Any) -> Any:
        """``Question``s as plain data to ``Answer``s as plain data, in order."""
        asked: list[Question] = msgspec.convert(questions, list[Question])
        return [msgspec.to_builtins(answer) for answer in self.answers(asked)]

    def answers(self, questions: Sequence[Question]) -> list[Answer]:
        """One answer a question, in their order; whatever vLLM raises is the answer."""
        from . import query_models

        answers: dict[int, Answer] = {}
        # Questions that share a configuration one after the other, so that few have to be kept.
        order = sorted(range(len(questions)), key=lambda i: repr(query_models.configuration_key(questions[i])))
        for i in order:
            answers[i] = self._answer(questions[i])
        return [answers[i] for i in range(len(questions))]

    def _answer(self, question: Question) -> Answer:
        configured = self._configured_for(question)
        answer = configured.failed or _select(question, configured)
        runner = answer.runner
        if question.runner:
            runner = self._configured_for(msgspec.structs.replace(question, runner="")).facts.get("runner", "")
        return msgspec.structs.replace(answer, default_runner=runner)

    def _configured_for(self, question: Question) -> _Configured:
        from . import query_models

        key = query_models.configuration_key(question)
        known = self._configured.get(key)
        if known is None:
            known = self._configured[key] = _configure(question)
            if len(self._configured) > _KEPT:
                self._configured.popitem(last=False)
        return known

    def run(self, cell: Cell, emit: Any) -> Any:
        """No cells run here."""
        raise RuntimeError("this server answers questions and runs no cells")


class _Configured(msgspec.Struct, frozen=True):
    """A layer's configuration as the server or the drafter's loader leaves it, or the answer where it failed."""

    config: Any = None
    facts: dict[str, Any] = {}
    failed: Answer | None = None


def _preload() -> None:
    """Import the backends, and register the model classes of ``query_models``, before workers are forked."""
    from vllm.model_executor.models.registry import ModelRegistry

    from . import bare_package, query_models

    bare_package.ensure("vllm.models.minimax_m3")
    plain = ModelRegistry.models["LlamaForCausalLM"].load_model_cls()
    for name in query_models.MODELS:
        with contextlib.suppress(Exception):
            ModelRegistry.register_model(name, ModelRegistry.models[name].load_model_cls())
    for name in query_models.STAND_INS:
        ModelRegistry.register_model(name, plain)
    query_models.read_each_config_once()
    _import_compiler()
    _paths()


def _import_compiler() -> None:
    """Import vLLM's compiler, where loaders mark which model they load.

    Its passes name native operators by their overloads, which stand-ins do not have: those that this build
    declares are uncovered meanwhile. What it does not declare is declared, without arguments, as a CPU build
    of vLLM does itself for the others.
    """
    import torch

    declared = {schema.name for schema in torch._C._jit_get_all_schemas()}
    library = torch.library.Library("_C", "FRAGMENT")
    _libraries.append(library)  # what it declared goes with it
    for name in _COMPILER_OPERATORS:
        if f"_C::{name}" not in declared:
            library.define(f"{name}() -> ()")
    names = vars(torch.ops._C)
    covered = {name: names.pop(name) for name, found in list(names.items()) if inspect.isfunction(found)}
    try:
        importlib.import_module("vllm.compilation.backends")
    finally:
        for name, found in covered.items():
            setattr(torch.ops._C, name, found)


@functools.cache
def _paths() -> dict[str, str]:
    """Backends of the registry by the path of their class, as the platform names what it selects."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    found: dict[str, str] = {}
    for backend in AttentionBackendEnum:
        with contextlib.suppress(Exception):
            found.setdefault(backend.get_path(), backend.name)
            backend.get_class()
    return found


def _configure(question: Question) -> _Configured:
    from . import draft_loader, query_models

    facts: dict[str, Any] = {}
    stage = "configure"
    try:
        with query_models.runner_set(question.runner):
            config = query_models.configure(question)
            v2 = config.use_v2_model_runner
            facts["runner"] = "v2" if v2 else "v1"
            if query_models.is_drafter(question):
                stage = "load"
                config, facts["loader"] = draft_loader.draft_config(config, v2)
    except Exception as error:
        return _Configured(failed=Answer("", stage=stage, error=_text(error), **facts))
    named = config.attention_config.backend
    facts["configured"] = named.name if named is not None else ""
    return _Configured(config, facts)


class _Asked(BaseException):
    """Thrown by the layer's constructor where it asks the selector, with what it asks."""

    def __init__(self, backend: Any, config: Any, num_heads: int | None) -> None:
        self.backend = backend
        self.config = config
        self.num_heads = num_heads


def _select(question: Question, configured: _Configured) -> Answer:
    from vllm.config import set_current_vllm_config
    from vllm.platforms import current_platform

    facts = configured.facts
    try:
        with set_current_vllm_config(configured.config):
            asked = _selector_question(question, configured.config)
            capability = current_platform.get_device_capability()
            # Some platforms change the list they are given; each call gets its own.
            valid, invalid = current_platform.get_valid_backends(
                device_capability=capability, attn_selector_config=asked.config, num_heads=asked.num_heads
            )
            tried = _in_order(valid, invalid)
            try:
                path = current_platform.get_attn_backend_cls(
                    asked.backend, attn_selector_config=asked.config, num_heads=asked.num_heads
                )
            except ValueError as error:
                return Answer("", _source(question, asked.backend), tried, stage="select", error=_text(error), **facts)
    except Exception as error:
        return Answer("", stage="select", error=_text(error), **facts)
    backend = _paths().get(path, path)
    wanted = _explicit(question)
    ignored = wanted if wanted and (backend != wanted or facts["configured"] != wanted) else ""
    return Answer(backend, _source(question, asked.backend), tried, ignored=ignored, **facts)


def _explicit(question: Question) -> str:
    from .query_models import is_drafter

    return question.drafter_backend if is_drafter(question) else question.target_backend


def _source(question: Question, backend: Any) -> Source:
    if backend is None:
        return "priority"
    return "explicit" if backend.name == _explicit(question) else "inherited"


def _in_order(valid: Sequence[tuple[Any, int]], invalid: Mapping[Any, Sequence[str]]) -> tuple[Tried, ...]:
    """The priority list: vLLM gives the places of valid backends, and the others in their order."""
    places = {place: backend.name for backend, place in valid}
    refused = iter(invalid.items())
    tried = []
    for place in range(len(valid) + len(invalid)):
        if place in places:
            tried.append(Tried(places[place]))
        else:
            backend, reasons = next(refused)
            tried.append(Tried(backend.name, tuple(str(reason) for reason in reasons)))
    return tuple(tried)


def _selector_question(question: Question, config: Any) -> _Asked:
    """What the layer's own constructor asks the selector; inside ``set_current_vllm_config(config)``."""
    import torch
    from vllm.v1.attention import selector

    def asked(backend: Any, attn_selector_config: Any, num_heads: int | None = None, **_: Any) -> Any:
        raise _Asked(backend, attn_selector_config, num_heads)

    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, question.dtype))
    try:
        with mock.patch.object(selector, "_cached_get_attn_backend", asked):
            _construct(question, config)
    except _Asked as found:
        return found
    finally:
        torch.set_default_dtype(before)
    raise RuntimeError("the layer was built without asking the selector")


def _construct(question: Question, config: Any) -> None:
    import torch
    from vllm.model_executor.layers.attention import Attention, MLAAttention

    g = question.geometry
    name = "model.layers.0.self_attn.attn"
    if g.mla is not None:
        m = g.mla
        MLAAttention(
            num_heads=g.num_heads, scale=1.0, qk_nope_head_dim=m.qk_nope_head_dim,
            qk_rope_head_dim=m.qk_rope_head_dim, v_head_dim=m.v_head_dim, q_lora_rank=m.q_lora_rank,
            kv_lora_rank=m.kv_lora_rank, kv_b_proj=None, cache_config=config.cache_config, prefix=name,
            non_causal_multi_token_decode=not g.causal,
        )  # fmt: skip
        return
    extra = {"sinks": torch.zeros(g.num_heads)} if g.sinks else {}
    Attention(
        g.num_heads, g.head_size, g.head_size**-0.5, num_kv_heads=g.num_kv_heads, cache_config=config.cache_config,
        logits_soft_cap=g.logits_soft_cap, per_layer_sliding_window=g.sliding_window, prefix=name, **extra,
    )  # fmt: skip


def _text(error: BaseException) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    text = " ".join(line.strip() for line in lines) or type(error).__name__
    if isinstance(error, pydantic.ValidationError):
        text = "; ".join(str(found["msg"]).removeprefix("Value error, ") for found in error.errors()) or text
    return text if len(text) <= _MESSAGE else text[: _MESSAGE - 3] + "..."
