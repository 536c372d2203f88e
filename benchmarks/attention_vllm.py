"""vLLM's own attention benchmark over given calls, in one process that capmatrix booted: the other side of
``attention_benchmarks.py``, which starts it.

python benchmarks/attention_vllm.py FOLDER WORK.json RESULT.jsonl

FOLDER is vLLM's benchmarks/attention_benchmarks. Its ``runner.run_attention_benchmark`` is called as it is, twice a
call: on the backend itself (``plain``: the attention alone), then on a backend of ours that derives from it and does
what vLLM's layer does around it (``layer``: an fp8 query is quantised, new keys and values are written), on a cache
of random numbers whose blocks lie scattered. Each line of RESULT is written as soon as it is known.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import types
from pathlib import Path
from typing import Any

#: Where vLLM's benchmark expects its model; a folder of that name is taken before anything is looked up elsewhere.
MODEL = "meta-llama/Meta-Llama-3-8B"

#: Its shape as published; heads and sizes of a call come from the call. One layer is enough: nothing is loaded.
MODEL_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 1,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "tie_word_embeddings": False,
}

#: Heads of a call: those of ``attention_cells.DRAFTER``.
HEADS, KV_HEADS, HEAD_SIZE = 32, 8, 128

VARIANTS = ("plain", "layer")


def stand_in_for_rich() -> list[str]:
    """vLLM's benchmark imports ``rich`` for its tables alone, which nobody prints here."""
    try:
        import rich.console
        import rich.table  # noqa: F401
    except ImportError:
        for name, attribute in (("rich", ""), ("rich.console", "Console"), ("rich.table", "Table")):
            module = types.ModuleType(name)
            if attribute:
                setattr(module, attribute, type(attribute, (), {}))
            sys.modules[name] = module
        return ["rich"]
    return []


def import_runner(folder: Path) -> tuple[Any, list[str]]:
    """vLLM's ``runner`` module, and the modules that a stand-in was given for. ImportError where it has changed."""
    replaced = stand_in_for_rich()
    sys.path.insert(0, str(folder))
    import runner

    return runner, replaced


def provide_model(folder: Path) -> None:
    """Go to ``folder`` and put the config.json of the model there: vLLM's benchmark would download it."""
    place = folder / MODEL
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.json").write_text(json.dumps(MODEL_CONFIG), encoding="utf-8")
    os.chdir(folder)


def config(runner: Any, call: dict[str, Any], backend: str, device: str) -> Any:
    """vLLM's ``BenchmarkConfig``: graph replays for decode and verify, eager for prefill, as capmatrix times them."""
    return runner.BenchmarkConfig(
        backend=backend,
        batch_spec=call["spec"],
        num_layers=call["layers"],
        head_dim=HEAD_SIZE,
        num_q_heads=HEADS,
        num_kv_heads=KV_HEADS,
        block_size=call["block_size"],
        device=device,
        kv_cache_dtype=call["kv_cache_dtype"],
        use_cuda_graphs=call["batch"] != "prefill",
    )


