"""From what a cell did to its verdict: compiled, computed, or raised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import torch

from ..batches import Batch
from ..cell import Cell, Check, Flag, Phase, Verdict
from . import failures, forward, inputs, judge, mla_inputs, pool, route
from .setup import Setup

Enter = Callable[[Phase], None]


def facts(cell: Cell, setup: Setup) -> dict[str, Any]:
    """What set-up resolved, by field of ``Record``."""
    cache = setup.layer.kv_cache
    return {
        "implementation": type(setup.layer.impl).__name__,
        "kernel_block": setup.kernel_blocks[0],
        "layout": setup.layout,
        "graph_support": setup.graph_support,
        "kv_cache": {
            "shape": list(cache.shape),
            "stride": list(cache.stride()),
            "dtype": str(cache.dtype).removeprefix("torch."),
            "manager_block": setup.block_size,
        },
    }


def compiled(cell: Cell, setup: Setup, batch: Batch, findings: dict[str, Any], enter: Enter) -> Verdict:
    """Run the dispatch once; every kernel it launches is compiled, none is executed."""
    placement = _place(cell, setup, batch)
    values = _values_of(cell).random_values(batch, cell.geometry, getattr(torch, cell.dtype)).on(setup.device)
    outcome = forward.run(setup, batch, placement, values, enter)
    return _unverified(outcome, findings) or Verdict.PASS


def computed(cell: Cell, setup: Setup, batch: Batch, findings: dict[str, Any], enter: Enter) -> Verdict:
    """Run on values and judge the numbers, with what unused slots hold varied.

    First with NaN in every unused slot: right then is right whatever they hold. Where that fails, zeroed
    and finite stale slots tell ``nan_unsafe`` from ``wrong``. The first call is repeated: cold and warm must
    agree. Then needles over finite stale slots.
    """
    placement = _place(cell, setup, batch)
    dtype = getattr(torch, cell.dtype)
    checks: list[Check] = findings.setdefault("checks", [])
    random = _values_of(cell).random_values(batch, cell.geometry, dtype).on(setup.device)
    probe = Probe(cell, setup, batch, placement, enter)
    outcome, expected = _run(probe, random, "nan", "forward", checks)
    again = forward.attend(setup, batch, placement, random, enter)
    enter(Phase.COMPARE)
    checks.append(judge.repeat_check(outcome, again, expected, "nan"))
    accuracy = judge.accuracy_check(cell, setup, batch, random, outcome, "nan")
    if accuracy is not None:
        checks.append(accuracy)
    only_nan = False
    # A first call that is off while the next is right is a matter of its being the first, not of NaN.
    if _failed(checks, "forward") and not _failed(checks, "repeat"):
        finite: list[Check] = []
        for fill in ("zeroed", "stale"):
            _run(probe, random, fill, "forward", finite)
            if _failed(finite, "forward"):
                break
        only_nan = not _failed(finite, "forward")
        if only_nan:
            checks[:] = [_reported(c) if c.part == "forward" else c for c in checks]
        checks += finite
    needles = _values_of(cell).needle_values(batch, cell.geometry, dtype).on(setup.device)
    _run(probe, needles, "stale", "needles", checks)
    bad = [c for c in checks if c.ok is False]
    if bad:
        findings["reasons"] = tuple(dict.fromkeys(_sentence(c) for c in bad))
        return Verdict.WRONG
    if only_nan:
        findings.setdefault("flags", []).append(Flag.NAN_UNSAFE)
    unverified = _unverified(outcome, findings)
    if unverified:
        return unverified
    if not any(c.ok for c in checks if c.part in ("forward", "needles")):
        told = [c.detail for c in checks if c.ok is None and c.detail and c.part != "execution"]
        findings["reasons"] = tuple(dict.fromkeys(told)) or ("no row could be judged",)
        return Verdict.UNVERIFIED
    return Verdict.PASS


class Probe(NamedTuple):
    """What the runs of one cell share."""

    cell: Cell
    setup: Setup
    batch: Batch
    placement: inputs.Placement
    enter: Enter


def _place(cell: Cell, setup: Setup, batch: Batch) -> inputs.Placement:
    window = cell.geometry.sliding_window
    return inputs.place(batch, setup.block_size, setup.kv_cache_config.num_blocks, window=window).on(setup.device)


def _values_of(cell: Cell) -> Any:
    """The module that makes values of the cell's geometry."""
    return inputs if cell.geometry.mla is None else mla_inputs


