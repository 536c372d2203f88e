"""Run cells inside a worker: select, set up, run a batch, judge it, and say what happened as a record."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

import msgspec

from .. import batches, codec, targets
from ..cell import Cell, Claim, Flag, Force, Phase, Record, Rung, Verdict
from ..grid import Workload
from ..pair import Pair, PairRecord
from ..rungs import reachable
from ..timings import Sample
from . import bootstrap

Emit = Callable[[str, dict[str, Any]], None]

#: Seconds to wait for memory that other workers on the same GPU hold for a while.
_OTHERS_S = 3.0


def open_session(target: str, switches: Mapping[str, str], options: Mapping[str, Any]) -> Session:
    """Import everything a worker for ``target`` needs; called once, in the server, before it forks.

    ``options``: ``aiter``, the path of an AITER checkout or empty; ``triton_cache``, a folder for compiled kernels or
    empty. Raises Unavailable with the reason.
    """
    parsed = targets.parse(target)
    paths = (str(options.get(name) or "") for name in ("aiter", "triton_cache"))
    extensions = bootstrap.boot(parsed, switches, *paths)
    from . import environment

    return Session(parsed, environment.collect(parsed, switches, extensions))


class Session:
    """Cells of one target and switch set; cells that differ only in batch share their set-up."""

    def __init__(self, target: targets.Target, environment: Any) -> None:
        from . import compile_once, compile_watch, preload

        self.target = target
        self.environment = environment
        self._shared: tuple[object, Any] | None = None
        self._device: Any = None
        #: Set after a cell that left this process's GPU context unusable: the worker must be replaced.
        self.spent = False
        self._aiter: dict[str, Any] | None = None
        self._claimed: tuple[object, list[Claim]] | None = None
        self._phase = Phase.SELECT
        self._phases: list[tuple[Phase, float]] = []
        self._emit: Emit = lambda kind, data: None
        compile_watch.install(self._compiling, self._compiled)
        compile_once.install()
        preload.backends()
        preload.flex(target.kind)
        preload.models()
        preload.compiler()
        preload.pairs(self.target.kind)

    def run(self, cell: Cell, emit: Emit) -> Record:
        """One cell's record; whatever vLLM, Triton or AITER raises becomes its verdict."""
        from . import failures, flex_interpreted, native_ops, route, shims

        self._emit = emit
        self._phases = []
        self._enter(Phase.SELECT)
        started = datetime.now(timezone.utc)
        route.start()
        native_ops.forget_claims()
        flex_interpreted.forget()
        shims.drain()
        findings: dict[str, Any] = {}
        try:
            self._take()
            verdict = self._judged(cell, findings)
        except Exception as error:
            verdict, findings["reasons"] = self._of_exception(cell, error, findings)
            findings["failure"] = failures.describe(error)
            if verdict is Verdict.ERROR:
                # A half-built or half-written set-up must not serve the next batch.
                self._shared = None
        verdict = self._after(verdict, findings)
        blamed = self._aiter_to_blame(cell, verdict, findings)
        if blamed:
            findings["reasons"] = (blamed, *findings.get("reasons", ()))
            verdict = Verdict.UNAVAILABLE
        return self._record(cell, verdict, findings, started)

    def _take(self) -> None:
        """Before the first cell of a worker: the device that its tensors are on."""
        import torch

        if self._device is None and self.target.kind == "device":
            from . import device_boot

            self._device = device_boot.take()
        self._device = self._device or torch.device("cpu")

    def _after(self, verdict: Verdict, findings: dict[str, Any]) -> Verdict:
        """After a failure on a GPU: whether the GPU still works for this process; it says so if not."""
        if self.target.kind != "device" or verdict in (Verdict.PASS, Verdict.REJECTED):
            return verdict
        from . import device_verdicts

        verdict, self.spent = device_verdicts.after(verdict, findings)
        if self.spent:
            self._shared = None
        return verdict

    def run_pair(self, pair: Pair, emit: Emit) -> PairRecord:
        """A pair's record: vLLM's own engine set-up of both models, then their attention in the pool it made."""
        from . import flex_interpreted, pair_session

        self._shared = None
        flex_interpreted.forget()
        gc.collect()
        self._emit = emit
        self._phases = []
        self._enter(Phase.CONFIGURE)
        self._take()
        where = pair_session.Where(self.environment.id, self.target.kind, self._device, posing=bool(self.target.arch))
        record = pair_session.run(pair, where, self._enter, self._phases)
        findings = {"reasons": record.reasons}
        verdict = self._after(record.verdict, findings)
        if verdict is record.verdict:
            return record
        return msgspec.structs.replace(record, verdict=verdict, reasons=tuple(findings["reasons"]))

    def time(self, cell: Cell, workload: Workload, repeats: int, emit: Emit) -> Sample:
        """One round of a cell's time under a profile; with no repeats, what that compiles is compiled and no more.

        The set-up is made anew and its memory given back: the cell's rivals want it next.
        """
        from . import failures, timing

        if self.target.kind != "device":
            return Sample(refused="times are of GPUs alone")
        self._shared = None
        gc.collect()
        self._emit = emit
        self._phases = []
        self._enter(Phase.TIME)
        try:
            self._take()
            return timing.sample(cell, self._device, workload, repeats, self._enter)
        except Exception as error:
            findings: dict[str, Any] = {}
            verdict, reasons = self._of_exception(cell, error, findings)
            self._after(verdict, findings)
            return Sample(refused=reasons[0] if reasons else failures.first_line(error))
        finally:
            gc.collect()
            if not self.spent:
                self._release()

    def _aiter_to_blame(self, cell: Cell, verdict: Verdict, findings: dict[str, Any]) -> str | None:
        """Why an AITER outside vLLM's range, not the backend, is at fault; None when it is not."""
        from . import aiter_loader, aiter_support

        if verdict not in (Verdict.ERROR, Verdict.WRONG, Verdict.UNAVAILABLE) or findings.get("foreign"):
            return None
        if self._aiter is None:
            self._aiter = aiter_loader.describe()
        vllm = self.environment.versions["vllm"]
        return aiter_support.classify(cell.backend, self._aiter, findings.get("failure"), vllm)

    def _judged(self, cell: Cell, findings: dict[str, Any]) -> Verdict:
        """``_judge``, once more where the numbers could not be compared for want of memory: others share the GPU."""
        import torch

        try:
            return self._judge(cell, findings)
        except torch.OutOfMemoryError:
            if self._phase is not Phase.COMPARE:
                raise
        self._shared = None
        self._release()
        time.sleep(_OTHERS_S)
        findings.clear()
        return self._judge(cell, findings)

    def _judge(self, cell: Cell, findings: dict[str, Any]) -> Verdict:
        from . import device_verdicts, execution, route, verdicts

        foreign = device_verdicts.foreign(cell.backend) if self.target.kind == "device" else ""
        if foreign:
            findings["reasons"], findings["foreign"] = (foreign,), True
            return Verdict.UNAVAILABLE
        findings["claims"] = self._claims(cell)
        validation = findings["claims"][0]
        if validation.accepts is False and cell.force is not Force.VALIDATION:
            findings["reasons"] = tuple(validation.data["reasons"])
            return Verdict.REJECTED
        setup = self._setup(cell)
        # What set-up itself launched (weights absorbed, kernels tuned) is no part of a batch's route.
        route.start()
        findings |= verdicts.facts(cell, setup)
        batch = batches.build(
            cell.batch,
            block_size=setup.block_size,
            num_speculative_tokens=cell.num_speculative_tokens,
            lengths=cell.lengths,
        )
        batch = batches.in_worker_order(batch, 1 + cell.num_speculative_tokens)
        if setup.plan is not None:
            dispatched = setup.plan.dispatch(batch)
            findings["checks"] = [execution.check(setup.plan, batch, dispatched)]
            batch = execution.padded(batch, dispatched)
        elif cell.execution != "eager":
            findings["checks"] = [execution.WITHOUT]
        findings["has_decode"] = any(request.query_len == 1 for request in batch.requests)
        judge = verdicts.compiled if self.target.kind == "offline" else verdicts.computed
        verdict = judge(cell, setup, batch, findings, self._enter)
        if verdict is Verdict.PASS:
            verdict = self._beyond_eager(cell, setup, batch, findings)
        return verdict

    def _beyond_eager(self, cell: Cell, setup: Any, batch: batches.Batch, findings: dict[str, Any]) -> Verdict:
        """A passing cell's full graphs."""
        from . import graphs, route

        verdict = Verdict.PASS
        if graphs.applies(cell, setup, batch):
            if self.target.kind == "offline":
                return graphs.compiled(cell, setup, batch, findings, self._enter)
            findings["route"] = route.so_far()
            verdict = graphs.computed(cell, setup, batch, findings, self._enter)
        return verdict

    def _claims(self, cell: Cell) -> list[Claim]:
        from . import claims

        key = codec.setup_key(cell), cell.lengths
        if self._claimed is None or self._claimed[0] != key:
            self._claimed = key, claims.ask(cell)
        return list(self._claimed[1])

    def _setup(self, cell: Cell) -> Any:
        from . import setup

        key = codec.setup_key(cell), cell.lengths
        if self._shared is None or self._shared[0] != key:
            self._shared = None
            # A set-up is full of cycles, and its buffers are large: another must not wait for the collector.
            gc.collect()
            self._release()
            self._shared = key, setup.build(cell, self._device, self._enter)
        return self._shared[1]

    def _release(self) -> None:
        """Give a GPU's memory back between set-ups: other workers may share it."""
        if self.target.kind == "device":
            import torch

            torch.cuda.empty_cache()

    def _of_exception(self, cell: Cell, error: Exception, findings: dict[str, Any]) -> tuple[Verdict, tuple[str, ...]]:
        from . import device_verdicts, verdicts

        if self.target.kind == "device":
            found = device_verdicts.of_exception(error, self._phase, posing=bool(self.target.arch))
            if found is not None:
                return found
        return verdicts.of_exception(cell, error, self._phase, findings)

    def _record(self, cell: Cell, verdict: Verdict, findings: dict[str, Any], started: datetime) -> Record:
        from . import intended, route, shims

        kernels = findings.get("route") or route.so_far()
        names = tuple(k.name for k in kernels)
        flags = set(findings.get("flags", ()))
        if any(k.kind == "stand_in" for k in kernels):
            flags.add(Flag.STAND_IN)
        if intended.fallback(cell.backend, names, findings.get("has_decode", True)):
            flags.add(Flag.FALLBACK)
        if cell.force is Force.VALIDATION:
            flags.add(Flag.FORCED_VALIDATION)
        elif cell.force is Force.KERNEL_BLOCK:
            flags.add(Flag.FORCED_KERNEL_BLOCK)
        ended = datetime.now(timezone.utc)
        self._phases.append((Phase.TIME, time.monotonic()))
        durations: dict[str, float] = {}
        for (phase, since), (_, until) in zip(self._phases, self._phases[1:], strict=False):
            durations[phase.value] = round(durations.get(phase.value, 0.0) + until - since, 4)
        claims: list[Claim] = findings.get("claims", [])
        return Record(
            cell_id=codec.cell_id(cell),
            cell=cell,
            verdict=verdict,
            rung=Rung.DECLARED if verdict in (Verdict.REJECTED, Verdict.UNAVAILABLE) else reachable(cell.target),
            phase=self._phase,
            environment=self.environment.id,
            reasons=tuple(findings.get("reasons", ())),
            flags=tuple(sorted(flags, key=lambda flag: flag.value)),
            failure=findings.get("failure"),
            claims=tuple(claims),
            implementation=findings.get("implementation", ""),
            kernel_block=findings.get("kernel_block"),
            layout=findings.get("layout", ""),
            kv_cache=findings.get("kv_cache", {}),
            graph_support=findings.get("graph_support", ""),
            route=kernels,
            checks=tuple(findings.get("checks", ())),
            shims=shims.drain(),
            durations=durations,
            started_at=started.isoformat(timespec="milliseconds"),
            ended_at=ended.isoformat(timespec="milliseconds"),
        )

    def _enter(self, phase: Phase, detail: str = "") -> None:
        self._phase = phase
        self._phases.append((phase, time.monotonic()))
        self._emit("phase", {"phase": phase.value, "detail": detail})

    def _compiling(self, kernel: str) -> None:
        self._before_compile = self._phase
        self._enter(Phase.COMPILE, kernel)

    def _compiled(self) -> None:
        self._enter(self._before_compile)