def as_layer(name: str, block_size: int, quantised: bool) -> str:
    """Register a backend that does what vLLM's layer does around ``name``'s attention; how vLLM calls it."""
    from vllm.model_executor.layers.quantization.input_quant_fp8 import QuantFP8
    from vllm.model_executor.layers.quantization.utils.quant_utils import GroupShape
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    backend = AttentionBackendEnum[name].get_class()
    prepared: set[int] = set()

    class Impl(backend.get_impl_cls()):  # type: ignore[misc]
        """The backend's, called with what a model's layer is called with."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.quantise = None
            if quantised and self.supports_quant_query_input:
                made = QuantFP8(static=True, group_shape=GroupShape.PER_TENSOR)
                # The operator itself, as where a server is eager; the configuration here would compile another.
                self.quantise = made.forward_hip if current_platform.is_rocm() else made.forward_cuda
            # The benchmark would quantise before it times.
            self.supports_quant_query_input = False

        def forward(self, layer: Any, query: Any, key: Any, value: Any, cache: Any, metadata: Any, **more: Any) -> Any:
            """Quantise, write, attend; the first call with a cache fills it, outside of any capture."""
            if name != "FLEX_ATTENTION" and id(metadata) not in prepared:
                prepared.add(id(metadata))
                scatter(metadata, block_size)
            if cache.data_ptr() not in prepared:
                prepared.add(cache.data_ptr())
                randomise(cache)
            if self.quantise is not None:
                flat, _ = self.quantise(query.flatten(1), layer._q_scale)
                query = flat.view(query.shape)
            if not backend.forward_includes_kv_cache_update:
                self.do_kv_cache_update(layer, key, value, cache, metadata.slot_mapping)
            return super().forward(layer, query, key, value, cache, metadata, **more)

    made = type("AsLayer", (backend,), {"get_impl_cls": staticmethod(lambda: Impl), "__module__": __name__})
    globals()["AsLayer"] = made
    register_backend(AttentionBackendEnum.CUSTOM)(made)
    return "CUSTOM"


def scatter(metadata: Any, block_size: int) -> None:
    """Give the requests of ``metadata`` other blocks, in place and at random, and their new tokens the slots there.

    As vLLM's benchmark makes them, blocks are numbered through and new tokens go to the first slots of all.
    FLEX_ATTENTION's metadata holds a mask made from the table, so that it keeps its own.
    """
    import torch

    table = metadata.block_table
    order = torch.randperm(table.numel(), device=table.device).to(table.dtype)
    table.copy_(order[table.long()])
    counts = metadata.query_start_loc.diff().long()
    request = torch.repeat_interleave(torch.arange(len(counts), device=table.device), counts)
    row = torch.arange(int(counts.sum()), device=table.device) - metadata.query_start_loc.long()[request]
    position = metadata.seq_lens.long()[request] - counts[request] + row
    slots = table.long()[request, position // block_size] * block_size + position % block_size
    metadata.slot_mapping.copy_(slots)


def randomise(cache: Any) -> None:
    """Random numbers of both signs, finite in every FP8 format; vLLM's benchmark leaves zeros."""
    import torch

    if cache.element_size() > 1:
        cache.normal_()
        return
    bits = cache.view(torch.uint8)
    # From 1: a 0 whose sign is set is NaN in e4m3fnuz.
    bits.random_(1, 0x48)
    bits[..., 1::2] += 0x80


def measured(runner: Any, call: dict[str, Any], variant: str, device: str) -> dict[str, Any]:
    """One line of the result: microseconds a layer, or the error; ``seconds`` is all that the call took."""
    since = time.perf_counter()
    line: dict[str, Any] = {"kind": "call", "key": call["key"], "variant": variant}
    try:
        backend = call["backend"]
        if variant == "layer":
            backend = as_layer(backend, call["block_size"], call["kv_cache_dtype"].startswith("fp8"))
        found = runner.run_attention_benchmark(config(runner, call, backend, device))
        for name in ("mean", "median", "std", "min", "max"):
            line[f"{name}_us"] = round(getattr(found, f"{name}_time") * 1e6, 3)
    except Exception as error:
        text = str(error).strip().splitlines()
        line["error"] = f"{type(error).__name__}: {text[0] if text else ''}"[:300]
    return line | {"seconds": round(time.perf_counter() - since, 4)}


def empty_replay() -> float:
    """Median microseconds between events around the replay of a graph that holds one tiny kernel.

    capmatrix times replays one by one, so each time holds this; vLLM's benchmark has many calls in a graph.
    """
    import statistics

    import torch

    one = torch.zeros(1, device="cuda")
    busy = torch.empty(512 << 20, dtype=torch.uint8, device="cuda")
    one.add_(1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        one.add_(1)
    times = []
    for _ in range(24):
        busy.fill_(1)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1000)
    return float(statistics.median(times))


def main(arguments: list[str]) -> int:
    """Boot as a worker of capmatrix does, then every call, plain ones first."""
    folder, work, result = (Path(word).resolve() for word in arguments)
    given = json.loads(work.read_text(encoding="utf-8"))
    with result.open("a", encoding="utf-8") as file:

        def tell(line: dict[str, Any]) -> None:
            file.write(json.dumps(line | {"at": time.time()}) + "\n")
            file.flush()

        from capmatrix import targets
        from capmatrix.engine import bootstrap

        bootstrap.boot(targets.parse(given["target"]), {}, given["aiter"], given["triton_cache"])
        from capmatrix.engine import device_boot, device_route, preload

        # vLLM inspects a model's class in a process of its own unless it is registered, which capmatrix does too.
        preload.models()
        device_boot.take()
        runner, replaced = import_runner(folder)
        provide_model(result.parent / "model")
        from vllm.v1.worker.workspace import init_workspace_manager

        init_workspace_manager("cuda:0")
        tell({"kind": "boot", "replaced": replaced})
        with device_route.quiet(), open(os.devnull, "w") as null, contextlib.redirect_stdout(null):
            for variant in given["variants"]:
                for call in given["calls"]:
                    tell(measured(runner, call, variant, "cuda:0"))
                tell({"kind": "done", "variant": variant})
            tell({"kind": "replay", "median_us": round(empty_replay(), 2)})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