def _run(
    probe: Probe, values: inputs.Values, fill: str, part: str, checks: list[Check]
) -> tuple[forward.Outcome, judge.Expectation | None]:
    cell, setup, batch, placement, enter = probe
    before = pool.fill(setup.layer, fill)
    outcome = forward.run(setup, batch, placement, values, enter)
    enter(Phase.COMPARE)
    written, stored = judge.write_check(cell, setup, placement, values, before, fill)
    checks += written
    checks.append(judge.band_check(outcome, fill))
    if stored is None:
        checks.append(Check(part, None, fill, detail="the cache as stored cannot be read back"))
        return outcome, None
    checks += judge.query_checks(cell, setup, batch, values, outcome, fill)
    kernels = tuple(k.name for k in route.so_far() if k.phase == "forward" and k.kind != "stand_in")
    expected = judge.expected(cell, setup, batch, values, stored, outcome, kernels)
    checks.append(judge.forward_check(part, fill, outcome, expected))
    return outcome, expected


def _failed(checks: list[Check], part: str | None = None) -> bool:
    return any(c.ok is False for c in checks if part is None or c.part == part)


def _reported(check: Check) -> Check:
    """The check as reported, not judged: it failed only with NaN in slots that nobody may read."""
    return msgspec.structs.replace(check, ok=None)


def _sentence(check: Check) -> str:
    if check.part in ("write", "guard", "query", "repeat"):
        return f"{check.part}: {check.detail}"
    where = f"{check.part} with {check.cache} unused slots"
    if check.unwritten_count:
        return f"{where}: {check.unwritten_count} rows not written or all NaN; {check.detail}"
    return f"{where}: {check.detail}"


def _unverified(outcome: forward.Outcome, findings: dict[str, Any]) -> Verdict | None:
    """Unverified where what wrote the rows is not what would write them on the GPU; says why."""
    rows, of = int(outcome.native_rows.sum()), outcome.output.shape[0]
    attention = [k for k in route.so_far() if k.phase == "forward"]
    if rows:
        names = ", ".join(route.natives())
        findings["reasons"] = (f"unverified: native: {names} wrote {rows} of {of} rows; it has no code on this target",)
    elif outcome.output.device.type == "cpu" and not any(k.kind == "triton" for k in attention):
        findings["reasons"] = (
            "unverified: torch: PyTorch computed the attention on the CPU; no kernel of it exists on this target",
        )
    else:
        return None
    return Verdict.UNVERIFIED


def of_exception(
    cell: Cell, error: Exception, phase: Phase, findings: dict[str, Any]
) -> tuple[Verdict, tuple[str, ...]]:
    """The verdict of a cell that raised ``error`` in ``phase``, with its reasons."""
    line = failures.first_line(error)
    if isinstance(error, route.NativeMissing):
        return Verdict.UNVERIFIED, (f"unverified: native: {error.name} has no code on this target",)
    if phase is Phase.SELECT and isinstance(error, ValueError):
        return Verdict.REJECTED, (line,)
    if isinstance(error, ImportError):
        return Verdict.UNAVAILABLE, (line,)
    if "Torch not compiled with CUDA enabled" in line:
        return Verdict.UNVERIFIED, ("unverified: it makes a tensor on the GPU itself, and this target has none",)
    if "can't allocate memory" in line:
        return Verdict.UNVERIFIED, (f"unverified: memory: more than a worker may have on this machine: {line}",)
    if not failures.in_the_stack(error):
        # Nothing of vLLM, AITER, Triton or torch raised it: capmatrix itself failed, and blames no backend.
        return Verdict.UNVERIFIED, (f"unverified: capmatrix itself failed: {line}",)
    limit = _beyond_interpreter(error)
    if limit:
        return Verdict.UNVERIFIED, (f"unverified: interpreter: {limit}",)
    return Verdict.ERROR, (line,)


def _beyond_interpreter(error: Exception) -> str:
    """What Triton's interpreter cannot do, where that is why a kernel stopped; else empty."""
    from triton.runtime.errors import InterpreterError

    if not isinstance(error, InterpreterError):
        return ""
    cause = error.__cause__ or error
    if isinstance(cause, NotImplementedError):
        return f"{type(cause).__name__}: {cause}"
    if isinstance(cause, AssertionError) and str(cause) == "Assume failed":
        return "a tl.assume of the kernel does not hold, which a GPU does not check"
    return ""
