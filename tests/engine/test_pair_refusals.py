"""Which errors of a pair's set-up are vLLM's refusals, and which mean that something broke."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest

pytestmark = pytest.mark.engine

if find_spec("vllm") is None:
    pytest.skip("vLLM is not installed", allow_module_level=True)

from capmatrix.cell import Verdict  # noqa: E402

STACK = "/somewhere/site-packages/"


@pytest.fixture(scope="module")
def refusal() -> Callable[[Exception], tuple[Verdict, tuple[str, ...]]]:
    """``pair_refusals.refusal``."""
    from capmatrix.engine import pair_refusals

    return pair_refusals.refusal


def raised(file: str, code: str = "raise ValueError('no')", **names: Any) -> Exception:
    """What ``code`` raises as if it stood in ``file``."""
    try:
        exec(compile(code, STACK + file, "exec"), names)
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(
    "file",
    [
        "vllm/config/speculative.py",
        "vllm/engine/arg_utils.py",
        "vllm/platforms/rocm.py",
        "vllm/v1/attention/selector.py",
        "vllm/v1/attention/backends/utils.py",
        "vllm/v1/core/kv_cache_utils.py",
        "vllm/v1/worker/utils.py",
    ],
)
def test_vllm_s_own_checks_refuse(refusal: Any, file: str) -> None:
    assert refusal(raised(file)) == (Verdict.REJECTED, ("ValueError: no",))


@pytest.mark.parametrize(
    "file",
    [
        "vllm/v1/worker/gpu/model_runner.py",
        "vllm/v1/attention/backends/flex_attention.py",
        "vllm/model_executor/models/llama.py",
        "aiter/ops/mha.py",
        "torch/nn/modules/module.py",
    ],
)
def test_the_same_error_from_elsewhere_is_an_error(refusal: Any, file: str) -> None:
    assert refusal(raised(file)) == (Verdict.ERROR, ("ValueError: no",))


def test_what_a_check_calls_does_not_refuse_for_it(refusal: Any) -> None:
    """The deepest frame counts: a check of vLLM's that fails in a library has not refused anything."""
    broken = raised("transformers/utils.py")
    assert refusal(raised("vllm/config/model.py", "raise broken", broken=broken))[0] is Verdict.ERROR


@pytest.mark.parametrize(
    ("kind", "verdict"),
    [("RuntimeError", Verdict.ERROR), ("AssertionError", Verdict.ERROR), ("ImportError", Verdict.UNAVAILABLE)],
)
def test_other_exceptions_of_a_check_are_what_they_are(refusal: Any, kind: str, verdict: Verdict) -> None:
    assert refusal(raised("vllm/config/vllm.py", f"raise {kind}('no')"))[0] is verdict


@pytest.mark.parametrize(
    ("file", "verdict"),
    [("vllm/config/vllm.py", Verdict.REJECTED), ("vllm/lora/request.py", Verdict.ERROR)],
)
def test_a_validation_error_is_who_raised_it(refusal: Any, file: str, verdict: Verdict) -> None:
    """pydantic hides the frame; the check inside it is asked."""
    code = """
from pydantic import model_validator
from pydantic.dataclasses import dataclass

@dataclass
class Config:
    size: int = 0

    @model_validator(mode="after")
    def check(self):
        raise ValueError("too small")

Config()
"""
    found, reasons = refusal(raised(file, code))
    assert found is verdict
    assert reasons == ("ValidationError: too small",)


def test_a_value_that_is_not_allowed_at_all(refusal: Any) -> None:
    """No check of vLLM's raised this: pydantic did, for whoever asked."""
    code = "from pydantic import TypeAdapter\nTypeAdapter(int).validate_python('x')"
    assert refusal(raised("vllm/engine/arg_utils.py", code))[0] is Verdict.REJECTED
    assert refusal(raised("vllm/v1/worker/gpu/model_runner.py", code))[0] is Verdict.ERROR


def test_an_error_of_capmatrix_blames_nobody(refusal: Any) -> None:
    try:
        raise ValueError("ours")
    except ValueError as error:
        found, reasons = refusal(error)
    assert found is Verdict.UNVERIFIED and "capmatrix itself failed" in reasons[0]


def test_a_full_machine_blames_nobody(refusal: Any) -> None:
    said = 'raise RuntimeError("DefaultCPUAllocator: can\'t allocate memory: you tried to allocate 1 bytes")'
    found, reasons = refusal(raised("vllm/v1/worker/utils.py", said))
    assert found is Verdict.UNVERIFIED and reasons[0].startswith("unverified: memory")


def test_a_missing_package_is_no_refusal(refusal: Any) -> None:
    said = "raise ValueError('no valid backend: required dependencies not available')"
    assert refusal(raised("vllm/platforms/rocm.py", said))[0] is Verdict.UNAVAILABLE


def test_models_are_forgotten_although_torch_keeps_their_hooks() -> None:
    from torch._dynamo import convert_frame

    from capmatrix.engine.models_forgotten import models_forgotten

    class Model:
        def hook(self, old: Any, new: Any) -> None: ...

    kept = Model()
    handle = convert_frame.register_bytecode_hook(kept.hook)
    try:
        with models_forgotten():
            model = Model()
            convert_frame.register_bytecode_hook(model.hook)
            gone = weakref.ref(model)
            del model
            gc.collect()
            assert gone() is not None
        gc.collect()
        assert gone() is None
        assert kept.hook in convert_frame._bytecode_hooks.values()
    finally:
        handle.remove()


ARCHITECTURES = ["NowhereForCausalLM", "ElsewhereForCausalLM"]


@pytest.mark.parametrize(
    ("raises", "verdict", "reason"),
    [
        ("import a_package_that_nobody_has", Verdict.UNAVAILABLE, "No module named 'a_package_that_nobody_has'"),
        (
            "raise RuntimeError('no such operator')",
            Verdict.ERROR,
            "RuntimeError: no such operator; vLLM says: ValueError: Model",
        ),
    ],
)
def test_a_model_that_cannot_be_inspected_says_why(
    refusal: Any, tmp_path: Any, monkeypatch: Any, raises: str, verdict: Verdict, reason: str
) -> None:
    """vLLM imports the class in a process of its own, logs what that said, and raises without it; the second time it
    does not even try."""
    from vllm.model_executor.models import ModelRegistry, registry

    from capmatrix.engine import inspection

    name = ARCHITECTURES[verdict is Verdict.ERROR]
    (tmp_path / f"{name.lower()}.py").write_text(raises)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    inspection.watch()
    monkeypatch.setitem(ModelRegistry.models, name, registry._LazyRegisteredModel(name.lower(), name))
    for _ in range(2):
        assert registry._try_inspect_model_cls(name, ModelRegistry.models[name]) is None
        error = ValueError(
            f"Model architectures {[name]} failed to be inspected. Please check the logs for more details."
        )
        found, reasons = refusal(error)
        assert found is verdict
        assert any(reason in line for line in reasons)
    unknown = ValueError("Model architectures ['NeverSeen'] failed to be inspected.")
    assert inspection.cause(unknown) == ""
